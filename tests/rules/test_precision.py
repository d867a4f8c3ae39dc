"""bfloat16: rounding by chance is unbiased, and averages and weights do not stall."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch

import spherenorm as sn
from spherenorm import rules as r
from tests.harness import refuses

DRAWS = 10_000
STEP = 2**-7
"""Between two neighbours of bfloat16 in [1, 2)."""


def ended(weight, steps, seed=0):
    """`weight` after that many steps of `steps`, in bfloat16."""
    rule = sn.chain(r.StochasticRounding(seed=seed))
    return rule.step(weight, steps, rule.init(weight))[0]


@pytest.mark.parametrize("share", [0.0, 0.01, 0.25, 0.5, 0.9])
@pytest.mark.parametrize("size", [1.0, -1.0, 2.0**-100, -(2.0**90)])
def test_a_weight_ends_at_one_of_two_neighbours_and_in_the_mean_where_it_should(share, size):
    weight = torch.full((DRAWS,), size)
    end = ended(weight, -share * STEP * weight)
    up = (end - weight) / (STEP * size)
    assert {*up.unique().tolist()} <= {0.0, 1.0}
    deviation = (share * (1 - share) / DRAWS) ** 0.5
    assert abs(up.mean().item() - share) <= 4 * deviation


def test_entries_steps_and_seeds_are_independent():
    weight, half = torch.ones(DRAWS), torch.full((DRAWS,), -STEP / 2)
    rule = sn.chain(r.StochasticRounding())
    first = rule.init(weight)
    one, state = rule.step(weight, half, first)
    two = rule.step(weight, half, state)[0]
    draws = [(x - weight) / STEP - 0.5 for x in (one, two, ended(weight, half, seed=1))]
    draws += [draws[0].roll(shift) for shift in (1, 2, 100)]
    for a, b in itertools.combinations(draws, 2):
        assert abs((4 * a * b).mean().item()) < 4 / DRAWS**0.5
    assert torch.equal(one, rule.step(weight, half, first)[0])


@pytest.mark.parametrize("seed", [0, 271_200, 1_234_567, 2**31, 2**40])
def test_each_step_has_chance_of_its_own_for_every_seed(seed):
    rule, weight = sn.chain(r.StochasticRounding(seed)), torch.ones(DRAWS)
    state = rule.init(weight)
    draws = []
    for _ in range(3):
        end, state = rule.step(weight, torch.full((DRAWS,), -STEP / 2), state)
        draws.append((end - weight) / STEP - 0.5)
    for a, b in itertools.combinations(draws, 2):
        assert abs((4 * a * b).mean().item()) < 4 / DRAWS**0.5


def test_norms_of_rows_stay_in_float32():
    rule = sn.bind("low_precision(rotational(adamw))").rule
    low = {k for k, x in rule.init(torch.ones(4, 3)).items() if x.dtype is torch.bfloat16}
    assert low == {"exp_avg", "exp_avg_sq"}


def test_what_is_no_number_stays():
    weight = torch.tensor([float("inf"), -float("inf"), float("nan"), 0.0, 1.0])
    end = ended(weight, torch.zeros(5))
    torch.testing.assert_close(end, weight, equal_nan=True, rtol=0, atol=0)


def run(recipe, steps, weight, grad, **settings):
    """The mean weight after each step."""
    optimizer = sn.torch_optimizer(recipe)([weight], **settings)
    for _ in range(steps):
        weight.grad = grad(weight)
        optimizer.step()
        yield weight.double().mean().item(), optimizer


@pytest.mark.parametrize("states", ["stochastic", "full"])
def test_weights_in_bfloat16_follow_those_in_float32(states):
    """On a quadratic; the mean of n entries has the rounding of one over the root of n."""
    entries, settings = 4096, {"lr": 1e-4, "weight_decay": 0.0}
    paths = []
    for recipe, dtype, more in (
        ("adamw", torch.float32, {}),
        ("low_precision(adamw)", torch.bfloat16, {"states": states, "weights": "stochastic"}),
        ("adamw", torch.bfloat16, {}),
    ):
        weight = torch.ones(entries, dtype=dtype)
        means = [m for m, _ in run(recipe, 200, weight, torch.clone, **settings, **more)]
        paths.append(means[-1])
    exact, chance, nearest = paths
    assert nearest == 1.0  # this is what stalls
    # 200 roundings, each with a standard deviation of at most half a step between neighbours.
    assert abs(chance - exact) < 4 * (200**0.5) * STEP / 4 / entries**0.5
    assert abs(exact - 0.98) < 1e-3


def test_a_moment_in_bfloat16_follows_one_in_float32():
    """With beta = 0.999 an average to the nearest stands still; by chance it goes on."""
    means = {}
    for rounding in ("stochastic", "nearest"):
        rule = r.LowPrecisionState(r.ExponentialAverage(0.999), rounding)
        weight, state = torch.zeros(DRAWS), rule.init(torch.zeros(DRAWS))
        for _ in range(700):
            _, state = sn.chain(rule).step(weight, torch.ones(DRAWS), state)
        (average,) = (x for x in state.values() if x.ndim)
        assert average.dtype is torch.bfloat16
        means[rounding] = average.double().mean().item()
    exact = 1 - 0.999**700
    assert means["nearest"] < 0.9 * exact
    assert abs(means["stochastic"] - exact) < 4 * 700**0.5 * STEP / 8 / DRAWS**0.5


@pytest.mark.parametrize("recipe", ["low_precision(adamp)", "low_precision(averaged(sgdp))"])
def test_a_run_goes_on_from_a_checkpoint_bit_by_bit(recipe, tmp_path):
    settings = {"lr": 0.01, "weights": "stochastic"}
    weight = torch.randn(8, 6, generator=torch.Generator().manual_seed(0)).bfloat16()
    *_, (_, optimizer) = run(recipe, 3, weight, torch.sign, **settings)
    torch.save(optimizer.state_dict(), tmp_path / "state.pt")
    twin = copy.deepcopy(weight)
    again = sn.torch_optimizer(recipe)([twin], **settings)
    again.load_state_dict(torch.load(tmp_path / "state.pt"))
    for each, made in ((weight, optimizer), (twin, again)):
        for _ in range(2):
            each.grad = each.sign()
            made.step()
    assert torch.equal(weight, twin)
    assert {x.dtype for x in optimizer.state[weight].values() if x.ndim} == {torch.bfloat16}
    with optimizer.evaluating(), again.evaluating():
        assert torch.equal(weight, twin)


NEAR = {
    "adamw": {}, "sgdp": {"momentum": 0.9}, "muon": {}, "soap": {}, "normuon": {}, "sgdw": {},
    "adamh": {}, "prodigy": {"only": ("exp_avg", "exp_avg_sq")}, "averaged(adam)": {},
}  # fmt: skip
"""Recipes of one and several states, of matrices, and one that needs sums over all weights."""


COMPILED = pytest.param(
    "compiled",
    marks=pytest.mark.skipif(
        torch.__version__ < "2.13", reason="vmap takes no view of another dtype before torch 2.13"
    ),
)


@pytest.mark.parametrize("recipe", NEAR)
@pytest.mark.parametrize("backend", ["auto", COMPILED])
def test_states_in_bfloat16_keep_a_recipe_near_itself(recipe, backend):
    if recipe == "prodigy":
        backend = "auto"
    start = torch.randn(8, 6, generator=torch.Generator().manual_seed(1))
    ends, given = [], dict(NEAR[recipe])
    only = {"only": given.pop("only")} if "only" in given else {}
    for name, more in ((recipe, {}), (f"low_precision({recipe})", {**only, "backend": backend})):
        weight = start.clone()
        optimizer = sn.torch_optimizer(name)([weight], lr=0.01, **given, **more)
        for step in range(6):
            weight.grad = torch.randn(8, 6, generator=torch.Generator().manual_seed(step))
            optimizer.step()
        ends.append(weight)
    low = {key for key, x in optimizer.state[weight].items() if x.dtype is torch.bfloat16}
    assert low >= {*only.get("only", low)}
    assert low or recipe == "sgdw"
    way = (ends[0] - start).norm()
    assert (ends[0] - ends[1]).norm() < 0.1 * way


def test_what_is_wrong_is_refused():
    weights = [torch.ones(2, 2)]
    with refuses("states", "half"):
        sn.torch_optimizer("low_precision(adamw)")(weights, states="half")
    with refuses("weights", "full"):
        sn.torch_optimizer("low_precision(adamw)")(weights, weights="full")
    with refuses("exp_average", "exp_avg"):
        sn.torch_optimizer("low_precision(adamw)")(weights, only=("exp_average",))
    with refuses("flat", "Sphere"):
        sn.torch_optimizer("low_precision(sgdg)")(weights)
    for rule in (r.LowPrecisionState(r.HeavyBall(0.9)), r.StochasticRounding()):
        with refuses(type(rule).__name__, "Sphere"):
            sn.chain(rule, manifold=sn.Sphere())
