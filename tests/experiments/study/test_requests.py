"""Requests in the order in which they were asked, estimates of time, and what `compare` shows."""

from dataclasses import replace

import pytest
from running import run_of
from spherenorm_tiny import tiny_spec

from spherenorm_experiments.campaign import estimate
from spherenorm_experiments.comparison import CompareRequest, build_comparison, find_study
from spherenorm_experiments.plan import Plan, Request, read_requests
from spherenorm_experiments.report import sections
from spherenorm_experiments.runs import Place, Runs
from spherenorm_experiments.spec import Spec, run_name
from spherenorm_experiments.store import Store
from spherenorm_experiments.task import Task
from tests.experiments.fabricated import result

STUDY = "spherenorm_tiny:TinyStudy"


def test_the_number_of_seeds_after_each_request(tmp_path):
    """A request that is repeated after a later one keeps its place."""
    study = find_study(STUDY)

    def sizes(name, *counts):
        store = Store(tmp_path / name)
        for trial in study.trials(Plan("smoke", tuple(range(12))), Runs()):
            folder = store.folder(run_name(trial.spec, "data"))
            folder.finish([(folder.name, trial.spec, {"diverged_at": None, "test": 1.0})], [], {})
        for count in counts:
            Request([STUDY], Plan("smoke", tuple(range(count)))).save(store)
        (section,) = sections(store, read_requests(store)[0])
        return list(section.results.seed_counts)

    assert sizes("grown", 6, 12) == [6, 12]
    assert sizes("repeated", 6, 12, 6) == [6, 12]
    assert sizes("whole", 12, 6) == [12, 12]  # there were twelve from the start


def test_short_runs_do_not_tell_how_long_long_ones_take(tmp_path):
    def ended(spec, seconds):
        run = run_of(spec, tmp_path)
        row = run.name, run.spec, {"diverged_at": None}
        run.folder.finish([row], [], {"seconds": seconds})

    long = run_of(tiny_spec(epochs=40), tmp_path)

    def estimated():
        return estimate(Store(tmp_path), [long])[long.name]

    guess = estimated()
    ended(tiny_spec(epochs=1), 400.0)
    ended(replace(tiny_spec(epochs=40, seed=1), batch_size=8), 400.0)
    assert estimated() == guess
    ended(tiny_spec(epochs=20), 30.0)
    assert estimated() == pytest.approx(60.0)


def comparison(numbers, metric="accuracy (%)"):
    """A comparison of arms with these test scores; None for a seed on which the run diverged."""
    study = build_comparison(
        CompareRequest(task="digits", optimizers=[*numbers], search={"lr": (0.1, 1.0)}, trials=1)
    )
    items = []
    for arm in study.arms:
        for seed, number in enumerate(numbers[arm.recipe]):
            summary = {"diverged_at": 3 if number is None else None, "metric": metric}
            summary |= {"validation": number, "test": number, "score": "score"}
            summary["test_metrics"] = {} if number is None else {"score": number}
            spec = Spec("digits", arm.recipe, {"lr": 0.5}, seed=seed)
            items.append(result(Place("", arm.name), seed, spec, **summary))
    return study, Runs(items)


def test_the_seeds_of_an_arm_that_diverged_are_counted():
    lost = [None, 72.0, 73.0, None, 71.0, 74.0, 70.0]
    study, results = comparison({"sgd": [71.0] * 7, "adam": lost})
    table = study.tables(results)[0]
    place = [str(column) for column in table.columns].index("seeds")
    assert [str(row[place]) for row in table.rows] == ["7", "7"]


def test_scores_that_nobody_calls_percent_have_no_margin_of_a_point():
    """Shares between 0 and 1 would be equivalent whatever they are."""
    scores = {"sgd": [0.51, 0.62, 0.43, 0.55, 0.61, 0.48], "adam": [0.9, 0.4, 0.7, 0.5, 0.8, 0.4]}
    study, results = comparison(scores, Task.metric)
    (claim,) = study.decide_claims(results)
    assert (claim.verdict, claim.p_equivalent) == ("inconclusive", None)
    assert not claim.number_text.endswith("pp")


def test_a_value_of_one_optimizer_is_its_own_and_is_in_the_text_that_repeats_the_comparison():
    fixed = {"sgdp:momentum": 0.9, "adamw:betas": [0.5, 0.9]}
    names, ranges = "sgd, sgdp, adamw", {"lr": (0.1, 1.0)}
    request = CompareRequest(task="digits", optimizers=names, search=ranges, trials=1, fixed=fixed)
    assert CompareRequest.from_text(str(request)) == request
    study = find_study(str(request))
    given = {
        trial.spec.recipe: trial.spec.hyper_parameters
        for trial in study.trials(Plan("smoke"), Runs())
    }
    assert {name: sorted(values) for name, values in given.items()} == {
        "sgd": ["lr"], "sgdp": ["lr", "momentum"], "adamw": ["betas", "lr"]
    }  # fmt: skip
    assert given["sgdp"]["momentum"] == 0.9
