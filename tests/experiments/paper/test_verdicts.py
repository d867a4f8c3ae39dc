"""Every claim can be confirmed and refuted, and no run that diverged vanishes from one."""

from collections import defaultdict

import numpy as np
import pytest

from spherenorm_experiments.analysis import FOR, Arm, Result, Results, Sample, of_equal_points
from spherenorm_experiments.core import Spec
from spherenorm_experiments.extra import equilibrium
from spherenorm_experiments.paper.norms._network import grown
from spherenorm_experiments.paper.norms.t1 import _correlation
from spherenorm_experiments.paper.norms.weight_decay import late_over_early
from spherenorm_experiments.paper.sphere._descents import REFERENCE, search_arm
from spherenorm_experiments.study import find_study
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


@pytest.mark.parametrize("name", STUDIES)
def test_every_claim_may_go_either_way(name):
    """In one of many worlds it is confirmed, and in another refuted."""
    open_claims, seen = {""}, defaultdict(set)
    for world in range(WORLDS):
        for text, more in verdicts(name, [world]).items():
            seen[text] |= more
        open_claims = {
            text for text, found in seen.items() if not (found & {*FOR} and found & REFUTED)
        }
        if not open_claims:
            break
    assert not open_claims


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


def test_a_rate_at_which_the_baseline_diverged_does_not_count_against_the_projected():
    results = fabricated("t1", 1)
    for item in results.arm("digits: SGD, every point"):
        if item.spec.hyper_parameters["lr"] == 3.0:
            item.summary.update(dict.fromkeys(("norm_last", "norm_first_epoch")), diverged_at=3)
    found = of_equal_points(("digits: SGDP", "digits: SGD"), key=grown)(results)
    assert len(found) == 6
    assert not found.diverged


def test_a_correlation_counts_a_run_that_diverged_and_one_that_does_not_vary():
    norms = [Sample({0: 1.0, 1: 1.0}), Sample({0: 2.0, 1: 2.0}), Sample({0: 4.0, 1: 3.0})]
    scores = [Sample({0: 3.0, 1: 5.0}), Sample({0: 2.0, 1: 5.0}), Sample({0: 0.0, 1: 5.0})]
    found = _correlation(*norms, *scores)
    assert found == {0: pytest.approx(-1.0), 1: 0.0}
    scores[1] = Sample({1: 5.0}, frozenset({0}))
    lost = _correlation(*norms, *scores)
    assert (dict(lost), lost.diverged) == ({1: 0.0}, {0})


def test_the_change_of_a_step_is_that_before_the_first_drop():
    item = fabricated("weight-decay", 0).items[0]
    curve = item.arrays["effective_step"]
    steps = 2 * np.arange(len(curve))
    late, early = (
        np.mean([curve[i] for i in range(len(curve)) if low <= steps[i] / 238 < high])
        for low, high in ((0.2, 0.29), (0.1, 0.2))
    )
    assert late_over_early(item) == pytest.approx(late / early)


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


def test_norms_that_are_kept_to_rounding_are_kept():
    results = fabricated("f3", 0)
    for item in results.arm(search_arm("SGDG", *REFERENCE)):
        item.summary["max_norm"] = 1 + 2e-16
    (claim,) = (c for c in find_study("f3").evaluated(results) if c.claim.name == "keeps-norm.sgdg")
    assert claim.verdict == "holds"


def test_a_network_without_gradients_left_has_no_cosines_and_no_error():
    results = fabricated("c1", 0)
    for item in results.having(condition="plain"):
        item.arrays["cosines_invariant"][:] = 0.0
    found = [
        c for c in find_study("c1").evaluated(results) if c.claim.text.startswith("The cosines")
    ]
    assert found[0].ours == "no results"
