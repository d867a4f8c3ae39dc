"""Comparisons: search, chosen runs, tables and claims, and optimizers that are added."""

import math
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from running import shown
from spherenorm_bench import PLAIN, SGD, SGDP, SMALL_TABLE, small_table

from spherenorm_experiments.comparison import Arm, Condition, Search, Setup, find_study
from spherenorm_experiments.plan import Plan
from spherenorm_experiments.report import ComparisonText, Section
from spherenorm_experiments.runs import NUMBERS, Place, Runs
from spherenorm_experiments.tables import Cell
from spherenorm_experiments.verdict import Claim, evaluate_claim
from tests.experiments.fabricated import compared, result
from tests.experiments.study.null_searches import (
    World,
    null_study,
    plain_p_value,
    run_to_end,
    verdicts,
)
from tests.harness import refuses

OWN = Arm("careful", {"lr": [0.02, 0.2]}, recipe="spherenorm_tiny:careful")


@pytest.fixture(scope="module")
def ended():
    """The study with an optimizer more, and fabricated results of it."""
    study = SMALL_TABLE.with_arms("more", OWN)
    return study, compared(study, Plan("smoke"))


def _grid(runs, arm):
    """Seed, rate and run of each trial."""
    every = runs.all_runs("plain", arm)
    return [(x.spec.seed, x.spec.hyper_parameters["lr"], x.summary) for x in every.run]


def _chosen(runs, arm):
    own = runs.selected("plain", arm).run
    return [(x.spec.seed, x.spec.hyper_parameters["lr"], x.summary) for x in own]


def _rows(table):
    """The cells of a table by row and column."""
    columns = list(map(str, table.columns))
    return {str(row[0]): dict(zip(columns, row, strict=True)) for row in table.rows}


def scored(study, score, plan=None, by="lr"):
    """The results of a study when nothing is left to run, with scores by recipe and rate.

    Args:
        by: another hyper-parameter in place of the rate.
    """
    plan, items, trials = plan or Plan(), [], []
    while len(trials := study.trials(plan, Runs(items))) > len(items):
        known = {item.spec.text for item in items}
        for trial in trials:
            if trial.spec.text not in known:
                number = score(trial.spec.recipe, trial.spec.hyper_parameters[by])
                lost = 3 if number is None else None
                test = number if number is None else -number  # (which must not choose)
                summary = {"validation": number, "test": test, "diverged_at": lost}
                summary |= {"norm_start": 2.0, "norm_last": None if lost else 3.0}
                items.append(result(trial.place, 0, trial.spec, metric="score", **summary))
    return Runs(items)


def _rates(runs):
    arms = {item.place.arm for item in runs}
    return {name: sorted({lr for _, lr, _ in _grid(runs, name)}) for name in arms}


def test_a_grid_grows_for_all_of_its_family_until_no_best_is_at_an_edge():
    """By its own spacing, where one of them is best at an end; another family's stays."""
    other = Arm("Adam", {"lr": (1e-3, 1e-2, 1e-1)}, against=())
    study = small_table(arms=[SGD, SGDP, other], tune={"lr": (0.01, 0.03, 0.1)}, claims=())
    best = {"sgd": 0.03, "sgdp": 1.1, "adam": 1e-2}
    found = _rates(scored(study, lambda recipe, lr: -abs(math.log(lr / best[recipe]))))
    grown = [0.01, 0.03, 0.1, 0.333, 1.11, 3.7]
    assert found == {"SGD": grown, "SGDP": grown, "Adam": [1e-3, 1e-2, 1e-1]}
    best = {"sgd": 0.03, "sgdp": 0.002, "adam": 1e-2}
    found = _rates(scored(study, lambda recipe, lr: -abs(math.log(lr / best[recipe]))))
    assert found["SGD"] == found["SGDP"] == [0.00111, 0.00333, 0.01, 0.03, 0.1]
    # A rate at which runs are lost is no best, and what always rises is bounded and says so.
    found = _rates(scored(study, lambda recipe, lr: None if lr > 0.05 else lr))
    assert found["SGD"] == [0.01, 0.03, 0.1]
    results = scored(study, lambda recipe, lr: lr)
    assert len(_rates(results)["SGD"]) == 6
    assert "the best lr of plain: SGD is at an edge" in study.evaluate_claims(results)[0].detail


@pytest.mark.parametrize("name", [*NUMBERS, "diverged_at", "seed", "point", "score"])
def test_a_hyper_parameter_may_have_the_name_of_a_number(name):
    """Grids and tables are those under another name: neither takes the place of the other."""
    found = []
    for own in ("nu", name):
        study = small_table(tune={own: (1.0, 2.0, 4.0)}, claims=())
        runs = scored(study, lambda recipe, x: None if x > 9 else x, by=own)
        assert len(runs.all_runs("plain", "SGD").point.unique()) == 5  # and 8 and 16
        assert runs.at_point("plain", "SGD", **{own: 8.0}).growth.tolist() == [1.5] * 3
        found.append([shown(table) for table in study.tables(runs)])
    assert found[0] == found[1]


def said(study, runs):
    return ComparisonText(Section(study, Plan(), runs))


def test_each_arm_says_its_own_trials_and_the_range_that_was_tried():
    other = Arm("Adam", {"lr": (1e-3, 1e-2, 1e-1)}, against=())
    study = small_table(arms=[SGD, SGDP, other], tune={"lr": (0.01, 0.03, 0.1)}, claims=())
    best = {"sgd": 0.03, "sgdp": 0.002, "adam": 1e-2}
    about = said(study, scored(study, lambda recipe, lr: -abs(math.log(lr / best[recipe])))).about
    grown = "in 5 trials (lr 0.00111 to 0.1)"
    assert f"SGD {grown}, SGDP {grown}, Adam in 3 trials (lr 0.001 to 0.1)." in about
    alike = small_table(tune={"lr": [0.1]})
    about = said(alike, scored(alike, lambda recipe, lr: 1.0)).about
    assert "each optimizer in 1 trial (lr 0.1)." in about


@pytest.mark.parametrize(
    ("gaps", "text"),
    [
        ([1.0] * 4 + [-math.inf] * 20, "lower than SGD on most seeds where they differ; 20 "),
        ([-1.0] * 4 + [math.inf] * 20, "higher than SGD on most seeds where they differ; 20 "),
        ([-math.inf] * 9, "lower than SGD on most seeds where they differ; 9 "),
        ([5.0] * 3 + [-math.inf] * 5, "SGDP against SGD; 5 seeds diverged: inconclusive"),
        ([1.0, 1.1] * 4, "higher than SGD [+1"),
        ([-1.0, -1.1] * 4, "lower than SGD [-1.09"),
    ],
)
def test_a_sentence_has_the_direction_of_its_verdict(gaps, text):
    """Over the seeds that were not lost alone, what often diverges may be better."""
    study = small_table(claims=())
    (condition,) = study.conditions
    runs = Runs(
        result(Place(condition.label, arm), seed, validation=score, test=score, metric="accuracy",
               diverged_at=None if score else 3)
        for seed, gap in enumerate(gaps)
        for arm, lost, more in (("SGD", math.inf, 0.0), ("SGDP", -math.inf, gap))
        for score in [None if gap == lost else 50.0 + seed + (more if math.isfinite(more) else 0.0)]
    )  # fmt: skip
    (sentence,) = said(study, runs).sentences
    assert text in str(sentence)
    word = "worse" if "lower" in text else "better"
    assert (f": {word} (p = " in str(sentence)) == ("against" not in text)


def test_a_study_without_claims_about_scores_has_no_sentence_about_them():
    norms = Claim(
        "norms", "> 0", lambda runs: runs.selected("plain", "SGD").norm_last, primary=True
    )
    study = small_table(scored=False, claims=[norms])
    assert said(study, scored(study, lambda recipe, lr: lr)).sentences == []


def test_a_run_that_diverged_is_in_no_mean_and_no_rate_is_taken_where_all_did(ended):
    def lost(trial):
        return trial.place.arm == "SGDP" or (trial.place.arm, trial.spec.seed) == ("SGD", 40)

    study = ended[0]
    scores, norms = map(_rows, study.tables(compared(study, Plan("smoke"), lost))[:2])
    for name in ("norm last", "path on sphere"):
        assert str(norms["plain: SGD"][name]) == "– (1 diverged)"
    assert norms["plain: careful"]["path on sphere"].is_known
    assert str(scores["plain: SGDP"]["chosen by seeds"]) == "none ×2"


def test_a_seed_without_a_validation_score_has_no_score_and_the_row_says_so(ended):
    """Though each of its runs has a test score: the first point is no choice."""
    study, runs = ended
    runs = Runs(
        replace(item, summary={**item.summary, "validation": None})
        if (item.place.arm, item.spec.seed) == ("SGD", 41) else item
        for item in runs
    )  # fmt: skip
    test = runs.selected("plain", "SGD").test
    assert test[41] == -math.inf
    assert math.isfinite(test[40])
    detail = study.evaluate_claims(runs)[0].detail
    assert "plain: SGD has no validation score at any point on seed 41" in detail
    assert "none ×1" in str(_rows(study.tables(runs)[0])["plain: SGD"]["chosen by seeds"])


def test_differences_at_equal_points_are_paired_there_and_over_the_grid(ended):
    study, runs = ended
    (table,) = (each for each in study.tables(runs) if each.title == "At equal points")
    rows = shown(table)
    assert [row[:2] for row in rows] == [["plain: SGDP − SGD", place]
            for place in ("0.01", "0.1 (the paper's)", "mean over the grid")]  # fmt: skip
    scores = {(name, seed, lr): each["test"] for name in ("SGD", "SGDP")
              for seed, lr, each in _grid(runs, name)}  # fmt: skip
    gaps = {lr: [scores["SGDP", s, lr] - scores["SGD", s, lr] for s in (40, 41)]
            for lr in (0.01, 0.1)}  # fmt: skip
    expected = [*(np.mean(gap) for gap in gaps.values()), np.mean([*gaps.values()])]
    assert [row[-1].number for row in table.rows] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("seeds", "curvature"), [(6, 0.2), pytest.param(6, 0.0, marks=pytest.mark.long)]
)
def test_studies_without_a_difference_seldom_have_a_verdict(seeds, curvature):
    """At most 5 %; of 40 studies more than 6 have one in 1 of 200 suites that keep it."""
    assert verdicts(seeds, 40, curvature) <= 6


def test_a_study_has_the_p_value_of_a_plain_loop_over_its_scores():
    """Growth of the grid, the choice of each seed, and the test: on equal scores, all are equal."""
    random, study = np.random.default_rng(3), null_study(6)
    grew = set()
    for curvature in (0.0, 0.05, 0.2, 1.0):
        world = World(random, curvature)
        (decision,) = study.decide_claims(run_to_end(study, world))
        drawn = len(world.known)
        assert decision.p == pytest.approx(plain_p_value(world, 6), rel=1e-9)
        assert len(world.known) == drawn  # the loop asks for no point that the study did not train
        grew.add(drawn)
    assert len(grew) > 1


def test_search_points_fill_the_ranges_evenly_and_are_the_same_each_time():
    space = {"lr": (1e-3, 1e-1), "rest": (1e-2, 1.0)}
    halton = Search(space, 16).points
    assert halton == Search(space, 16).points
    assert halton[:8] == Search(space, 8).points  # a larger budget adds to a smaller one
    for name, (low, high) in space.items():
        shares = [math.log(point[name] / low) / math.log(high / low) for point in halton]
        assert all(0 < share < 1 for share in shares)
        assert all(
            sum(i / 4 <= share < (i + 1) / 4 for share in shares) in (3, 4, 5) for i in range(4)
        )
    rates = [point["lr"] for point in Search({"lr": (1e-3, 1e-1)}, 3).points]
    assert rates == pytest.approx([1e-3, 1e-2, 1e-1])
    (middle,) = Search({"lr": (1e-3, 1e-1)}, 1).points
    assert middle["lr"] == pytest.approx(1e-2)


@pytest.mark.parametrize("bounds", [(0.1, 0.01), (0.0, 0.1), (0.1, math.inf)])
def test_wrong_searches_are_refused(bounds):
    with refuses("the range of lr must be positive and rising"):
        Search({"lr": bounds}, 3)


def test_the_table_has_means_of_the_chosen_runs_and_paired_differences(ended):
    study, runs = ended
    rows, norms = (_rows(table) for table in study.tables(runs)[:2])
    assert list(rows) == ["plain: SGD", "plain: SGDP", "plain: careful"]
    sgd, sgdp = (_chosen(runs, name) for name in ("SGD", "SGDP"))
    mean = math.fsum(s["test"] for *_, s in sgdp) / len(sgdp)
    assert rows["plain: SGDP"]["accuracy"].number == pytest.approx(mean)
    gap = mean - math.fsum(s["test"] for *_, s in sgd) / len(sgd)
    assert rows["plain: SGDP"]["minus baseline"].number == pytest.approx(gap)
    assert rows["plain: careful"]["minus baseline"].is_known
    assert str(rows["plain: SGDP"]["paper accuracy"]) == "70.70"
    assert not any(
        cell.is_known
        for column, cell in rows["plain: careful"].items()
        if column.startswith("paper")
    )
    grown = [s["norm_last"] / s["norm_start"] for *_, s in _chosen(runs, "SGD")]
    assert norms["plain: SGD"]["last / first"].number == pytest.approx(sum(grown) / len(grown))


def test_the_papers_runs_have_the_papers_settings_and_no_search():
    trials = SMALL_TABLE.trials(Plan("small", real=True), Runs())
    assert len({trial.spec.text for trial in trials}) == len(trials) == 2 * 3  # arms, seeds
    by_recipe = {trial.spec.recipe: trial.spec for trial in trials}
    assert by_recipe["sgdp"].hyper_parameters == {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-5}
    assert by_recipe["sgd"].epochs == 100
    assert by_recipe["sgd"].options == {"variant": "residual"}


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"conditions": [PLAIN] * 2}, "plain"),
        ({"arms": [SGDP] * 2}, "SGDP"),
        ({"arms": [SGD, Arm("SGDP", against=("SDG",))]}, "SDG"),
        ({"conditions": [Condition("a", "network", arms=("SDG",))]}, "SDG"),
        ({"conditions": [replace(PLAIN, setup=Setup(hyper_parameters={"lr": 0.1}))]}, "lr"),
        ({"tune": {"lr": []}}, "tune"),
    ],
)
def test_a_table_that_says_two_things_or_none_is_refused(changed, named):
    """The runs of two conditions of one label would be one arm's, of which one would be seen."""
    with refuses(named):
        small_table(**changed)


def test_an_arm_more_changes_no_trial_of_the_others():
    """On conditions that name their arms, too."""
    named = replace(PLAIN, label="named", arms=("SGD",))
    study = small_table(conditions=[PLAIN, named], claims=())
    more = study.with_arms("more", OWN)
    alone, added = (each.trials(Plan("small"), Runs()) for each in (study, more))
    assert [trial for trial in added if trial in alone] == alone
    own = [trial for trial in added if trial.spec.recipe == OWN.recipe]
    assert sorted({trial.spec.hyper_parameters["lr"] for trial in own}) == [0.02, 0.2]
    assert {str(trial.place) for trial in own} == {"plain: careful", "named: careful"}
    more.claim("own", "> 0")(lambda runs: None)
    assert [arm.name for arm in study.arms] == ["SGD", "SGDP"]
    assert "own" not in [claim.name for claim in study.claims]
    with refuses("careful"):
        more.with_arms("twice", OWN)


def test_a_condition_that_small_runs_could_not_decide_costs_nothing_and_says_so():
    left = replace(PLAIN, label="left", spread=4.0, tiers={"small": None})
    study = small_table(conditions=[PLAIN, left], claims=())
    for tier, count in (("smoke", 1), ("small", 1), ("evidence", 1), ("full", 2)):
        trials = study.trials(Plan(tier), Runs())
        assert len({trial.place.condition for trial in trials}) == count
    assert len({t.place for t in study.trials(Plan("small", real=True), Runs())}) == 4
    settings = study.all_tables(Runs())[-1]
    assert shown(settings)[-1] == [
        "left", "in the table", "not in the tiers small and evidence",
        "12 seeds would find 3.6; the paper's effect is +0.23",
    ]  # fmt: skip
    ran, skipped = study.decide_claims(compared(study, Plan("small")))[:2]
    assert (ran.verdict, skipped.verdict) == ("not tested", "not tested")
    assert (ran.has_results, skipped.has_results) == (True, False)


@pytest.mark.parametrize(
    ("scores", "count"),
    [
        ({"accuracy": {"SGD": 50, "SGDP": 51}}, 3),
        ({"accuracy": {"SGD": 50, "SGDP": 52}}, 12),
        ({"accuracy": {"SGD": 50, "SGDP": 51, "other": 53}}, 12),  # of another pair
        ({"accuracy": {"SGD": 50, "SGDP": 51}, "recall": {"SGD": 50, "SGDP": 53}}, 12),
        ({}, 12),
    ],
)
def test_evidence_has_few_seeds_only_of_the_first_condition_that_decides_no_score(scores, count):
    """12 seeds of deviation 4.5 are expected to find 4.0: three times 1.3."""
    paper = {
        metric: {name: Cell(Decimal(score)) for name, score in column.items()}
        for metric, column in scores.items()
    }
    study = small_table(
        conditions=[replace(PLAIN, spread=4.5, paper=paper)], seeds={"small": 2}, claims=()
    )
    trials = study.trials(Plan("evidence"), Runs())
    assert len({trial.spec.seed for trial in trials}) == count
    norms = Claim("norm", "> 1", lambda _: pd.Series([2.0] * count))
    assert evaluate_claim(norms, Runs()).p is not None  # enough for a verdict


def test_evidence_trains_the_conditions_whose_scores_it_can_decide():
    paper = {"accuracy": {name: Cell(Decimal(x)) for name, x in (("SGD", 50), ("SGDP", 51))}}
    on = [replace(PLAIN, label=label, spread=spread, paper=paper)
          for label, spread in (("noisy", 4.5), ("quiet", 0.5))]  # fmt: skip
    study = small_table(conditions=on, claims=())
    conditions = {
        tier: {trial.place.condition for trial in study.trials(Plan(tier), Runs())}
        for tier in ("small", "evidence", "full")
    }
    both = {"noisy", "quiet"}
    assert conditions == {"small": both, "evidence": {"quiet"}, "full": both}
    assert shown(study.all_tables(Runs())[-1])[-1][2] == "not in the tier evidence"


def test_a_shorter_run_is_an_arm():
    on = [Condition("a", "network"), Condition("b", "network", arms=("SGD", "short"))]
    short = Arm("short", fixed={"momentum": 0.9}, recipe="sgdp", length=0.5)
    study = small_table(arms=[SGD, SGDP, short], conditions=on, claims=())
    trials = study.trials(Plan("small"), Runs())
    names = [tuple(t.place) for t in trials]
    expected = [("a", "SGD"), ("a", "SGDP"), ("a", "short"), ("b", "SGD"), ("b", "short")]
    assert [*dict.fromkeys(names)] == expected
    assert len(trials) == 5 * 2 * 3
    for trial in trials:
        half = trial.place.arm == "short"
        assert trial.spec.epochs == (120 if half else 240)
    assert [c.name for c in study.claims] == [
        "a.score.sgdp.sgd", "a.score.short.sgd", "b.score.short.sgd"
    ]  # fmt: skip


def test_the_evidence_tier_has_the_budgets_of_the_small_one_and_more_seeds():
    small, evidence = (
        small_table(seeds=None).trials(Plan(tier), Runs()) for tier in ("small", "evidence")
    )
    assert [trial.spec for trial in small if trial in evidence] == [trial.spec for trial in small]
    assert len({trial.spec.seed for trial in evidence}) == 12
    assert find_study("f3").trials(Plan("evidence"), Runs()) == find_study("f3").trials(
        Plan("small"), Runs()
    )
