"""Code that decides by the size of a weight has a law for the sizes that the law says."""

import math

import numpy as np
import pytest
import torch

from spherenorm import chain
from spherenorm import rules as r
from spherenorm_theory import norm_growth
from spherenorm_theory.algebra import Branches
from spherenorm_theory.laws import OutsideError
from tests.harness import refuses
from tests.theory.recipes import By, Keeps


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
        assert any("test_sizes.py" in reason for reason in reasons)
        assert any("test_sizes.py" in each for each in law.assumptions)


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
    noticed = any(question in each and "test_sizes.py" in each for each in law.assumptions)
    assert noticed or law.agreement.view.name == "layer"  # where d is the number of all entries
    shapes = (3, 5), (310, 4), (40, 300)
    reasons = [outside_of(law, change, drawn(*shape) / 1e4) for shape in shapes]
    assert not reasons[0]
    assert any(reasons) == noticed


WHOLE = {
    "powers": lambda w: w.pow(0).sum() > 2e4,
    "a great length": lambda w: w.square().sum() > 2e8,
    "maximum": lambda w: torch.maximum((w * 0 + 1).sum(), w.new_full((), 2e4)) / 2e4,
}


@pytest.mark.parametrize("name", WHOLE)
def test_what_the_whole_weight_decides_is_decided_for_no_row(name):
    def change(w, d, wd):
        return d + wd * w * WHOLE[name](w)

    law = law_of_change(change)
    assert law.agreement.view.name == "layer"
    assert not any(outside_of(law, change, 100 * drawn(*shape)) for shape in ((3, 5), (150, 150)))


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
    assert not any("test_sizes.py" in each for each in law.assumptions)
    assert not outside_of(law, change, drawn(31, 7))


def test_a_number_by_the_longest_side_holds_where_it_is_the_last_one():
    def change(w, d, wd):
        return d + wd * max(w.shape) ** 0.5 * w

    law = law_of_change(change)
    assert not outside_of(law, change, drawn(1, 2))
    assert "(a size > another) is False" in outside_of(law, change, drawn(6, 2))


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
