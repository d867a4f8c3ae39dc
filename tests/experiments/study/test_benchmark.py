"""The base of the paper's benchmarks: search, final runs, tables and claims, with own recipes."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
from running import run_study, shown
from spherenorm_bench import SmallTable

from spherenorm_experiments.analysis import Arm, Result, Results, Sample, evaluate
from spherenorm_experiments.core import Spec
from spherenorm_experiments.engine import Store
from spherenorm_experiments.study import Plan, find_study, thirteen_table
from spherenorm_experiments.study._benchmark_range import range_table
from spherenorm_experiments.study._more_metrics import claims_of_metric
from spherenorm_experiments.study._setting import THIRTEEN, Conditions, Setting, arm_of


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("bench"))
    own = ("sgd", "sgdp", "spherenorm_tiny:careful")
    return run_study(SmallTable(), store, optimizers=own)


def _scores(results, stage, recipe):
    found = results.having(stage=stage).where(lambda item: item.spec.recipe == recipe)
    return [(item.spec.seed, item.spec.hyper_parameters["lr"], item.summary) for item in found]


def test_the_final_runs_have_the_rate_with_the_best_validation_score(ended):
    _, _, results = ended
    for recipe in ("sgd", "sgdp", "spherenorm_tiny:careful"):
        search = _scores(results, "tuning", recipe)
        totals = {0.01: 0.0, 0.1: 0.0}
        for _, rate, summary in search:
            totals[rate] += summary["validation"]
        assert len(search) == 2 * len(totals)  # two seeds
        best = max(totals, key=totals.__getitem__)
        finals = _scores(results, "final", recipe)
        assert {rate for _, rate, _ in finals} == {best}
        assert not {seed for seed, *_ in search} & {seed for seed, *_ in finals}


def test_the_table_has_means_of_the_final_runs_and_paired_differences(ended):
    study, _, results = ended
    (scores,) = (t for t in study.tables(results) if t.title == "Scores")
    rows = {
        str(row[0]): dict(zip(map(str, scores.columns), row, strict=True)) for row in scores.rows
    }
    assert list(rows) == [
        "plain: SGD",
        "plain: SGDP",
        "spherenorm_tiny:careful as plain: SGDP",
    ] or (list(rows) == ["plain: SGD", "spherenorm_tiny:careful as plain: SGD", "plain: SGDP"])
    sgd, sgdp = (_scores(results, "final", name) for name in ("sgd", "sgdp"))
    mean = math.fsum(s["test"] for *_, s in sgdp) / len(sgdp)
    assert rows["plain: SGDP"]["accuracy"].number == pytest.approx(mean)
    gap = mean - math.fsum(s["test"] for *_, s in sgd) / len(sgd)
    assert rows["plain: SGDP"]["minus its baseline"].number == pytest.approx(gap)
    assert str(rows["plain: SGDP"]["paper accuracy"]) == "70.70"
    assert not any(
        cell.known
        for name, row in rows.items()
        if name.startswith("spherenorm_tiny")
        for column, cell in row.items()
        if column.startswith("paper")
    )


def test_growth_is_the_last_norm_over_the_first(ended):
    study, _, results = ended
    (norms,) = (t for t in study.tables(results) if t.title.startswith("Norms"))
    rows = {str(row[0]): dict(zip(map(str, norms.columns), row, strict=True)) for row in norms.rows}
    found = [s["norm_last"] / s["norm_start"] for *_, s in _scores(results, "final", "sgd")]
    assert rows["plain: SGD"]["last / first"].number == pytest.approx(sum(found) / len(found))


def test_claims_are_of_the_final_runs_alone(ended):
    study, _, results = ended
    claims = study.evaluated(results)
    score = claims[0]
    assert score.claim.primary
    assert str(score.claim.paper) == "+0.23"
    sgd, sgdp = (
        {seed: summary["test"] for seed, _, summary in _scores(results, "final", name)}
        for name in ("sgd", "sgdp")
    )
    gaps = [sgdp[seed] - sgd[seed] for seed in sgd]
    assert score.numbers[0].number == pytest.approx(sum(gaps) / len(gaps))
    for name in ("SGD", "SGDP"):  # of two rates each is at an edge
        assert f"the best rate of {name} is at an edge of its search" in score.detail
    without = study.evaluated(results.having(stage="tuning"))
    assert not any(claim.has_results for claim in without)


def test_a_comparison_of_ones_own_cites_no_statement_of_the_paper():
    own = Setting("plain", task="digits")
    study = type("Own", (SmallTable,), {"table": (own,), "grounds": {}})()
    assert {claim.cites.kind for claim in study.claims} == {"ours"}
    assert [claim.name for claim in study.claims] == [
        *("plain.score.sgdp.sgd", "plain.growth.sgdp.sgd"),
        *("plain.path.sgdp.sgd", "plain.detection.sgdp"),
    ]


def test_the_papers_runs_have_the_papers_settings_and_no_search():
    trials = SmallTable().trials(Plan("small", real=True), Results([]))
    assert {trial.arm.settings["stage"] for trial in trials} == {"final"}
    by_recipe = {trial.spec.recipe: trial.spec for trial in trials}
    assert by_recipe["sgdp"].hyper_parameters == {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-5}
    assert by_recipe["sgd"].epochs == 100
    assert by_recipe["sgd"].options == {"variant": "residual"}


def test_one_rate_for_all_is_a_search_of_one_point(tmp_path):
    _, _, results = run_study(SmallTable(), Store(tmp_path), settings={"lr": 0.05})
    finals = results.having(stage="final")
    assert {item.spec.hyper_parameters["lr"] for item in finals} == {0.05}
    assert len(finals) == 4


def test_a_search_that_is_lost_everywhere_still_has_final_runs(tmp_path):
    study, _, results = run_study(SmallTable(), Store(tmp_path), settings={"lr": 1e30})
    assert results.having(stage="final").diverged
    assert not any(claim.verdict == "reproduced" for claim in study.decided(results))


def test_the_table_of_the_thirteen_has_a_row_for_each_and_counts_verdicts(ended):
    study, _, results = ended
    table = thirteen_table([("small-table", study, results)])
    rows = shown(table)
    assert [row[0].partition(":")[0] for row in rows] == list(THIRTEEN)
    row = rows[0]
    score = study.evaluated(results)[0]
    assert row[:2] == ["ImageNet: plain (small-table)", "SGD → SGDP"]
    assert row[4] == score.ours
    assert rows[1][0] == "MS-COCO: not run"
    assert row[-2:] == ["70.47 → 70.70", "+0.23"]
    assert "Of 1 comparisons: 1 inconclusive; not the uniform gains" in table.about
    assert thirteen_table([("small-table", study, Results([]))]) is None


def test_the_grassmann_baselines_take_part(tmp_path):
    _, _, results = run_study(SmallTable(), Store(tmp_path), optimizers=("sgdg",))
    finals = results.having(stage="final")
    assert {item.spec.recipe for item in finals} == {"sgdg"}
    for item in finals:  # its invariant weights stay on the sphere that they are put on
        assert item.summary["norm_last"] == pytest.approx(1.0, abs=1e-5)


def test_the_best_and_the_worst_are_apart_if_their_interval_excludes_zero():
    arms = [Arm(name, "sgd", {"contender": name}) for name in ("low", "high", "same")]
    low, high = Sample({0: 1.0, 1: 2.0, 2: 3.0}), Sample({0: 11.0, 1: 12.5, 2: 13.0})
    near = Sample({0: 3.0, 1: 1.0, 2: 2.6})
    table = range_table({"a": {arms[0]: low, arms[1]: high}, "b": {arms[0]: low, arms[2]: near}})
    first, second = shown(table)
    assert first[:3] == ["a", "high", "low"]
    assert (first[-1], second[-1]) == ("yes", "no")
    assert table.rows[0][3].number == pytest.approx((10 + 10.5 + 10) / 3)
    assert "In 1 of 2 settings" in table.about


def _result(arm, seed, **summary):
    spec = Spec("digits", arm.recipe, {"lr": 0.1}, seed=seed)
    return Result(arm, spec, {"diverged_at": None, **summary}, SimpleNamespace(name="a"))


def test_an_infinite_metric_counts_against_the_claim_about_it():
    """Left out, the seeds on which an optimizer failed would speak for it."""
    study = SmallTable()
    sgd, sgdp = (arm_of(study.table[0], contender) for contender in study.contenders)
    values = {sgd: [1.0] * 8, sgdp: [None] * 7 + [2.0]}
    items = [
        _result(arm, seed, test_metrics={"accuracy": value})
        for arm, row in values.items()
        for seed, value in enumerate(row)
    ]
    (row,) = claims_of_metric(study, "accuracy")
    claim = evaluate(row, Results(items))
    assert (claim.seeds, claim.numbers[0].diverged, claim.supported) == (8, 7, False)


def test_the_table_of_the_thirteen_has_no_mean_over_the_seeds_that_were_not_lost():
    """Over them alone an optimizer that often diverges would look better than one that does not."""
    study = SmallTable()
    sgd, sgdp = (arm_of(study.table[0], contender) for contender in study.contenders)
    items = [_result(sgd, seed, test=50.0 + seed, test_metrics={}) for seed in range(8)]
    items += [_result(sgdp, seed, test=90.0, test_metrics={}) for seed in (0, 1)]
    items += [_result(sgdp, seed, diverged_at=3) for seed in range(2, 7)]
    table = thirteen_table([("small-table", study, Results(items))])
    row = shown(table)[0]
    assert row[2:4] == ["53 ± 2.16", "– (5 diverged)"]  # seeds 0 to 6 have ended in both


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


def test_final_runs_are_shown_while_their_search_is_made_anew():
    """By other code, say: of the new search no rate may have ended on every seed."""
    study = SmallTable()
    contender, setting = study.contenders[0], study.table[0]
    known = {"test": 50.0, "test_metrics": {}, "invariant_share": 0.5, "views": {}}
    items = [_result(arm_of(setting, contender), seed, **known) for seed in range(2)]
    first = study.tuning_seeds()[0]
    items.append(_result(arm_of(setting, contender, "tuning"), first, validation=1.0))
    assert len(study.tuning_seeds()) == 2
    row = shown(study.tables(Results(items))[0])[0]
    assert row[:2] == ["plain: SGD", "0.1"]


def test_a_substitute_on_other_seeds_leaves_the_means_of_the_table_s_own_alone():
    """A count of seeds begins at 0, and a study's own elsewhere: then no seed has all arms."""
    study = SmallTable()
    contender, setting = study.contenders[0], study.table[0]
    arm = arm_of(setting, contender)
    known = {"test_metrics": {"accuracy": 50.0}, "invariant_share": 0.5, "views": {}}
    items = [_result(arm, seed, test=50.0, **known) for seed in (40, 41, 42)]
    for recipe, seeds in (("sgdw", (0, 1)), ("sgdg", (40, 41))):
        items += [_result(arm.substitute(recipe), seed, test=50.0, **known) for seed in seeds]
    rows = shown(study.tables(Results(items))[0])
    assert [row[2] for row in rows] == ["50 ± 0 (n = 3)", "–", "50 ± 0 (n = 2)"]
    assert [row[3] for row in rows] == ["3", "2", "2"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"table": SmallTable.table * 2}, "table of 'small-table' has 'plain' twice"),
        ({"contenders": SmallTable.contenders * 2}, "contenders of 'small-table' has 'SGD' twice"),
        ({"pairs": (("SGD", "SDGP"),)}, "no contender is named 'SDGP'; did you mean SGDP"),
    ],
)
def test_names_that_say_two_things_or_none_are_refused_before_anything_runs(changed, message):
    """The runs of two settings of one label would be one arm's, of which one would be seen."""
    study = type("Changed", (SmallTable,), changed)()
    with pytest.raises(ValueError, match=message):
        study.trials(Plan("smoke"), Results([]))


def test_a_benchmark_with_more_primary_claims_has_its_rows_among_the_thirteen(ended):
    class More(SmallTable):
        @property
        def claims(self):
            first, *others = super().claims
            return [replace(first, name="another"), first, *others]

    _, _, results = ended
    rows, more = (
        shown(thirteen_table([("a", study, results)]))[0] for study in (SmallTable(), More())
    )
    assert rows == more


@pytest.mark.parametrize("study", [SmallTable(), find_study("t1")], ids=lambda study: study.name)
def test_no_final_run_has_a_seed_of_the_tuning(study):
    taken = 10_000 + study.first_seed
    with pytest.raises(ValueError, match=f"{taken} is a seed of the tuning"):
        study.trials(Plan("smoke", seeds=(1, taken)), Results([]))


def test_a_rate_for_all_in_place_of_the_search_is_refused():
    """All of a search would be one point, so that no final run ever came."""
    setting = SmallTable.table[0]
    with pytest.raises(ValueError, match="'plain' has an lr, which the contenders search"):
        replace(setting, embedded=Conditions(hyper_parameters={"lr": 0.1}))


def test_the_note_names_the_differences_that_the_table_has():
    """The row of an optimizer with two baselines has one difference, from the first."""
    study = find_study("t4")
    setting = study.table[0]
    known = {"test_metrics": {}, "invariant_share": 0.5, "views": {}}
    items = [
        _result(arm_of(setting, contender), seed, test=float(place), **known)
        for place, contender in enumerate(study.contenders)
        for seed in range(2)
    ]
    scores = study.tables(Results(items))[0]
    assert "Differences (AdamP − AdamW) are" in scores.note
    gaps = {str(row[0]): str(row[list(map(str, scores.columns)).index("minus its baseline")])
            for row in scores.rows}  # fmt: skip
    assert gaps == {
        "music tags: AdamW": "",
        "music tags: AdamP": "+1 [+1, +1]",
        "music tags: Adam + SGD": "",
    }


def test_what_is_said_of_the_papers_runs_holds_for_them():
    """They have no search, and are not of the embedded data that the settings are about."""
    study = find_study("t3")
    setting, contenders = study.table[0], study.contenders
    known = {"test": 50.0, "test_metrics": {}, "invariant_share": 0.5, "views": {}}
    final, tuning = (
        [_result(arm_of(setting, contender, stage), 0, validation=1.0, **known)
         for contender in contenders] for stage in ("final", "tuning")
    )  # fmt: skip
    for found, rate in ((final, "the paper's"), ([*final, *tuning], "its best")):
        assert study.measured(Results(found)).rates == f"{rate} rate"
    (settings,) = (t for t in study.every_table(Results(final)) if t.title == "Settings")
    assert "embedded data" in settings.note
