"""The tests for scale invariance against their definitions and error laws, and what reads them."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import spherenorm as sn
from spherenorm import rules as r
from tests.harness import FAMILIES, gradient, pairs
from tests.rules.units import (
    LAYOUTS,
    applied,
    by_units,
    close,
    exact,
    lay_out,
    randn,
    rows,
    seen,
    unit_numbers,
)  # fmt: skip

RATE = math.sqrt(6 / math.pi)
SURE = 1e-6
"""The chance with which a right law is refused."""


@np.errstate(all="ignore")
def sums(w, g, top):
    """|w| |g|, 0 if one of their squares overflows, and s^2 = dim cos^2."""
    squared = np.array([w @ w, g @ g])
    norms = math.sqrt(squared[0]) * math.sqrt(squared[1]) if (squared <= top).all() else 0
    return norms, len(w) * (w @ g / norms) ** 2 if norms else 0


def once(ws, gs, top, delta, **_):
    """Eq. 12 for one unit: does it pass, and is it no evidence?"""
    norms, squared = sums(ws[-1], gs[-1], top)
    return norms > 0 and squared < delta**2, not (ws[-1].any() and gs[-1].any())


def remembered(ws, gs, top, delta, memory, level, together):
    """The weighted mean of clipped squared statistics against d^2; and is it no evidence?"""
    d = min(delta, level ** (1 / together) / RATE)
    evidence = count = 0.0
    for norms, squared in (sums(w, g, top) for w, g in zip(ws, gs, strict=True)):
        evidence = memory * evidence + (1 - memory) * min(squared, 3 * d**2)
        count = memory * count + (1 - memory) * (norms > 0)
    has_evidence = count > (1 - memory) / 2
    return has_evidence and evidence < d**2 * count, not has_evidence


def decision(verdict, w, g, top, views, per, delta, level=1.0, **settings):
    """The entries that each view claims, for the weights and gradients of all steps so far."""
    claims = []
    for view in views:
        units = int(unit_numbers(w.shape[1:], view).max(initial=-1)) + 1
        together = max(units, 1) if per == "tensor" else 1
        more = {**settings, "delta": delta, "level": level, "together": together}

        flag, silent = (
            by_units(lambda _, w, g: verdict(w, g, top, **more)[which], view, w[-1], w, g) > 0  # noqa: B023
            for which in (0, 1)
        )
        if per == "tensor":
            numbers = unit_numbers(w.shape[1:], view)
            n_with_evidence = sum(not silent[numbers == i].any() for i in range(units))
            enough = not silent.any() or (RATE * delta) ** n_with_evidence <= level
            enough = enough or verdict is once or together == 1
            flag = np.full(flag.shape, (flag | silent).all() and flag.any() and enough)
        if any(earlier.any() for earlier in claims) or flag.ndim < 2:
            flag = np.zeros_like(flag)
        claims.append(flag)
    return claims


LARGE = (2, 2**14)
CONDITIONS = {
    "family": (*FAMILIES, "near"),
    "shape": ((4, 6), (4, 3, 2, 2), (4, 1), LARGE, (6,), (0, 6), (4, 0)),
    "views": (("channel", "layer"), ("layer",), ("dim=1", "channel"), ("groups=2", "layer")),
    "per": ("tensor", "unit"),
    "dtype": (torch.float64, torch.float32, torch.bfloat16),
    "scale": (1.0, 1e-6, 1e6),
    "size": (1.0, 1e-12, 1e12),
    "zero": (
        "nothing",
        "a unit of the weight",
        "a unit of the gradient",
        "gradient",
        "weight",
        math.inf,
        math.nan,
        "overflow",
        "seen once",
    ),
    "delta": (0.1, 0.5),
    "memory": (0.0, 0.5, 0.8),
    "level": (1.0, 0.05, 1e-4),
    "way": ("numbers", "tensors", "graph", "vmap"),
    "layout": LAYOUTS,
    "test": (r.ScaleInvarianceTest, r.AccumulatedInvarianceTest),
}


def exists(case):
    """A vector has no dimension 1, and the oracle is slow on thousands of units."""
    return "dim=1" not in case.get("views", ()) or case.get("shape") not in ((6,), LARGE)


def with_cosines(weight, cosines, view, free):
    """A gradient of which each unit has the cosine that stands in its entries of `cosines`."""

    def unit(w, x, c):
        t = x - w * (w @ x) / (w @ w)
        t = t / (np.linalg.norm(t) or 1)
        return c * w / np.linalg.norm(w) + np.sqrt(1 - c**2) * t

    arrays = weight, free, cosines
    return torch.from_numpy(by_units(unit, view, *map(exact, arrays)))


def near(weight, view, delta, generator):
    """A gradient of which each unit has a cosine about its threshold."""
    numbers = torch.from_numpy(unit_numbers(tuple(weight.shape), view))
    size = weight.numel() / max(int(numbers.max()) + 1, 1)
    drawn = torch.rand(int(numbers.max()) + 1, generator=generator, dtype=torch.float64)
    free = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
    cosines = (1.6 * drawn * delta / math.sqrt(size)).clamp(max=1)
    return with_cosines(weight, cosines[numbers], view, free)


def history(case, steps=6):
    generator = torch.Generator().manual_seed(5)
    family, zero = case["family"], case["zero"]
    for step in range(steps):
        weight = torch.randn(case["shape"], generator=generator, dtype=torch.float64)
        if not weight.numel():
            grad = torch.zeros_like(weight)
        elif family == "near" and weight.ndim > 1:
            grad = near(weight, case["views"][0], case["delta"], generator)
        else:
            grad = gradient("random" if family == "near" else family, weight, generator, step)
        top = torch.finfo(case["dtype"]).max
        if not isinstance(zero, str) or zero == "overflow":  # of one unit at one step
            if step == 3 and grad.numel():
                grad[0] = weight[0] * (2 * top**0.5 / case["scale"] if zero == "overflow" else zero)
        elif zero == "seen once" and step:  # as a row of an embedding
            grad[:1] = 0
        elif zero.startswith("a unit") and step % 3 != 1 and len(weight):
            (weight if zero.endswith("weight") else grad)[0] = 0
        elif zero in ("gradient", "weight"):
            (weight if zero == "weight" else grad).zero_()
        scaled = case["size"] * weight, case["scale"] * grad
        yield tuple(lay_out(x.to(case["dtype"]), case["layout"]) for x in scaled)


CASES = pairs(CONDITIONS, exists)
# A row that was invariant when it was seen has no verdict once half of that step is forgotten.
FADING = {key: given[0] for key, given in CONDITIONS.items()} | {
    "family": "row_tangential",
    "per": "unit",
    "zero": "seen once",
    "test": r.AccumulatedInvarianceTest,
}
CASES += [{**FADING, "memory": memory} for memory in (0.5, 0.8)]
# Three of four rows are enough to decide for the weight, but at the last of these levels.
CASES += [{**FADING, "per": "tensor", "level": level} for level in CONDITIONS["level"]]


def test_decisions_are_their_definitions():
    """And projection and decay do what they do on the claimed units of each view alone."""
    taken = set().union(*map(check, CASES))
    assert taken >= {(True, False), (False, True), (False, False), (True,), (False,)}


def check(case):
    """Compare all steps of a case; return which views claimed something."""
    weights, grads = zip(*history(case), strict=True)
    single = case["test"] is r.ScaleInvarianceTest
    numbers = {"delta": case["delta"], "wd": 0.3, "ratio": 0.1, "outward": 0.2}
    if not single:
        numbers |= {"memory": case["memory"], "level": case["level"]}
    if case["way"] in ("tensors", "vmap"):
        numbers = {key: torch.tensor(x, dtype=torch.float64) for key, x in numbers.items()}
    if case["way"] == "graph":
        weights = [weight.requires_grad_() for weight in weights]

    def run(wd, ratio, outward, **own):
        # The decay in front adds a radial part to the direction, which is not what is tested.
        rule = sn.chain(
            r.CoupledDecay(0.5),
            case["test"](views=case["views"], per=case["per"], **own),
            r.RadialProjection(None, outward),
            r.DecoupledDecay(wd, ratio),
        )
        updates = seen(rule, weights, grads)
        return [(each.direction, each.invariance.flags) for each in updates]

    if case["way"] == "vmap":
        updates = torch.vmap(lambda batch: run(**batch))({k: x[None] for k, x in numbers.items()})
        updates = [(x[0], [flag[0] for flag in flags]) for x, flags in updates]
    else:
        updates = run(**numbers)
    w, g = (np.stack([exact(x) for x in xs]) for xs in (weights, grads))
    settings = {} if single else {"memory": case["memory"], "level": case["level"]}
    top = torch.finfo(torch.promote_types(case["dtype"], torch.float32)).max
    verdict = once if single else remembered
    branches = set()
    for t, (direction, flags) in enumerate(updates):
        until = w[: t + 1], g[: t + 1]
        claims = decision(
            verdict, *until, top, case["views"], case["per"], case["delta"], **settings
        )
        if w[t].ndim < 2:
            assert not flags
        else:
            branches.add(tuple(bool(claim.any()) for claim in claims))
            for flag, claim in zip(flags, claims, strict=True):
                assert np.array_equal(np.broadcast_to(flag, claim.shape), claim), (t, case)
        expected = g[t] + 0.5 * w[t]
        for view, claim in zip(case["views"], claims, strict=True):
            expected = by_units(shortened, view, expected, w[t], claim)
        expected = expected + np.where(np.any(claims, axis=0), 0.03, 0.3) * w[t]
        is_finite = np.isfinite(expected) & (abs(g[t]) < top**0.4)
        largest = max(abs(x[is_finite]).max(initial=0) for x in (expected, g[t], w[t]))
        tol = 1e-12 if case["dtype"] is torch.float64 else 1e-5
        close(exact(direction)[is_finite], expected[is_finite], tol, largest, (t, case))
    return branches


def shortened(d, w, claimed):
    """A claimed unit keeps a fifth of a radial part that lengthens the weight."""
    along = w @ d / (w @ w or 1)
    return d - np.where(claimed, (0.8 if along < 0 else 1.0) * along * w, 0)


@pytest.mark.parametrize(("share", "passes"), [(0.999, True), (1.001, False)])
@pytest.mark.parametrize("view", ["channel", "layer", "dim=1", "groups=2"])
@pytest.mark.parametrize("per", ["tensor", "unit"])
def test_the_threshold(view, per, share, passes):
    """delta / sqrt(dim) for one step, and one at which n units err together by `level` at most."""
    weight = randn(4, 6, 2)
    numbers = unit_numbers((4, 6, 2), view)
    units = int(numbers.max()) + 1
    together = units if per == "tensor" else 1
    for level in (1.0, 0.02, 1e-3):
        d = min(0.3, level ** (1 / together) / RATE)
        cosine = torch.full((4, 6, 2), share * d / math.sqrt(weight.numel() / units))
        grad = with_cosines(weight, cosine, view, randn(4, 6, 2, seed=1))
        rules = [r.AccumulatedInvarianceTest(0.3, views=(view,), per=per, level=level)]
        rules += [r.ScaleInvarianceTest(0.3, (view,), per)] if d == 0.3 else []
        for rule in rules:
            (update,) = seen(rule, [weight], [grad])
            assert bool(update.invariance.flags[0].all()) == passes, (rule, level)


def test_defaults():
    assert r.ScaleInvarianceTest() == r.ScaleInvarianceTest(0.1, ("channel", "layer"), "tensor")
    explicit = r.AccumulatedInvarianceTest(0.1, 0.9, ("channel", "layer"), "tensor", 0.02)
    assert r.AccumulatedInvarianceTest() == explicit


# Error laws. The rules are given the sums of many units at once, of which s = sqrt(dim) cos is a
# standard normal variable, an AR(1) process in time.

CORRELATIONS, UNITS, SIZE = (0.0, 0.9, 0.99, 1.0), 10_000, 100


def passing(rule, statistics):
    """Which units pass at each step, for statistics of shape (steps, units)."""
    units = statistics.shape[1]
    state, one = rule.init(statistics.new_ones(units, 1)), statistics.new_ones(units, 1)
    for s in statistics:
        product = s[:, None] / math.sqrt(SIZE)
        sums = r.UnitSums(sn.View(0), SIZE, units, one, one, product)
        found, state = rule.decide([sums], state)
        yield found.flags[0][:, 0]


@pytest.fixture(scope="module")
def processes():
    """40 steps, of as many units for each correlation."""
    generator = torch.Generator().manual_seed(0)
    rho = torch.tensor(CORRELATIONS, dtype=torch.float64).repeat_interleave(UNITS)
    steps = torch.randn(40, len(rho), generator=generator, dtype=torch.float64)
    for last, row in itertools.pairwise(steps):
        row.copy_(rho * last + (1 - rho**2).sqrt() * row)
    return steps


@pytest.mark.parametrize("level", [1.0, 0.02, 0.01])
def test_errors_are_as_rare_as_the_law_says(processes, level):
    """sqrt(6/pi) d at most at any correlation; a constant gradient passes in 2 Phi(d) - 1."""
    d = min(0.1, level / RATE)
    rule = r.AccumulatedInvarianceTest(0.1, views=("channel",), per="unit", level=level)
    steps = [x.reshape(len(CORRELATIONS), UNITS).sum(1) for x in passing(rule, processes)]
    assert torch.stack(steps).max() <= stats.binom.ppf(1 - SURE / 480, UNITS, RATE * d)
    low, high = stats.binom.interval(1 - SURE, UNITS, math.erf(d / math.sqrt(2)))
    assert low <= steps[-1][-1] <= high
    assert ((low <= steps[0]) & (steps[0] <= high)).all()
    assert steps[-1][0] <= 0.05 * UNITS * RATE * d  # independent evidence adds up


def test_a_single_step_errs_in_8_percent(processes):
    rule = r.ScaleInvarianceTest(0.1, ("channel",), "unit")
    low, high = stats.binom.interval(1 - SURE, UNITS, math.erf(0.1 / math.sqrt(2)))
    for x in passing(rule, processes[::13]):
        passed = x.reshape(len(CORRELATIONS), UNITS).sum(1)
        assert ((low <= passed) & (passed <= high)).all()


def test_a_worst_case_of_dependence_nearly_reaches_the_law(processes):
    """Units within sqrt(3) d of 0 have all values there in turn: half of them pass, or more."""
    d, s, generator = 0.1, processes[0], torch.Generator().manual_seed(1)
    near = s[s.abs() < math.sqrt(3) * d]
    exchanged = (near[torch.randperm(len(near), generator=generator)] for _ in range(300))
    rule = r.AccumulatedInvarianceTest(d, 0.99, ("channel",), "unit", level=1.0)
    *_, last = passing(rule, torch.stack([*exchanged]))
    assert 0.4 * RATE * d <= last.sum() / len(s) <= RATE * d


def test_false_positives_of_the_layer_view_follow_the_beta_law():
    """cos^2 of a random direction with a weight is Beta(1/2, (dim - 1) / 2)."""
    shape, delta, trials = (4, 16), 0.5, 4000
    weight, grads = randn(*shape), randn(trials, *shape, seed=1)

    def passes(grad):
        (update,) = seen(r.ScaleInvarianceTest(delta, ("layer",)), [weight], [grad])
        return update.invariance.flags[0]

    chance = stats.beta(0.5, 63 / 2).cdf(delta**2 / 64)
    low, high = stats.binom.interval(1 - SURE, trials, chance)
    assert low <= int(torch.vmap(passes)(grads).sum()) <= high


# The projection.


@given(
    shape=st.sampled_from([(4, 6), (4, 3, 2, 2), (6, 1), (1, 6), (5,), (), (0, 4), (4, 0)]),
    view=st.sampled_from(["channel", "layer"]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    magnitude=st.floats(-1, 1),
    radial=st.sampled_from([0.0, 1.0, 1e6]),
    layout=st.sampled_from(LAYOUTS),
    seed=st.integers(0, 2**31),
)
def test_projection_is_orthogonal_and_idempotent_at_any_scale(
    shape, view, dtype, magnitude, radial, layout, seed
):
    """As far as |w|^2 is a normal number."""
    unit = randn(*shape, seed=seed, dtype=dtype)
    direction = randn(*shape, seed=seed + 1, dtype=dtype) + radial * unit
    weight = lay_out(unit * 10.0 ** (magnitude * (17 if dtype is torch.float32 else 150)), layout)
    rule, eps = r.RadialProjection(view), torch.finfo(dtype).eps
    q = applied(rule, weight, direction)
    assert (q.shape, q.dtype) == (weight.shape, dtype)
    if weight.numel():
        # Of unit vectors: |w| |q| would be lost among the smallest numbers.
        for w, x in zip(rows(unit, view), rows(q, view), strict=True):
            assert abs(w @ x) <= 50 * eps * w.norm() * direction.norm()
        close(applied(rule, weight, q), q, 50 * eps, float(direction.abs().max()))


def test_units_of_one_entry_have_no_step_at_all():
    """Rounding of a projection must not be normalized to a step of full length."""
    weight = torch.tensor([0.3, -1.7, 0.0, 0.1, 5.3], dtype=torch.float64)
    rule = sn.chain(r.RadialProjection("channel"), r.NormalizedUpdate("channel"))
    for seed in range(5):
        assert (applied(rule, weight, randn(5, seed=seed)) != 0).tolist() == [0, 0, 1, 0, 0]
