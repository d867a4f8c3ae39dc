"""Equilibria beside plain loops, and the bounds that they print."""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from spherenorm import Rule, chain
from spherenorm import rules as r
from spherenorm_theory import NoEquilibriumError, equilibrium
from tests.theory import equilibria
from tests.theory.laws.adversarial import keeps


@dataclass(frozen=True)
class Pair(Rule):
    """Two momenta by a function of the weight, the direction, both, and a number."""

    function: Callable[..., Any]
    number: Any

    state_names = ("m", "n")

    def update(self, update, state):
        moved, state = self.function(update.weight, update.direction, state, self.number)
        return replace(update, direction=moved), state


SGDP = ("sgdp", {**equilibria.NOISE, "momentum": 0.5})
ADAMW = ("adamw", {**equilibria.ADAMW, "betas": (0.9, 0.9)})


def run(monkeypatch, capsys, *recipes):
    """The exit code and the lines of the command, for runs too short for its longer averages."""
    shorter = equilibria.compare
    monkeypatch.setattr(equilibria, "UNITS", {2: 64, 256: 16})
    monkeypatch.setattr(equilibria, "grid", lambda: recipes)
    monkeypatch.setattr(equilibria, "compare", lambda *given: shorter(*given, 200, 400))
    monkeypatch.setattr(sys, "argv", ["equilibria", "--bounds"])
    with pytest.raises(SystemExit) as ended:
        equilibria.main()
    return ended.value.code, capsys.readouterr().out


def test_the_command_compares_each_recipe_at_each_size(monkeypatch, capsys):
    code, out = run(monkeypatch, capsys, SGDP, ADAMW)
    assert code == 0
    assert [line[:14] for line in out.splitlines()] == [
        *("d=  2 sgdp lr=", "d=  2 adamw lr"),
        *("d=256 sgdp lr=", "d=256 adamw lr"),
    ]
    assert out.count("bound inf%") == 1


def test_the_command_fails_if_a_law_is_off_by_more_than_its_bound(monkeypatch, capsys):
    monkeypatch.setattr(equilibria, "RATIO", 0.3)
    code, out = run(monkeypatch, capsys, SGDP)
    assert code == 1
    assert "EXCEEDED" in out


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
        def swap(w, d, both, beta):
            return (new := beta * both["n"] + d), {"m": new, "n": both["m"]}

        return chain(r.CoupledDecay(weight_decay), Pair(swap, beta), r.StepSize(lr))

    law = equilibrium(paired)
    values = law.traced.values()
    assert [float(x.subs(values)) for x in law.memories[0]] == pytest.approx([0.9])
    assert law.bound(values, 100) == pytest.approx((1 + 10 / 20) / 100)


def test_an_open_case_is_named_where_a_number_is_asked_for():
    def late(w, d, t):
        return torch.where(t > 2000, d + 0.1 * w, d + 0.5 * w), t + 1

    law = equilibrium(keeps(late, called="step"), momentum=0.0)
    with pytest.raises(NoEquilibriumError, match=r"depends on c1, which has no one number.*c1 is"):
        law.squared_norm(law.traced.values(), 256, 1.0)
