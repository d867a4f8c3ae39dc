"""Formal vectors, their Gram table, and operations on them against float64 steps."""

import numpy as np
import pytest
import sympy as sp

from spherenorm import Rule, chain
from spherenorm import rules as r
from spherenorm_theory import TraceError, norm_growth
from spherenorm_theory.algebra import Space, Vector
from tests.theory.gram import assert_matches_a_float64_step
from tests.theory.recipes import NUMBERS, scaled


def test_space():
    space = Space({("w", "g"): sp.Integer(0)})
    w, g = Vector.atom("w"), Vector.atom("g")
    assert space.inner(w + g, w - g) == space.gram("w", "w") - space.gram("g", "g")
    assert space.gram("m", "w") == space.gram("w", "m")
    assert (w - w).terms == {}
    assert str(w * sp.Integer(2) - g) == "2*w - g"


@pytest.mark.parametrize("name", NUMBERS)
def test_functions_of_the_norms_match_a_float64_step(name):
    law = assert_matches_a_float64_step(
        scaled(NUMBERS[name]), {"lr": 0.3, "momentum": 0.6}, np.random.default_rng(7)
    )
    assert str(law.recursion[sp.Symbol("<w,m>", real=True)]) == "<w,m>*momentum - |s|^2/lr", (
        "Lemma 2.2, whatever scales the direction"
    )


def test_other_norms_are_refused():
    with pytest.raises(
        TraceError, match=r"of all norms only the one with ord=2, got ord=1.*test_formal\.py"
    ):
        norm_growth(scaled(lambda w, d: d.norm(p=1)))


class Transposed(Rule):
    """The radial part by way of the transposed weight.

    Its sum over the first dimension is a sum over all entries.
    """

    def update(self, update, state):
        column = update.weight.T
        inner = (column * update.direction.T).sum(0) / (column * column).sum(0)
        return type(update)(
            update.weight, update.grad, update.direction - inner * update.weight
        ), {}


class Outer(Rule):
    def update(self, update, state):
        square = update.weight.T * update.weight
        return type(update)(update.weight, update.grad, update.direction @ square), {}


def test_shapes_are_followed():
    law = norm_growth(
        lambda lr=0.1, momentum=0.9: chain(r.HeavyBall(momentum), Transposed(), r.StepSize(lr))
    )
    assert law.cross == 0
    assert law.agreement.note.startswith("the weight is one unit")
    with pytest.raises(TraceError, match="the entries of a unit are paired with other ones"):
        norm_growth(lambda lr=0.1: chain(Outer(), r.StepSize(lr)))
