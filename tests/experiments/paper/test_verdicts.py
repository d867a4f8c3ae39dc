"""Claims in worlds of random numbers may go either way; what tables of norms say beside them."""

import math
from collections import defaultdict

import pytest
from running import shown

from spherenorm_experiments.comparison import Comparison, Condition, find_study
from spherenorm_experiments.plan import Plan
from spherenorm_experiments.runs import Place, Runs
from spherenorm_experiments.spec import Spec
from spherenorm_experiments.verdict import FOR, evaluate_claim
from spherenorm_paper.norms.t1 import T1
from spherenorm_paper.shared.claims import ratio_at_equal_rates
from tests.experiments.fabricated import compared, fabricated, result
from tests.harness.tables import mostly_long

WORLDS = 80
STUDIES = ("t1", "weight-decay", "g1", "h6", "f1", "c1", "f3")
REFUTED = {"contradicted"}
PROJECTED, BASELINES = ("sgdp", "adamp"), ("sgd", "adam", "adamw")


def verdicts(name, worlds, lost=lambda recipe: False):
    """For each claim its verdicts in these worlds."""
    found = defaultdict(set)
    for world in worlds:
        for claim in find_study(name).evaluate_claims(fabricated(name, world, lost)):
            if claim.kind != "identity":
                found[claim.claim.text].add(claim.verdict)
    return found


def decided(study, claims, results, monkeypatch):
    """These claims of a study alone, which are quicker than all of them."""
    if isinstance(study, Comparison):
        return [evaluate_claim(claim, results) for claim in claims]
    monkeypatch.setattr(type(study), "claims", claims)
    return study.evaluate_claims(results)


@pytest.mark.parametrize("name", mostly_long(STUDIES, kept=3))
def test_every_claim_may_go_either_way(name, monkeypatch):
    """In one of many worlds it is confirmed, and in another refuted."""
    study, seen = find_study(name), defaultdict(set)
    decisions = study.evaluate_claims(fabricated(name, 0))
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


@pytest.mark.parametrize("name", mostly_long(["t1", "weight-decay", "f1", "f3"], kept=2))
def test_a_projected_optimizer_that_always_diverges_reproduces_nothing_about_it(name):
    for text, found in verdicts(name, range(3), lambda recipe: recipe in PROJECTED).items():
        about = any(word in text for word in ("SGDP", "AdamP", "GDP", "projected", "projection"))
        if about and "GDM 0.9" not in text and "without the projection" not in text:
            assert found <= {*REFUTED, "inconclusive", "not tested"}, text


def test_an_optimizer_is_not_like_one_that_always_diverges():
    found = verdicts("g1", range(3), lambda recipe: recipe in BASELINES)
    alike = [text for text in found if "score alike" in text]
    assert len(alike) == 2
    assert all(found[text] == {"contradicted"} for text in alike)


def test_a_correlation_counts_a_run_that_diverged_and_one_that_does_not_vary():
    """Of SGD's last norms and scores over four decays, by seed."""
    (claim,) = (each for each in T1.claims if each.name == "decay.smaller-norm")
    decays = ("SGD", "SGD, wd 1e-6", "SGD, wd 1e-5", "SGD, wd 1e-4")

    def correlation(norms, scores, lost=()):
        runs = [
            result(Place("digits", arm), seed, Spec("network", "sgd", {"lr": 0.1}, seed=seed),
                   validation=1.0, test=score, norm_last=norm,
                   diverged_at=3 if (arm, seed) in lost else None)
            for arm, *rows in zip(decays, norms, scores, strict=True)
            for seed, (norm, score) in enumerate(zip(*rows, strict=True))
        ]  # fmt: skip
        return claim.statistic(Runs(runs)).to_dict()

    norms = [[1.0, 1.0], [2.0, 2.0], [3.0, 4.0], [4.0, 3.0]]
    scores = [[4.0, 5.0], [3.0, 5.0], [2.0, 5.0], [1.0, 5.0]]
    assert correlation(norms, scores) == {0: pytest.approx(-1.0), 1: 0.0}
    lost = correlation(norms, scores, lost={("SGD, wd 1e-5", 0)})
    assert lost == {0: math.inf, 1: 0.0}


def test_a_network_without_gradients_left_has_no_cosines_and_no_error():
    results = fabricated("c1", 0)
    for item in results.on("plain"):
        item.arrays["cosines_invariant"][:] = 0.0
    found = [
        c
        for c in find_study("c1").evaluate_claims(results)
        if c.claim.text.startswith("The cosines")
    ]
    assert found[0].number_text == "no results"


def test_the_projected_optimizers_have_92_percent_of_the_steps():
    trials = find_study("h7").trials(Plan("small"), Runs())
    steps = {trial.place.arm: trial.spec.epochs for trial in trials}
    assert steps["SGD"] == steps["AdamP"] == 240
    assert steps["SGDP, 92 %"] == steps["AdamP, 92 %"] == round(0.92 * 240)


def test_the_length_of_a_run_is_in_its_own_unit():
    """A sweep counts steps, a run on batches epochs."""
    about = {
        real: next(t.about for t in find_study("h7").tables(runs) if t.title.startswith("Scores"))
        for real, runs in ((False, fabricated("h7", 0)),
                           (True, compared(find_study("h7"), Plan("small", real=True))))
    }  # fmt: skip
    assert "Each run: 221 steps of batches of 64" in about[False]
    assert "100 epochs of batches of 256" in about[True]
    assert ": :" not in about[False]


def test_the_laws_of_momentum_stand_beside_the_numbers():
    """1 + 2 beta / (1 - beta) for heavy ball, and 1 with the projection."""
    norms = next(
        table for table in find_study("h6").tables(fabricated("h6", 0)) if "Norms" in table.title
    )
    column = list(map(str, norms.columns)).index("paper growth / steps²")
    laws = {row[0]: row[column] for row in shown(norms)}
    for beta in (0.5, 0.8, 0.9, 0.95, 0.975):
        assert float(laws[f"heavy ball: SGD, β = {beta:g}"]) == round(1 + 2 * beta / (1 - beta))
        assert laws[f"heavy ball: SGDP, β = {beta:g}"] == "1"


ON = [Condition(label, "digits") for label in ("a", "b")]
PAIR = "Adam", "AdamP"


def run(condition, name, rate, seed, path, lost=False):
    spec = Spec("digits", name.lower(), {"lr": rate}, seed=seed, probes=("norms",))
    diverged = {"diverged_at": 3} if lost else {}
    place = Place(condition.label, name)
    return result(place, seed, spec, total_effective_step=path, **diverged)


def ratios(items, on=ON):
    found = ratio_at_equal_rates(Runs(items), on, PAIR, "total_effective_step")
    return None if found is None else found.to_dict()


def test_only_rates_that_both_have_are_compared_and_conditions_weigh_alike():
    """Tuned to 0.1 and 0.2 the second would be 8 times as far; at 0.1 it is twice."""
    adam, adamp = PAIR
    items = [
        run(ON[0], adam, 0.1, 0, 1.0), run(ON[0], adamp, 0.1, 0, 2.0),
        run(ON[0], adamp, 0.2, 0, 8.0),
        *(run(ON[1], adam, rate, 0, 1.0) for rate in (0.1, 0.2, 0.4)),
        *(run(ON[1], adamp, rate, 0, 8.0) for rate in (0.1, 0.2, 0.4)),
    ]  # fmt: skip
    assert ratios(items) == {0: pytest.approx(math.sqrt(2 * 8))}
    assert ratios(items[:3], ON[:1]) == {0: pytest.approx(2.0)}
    assert ratios(items[:1]) is None
    assert ratios([items[0], items[2]]) is None


def test_a_run_that_diverged_counts_against_the_projected_one_alone():
    adam, adamp = PAIR
    both = [run(ON[0], each, 0.1, seed, 1.0) for each in PAIR for seed in (0, 1)]
    ours = [run(ON[0], adam, 0.2, 1, 1.0), run(ON[0], adamp, 0.2, 1, None, lost=True)]
    found = ratios([*both, *ours])
    assert found == {0: 1.0, 1: 0.0}
    theirs = [run(ON[0], adam, 0.2, 1, None, lost=True), run(ON[0], adamp, 0.2, 1, 1.0)]
    found = ratios([*both, *theirs])
    assert found == {0: 1.0, 1: 1.0}
