"""Refusals: of arguments, of groups that are added, and at a step; nothing changes by them."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch

import spherenorm as sn
from spherenorm import optim
from spherenorm import rules as r
from spherenorm.registry import recipe_names
from tests.harness import refuses
from tests.optim.plain import Plain, assert_same, refuses_and_changes_nothing

ONES = torch.ones(3, 2)


def weight(*shape):
    return torch.ones(shape or (3, 2), requires_grad=True)


def flattened(made):
    """As FullyShardedDataParallel marks a parameter."""
    made._fsdp_flattened = True
    return made


def no_rule(lr=0.1):
    return 3


def needs_lr(lr):
    return sn.chain(r.StepSize(lr))


def no_names(*rates):
    return sn.chain(r.StepSize(rates[0]))


ARGUMENTS = [
    # hyper-parameters
    ("AdamP", {"lr": -1}, ["lr", -1], ValueError),
    ("AdamP", {"lr": float("nan")}, ["lr", "nan"], ValueError),
    ("AdamP", {"lr": float("inf")}, ["lr", "inf"], ValueError),
    ("AdamP", {"lr": torch.tensor(-1.0)}, ["lr", -1.0], ValueError),
    ("AdamP", {"lr": torch.ones(2)}, ["lr", (2,)], ValueError),
    ("AdamP", {"lr": "0.1"}, ["lr", "'0.1'"], TypeError),
    ("AdamP", {"betas": (0.9, 1.0)}, ["beta2", 1.0], ValueError),
    ("AdamP", {"betas": (0.9, torch.tensor(1.0))}, ["beta2", 1.0], ValueError),
    ("AdamP", {"betas": (0.9,)}, ["betas", 2, (0.9,)], ValueError),
    ("AdamP", {"betas": 0.9}, ["betas", 2, 0.9], ValueError),
    ("AdamP", {"nesterov": "no"}, ["nesterov", "'no'"], TypeError),
    ("AdamP", {"per": "row"}, ["per", "'row'", "tensor", "unit"], ValueError),
    ("AdamP", {"views": ("chanel",)}, ["'chanel'", "channel"], ValueError),
    ("AdamP", {"views": "channel"}, ["views", "'channel'"], TypeError),
    ("SGD", {"momentum": 2}, ["sgd", "momentum", 2], ValueError),
    ("SGDP", {"nesterov": True, "project_buffer": True}, ["nesterov"], ValueError),
    # options
    ("AdamP", {"backend": "x"}, ["backend", "'x'", "auto", "rule", "compiled"], ValueError),
    ("AdamP", {"maximize": "no"}, ["maximize", "'no'"], TypeError),
    ("AdamP", {"maximize": 1}, ["maximize", 1], TypeError),
    ("Adam", {"zzz": 1}, ["Adam", "zzz", "lr", "weight_decay"], TypeError),
    ("SGD", {"momentun": 0.9}, ["momentun", "momentum"], TypeError),
    ("Adam", {"amsgrad": True}, ["amsgrad", True], TypeError),
    ("Adam", {"fused": True}, ["fused", True], TypeError),
    ("Adam", {"foreach": True}, ["foreach", True, "backend"], TypeError),
    ("Adam", {"capturable": True}, ["capturable", True], TypeError),
    ("Adam", {"differentiable": True}, ["differentiable", "functional"], TypeError),
    # weights
    ("SGD", {"params": []}, ["parameter"], ValueError),
    ("SGD", {"params": weight()}, ["params"], TypeError),
    ("SGD", {"params": [weight() * 2]}, ["non-leaf"], ValueError),
    ("SGD", {"params": torch.nn.Linear(3, 2)}, ["Linear", "parameters()"], TypeError),
    ("SGD", {"params": torch.nn.Linear(3, 2).parameters}, ["parameters()"], TypeError),
    ("SGD", {"params": [weight(), ONES.cfloat()]}, [1, (3, 2), "complex"], TypeError),
    ("SGD", {"params": [("scale", ONES.long())]}, [0, "scale", "integer"], TypeError),
    ("SGD", {"params": [("w", flattened(weight()))]}, [0, "w", "fully_shard"], ValueError),
    ("AdamP", {"views": ("groups=2",)}, [0, (3, 2), 2], ValueError),
    ("SGDG", {"view": "dim=5"}, [0, (3, 2), 5], ValueError),
    ("Muon", {"params": [weight(), weight(3)]}, [1, (3,), "matri"], ValueError),
]


@pytest.mark.parametrize(("name", "arguments", "named", "error"), ARGUMENTS)
def test_wrong_arguments_are_refused(name, arguments, named, error):
    with refuses(*named, by=error):
        getattr(optim, name)(**{"params": [weight()], **arguments})


SHARED = weight()
GROUPS = [
    ({"params": [SHARED]}, ["param"], ValueError),
    ({"params": torch.nn.Linear(3, 2)}, ["Linear", "parameters()"], TypeError),
    ({"params": [weight()], "lr": -1}, ["lr", -1], ValueError),
    ({"params": [weight()], "momentum": torch.tensor(1.5)}, ["momentum", 1.5], ValueError),
    ({"params": [weight()], "maximize": None}, ["maximize", None], TypeError),
    ({"params": [weight()], "backend": "x"}, ["backend", "'x'"], ValueError),
    ({"params": [weight()], "fused": True}, ["fused", True], TypeError),
    ({"params": [weight(), ONES.long()]}, [2, "integer"], TypeError),
    ({"params": [weight()], "recipe": "sdgp"}, ["sdgp", "sgdp"], ValueError),
    ({"params": [weight()], "recipe": 3}, ["recipe", 3], TypeError),
    ({"params": [weight()], "recipe": no_rule}, ["no_rule", 3], TypeError),
    ({"params": [weight()], "recipe": no_names}, ["no_names", "rates"], TypeError),
    ({"params": [weight()], "recipe": needs_lr}, ["needs_lr", "lr"], ValueError),
    ({"params": [weight()], "recipe": lambda lr=0.1: r.StepSize(lr)}, ["lambda"], ValueError),
]


def test_an_entry_that_has_no_effect_is_a_warning():
    for name, recipe, given in (
        ("momentum", "adamp", {"momentum": 0.5}),
        ("weight_decy", "adamp", {"weight_decy": 0.5}),
        ("betas", "sgd", {"betas": (0.9, 0.9), "recipe": "sgd"}),
        ("shares", "adamp", {"shares": (4, 1, 1)}),
        ("LR", "adamp", {"LR": 0.1}),
        ("learning_rate", "adamp", {"learning_rate": 0.1}),
        ("recpie", "adamp", {"recpie": "sgd"}),
    ):
        with pytest.warns(UserWarning, match=f"{name}=.*{recipe}.*weight_decay") as caught:
            optim.AdamP([{"params": [weight()], **given}])
        assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tags = {"name": "head", "initial_lr": 1.0, "no_decay": True, "decay_mult": 0.5, "layer": 3}
        optim.AdamP([{"params": [weight()], **tags}])


RECIPES = [*recipe_names(), "hyperball(lion)", "averaged(muon)"]
MULTIPLIERS = {
    "lr_scale": "lr",
    "lr_mult": "lr",
    "wd_mult": "weight_decay",
    "max_grad_norm": "clip",
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_multipliers_of_other_libraries_are_warned_of_for_every_recipe_alike(recipe):
    optimizer_class = sn.torch_optimizer(recipe)
    for name, instead in MULTIPLIERS.items():
        with pytest.warns(
            UserWarning, match=f"{name}=0.5 in a param_group has no effect.*{instead}"
        ):
            optimizer_class([{"params": [weight()], name: 0.5}])


@pytest.mark.parametrize(
    ("name", "entry", "instead"),
    [
        ("Muon", {"use_muon": False}, "adamw"),
        ("Muon", {"algorithm": "lion"}, "lion"),
        ("Muon", {"algorithm": "AdamW"}, "adamw"),
        ("Muon", {"optim": "sgd"}, "sgd"),
        ("Muon", {"optim": torch.optim.SGD}, "adamw"),
        ("Muon", {"use_adamw": True}, "adamw"),
        ("AdamW", {"use_muon": True}, "muon"),
        ("AdamW", {"optimizer": "something"}, "adamw"),
    ],
)
def test_words_by_which_other_libraries_choose_an_optimizer_are_refused(name, entry, instead):
    ((key, value),) = entry.items()
    with refuses(key, value, f'"recipe": "{instead}"', by=TypeError):
        getattr(optim, name)([{"params": [weight()]}, {"params": [weight()], **entry}])


def test_words_that_choose_the_recipe_that_the_group_has_are_taken():
    for entry in ({"use_muon": True}, {"use_adamw": False}, {"algorithm": "muon"}, {"optim": None}):
        optim.Muon([{"params": [weight()], **entry}])
    optimizer = optim.Muon([{"params": [weight()], "use_muon": False, "recipe": "adamw"}])
    assert optimizer.param_groups[0]["recipe"] == "adamw"


FROZEN = (torch.uint8, torch.int8, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_frozen_weight_of_any_dtype_is_no_error_and_stays(recipe):
    frozen = [torch.nn.Parameter(ONES.to(dtype), requires_grad=False) for dtype in FROZEN]
    trained = torch.nn.Parameter(torch.randn(3, 2))
    optimizer = sn.torch_optimizer(recipe)([*frozen, trained])
    trained.grad = torch.randn(3, 2)
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    assert sn.explain(optimizer)
    assert all(torch.equal(x, ONES.to(x.dtype)) for x in frozen[:-1])
    assert not any(x in optimizer.state for x in frozen)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_float8_weight_is_refused_when_the_optimizer_is_made(recipe):
    short = torch.nn.Parameter(ONES.to(torch.float8_e4m3fn))
    with refuses(0, (3, 2), "float8_e4m3fn", "bfloat16", by=TypeError):
        sn.torch_optimizer(recipe)([short])


@pytest.mark.parametrize(("group", "named", "error"), GROUPS)
def test_a_refused_group_is_not_added(group, named, error):
    optimizer = optim.SGD([SHARED], lr=0.1, momentum=0.9)
    with refuses_and_changes_nothing(optimizer, *named, by=error):
        optimizer.add_param_group(group)
    assert len(optimizer.param_groups) == 1


def test_a_recipe_of_the_same_name_as_the_optimizers_is_refused():
    """A checkpoint could not tell them apart."""

    def twin(lr=0.1):
        return sn.chain(r.StepSize(2 * lr))

    twin.__module__, twin.__qualname__ = needs_lr.__module__, "needs_lr"
    optimizer = sn.torch_optimizer(needs_lr)([weight()], lr=0.1)
    with refuses_and_changes_nothing(optimizer, "needs_lr"):
        optimizer.add_param_group({"params": [weight()], "recipe": twin})


TAKEN = {
    "maximize": lambda lr=0.1, maximize=False: r.StepSize(lr),
    "backend": lambda lr=0.1, backend="fast": r.StepSize(lr),
    "params": lambda params, lr=0.1: r.StepSize(lr),
    "recipe": lambda lr=0.1, recipe="cake": r.StepSize(lr),
    "self": lambda self=1, lr=0.1: r.StepSize(lr),
    "param_names": lambda lr=0.1, param_names=(): r.StepSize(lr),
}


@pytest.mark.parametrize("name", TAKEN)
def test_a_hyper_parameter_with_the_name_of_another_argument_is_refused(name):
    with refuses(name, by=TypeError):
        sn.torch_optimizer(TAKEN[name], "Taken")
    with refuses(name, by=TypeError):
        optim.SGD([{"params": [weight()], "recipe": TAKEN[name]}])


@pytest.mark.parametrize(
    ("recipe", "named", "error"),
    [
        ("no_such_recipe", ["no_such_recipe"], ValueError),
        (3, [3], TypeError),
        (no_names, ["no_names"], TypeError),
    ],
)
def test_no_class_is_made_of_what_is_no_recipe(recipe, named, error):
    with refuses(*named, by=error):
        sn.torch_optimizer(recipe)


def test_a_class_needs_the_values_that_its_recipe_has_no_defaults_for():
    cls = sn.torch_optimizer(needs_lr)
    with refuses("lr", by=TypeError):
        cls([weight()])
    assert cls([weight()], 0.3).param_groups[0]["lr"] == 0.3


class Fragile(sn.Rule):
    """Raises for vectors."""

    def update(self, update, state):
        if update.weight.ndim == 1:
            raise RuntimeError("vectors break it")
        return replace(update, direction=2 * update.direction), state


def fragile(lr=0.1, momentum=0.9):
    return sn.chain(r.HeavyBall(momentum), Fragile(), r.StepSize(lr))


def sparse(weights, optimizer):
    weights[1].grad = weights[1].grad.to_sparse()


def expanded(weights, optimizer):
    weights[1].data = torch.ones(1, 2).expand(3, 2)


def flattened_late(weights, optimizer):
    flattened(weights[1])


def doubled(weights, optimizer):
    weights[1].grad = None
    weights[1].data = weights[1].data.double()
    weights[1].grad = torch.ones(3, 2, dtype=torch.float64)


def reshaped(weights, optimizer):
    weights[1].grad = None
    weights[1].data = torch.ones(5, 2)
    weights[1].grad = torch.ones(5, 2)


def long_counter(weights, optimizer):
    optimizer.state[weights[1]]["step"] = torch.ones(3, dtype=torch.float64)


def entry(name, value):
    def change(weights, optimizer):
        optimizer.param_groups[1][name] = value

    return change


STEPS = [
    (sparse, [1, "second", "sparse"], TypeError),
    (expanded, [1, "second", "expanded"], ValueError),
    (flattened_late, [1, "second", "fully_shard"], ValueError),
    (doubled, [1, "second", "exp_avg", "float64", "float32"], ValueError),
    (reshaped, [1, "second", "exp_avg", (3, 2), (5, 2)], ValueError),
    (long_counter, [1, "second", "step", (3,)], ValueError),
    (entry("lr", -0.5), ["param_groups[1]", "lr", -0.5], ValueError),
    (entry("betas", (0.9, 1.5)), ["beta2", 1.5], ValueError),
    (entry("maximize", "no"), ["maximize", "'no'"], TypeError),
    (entry("maximize", None), ["maximize", None], TypeError),
    (entry("backend", "x"), ["backend", "'x'"], ValueError),
]


@pytest.mark.parametrize("backend", ["rule", "auto"])
@pytest.mark.parametrize(("change", "named", "error"), STEPS)
def test_a_step_is_refused_before_anything_changes(change, named, error, backend):
    weights = [weight(), weight()]
    groups = [{"params": [(name, w)]} for name, w in zip(("first", "second"), weights, strict=True)]
    optimizer = optim.Adam(groups, lr=0.1, backend=backend)
    for w in weights:
        w.grad = torch.full_like(w, 0.5)
    optimizer.step()
    change(weights, optimizer)
    with refuses_and_changes_nothing(optimizer, *named, by=error):
        optimizer.step()


@pytest.mark.parametrize("backend", ["rule", "auto"])
def test_an_error_in_a_rule_leaves_the_step_of_its_group_undone(backend):
    weights, others = ([weight(3, 2), weight(3), weight(2, 2)] for _ in range(2))
    optimizer = sn.torch_optimizer(fragile)(weights, backend=backend)
    plain = Plain(fragile, others)
    for vector in (None, torch.ones(3), None):
        for each in (weights, others):
            for w in each:
                w.grad = torch.full_like(w, 0.5)
            each[1].grad = vector
        if vector is None:
            optimizer.step()
            plain.step()
        else:
            with refuses_and_changes_nothing(optimizer, "vectors", by=RuntimeError):
                optimizer.step()
    assert_same(optimizer, plain, rtol=1e-6, atol=1e-7)  # float32


def test_weights_that_do_not_suit_the_sphere_are_warned_of_by_name():
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optim.SGDG(model.named_parameters())
    (warning,) = caught
    named = ("SGDG", "0.weight", "0.bias", "1.weight", "1.bias", "normalize", "param_groups")
    assert all(name in str(warning.message) for name in named)
    assert warning.filename == __file__
    with torch.no_grad():
        model[0].weight.copy_(sn.Sphere().normalize(model[0].weight))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        flat = [model[0].bias, *model[1].parameters()]
        optim.SGD([{"params": [model[0].weight], "recipe": "sgdg"}, {"params": flat}])


def test_a_warning_that_is_an_error_adds_nothing():
    optimizer = optim.SGD([weight()])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with refuses_and_changes_nothing(optimizer, "norm", by=UserWarning):
            optimizer.add_param_group({"params": [weight()], "recipe": "sgdg"})
    assert len(optimizer.param_groups) == 1
