"""The promise "law", and the refusals of steps that are not of one weight."""

from dataclasses import replace

import pytest

import spherenorm as sn
import spherenorm_theory
from spherenorm import rules as r
from tests.harness import refuses
from tests.recipes.users import USERS

QUICK = ("adafactor", "prodigy", "aggmo", "lookahead_adamw")


class Clip(sn.Rule):
    def measure(self, update, state):
        return {"squared": (update.grad**2).sum()}

    def update(self, update, state):
        return replace(update, direction=update.direction / update.notes["squared"].sqrt()), {}


def clipped(lr=0.1):
    return sn.chain(Clip(), r.StepSize(lr))


def two_momenta(lr=0.1, fast=0.5, slow=0.9):
    return sn.chain(r.HeavyBall(slow), r.HeavyBall(fast), r.StepSize(lr))


def two_projected(lr=0.1, beta=0.9):
    momenta = r.HeavyBall(beta), r.HeavyBall(beta)
    return sn.chain(*momenta, r.ScaleInvarianceTest(), r.RadialProjection(), r.StepSize(lr))


@pytest.mark.parametrize(
    ("recipe", "reason"),
    [
        (clipped, "Clip measures all weights together"),
    ],
)
def test_steps_that_are_not_of_one_weight_are_refused(recipe, reason):
    with refuses(reason, by=spherenorm_theory.TraceError):
        spherenorm_theory.norm_growth(recipe)
    found = sn.testing.check(recipe, only=("law",))
    assert found["law"].verdict == "refused"
    assert reason in found["law"].why


def test_laws_of_renamed_states():
    """Two momenta have a recursion each; behind a projection neither matters to the norm."""
    law = spherenorm_theory.norm_growth(two_momenta)
    assert {(x.a, x.b) for x in law.recursion} == {("w", "m"), ("w", "momentum_2")}
    assert spherenorm_theory.check(two_momenta, steps=10).passed
    assert spherenorm_theory.norm_growth(two_projected).cross == 0
    found = sn.testing.check(two_projected, only=("law",))
    assert found["law"].verdict == "holds"
    assert found["law"].why.startswith("|w'|^2 = ")


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id=str(row), marks=() if str(row) in QUICK else pytest.mark.long)
        for row in USERS
    ],
)
def test_users_recipes_have_a_law_or_a_reason(row):
    """No raw error."""
    found = sn.testing.check(row.recipe, only=("law",))["law"]
    assert found.verdict in ("holds", "refused"), found.why
