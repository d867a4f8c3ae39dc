"""Code that decides by the size of a weight has a law for the sizes that the law says."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from spherenorm import Rule, chain
from spherenorm import rules as r
from spherenorm_theory import norm_growth
from spherenorm_theory.algebra import Branches
from spherenorm_theory.laws import OutsideError
from tests.theory.laws.adversarial import By, by_rows

SIZES = {
    "columns": lambda w: w.shape[1] > 64,
    "columns, turned round": lambda w: w.shape[1] > 64.5,
    "a share of them": lambda w: 0.5 * w.size(-1) > 32,
    "entries": lambda w: w.numel() > 4096,
    "entries of the shape": lambda w: w.shape.numel() > 1e6,
    "root of the entries": lambda w: math.sqrt(w.numel()) > 300,
    "rows": lambda w: w.shape[0] >= 100,
    "len": lambda w: len(w) > 500,
    "dimensions": lambda w: w.ndim == 4,
    "length of the shape": lambda w: len(w.shape) == 3,
    "one shape": lambda w: w.shape == (64, 64),
    "a list": lambda w: [*w.shape] == [64, 64],
    "one of some": lambda w: w.shape[0] in (600, 777),
    "a whole number": lambda w: w.shape[1] // 3000 > 0,
    "int": lambda w: int(w.shape[1]) > 4000,
    "isinstance": lambda w: isinstance(w.shape[0], int) and w.shape[0] > 555,
    "text": lambda w: str(w.shape[1]) == "4096",
    "a table": lambda w: {4096: True}.get(w.shape[1], False),
    "an index": lambda w: [False, True][min(w.shape[1] // 2000, 1)],
    "a loop": lambda w: max(range(w.shape[1])) > 4000,
    "stride": lambda w: w.stride(0) > 4000,
    "bytes": lambda w: w.nbytes > 2**16,
    "square": lambda w: w.shape[0] == w.shape[-1],
    "the longest": lambda w: sorted(w.shape)[-1] > 555,
    "memory": lambda w: not w.is_contiguous(),
}
SHAPES = (
    *((2, 4), (4, 2), (3, 3), (64, 64), (2, 65), (600, 2), (2, 4096), (70, 70)),
    *((2, 3, 4), (2, 2, 2, 2), (2, 2, 2, 2, 2)),
)


@pytest.mark.parametrize("name", SIZES)
def test_a_branch_on_a_size_is_noticed(name):
    decides = SIZES[name]

    def change(w, d, wd):
        return d + wd * w if decides(w) else d

    law = norm_growth(lambda lr=0.1, wd=0.1: chain(By(change, (wd,)), r.StepSize(lr)))
    outside = []
    for shape in SHAPES:
        w = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        g = w.flip(0) * torch.linspace(1, 2, w.numel(), dtype=torch.float64).reshape(shape)
        g = g - law.agreement.view.radial_coefficient(w, g) * w
        for weight in (w, w.mT.contiguous().mT):
            try:
                new, _ = law.evaluate(weight, g, {}, lr=0.3, wd=0.7)
            except OutsideError as error:
                outside.append(str(error))
            else:
                expected = weight - 0.3 * change(weight, g, 0.7)
                torch.testing.assert_close(new, expected, rtol=1e-12, atol=1e-12)
    assert len(outside) < 2 * len(SHAPES)
    if any(decides(torch.empty(shape)) for shape in SHAPES if len(shape) == 2):
        assert any("test_sizes.py" in reason for reason in outside)
        assert any("test_sizes.py" in each for each in law.assumptions)


TENSORS = {
    "new_full": (lambda w: w.new_full((), w.numel()) > 700, "> 700"),
    "full": (lambda w: torch.full((), fill_value=w.shape[0]) > 300, "> 300"),
    "tensor": (lambda w: torch.tensor(w.shape[0]) > 300, "> 300"),
    "ones": (lambda w: torch.ones_like(w).sum() > 700, "> 700"),
    "zeros and 1": (lambda w: (torch.zeros(w.shape[0], 1) + 1).expand_as(w).sum() > 700, "> 700"),
    "size times ones": (lambda w: w.shape[0] * torch.ones(()) > 300, "> 300"),
    "clamp": (lambda w: torch.full((), w.shape[0]).clamp(max=300) > 299, "becomes"),
    "against a norm": (lambda w: 1e3 * w.norm() < w.shape[0], "becomes"),
}


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_that_holds_a_size_is_noticed(name):
    decides, question = TENSORS[name]

    def change(w, d, wd):
        return torch.where(decides(w), d + wd * w, d)

    law = norm_growth(lambda lr=0.1, wd=0.1: chain(By(change, (wd,)), r.StepSize(lr)))
    noticed = any(question in each and "test_sizes.py" in each for each in law.assumptions)
    assert noticed or law.agreement.view.name == "layer"  # where d is the number of all entries
    followed = []
    generator = torch.Generator().manual_seed(1)
    for shape in ((3, 5), (310, 4), (40, 300)):
        w, g = torch.randn(2, *shape, dtype=torch.float64, generator=generator) / 1e4
        g = g - law.agreement.view.radial_coefficient(w, g) * w
        try:
            new, _ = law.evaluate(w, g, {}, lr=0.3, wd=0.7)
        except OutsideError:
            continue
        expected = w - 0.3 * change(w, g, 0.7)
        torch.testing.assert_close(new, expected, rtol=1e-12, atol=1e-16)
        followed.append(shape)
    assert followed[0] == (3, 5)
    assert (len(followed) < 3) == noticed


WHOLE = {
    "a sum of ones": lambda w: (w * 0 + 1).sum() > 2e4,
    "powers": lambda w: w.pow(0).sum() > 2e4,
    "shares of itself": lambda w: (w / w).sum() > 2e4,
    "sum by mean": lambda w: w.square().sum() / w.square().mean() > 2e4,
    "a great length": lambda w: w.square().sum() > 2e8,
    "clamp": lambda w: (w * 0 + 1).sum().clamp(min=2e4) / 2e4,
    "maximum": lambda w: torch.maximum((w * 0 + 1).sum(), w.new_full((), 2e4)) / 2e4,
}


@pytest.mark.parametrize("name", WHOLE)
def test_what_the_whole_weight_decides_is_decided_for_no_row(name):
    decides = WHOLE[name]

    def change(w, d, wd):
        return d + wd * w * decides(w)

    law = norm_growth(lambda lr=0.1, wd=0.1: chain(By(change, (wd,)), r.StepSize(lr)))
    assert law.agreement.view.name == "layer"
    generator = torch.Generator().manual_seed(1)
    for shape in ((3, 5), (150, 150)):
        w, g = 100 * torch.randn(2, *shape, dtype=torch.float64, generator=generator)
        g = g - law.agreement.view.radial_coefficient(w, g) * w
        new, _ = law.evaluate(w, g, {}, lr=0.3, wd=0.7)
        torch.testing.assert_close(new, w - 0.3 * change(w, g, 0.7), rtol=1e-12, atol=1e-9)


class Averaged(Rule):
    """A rule that names its state in `init` alone."""

    def init(self, weight):
        return {"average": torch.zeros_like(weight)}

    def update(self, update, state):
        average = 0.5 * state["average"] + update.direction
        return replace(update, direction=average), {"average": average}


class Late(Rule):
    """Another direction after many steps, from the norm of the whole weight."""

    change: Any = None
    needs_step = True

    def update(self, update, state):
        return replace(update, direction=self.change(update, update.step > 10**5)), {}


@pytest.mark.parametrize(
    "change",
    [
        lambda u, late: torch.where(late, u.direction + u.weight.norm() * u.weight, u.direction),
        lambda u, late: u.direction + late * (u.weight.norm() * u.weight),
    ],
)
def test_a_choice_that_no_run_reaches_is_of_the_units_of_the_law(change):
    law = norm_growth(lambda lr=0.1: chain(Late(change), r.StepSize(lr)))
    w, g = torch.randn(2, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    g = g - law.agreement.view.radial_coefficient(w, g) * w
    new, _ = law.evaluate(w, g, {"step": torch.tensor(10**5)}, lr=0.3)
    torch.testing.assert_close(new, w - 0.3 * (g + w.norm() * w), rtol=1e-12, atol=1e-12)


def test_a_state_of_init_asks_no_size():
    def recipe(lr=0.1):
        return chain(Averaged(), r.StepSize(lr))

    law = norm_growth(recipe)
    assert not any("a size" in each for each in law.assumptions)
    w, g = torch.randn(2, 31, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    g = g - law.agreement.view.radial_coefficient(w, g) * w
    new, _ = law.evaluate(w, g, {"average": torch.zeros_like(w)}, lr=0.3)
    torch.testing.assert_close(new, w - 0.3 * g, rtol=1e-12, atol=1e-12)


def test_constants_that_decide_nothing_restrict_no_law():
    def change(w, d):
        few = w.new_full((), w.numel()).sqrt() * torch.ones_like(w).sum()
        few = torch.add(few, few, alpha=w.numel())
        return torch.where((d * d).sum() > 0, d / few, torch.zeros_like(d))

    law = norm_growth(lambda lr=0.1: chain(By(change), r.StepSize(lr)))
    assert law.agreement.view.name == "layer"
    assert not any("test_sizes.py" in each for each in law.assumptions)


ARITHMETIC = {
    "np.prod": lambda w: np.prod(w.shape),
    "np.sqrt": lambda w: np.sqrt(np.array(w.shape).prod()),
    "len": lambda w: len(w) * w[0].numel(),
}


@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic_of_sizes_holds_for_sizes_that_were_not_tried(name):
    function = ARITHMETIC[name]
    law = norm_growth(lambda lr=0.1: chain(By(lambda w, d: d / function(w)), r.StepSize(lr)))
    w, g = torch.randn(2, 31, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    g = g - law.agreement.view.radial_coefficient(w, g) * w
    new, _ = law.evaluate(w, g, {}, lr=0.3)
    torch.testing.assert_close(new, w - 0.3 * g / function(w), rtol=1e-12, atol=1e-12)


def test_a_number_by_the_longest_side_holds_where_it_is_the_last_one():
    law = norm_growth(by_rows)
    w, g = torch.tensor([[[3.0, 4.0]], [[-4.0, 3.0]]], dtype=torch.float64)
    new, _ = law.evaluate(w, g, {}, lr=0.5, wd=1.0)
    torch.testing.assert_close(new, w - 0.5 * (g + 2**0.5 * w))
    with pytest.raises(OutsideError, match=r"not the step .* \(a size > another\) is False"):
        law.evaluate(w.repeat(3, 1), g.repeat(3, 1), {})


def test_the_dimensions_of_a_law_are_those_that_were_compared():
    def flat(w, d):
        return d + w if w.ndim > 2 else d

    law = norm_growth(lambda lr=0.1: chain(By(flat), r.StepSize(lr)))
    assert "of 2 dimensions" in law.assumptions[0]
    ones = torch.ones(2, 2, 2)
    with pytest.raises(OutsideError, match="for weights of 2 dimensions, this one has 3"):
        law.evaluate(ones, ones, {})


def test_a_flat_weight_is_compared_too():
    def flat(w, d):
        return d + w if w.ndim == 1 else d

    law = norm_growth(lambda lr=0.1: chain(By(flat), r.StepSize(lr)), scale_invariant=False)
    with pytest.raises(OutsideError, match="this one has 1"):
        law.evaluate(torch.ones(4), torch.ones(4), {})
    plain = norm_growth("sgd", scale_invariant=False, momentum=0.0)
    w, g = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 5.0])
    new, _ = plain.evaluate(w, g, {}, lr=0.1, weight_decay=0.0)
    torch.testing.assert_close(new, torch.tensor([0.7, 1.5]).double(), rtol=1e-6, atol=0)


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
    assert asked == [
        ("== 11", True),
        ("== 4", True),
        ("== 6", True),
        ("== 3", True),
        (f"== {np.sqrt(16)!r}", True),
        ("", 1),
    ]
