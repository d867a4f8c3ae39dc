"""Recipes that invite false laws, by branches on values and sizes: a true law, or a refusal."""

import math
import random

import numpy as np
import pytest
import torch

from spherenorm import Rule, chain, hyper
from spherenorm import rules as r
from spherenorm_theory import norm_growth
from spherenorm_theory.algebra import Branches
from spherenorm_theory.laws import OutsideError
from tests.harness import refuses
from tests.theory.gram import assert_is_the_step
from tests.theory.recipes import By, Keeps, by, keeps, law_of, scaled

FEW_SHAPES = ((1, 6), (3, 4), (4, 4))
W, G = torch.tensor([[3.0, 4.0]]), torch.tensor([[-4.0, 3.0]])


class Decay(Rule):
    """A rule of declared numbers: weight decay that is switched by their signs."""

    wd: float = hyper("[0, inf)", 0.1)

    def update(self, update, state):
        wd = torch.as_tensor(self.wd, dtype=torch.float64)
        share = torch.where(wd > 0, wd, 3.0 + 0 * wd)
        return update.changed(direction=update.direction + share * update.weight), {}


def shifted(lr=0.1, shift=0.3):
    return chain(By(lambda w, d, s: d + abs(s) * w, (shift,)), r.StepSize(lr))


def switched(lr=0.1, wd=0.1):
    return chain(Decay(wd), r.StepSize(lr))


def gate(w, d, kept):
    kept = torch.clamp(kept + 0.1 - 0.05 * (w * w).sum(), min=0.0)
    return torch.where(kept > 0, d, d + 0.5 * w), kept


def columns_to_a_power(lr=0.1, wd=0.1):
    return chain(By(lambda w, d, wd: d + wd * w.shape[-1] ** 0.3 * w, (wd,)), r.StepSize(lr))


def by_moments_over(dims):
    """The direction over the root of its mean squares over dimensions, and where these start."""

    def scale(w, d, moments):
        moments = 0.9 * moments + 0.1 * (d * d).mean(dims(w), keepdim=True)
        return d / moments.sqrt(), moments

    return scale, lambda w: torch.zeros_like(w.mean(dims(w), keepdim=True))


LAWS = {
    "a second moment per row": keeps(*by_moments_over(lambda w: (*range(1, w.ndim),))),
    "|shift| of any sign": shifted,
    "a branch at wd > 0": switched,
    "a gate that closes": keeps(gate),
    "a state e": keeps(
        lambda w, d, e: ((e := 0.9 * e + d).abs() * 0.1 + d, e), torch.rand_like, "e"
    ),
}
"""Recipes that have a true law."""

REFUSED = {
    "a second moment per column": (keeps(*by_moments_over(lambda w: (0,))), "not split"),
    "a branch on a parameter": (by(lambda w, d: d + w if w.requires_grad else d), "a parameter"),
    "an int8 count": (
        keeps(lambda w, d, n: (d * (1 + n), n + 1), lambda w: torch.zeros((), dtype=torch.int8)),
        "torch.int8",
    ),
    "in place": (by(lambda w, d: d.mul_(0.5)), "writes into"),
    "round": (by(lambda w, d: d + 0.1 * d.norm().round() * w), "round"),
    "float32": (by(lambda w, d: d.float().double()), "rounds"),
    "columns^0.3": (columns_to_a_power, "depends on the shape"),
    "all entries of one sign": (by(lambda w, d: d * (w > d).all()), "for all entries"),
    "a random number": (scaled(lambda w, d: 1 + random.random()), "draws a random number"),
}
"""Recipes that have none, and what a refusal says."""


@pytest.mark.parametrize("name", LAWS)
def test_a_law_is_the_step_of_its_code(name):
    """With numbers of either sign, where both are allowed."""
    law = norm_growth(LAWS[name])
    intervals = law.step.traced.intervals
    for sign in (1, -1):
        numbers = {n: 0.3 * (sign if intervals[n].low < 0 else 1) for n in law.step.traced.symbols}
        for shape in FEW_SHAPES if law.agreement.several else FEW_SHAPES[:1]:
            assert_is_the_step(law, shape, numbers, torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_names_its_cause(name):
    recipe, cause = REFUSED[name]
    with refuses(cause):
        norm_growth(recipe)


@pytest.mark.parametrize(
    ("weight", "grad", "numbers", "named", "error"),
    [
        (W, G + W, {"momentum": 0.9}, ["<w, g> = 0"], OutsideError),
        (W, 0 * G, {"momentum": 0.9}, ["w, g not 0"], OutsideError),
        (W, G, {"momentum": 0.0}, ["momentum != 0"], OutsideError),
        (W, G, {"lr": -1.0}, ["lr", "[0, ∞)", -1], ValueError),
        (W, G, None, ["momentum_buffer"], ValueError),
    ],
)
def test_a_law_is_not_evaluated_outside_of_its_assumptions(weight, grad, numbers, named, error):
    state = {} if numbers is None else {"momentum_buffer": W * 0}
    with refuses(*named, by=error):
        law_of("sgd").evaluate(weight, grad, state, **(numbers or {}))


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_numbers_are_finite(value):
    with refuses("sgd", "lr", value):
        norm_growth("sgd", lr=value)


def test_an_assumption_of_the_first_step_alone_is_said():
    def recipe(lr=0.1, every=3.0):
        def at_times(w, d, t, every):
            return torch.where((t + 1) % every == 0, d + 0.1 * w, d), t + 1

        return chain(Keeps(at_times, names="times", numbers=(every,)), r.StepSize(lr))

    law = norm_growth(recipe)
    assert "every != 0" in law.assumptions
    assert "Mod(1, every) != 0 in the first step" in law.assumptions
    new, _ = law.evaluate(W, G, {"times": torch.tensor(2)}, lr=1.0)
    torch.testing.assert_close(new, (W - G - 0.1 * W).double())
    with refuses("Mod", by=OutsideError):
        law.evaluate(W, G, {"times": torch.tensor(0)}, lr=1.0, every=1.0)


def law_of_change(change):
    return norm_growth(lambda lr=0.1, wd=0.1: chain(By(change, (wd,)), r.StepSize(lr)))


def outside_of(law, change, weight):
    """The reason why a law says no step of a weight; it is empty where the law's is the code's."""
    gradient = weight.flip(0) * torch.linspace(1, 2, weight.numel()).double().reshape(weight.shape)
    gradient = gradient - law.agreement.view.radial_coefficient(weight, gradient) * weight
    try:
        new, _ = law.evaluate(weight, gradient, {}, lr=0.3, wd=0.7)
    except OutsideError as error:
        return str(error)
    expected = weight - 0.3 * change(weight, gradient, 0.7)
    torch.testing.assert_close(new, expected, rtol=1e-12, atol=1e-12 * weight.abs().max().item())
    return ""


def drawn(*shape):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(shape, dtype=torch.float64, generator=generator)


SIZES = {
    "columns": lambda w: w.shape[1] > 64,
    "a share of them": lambda w: 0.5 * w.size(-1) > 32,
    "root of the entries": lambda w: math.sqrt(w.shape.numel()) > 80,
    "len": lambda w: len(w) > 500,
    "dimensions": lambda w: w.ndim == 4,
    "one shape": lambda w: w.shape == (64, 64),
    "an index": lambda w: [False, True][min(w.shape[1] // 2000, 1)],
    "text": lambda w: isinstance(w.shape[1], int) and str(w.shape[1]) == "4096",
    "bytes": lambda w: w.nbytes > 2**15,
    "square": lambda w: w.shape[0] == w.shape[-1],
    "memory": lambda w: not w.is_contiguous(),
}
SHAPES = ((2, 4), (3, 3), (64, 64), (2, 65), (600, 2), (2, 4096), (2, 3, 4), (2, 2, 2, 2))


@pytest.mark.parametrize("name", SIZES)
def test_a_branch_on_a_size_is_noticed(name):
    decides = SIZES[name]

    def change(w, d, wd):
        return d + wd * w if decides(w) else d

    law = law_of_change(change)
    weights = [drawn(*shape) for shape in SHAPES]
    weights += [weight.mT.contiguous().mT for weight in weights]
    reasons = [*filter(None, (outside_of(law, change, weight) for weight in weights))]
    assert len(reasons) < len(weights)
    if any(decides(torch.empty(shape)) for shape in SHAPES if len(shape) == 2):
        assert any("test_adversarial.py" in reason for reason in reasons)
        assert any("test_adversarial.py" in each for each in law.assumptions)


TENSORS = {
    "full": (lambda w: torch.full((), fill_value=w.shape[0]) > 300, "> 300"),
    "zeros and 1": (lambda w: (torch.zeros(w.shape[0], 1) + 1).expand_as(w).sum() > 700, "> 700"),
    "clamp": (lambda w: torch.full((), w.shape[0]).clamp(max=300) > 299, "becomes"),
    "against a norm": (lambda w: 1e3 * w.norm() < w.shape[0], "becomes"),
}


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_that_holds_a_size_is_noticed(name):
    decides, question = TENSORS[name]

    def change(w, d, wd):
        return torch.where(decides(w), d + wd * w, d)

    law = law_of_change(change)
    noticed = any(question in each and "test_adversarial.py" in each for each in law.assumptions)
    assert noticed or law.agreement.view.name == "layer"  # where d is the number of all entries
    shapes = (3, 5), (310, 4), (40, 300)
    reasons = [outside_of(law, change, drawn(*shape) / 1e4) for shape in shapes]
    assert not reasons[0]
    assert any(reasons) == noticed


def test_a_choice_that_no_run_reaches_is_of_the_units_of_the_law():
    """The norm of the whole weight is chosen after 10^5 steps."""

    def change(w, d, t):
        return torch.where(t + 1 > 10**5, d + w.norm() * w, d), t + 1

    law = norm_growth(lambda lr=0.1: chain(Keeps(change, names="step"), r.StepSize(lr)))
    w, g = drawn(2, 3, 5)
    g = g - law.agreement.view.radial_coefficient(w, g) * w
    new, _ = law.evaluate(w, g, {"step": torch.tensor(10**5)}, lr=0.3)
    torch.testing.assert_close(new, w - 0.3 * (g + w.norm() * w), rtol=1e-12, atol=1e-12)


def decides_nothing(w, d, wd):
    few = w.new_full((), w.numel()).sqrt() * torch.ones_like(w).sum()
    return torch.where((d * d).sum() > 0, d / torch.add(few, few, alpha=w.numel()), 0 * d)


@pytest.mark.parametrize(
    "change",
    [
        decides_nothing,
        lambda w, d, wd: d / np.sqrt(np.array(w.shape).prod()),
        lambda w, d, wd: d / (len(w) * w[0].numel()),
    ],
)
def test_arithmetic_of_sizes_restricts_no_law(change):
    law = law_of_change(change)
    assert not any("test_adversarial.py" in each for each in law.assumptions)
    assert not outside_of(law, change, drawn(31, 7))


@pytest.mark.parametrize("count", [1, 3])
def test_the_dimensions_of_a_law_are_those_that_were_compared(count):
    def change(w, d, wd):
        return d + w if w.ndim == count else d

    ones = torch.ones([2] * count)
    law = norm_growth(
        lambda lr=0.1: chain(By(change, (0.0,)), r.StepSize(lr)), scale_invariant=False
    )
    with refuses("dimensions", count, by=OutsideError):
        law.evaluate(ones, ones, {})


def test_arithmetic_of_sizes_is_followed():
    x = torch.ones(6, 4)
    with Branches() as branches:
        assert 2 * x.shape[0] - 1 == 11
        assert x.reshape(x.shape[1], -1).shape == (4, 6)
        assert torch.zeros(x.shape[0] // 2).numel() == 3
        assert (torch.zeros(x.shape[0], 1) + x[:, :1].expand(x.shape[0], 1)).sum() == 6
        assert (x * x.shape[0] / math.sqrt(x.shape[1])).sum() == 72
        assert np.prod(x.shape) / len(x) == np.sqrt(16)
        assert np.log(x.shape[0] - 5) == 0
    asked = [(branch.question, branch.answer) for branch in branches.found]
    questions = [f"== {each}" for each in (11, 4, 6, 3, repr(np.sqrt(16)))]
    assert asked == [*((question, True) for question in questions), ("", 1)]
