"""The promise "law", and the refusals of steps that are not of one weight."""

import time
from dataclasses import replace

import pytest

import spherenorm as sn
import spherenorm_theory
from docs.site import laws
from spherenorm import rules as r
from spherenorm.zoo import rules as z
from tests.harness import refuses

QUICK = {
    *("adafactor", "came", "muoneq", "prodigy", "rowfloor_muon", "shampoo"),
    *("adopt", "fromage", "grams", "hyperp", "layca", "muon2", "qhm", "rmnp", "spel"),
}
"""Recipes of the zoo whose law, or refusal, takes half a second."""
PAGE = laws.PAGE.read_text()


class Clip(sn.Rule):
    def global_sum_terms(self, update, state):
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


def test_a_step_that_is_not_of_one_weight_is_refused():
    reason = "Clip needs sums over all weights"
    with refuses(reason, by=spherenorm_theory.TraceError):
        spherenorm_theory.norm_growth(clipped)
    results = sn.testing.check(clipped, only=("law",))
    assert results["law"].verdict == "refused"
    assert reason in results["law"].why


def halves(lr=0.1, momentum=0.9):
    blocks = r.RadialProjection("channel"), r.NormalizedUpdate("layer")
    return sn.chain(r.HeavyBall(momentum), r.Blocks(blocks, (1, 1)), r.StepSize(lr))


@pytest.mark.parametrize("recipe", ["blocks(adamw)", halves], ids=["named", "made"])
def test_blocks_have_the_laws_of_their_recipes(recipe):
    with refuses("Blocks", "the law of its recipe", by=spherenorm_theory.TraceError):
        spherenorm_theory.norm_growth(recipe)


def test_laws_of_renamed_states():
    """Two momenta have a recursion each; behind a projection neither matters to the norm."""
    law = spherenorm_theory.norm_growth(two_momenta)
    assert {(x.a, x.b) for x in law.recursion} == {("w", "m"), ("w", "momentum_2")}
    assert spherenorm_theory.check(two_momenta, steps=10).passed
    assert spherenorm_theory.norm_growth(two_projected).cross == 0
    results = sn.testing.check(two_projected, only=("law",))
    assert results["law"].verdict == "holds"
    assert results["law"].why.startswith("|w'|^2 = ")


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in laws.NAMES],
)
def test_each_recipe_has_the_law_or_the_reason_of_the_page(name):
    """docs/theory.md, which `python -m docs.site.laws` writes: no raw error, and in seconds."""
    begin = time.process_time()
    assert laws.row(name) in PAGE
    result = sn.testing.check(name, only=("law",))["law"]
    assert time.process_time() - begin < 10
    assert (result.verdict == "refused") is (f"| `{name}` | no law |" in PAGE), result.why
    assert result.why.startswith("|w'|^2 = ") or result.verdict == "refused"


def alternating(lr=0.1, momentum=0.9):
    """Steps of columns and of rows by turns."""
    columns, rows = (sn.chain(z.RmsLength(0.2, view)) for view in ("dim=1", "channel"))
    return sn.chain(r.HeavyBall(momentum), z.Alternate((columns, rows)), r.StepSize(lr))


def test_a_step_that_is_another_at_even_times_is_held_at_both():
    """A count is even or odd: no law assumes either, nor holds for rows at even times alone."""
    with refuses("rows and columns by turns", by=spherenorm_theory.TraceError):
        spherenorm_theory.norm_growth(alternating)


def test_a_law_follows_a_global_that_its_recipe_reads():
    decay = [0.1]

    def mine(lr=0.1):
        return sn.chain(r.DecoupledDecay(decay[0]), r.StepSize(lr))

    before = spherenorm_theory.norm_growth(mine)
    decay[0] = 0.0
    assert spherenorm_theory.norm_growth(mine).kappa == 0 != before.kappa
