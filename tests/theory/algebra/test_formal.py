"""Formal vectors, their Gram table, and operations on them against float64 steps."""

import numpy as np
import pytest
import sympy as sp

from spherenorm import chain
from spherenorm import rules as r
from spherenorm_theory import TraceError, norm_growth
from spherenorm_theory.algebra import Space, Vector
from tests.harness import refuses
from tests.theory.gram import assert_matches_a_float64_step
from tests.theory.recipes import NUMBERS, By, by, scaled


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


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (lambda w, d: d * d.norm(p=1), ["ord=2", "ord=1", "test_formal.py"]),
        (lambda w, d: d @ (w.T * w), ["entries of a unit are paired with other ones"]),
    ],
)
def test_what_is_of_no_inner_product_is_refused(function, named):
    with refuses(*named, by=TraceError):
        norm_growth(by(function))


def test_shapes_are_followed():
    """The radial part by way of the transposed weight, whose sums are those of all entries."""

    def transposed(lr=0.1, momentum=0.9):
        def tangent(w, d):
            return d - (w.T * d.T).sum(0) / (w.T * w.T).sum(0) * w

        return chain(r.HeavyBall(momentum), By(tangent), r.StepSize(lr))

    law = norm_growth(transposed)
    assert law.cross == 0
    assert law.agreement.note.startswith("the weight is one unit")
