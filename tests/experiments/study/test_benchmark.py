"""Tuned comparisons: search, final runs, tables and claims, and contenders that are added."""

import json
import math
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest
from running import shown
from spherenorm_bench import PLAIN, SGD, SGDP, SMALL_TABLE, small_table

from spherenorm_experiments.claims import Claim
from spherenorm_experiments.comparing import find_study
from spherenorm_experiments.condition import Condition, Contender, Setup, arm_of
from spherenorm_experiments.decisions import evaluate
from spherenorm_experiments.plan import Plan
from spherenorm_experiments.results import Arm, Results
from spherenorm_experiments.samples import Sample
from spherenorm_experiments.shown import range_table
from spherenorm_experiments.spec import Spec
from spherenorm_experiments.tuning import Tried, grid_arm, with_tuned
from tests.experiments.fabricated import compared, result
from tests.experiments.study.null_searches import verdicts
from tests.harness import refuses

OWN, ADDED = "spherenorm_tiny:careful", "careful (lr=0.02:0.2)"
KNOWN = {"validation": 50.0, "test": 50.0, "test_metrics": {}, "invariant_share": 0.5, "views": {}}


@pytest.fixture(scope="module")
def ended():
    """The study, and fabricated results of it with a contender that a command has added."""
    plan = Plan("smoke", optimizers=(OWN,), search={"lr": (0.02, 0.2)})
    return SMALL_TABLE, compared(SMALL_TABLE, plan)


def _scores(results, stage, recipe):
    items = with_tuned(results).having(stage=stage)
    items = items.where(lambda item: item.spec.recipe == recipe)
    return [(item.spec.seed, item.spec.hyper_parameters["lr"], item.summary) for item in items]


def _rows(table):
    """The cells of a table by row and column."""
    columns = list(map(str, table.columns))
    return {str(row[0]): dict(zip(columns, row, strict=True)) for row in table.rows}


def test_every_seed_takes_the_rate_with_its_own_best_validation_score(ended):
    _, results = ended
    for recipe in ("sgd", "sgdp", OWN):
        grid = _scores(results, "grid", recipe)
        assert len(grid) == 2 * 2  # rates, seeds
        assert {rate for _, rate, _ in grid} == {0.02, 0.2} if recipe == OWN else {0.01, 0.1}
        for seed, rate, summary in _scores(results, "tuned", recipe):
            own = {lr: each["validation"] for s, lr, each in grid if s == seed}
            assert (rate, summary["validation"]) == max(own.items(), key=lambda pair: pair[1])
        assert len(_scores(results, "tuned", recipe)) == 2


def scored(study, score, plan=None):
    """The results of a study when nothing is left to run, with scores by recipe and rate."""
    plan, items, trials = plan or Plan(), [], []
    while len(trials := study.trials(plan, Results(items))) > len(items):
        known = {json.dumps(item.spec.to_json()) for item in items}
        for trial in trials:
            if json.dumps(trial.spec.to_json()) not in known:
                number = score(trial.spec.recipe, trial.spec.hyper_parameters["lr"])
                lost = 3 if number is None else None
                test = number if number is None else -number  # (which must not choose)
                summary = {"validation": number, "test": test, "diverged_at": lost}
                items.append(result(trial.arm, 0, trial.spec, metric="score", **summary))
    return Results(items)


def _rates(results):
    recipes = {item.spec.recipe for item in results}
    return {name: sorted({lr for _, lr, _ in _scores(results, "grid", name)}) for name in recipes}


def test_a_grid_grows_for_all_of_its_family_until_no_best_is_at_an_edge():
    """By its own spacing, where one of them is best at an end; another family's stays."""
    other = Contender("Adam", {"lr": (1e-3, 1e-2, 1e-1)}, against=())
    study = small_table(contenders=[SGDP, other], tune={"lr": (0.01, 0.03, 0.1)}, claims=())
    best = {"sgd": 0.03, "sgdp": 1.1, "adam": 1e-2}
    found = _rates(scored(study, lambda recipe, lr: -abs(math.log(lr / best[recipe]))))
    grown = [0.01, 0.03, 0.1, 0.333, 1.11, 3.7]
    assert found == {"sgd": grown, "sgdp": grown, "adam": [1e-3, 1e-2, 1e-1]}
    best = {"sgd": 0.03, "sgdp": 0.002, "adam": 1e-2}
    found = _rates(scored(study, lambda recipe, lr: -abs(math.log(lr / best[recipe]))))
    assert found["sgd"] == found["sgdp"] == [0.00111, 0.00333, 0.01, 0.03, 0.1]
    # A rate at which runs are lost is no best, and what always rises is bounded and says so.
    found = _rates(scored(study, lambda recipe, lr: None if lr > 0.05 else lr))
    assert found["sgd"] == [0.01, 0.03, 0.1]
    results = scored(study, lambda recipe, lr: lr)
    assert len(_rates(results)["sgd"]) == 6
    assert "the best lr of plain: SGD is at an edge" in study.evaluated(results)[0].detail


def test_a_seed_does_not_choose_by_its_test_score():
    """The test scores here are the validation scores with the other sign."""
    study = small_table(contenders=[SGDP], tune={"lr": (0.01, 0.03, 0.1)}, claims=())
    results = scored(study, lambda recipe, lr: -abs(math.log(lr / 0.03)))
    assert {lr for _, lr, _ in _scores(results, "tuned", "sgd")} == {0.03}


def test_a_seed_that_is_added_leaves_the_choice_of_the_others_alone():
    more = compared(SMALL_TABLE, Plan("smoke", (40, 41, 42)))
    few = more.where(lambda item: item.spec.seed != 42)
    for recipe in ("sgd", "sgdp"):
        chosen = [(seed, lr) for seed, lr, _ in _scores(more, "tuned", recipe)]
        assert [(seed, lr) for seed, lr, _ in _scores(few, "tuned", recipe)] == chosen[:2]


GRID_OF_A = grid_arm(Arm("a", "sgd", {}), ["lr"])


def _ended_on(seeds):
    """Runs at these rates on the first so many seeds; a larger rate has a higher score."""
    return [
        result(GRID_OF_A, seed, Spec("digits", "sgd", {"lr": lr}, seed=seed), validation=lr)
        for lr, count in seeds.items() for seed in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("ended_on", "rates", "seeds"),
    [
        ({1: 6, 2: 6, 3: 6}, [1, 2, 3], 6),
        ({1: 9, 2: 6, 3: 6}, [1, 2, 3], 6),  # a request for more seeds has stopped
        ({1: 9, 2: 8, 3: 6}, [1, 2, 3], 6),
        ({1: 3, 2: 3, 3: 3, 4: 12}, [1, 2, 3, 4], 3),  # one for few seeds came after it
        ({1: 6, 2: 6, 3: 6, 4: 2}, [1, 2, 3], 6),  # the grid grows, or grew on few seeds
        ({1: 6, 2: 3}, [1, 2], 3),
        ({}, [], 0),
    ],
)
def test_points_are_compared_on_the_same_seeds(ended_on, rates, seeds):
    """Else a seed would choose among other points than the rest."""
    tried = Tried.of(Results(_ended_on(ended_on)), GRID_OF_A)
    assert [point["lr"] for point in tried.points] == rates
    assert tried.seeds == list(range(seeds))
    assert all(of.keys() == set(tried.seeds) for of in tried.runs)
    assert sum(tried.counts) == seeds
    assert tried.left_out == len(ended_on) - len(rates)


def test_a_seed_without_a_validation_score_has_no_score_and_the_row_says_so(ended):
    """Though each of its runs has a test score: the first point is no choice."""
    study, results = ended
    results = Results([replace(item, summary={**item.summary, **(
        {"validation": None} if (item.spec.recipe, item.spec.seed) == ("sgd", 41) else {})})
        for item in results])  # fmt: skip
    sample = with_tuned(results).arm(arm_of(PLAIN, SGD)).values("test")
    assert (set(sample), sample.diverged) == ({40}, {41})
    detail = study.evaluated(results)[0].detail
    assert "plain: SGD has no validation score at any point on seed 41" in detail
    (tuning,) = (each for each in study.tables(results) if each.title == "Tuning")
    assert str(_rows(tuning)["plain: SGD"]["taken by seeds"]).endswith("none × 1")


def test_differences_at_equal_points_are_paired_there_and_over_the_grid(ended):
    study, results = ended
    (table,) = (each for each in study.tables(results) if each.title == "At equal points")
    rows = shown(table)
    assert [row[:2] for row in rows] == [["plain: SGDP − SGD", place]
            for place in ("0.01", "0.1 (the paper's)", "mean over the grid")]  # fmt: skip
    scores = {(name, seed, lr): each["test"] for name in ("sgd", "sgdp")
              for seed, lr, each in _scores(results, "grid", name)}  # fmt: skip
    gaps = {lr: [scores["sgdp", s, lr] - scores["sgd", s, lr] for s in (40, 41)]
            for lr in (0.01, 0.1)}  # fmt: skip
    expected = [*(np.mean(gap) for gap in gaps.values()), np.mean([*gaps.values()])]
    assert [row[-1].number for row in table.rows] == pytest.approx(expected)


@pytest.mark.parametrize(("seeds", "curvature"), [(6, 0.2), (6, 0.0)])
def test_studies_without_a_difference_seldom_have_a_verdict(seeds, curvature):
    """At most 5 %; of 40 studies more than 6 have one in 1 of 200 suites that keep it."""
    assert verdicts(seeds, 40, curvature) <= 6


def test_the_table_has_means_of_the_chosen_runs_and_paired_differences(ended):
    study, results = ended
    rows, norms = (_rows(table) for table in study.tables(results)[:2])
    assert list(rows) == ["plain: SGD", "plain: SGDP", f"plain: {ADDED}"]
    sgd, sgdp = (_scores(results, "tuned", name) for name in ("sgd", "sgdp"))
    mean = math.fsum(s["test"] for *_, s in sgdp) / len(sgdp)
    assert rows["plain: SGDP"]["accuracy"].number == pytest.approx(mean)
    gap = mean - math.fsum(s["test"] for *_, s in sgd) / len(sgd)
    assert rows["plain: SGDP"]["minus its baseline"].number == pytest.approx(gap)
    assert rows[f"plain: {ADDED}"]["minus its baseline"].known
    assert str(rows["plain: SGDP"]["paper accuracy"]) == "70.70"
    assert not any(
        cell.known for column, cell in rows[f"plain: {ADDED}"].items() if column.startswith("paper")
    )
    grown = [s["norm_last"] / s["norm_start"] for *_, s in _scores(results, "tuned", "sgd")]
    assert norms["plain: SGD"]["last / first"].number == pytest.approx(sum(grown) / len(grown))


def test_claims_are_of_the_chosen_runs(ended):
    study, results = ended
    claims = study.evaluated(results)
    score = claims[0]
    assert score.claim.primary
    assert str(score.claim.paper) == "+0.23"
    sgd, sgdp = (
        {seed: summary["test"] for seed, _, summary in _scores(results, "tuned", name)}
        for name in ("sgd", "sgdp")
    )
    gaps = [sgdp[seed] - sgd[seed] for seed in sgd]
    assert score.numbers[0].number == pytest.approx(sum(gaps) / len(gaps))
    for name in ("SGD", "SGDP"):  # of two rates each is at an edge
        assert f"the best lr of plain: {name} is at an edge of its range" in score.detail


def test_the_papers_runs_have_the_papers_settings_and_no_search():
    trials = SMALL_TABLE.trials(Plan("small", real=True), Results([]))
    assert [trial.arm.settings["tuned"] for trial in trials] == [[]] * len(trials)
    by_recipe = {trial.spec.recipe: trial.spec for trial in trials}
    assert by_recipe["sgdp"].hyper_parameters == {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-5}
    assert by_recipe["sgd"].epochs == 100
    assert by_recipe["sgd"].options == {"variant": "residual"}


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"on": [PLAIN] * 2}, "plain"),
        ({"contenders": [SGDP] * 2}, "SGDP"),
        ({"contenders": [Contender("SGDP", against=("SDG",))]}, "SDG"),
        ({"on": [Condition("a", "network", contenders=("SDG",))]}, "SDG"),
        ({"on": [replace(PLAIN, setup=Setup(hyper_parameters={"lr": 0.1}))]}, "lr"),
        ({"tune": {"lr": []}}, "tune"),
    ],
)
def test_a_table_that_says_two_things_or_none_is_refused(changed, named):
    """The runs of two conditions of one label would be one arm's, of which one would be seen."""
    with refuses(named):
        small_table(**changed)


@pytest.mark.parametrize(
    ("plan", "named"),
    [
        ({}, "--search"),
        ({"like": "adam"}, "adam"),
        ({"search": {"beta": (0.1, 1.0)}}, "beta"),
        ({"search": {"lr": (0.1, 1.0)}, "real": True}, "--like"),
    ],
)
def test_a_contender_without_a_search_that_fits_is_refused(plan, named):
    with refuses(named):
        SMALL_TABLE.trials(Plan("smoke", optimizers=(OWN,), **plan), Results([]))


def test_an_added_contender_is_tuned_in_as_many_trials_and_adds_to_what_is_there():
    """Over its own range, or as another one is; the trials of the others stay as they are."""
    alone = SMALL_TABLE.trials(Plan("small"), Results([]))
    search = {f"{OWN}:lr": (0.5, 2.0), "lr": (0.1, 1.0)}
    names = (OWN, "adamp")
    added = SMALL_TABLE.trials(Plan("small", optimizers=names, search=search), Results([]))
    assert [t for t in added if t in alone] == alone
    rates = {name: sorted({t.spec.hyper_parameters["lr"] for t in added if t.spec.recipe == name})
             for name in names}  # fmt: skip
    assert rates == {OWN: [0.5, 2.0], "adamp": [pytest.approx(0.1), 1.0]}
    like = SMALL_TABLE.trials(Plan("small", optimizers=(OWN,), like="SGDP"), Results([]))
    own = [t for t in like if t.spec.recipe == OWN]
    assert {t.arm.label for t in own} == {"plain: careful (like SGDP), every point"}
    assert [t.spec.hyper_parameters for t in own[::3]] == [
        {"momentum": 0.9, "lr": 0.01}, {"momentum": 0.9, "lr": 0.1}
    ]  # fmt: skip


def test_the_best_and_the_worst_have_no_mean_over_the_seeds_that_were_not_lost():
    """Nor over other seeds than the rest: 90 and 80 of two easy seeds are no better than 70."""
    arms = [Arm(name, "sgd", {"contender": name}) for name in ("lucky", "steady", "low")]
    samples = [
        Sample({0: 90.0, 1: 80.0}, frozenset({2, 3})),
        Sample({0: 92.0, 1: 82.0, 2: 60.0, 3: 50.0}),
        Sample({0: 41.0, 1: 40.0, 2: 40.0, 3: 42.0}),
    ]
    ((_, best, worst, *_),) = shown(range_table({"a": dict(zip(arms, samples, strict=True))}))
    assert (best, worst) == ("steady", "low")
    ((_, best, worst, *_),) = shown(range_table({"a": dict.fromkeys(arms, samples[1])}))
    assert (best, worst) == ("lucky", "low")  # equal ones, but two of them


def test_a_condition_that_small_runs_could_not_decide_costs_nothing_and_says_so():
    left = replace(PLAIN, label="left", spread=4.0, tiers={"small": None})
    study = small_table(on=[PLAIN, left], claims=())
    for tier, count in (("smoke", 1), ("small", 1), ("evidence", 1), ("full", 2)):
        trials = study.trials(Plan(tier), Results([]))
        assert len({trial.arm.settings["condition"] for trial in trials}) == count
    assert len({t.arm.label for t in study.trials(Plan("small", real=True), Results([]))}) == 4
    settings = study.every_table(Results([]))[-1]
    assert shown(settings)[-1] == [
        "left", "in the table", "not in the tiers small and evidence",
        "12 seeds would find 3.6; the paper's effect is +0.23",
    ]  # fmt: skip
    ran, skipped = study.decided(compared(study, Plan("small")))[:2]
    assert (ran.verdict, skipped.verdict) == ("inconclusive", "cannot be decided here")
    assert not skipped.has_results


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
def test_evidence_has_few_seeds_only_where_no_score_can_be_decided(scores, count):
    """12 seeds of deviation 4.5 are expected to find 4.0: three times 1.3."""
    paper = {
        metric: {name: Decimal(score) for name, score in column.items()}
        for metric, column in scores.items()
    }
    study = small_table(on=[replace(PLAIN, spread=4.5, paper=paper)], seeds={"small": 2}, claims=())
    trials = study.trials(Plan("evidence"), Results([]))
    assert len({trial.spec.seed for trial in trials}) == count
    norms = Claim("norm", "any", lambda _: Sample(dict.fromkeys(range(count), 2.0)), ">", 1.0)
    assert evaluate(norms, Results([])).p is not None  # enough for a verdict


def test_a_shorter_run_is_a_contender():
    on = [Condition("a", "network"), Condition("b", "network", contenders=("SGD", "short"))]
    short = Contender("short", fixed={"momentum": 0.9}, recipe="sgdp", length=0.5)
    study = small_table(contenders=[SGDP, short], on=on, claims=())
    trials = study.trials(Plan("small"), Results([]))
    names = [(t.arm.settings["condition"], t.arm.settings["contender"]) for t in trials]
    expected = [("a", "SGD"), ("a", "SGDP"), ("a", "short"), ("b", "SGD"), ("b", "short")]
    assert [*dict.fromkeys(names)] == expected
    assert len(trials) == 5 * 2 * 3
    for trial in trials:
        half = trial.arm.settings["contender"] == "short"
        assert trial.spec.epochs == (120 if half else 240)
    assert [c.name for c in study.claims] == [
        "a.score.sgdp.sgd", "a.score.short.sgd", "b.score.short.sgd"
    ]  # fmt: skip


def test_the_evidence_tier_has_the_budgets_of_the_small_one_and_more_seeds():
    small, evidence = (
        small_table(seeds=None).trials(Plan(tier), Results([])) for tier in ("small", "evidence")
    )
    assert [trial.spec for trial in small if trial in evidence] == [trial.spec for trial in small]
    assert len({trial.spec.seed for trial in evidence}) == 12
    assert find_study("f3").trials(Plan("evidence"), Results([])) == find_study("f3").trials(
        Plan("small"), Results([])
    )
