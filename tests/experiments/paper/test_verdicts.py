"""Every claim can be confirmed and refuted, and no run that diverged vanishes from one."""

from collections import defaultdict

import pytest

from spherenorm_experiments.analysis import (
    FOR,
    Arm,
    Result,
    Results,
    Sample,
    evaluate,
    with_tuned,
)
from spherenorm_experiments.core import Spec
from spherenorm_experiments.extra import equilibrium
from spherenorm_experiments.paper.norms.t1 import _correlation
from spherenorm_experiments.study import TunedComparison, find_study
from tests.experiments.fabricated import fabricated

WORLDS = 80
STUDIES = ("t1", "weight-decay", "g1", "h6", "c1", "f1", "f3")
REFUTED = {"not reproduced", "does not hold"}
PROJECTED, BASELINES = ("sgdp", "adamp"), ("sgd", "adam", "adamw")


def verdicts(name, worlds, lost=lambda arm: False):
    """For each claim its verdicts in these worlds."""
    found = defaultdict(set)
    for world in worlds:
        for claim in find_study(name).evaluated(fabricated(name, world, lost)):
            if claim.kind != "identity":
                found[claim.claim.text].add(claim.verdict)
    return found


def decided(study, claims, results, monkeypatch):
    """These claims of a study alone, which are quicker than all of them."""
    if isinstance(study, TunedComparison):
        results = with_tuned(results)
        return [evaluate(claim, results) for claim in claims]
    monkeypatch.setattr(type(study), "claims", claims)
    return study.evaluated(results)


@pytest.mark.parametrize("name", STUDIES)
def test_every_claim_may_go_either_way(name, monkeypatch):
    """In one of many worlds it is confirmed, and in another refuted."""
    study, seen = find_study(name), defaultdict(set)
    decisions = study.evaluated(fabricated(name, 0))
    left = {d.claim.text: d.claim for d in decisions if d.kind != "identity"}
    for world in range(WORLDS):
        for decision in decided(study, [*left.values()], fabricated(name, world), monkeypatch):
            text = decision.claim.text
            seen[text].add(decision.verdict)
            if seen[text] & {*FOR} and seen[text] & REFUTED:
                del left[text]
        if not left:
            break
    assert not left


@pytest.mark.parametrize("name", ["t1", "weight-decay", "f1", "f3"])
def test_a_projected_optimizer_that_always_diverges_reproduces_nothing_about_it(name):
    for text, found in verdicts(name, range(3), lambda arm: arm.recipe in PROJECTED).items():
        about = any(word in text for word in ("SGDP", "AdamP", "GDP", "projected", "projection"))
        if about and "GDM 0.9" not in text and "without the projection" not in text:
            assert found <= {*REFUTED, "inconclusive"}, text


def test_an_optimizer_is_not_like_one_that_always_diverges():
    found = verdicts("g1", range(3), lambda arm: arm.recipe in BASELINES)
    alike = [text for text in found if "score alike" in text]
    assert len(alike) == 2
    assert all(found[text] == {"not reproduced"} for text in alike)


def test_a_correlation_counts_a_run_that_diverged_and_one_that_does_not_vary():
    norms = [Sample({0: 1.0, 1: 1.0}), Sample({0: 2.0, 1: 2.0}), Sample({0: 4.0, 1: 3.0})]
    scores = [Sample({0: 3.0, 1: 5.0}), Sample({0: 2.0, 1: 5.0}), Sample({0: 0.0, 1: 5.0})]
    found = _correlation(*norms, *scores)
    assert found == {0: pytest.approx(-1.0), 1: 0.0}
    scores[1] = Sample({1: 5.0}, frozenset({0}))
    lost = _correlation(*norms, *scores)
    assert (dict(lost), lost.diverged) == ({1: 0.0}, {0})


def test_a_point_that_diverged_counts_against_an_equilibrium():
    law = equilibrium.Quantity("x", lambda item: 1.0, lambda item: item.summary["x"])
    arm = Arm("SGD", "sgd")
    found = {(0.1, 0): 1.1, (0.2, 0): 0.8, (0.1, 1): 1.0, (0.2, 1): None}
    items = [
        Result("", Spec("mlp", "sgd", {"lr": lr, "weight_decay": 1.0}, seed=seed), {},
               {"x": x}, None, arm=arm)
        for (lr, seed), x in found.items()
    ]  # fmt: skip
    worst = equilibrium._off(Results(items), arm, law)
    assert (dict(worst), worst.diverged) == ({0: pytest.approx(20.0)}, {1})


def test_a_network_without_gradients_left_has_no_cosines_and_no_error():
    results = fabricated("c1", 0)
    for item in results.having(condition="plain"):
        item.arrays["cosines_invariant"][:] = 0.0
    found = [
        c for c in find_study("c1").evaluated(results) if c.claim.text.startswith("The cosines")
    ]
    assert found[0].ours == "no results"
