"""Equilibria beside plain loops, and the bounds that they print."""

import math

import pytest
import torch

from spherenorm import chain
from spherenorm import rules as r
from spherenorm_theory import NoEquilibriumError, equilibrium
from tests.harness import refuses
from tests.theory import equilibria
from tests.theory.recipes import Keeps, keeps

SGDP = ("sgdp", {**equilibria.NOISE, "momentum": 0.5})
ADAMW = ("adamw", {**equilibria.ADAMW, "betas": (0.9, 0.9)})
QUICK = [(*SGDP, 2), (*SGDP, 256), (*ADAMW, 256)]
LONG = [
    *((*each, 256) for each in equilibria.recipes((0.0, 0.5, 0.9), (0.99, 0.999))),
    *((*each, size) for size in (2, 16) for each in equilibria.recipes((0.5, 0.9), (0.5, 0.9))),
]


@pytest.mark.parametrize(
    ("name", "numbers", "size", "least"),
    [
        *((*case, 400) for case in QUICK),
        *(pytest.param(*case, 1500, marks=pytest.mark.long) for case in LONG),
    ],
)
def test_an_equilibrium_is_that_of_a_plain_loop(name, numbers, size, least):
    try:
        errors, bound = equilibria.compare(name, numbers, size, steps=least, least=least)
    except NoEquilibriumError:
        assert size < 256
    else:
        assert max(map(abs, errors)) <= (bound if size < 256 or least < 1500 else min(bound, 0.01))


def test_a_loop_with_another_decay_is_off_by_more_than_the_bound(monkeypatch):
    monkeypatch.setattr(equilibria, "RATIO", 0.3)
    errors, bound = equilibria.compare(*SGDP, 256, 200, 400)
    assert max(map(abs, errors)) > bound


def test_a_second_moment_has_no_bound_below_sixteen_entries():
    law = equilibrium("adamw", eps=0.0)
    values = law.traced.values()
    assert [law.bound(values, d) for d in (1, 2, 15)] == [math.inf] * 3
    assert 0 < law.bound(values, 256) < law.bound(values, 16) < math.inf
    assert any("for d >= 16" in each for each in law.hypotheses)
    plain = equilibrium("sgd", dampening=0.0)
    assert plain.bound(plain.traced.values(), 2) < math.inf


@pytest.mark.parametrize("betas", [(0.9, 0.99), (0.95, 0.98), (0.0, 0.5)])
def test_a_step_along_a_sign_is_as_in_plain_loops(betas):
    errors, bound = equilibria.compare("lion", {**equilibria.LION, "betas": betas}, 256)
    assert max(map(abs, errors)) <= bound
    law = equilibrium("lion")
    assert [law.bound(law.traced.values(), d) for d in (2, 15)] == [math.inf] * 2
    assert any("the entries of gradients are Gaussian" in each for each in law.hypotheses)


def test_momenta_that_feed_each_other_have_the_memory_of_both():
    """m' = b n + d, n' = m: each forgets itself at once, and both together keep sqrt(b)."""

    def paired(lr=0.1, beta=0.81, weight_decay=0.1):
        def swap(w, d, m, n, beta):
            return (new := beta * n + d), new, m

        pair = Keeps(swap, torch.zeros_like, "m n", (beta,))
        return chain(r.CoupledDecay(weight_decay), pair, r.StepSize(lr))

    law = equilibrium(paired)
    values = law.traced.values()
    assert [float(x.subs(values)) for x in law.memories[0]] == pytest.approx([0.9])
    assert law.bound(values, 100) == pytest.approx((1 + 10 / 20) / 100)


def test_an_open_case_is_named_where_a_number_is_asked_for():
    def late(w, d, t):
        return torch.where(t > 2000, d + 0.1 * w, d + 0.5 * w), t + 1

    law = equilibrium(keeps(late, names="step"), momentum=0.0)
    with refuses("c1", by=NoEquilibriumError):
        law.squared_norm(law.traced.values(), 256, 1.0)
