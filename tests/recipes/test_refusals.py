"""Hyper-parameters and weights that a recipe refuses."""

import pytest
import torch

import spherenorm as sn
from tests.harness import ROWS, ZOO, refuses

NAN = float("nan")
REFUSED = {
    **dict.fromkeys(("lr", "weight_decay", "eps", "alpha", "wd_ratio", "trust"), (-0.1, NAN)),
    **dict.fromkeys(("momentum", "beta2", "memory"), (-0.1, 1.0, NAN)),
    **dict.fromkeys(("dampening", "outward", "inward"), (-0.1, 1.5)),
    **dict.fromkeys(("delta", "nu", "floor", "max_lr"), (-0.1, 0.0)),
    **dict.fromkeys(("radius", "gain_ratio"), (-0.1,)),
    **dict.fromkeys(("depth", "tokens", "batch", "d0", "longest", "decay"), (-0.1, 0.0)),
    **dict.fromkeys(("every",), (0, 0.5)),
    **dict.fromkeys(("lamb", "gamma", "lookahead", "power", "eps2"), (-0.1, NAN)),
    **dict.fromkeys(("coefficients", "scale", "precision", "per", "view"), ("orignal",)),
    "betas": ((-0.1, 0.9), (0.9, 1.0)),
    "views": (("channels",),),
    "alpha": (-0.1,),
}
OTHERS = {("sgdp", "eps"): (), ("qhm", "nu"): (-0.1, 1.5)}
"""Values that a recipe refuses under a name that means another number there, or none."""

WRAPPED = ("hyperball(lion)", "rotational(sgd)", "radial_brake(sgd)")
CASES = [
    pytest.param(recipe, name, value, id=f"{recipe}-{name}={value}")
    for recipe in dict.fromkeys((*sn.recipes.__all__, *(str(row.recipe) for row in ZOO), *WRAPPED))
    for name, values in REFUSED.items()
    if name in sn.bind(recipe).defaults
    for value in OTHERS.get((recipe, name), values)
]


@pytest.mark.parametrize(("recipe", "name", "value"), CASES)
def test_a_value_outside_its_interval(recipe, name, value):
    read = {"momentum": 0.9} if name == "dampening" else {}  # without momentum it has no part
    with refuses(name, value):
        sn.bind(recipe, **{**read, name: value}).rule  # noqa: B018  (it raises)


@pytest.mark.parametrize(
    ("recipe", "settings"),
    [
        ("sgdp", {"project_buffer": True, "nesterov": True}),
        ("adamc", {"max_lr": 0.01, "lr": 0.02}),
        ("hyperball(sgd)", {"weight_decay": 0.1}),
    ],
)
def test_settings_that_do_not_go_together(recipe, settings):
    with refuses(*settings, by=(ValueError, TypeError)):
        sn.bind(recipe, **settings).rule  # noqa: B018


@pytest.mark.parametrize("row", [row for row in [*ROWS, *ZOO] if row.fewest == 2], ids=str)
def test_a_bias_where_a_matrix_is_needed(row):
    with refuses((5,)):
        row.rule().init(torch.ones(5))


HELD = ("adamh", "muonh", "muown", "angularmuown", "hyperball(sgd)", "rotational(sgd)")


@pytest.mark.parametrize("name", HELD)
def test_a_weight_of_zero_has_no_direction_to_hold(name):
    with refuses("0"):
        sn.bind(name).rule.init(torch.zeros(3, 4))
