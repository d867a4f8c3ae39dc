"""`compare`: the numbers are those of the files, and tuning is equal."""

import csv
import json
import re
import shutil
import statistics
from collections import Counter

import pytest
from commands import invoke
from scipy import stats

TINY = "spherenorm_tiny:Tiny"
OWN = "spherenorm_tiny:careful"
PAGE = "compare-spherenorm_tiny-Tiny"
SEARCH = ("--search", "lr=1e-2:1e-1")


def compare(out, optimizers, *more, seeds="0:3", trials=3, task=TINY):
    common = ("--tier", "smoke", "--jobs", 0, "--out", out, "--trials", trials, "--seeds", seeds)
    return invoke("compare", "--task", task, "--optimizers", optimizers, *SEARCH, *common, *more)


def stored(out):
    """Every run's specification and summary, read from the files by no code of ours."""
    for path in sorted(out.glob("runs/*")):
        (row,) = json.loads((path / "rows.json").read_text())["rows"]
        yield row["spec"], row["summary"]


def exported(out, title):
    text = invoke("export", PAGE, "--out", out).stdout
    (found,) = (
        part for part in text.split("\n\n") if part.startswith(f"# {PAGE} (smoke): {title}")
    )
    return list(csv.DictReader(found.splitlines()[1:]))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("compared")
    result = compare(out, f"adamp,{OWN}", "--baseline", OWN, trials=2)
    assert result.exit_code == 0, result.output
    return out, result


def test_the_numbers_are_those_of_the_files(made):
    out, result = made
    runs = list(stored(out))
    assert len(runs) == 2 * 3 * 2
    grids, scores, rates, norms = {}, {}, {}, {}
    for recipe in ("adamp", OWN):
        grid = {(config["hyper_parameters"]["lr"], config.get("seed", 0)): summary
                for config, summary in runs if config["recipe"] == recipe}  # fmt: skip
        grids[recipe] = grid
        rates[recipe, "all"] = sorted({lr for lr, _ in grid})
        chosen = [max(rates[recipe, "all"], key=lambda lr: grid[lr, seed]["validation"])
                  for seed in range(3)]  # fmt: skip
        taken = sorted(Counter(chosen).items())
        rates[recipe] = ", ".join(f"{lr:.3g} ×{count}" for lr, count in taken)
        scores[recipe] = [grid[lr, seed]["test"] for seed, lr in enumerate(chosen)]
        norms[recipe] = statistics.mean(
            grid[lr, seed]["norm_last"] / grid[lr, seed]["norm_start"]
            for seed, lr in enumerate(chosen)
        )
    assert rates["adamp", "all"] == rates[OWN, "all"]

    own, adamp = exported(out, "Scores")
    assert (own["arm"], adamp["arm"]) == ("careful", "adamp")
    for row, recipe in ((own, OWN), (adamp, "adamp")):
        assert row["chosen by seeds"] == f"{rates[recipe]} (edge)"  # of two trials
        assert float(row["norm, last / first"]) == pytest.approx(norms[recipe], rel=1e-9)
        assert float(row["score"]) == pytest.approx(statistics.mean(scores[recipe]), rel=1e-12)
        assert float(row["score: spread"]) == pytest.approx(statistics.stdev(scores[recipe]))
        assert row["seeds"] == row["score: seeds"] == "3"
    gaps = [a - b for a, b in zip(scores["adamp"], scores[OWN], strict=True)]
    gap = "minus baseline"
    ends = stats.t.interval(0.95, 2, statistics.mean(gaps), stats.sem(gaps))
    shown = [float(adamp[name]) for name in (gap, f"{gap}: low", f"{gap}: high")]
    assert shown == pytest.approx([statistics.mean(gaps), *ends], rel=1e-9)
    assert own[gap] == ""
    assert len(result.output.splitlines()) <= 30
    assert f"page: {out}" in result.output
    best = {
        recipe: max(rates[recipe, "all"], key=lambda lr, grid=grids[recipe]: statistics.mean(
            grid[lr, seed]["validation"] for seed in range(3)))
        for recipe in (OWN, "adamp")
    }  # fmt: skip
    points = f"careful (lr {best[OWN]:.3g}), adamp (lr {best['adamp']:.3g})"
    assert f"Best on validation, on average over seeds: {points}." in result.output
    assert "(edge)" in result.output  # of two trials, either has none beyond it
    page = (out / f"{PAGE}.html").read_text()
    assert "2 epochs of batches of 16, cosine schedule" in page
    assert re.search(r"<h1>[^<]*careful and adamp", page)
    order = [page.index(part) for part in ("<h1>", 'id="pictures"', 'id="scores"', "<details>")]
    assert order == sorted(order)
    assert "AdamP: Slowing Down" not in page  # the paper is not its subject


def test_the_other_commands_take_it_for_a_study(made):
    out, _ = made
    assert "0 runs now, 12 results" in invoke("resume", "--out", out, "--jobs", 0).output
    assert json.loads(invoke("status", "--out", out, "--json").output)["runs"] == {"finished": 12}
    report = invoke("report", PAGE, "--out", out, "--json")
    (claim,) = json.loads(report.stdout)["claims"]
    assert claim["text"] == (  # with the task's module: another one may have a task of that name
        f"adamp scores higher than careful ({TINY})"
    )
    assert (claim["verdict"], claim["seeds"], claim["kind"]) == ("not tested", 3, "ours")
    more = compare(out, f"adamp,{OWN}", "--baseline", OWN, seeds="0:4", trials=2)
    assert "4 runs now" in more.output  # a seed more
    assert {row["seeds"] for row in exported(out, "Scores")} == {"4"}


def test_a_lost_run_takes_its_seed_with_it_and_is_said(made, tmp_path):
    """A verdict on some of the runs that were asked for may be one on those that ended first.

    Its point would go, with as many runs, if there were more seeds than points.
    """
    out = tmp_path / "out"
    shutil.copytree(made[0], out)
    rate = max(config["hyper_parameters"]["lr"] for config, _ in stored(out))
    every = len(list(stored(out)))
    for path in out.glob("runs/*"):
        (row,) = json.loads((path / "rows.json").read_text())["rows"]
        spec = row["spec"]
        if (spec["recipe"], spec["hyper_parameters"]["lr"], spec.get("seed")) == ("adamp", rate, 1):
            shutil.rmtree(path)
    assert [row["trials"] for row in exported(out, "Tuning")] == ["2", "2"]
    found = json.loads(invoke("report", "--out", out, "--json").stdout)
    (claim,) = found["claims"]
    assert claim["seeds"] == every // 4 - 1  # arms, trials
    assert f"{every // 2 - 1} of {every // 2} runs of adamp have ended" in claim["detail"]
    assert (claim["verdict"], claim["p"]) == ("not tested", None)
    assert "interim" in claim["detail"]
    (note,) = found["notes"]
    assert f"{every - 1} of {every} runs have a result; `resume` goes on with the rest" in note
    assert "runs of adamp" not in made[1].output


def test_the_difference_is_of_the_score_and_a_lost_arm_has_none(tmp_path):
    """Files have the metrics by name, and a gain in the score is a loss in the error."""
    names, task = "sgd,adamp,spherenorm_tiny:exploding", "spherenorm_tiny:TwoMetrics"
    result = compare(tmp_path, names, seeds="0:2", trials=1, task=task)
    assert result.exit_code == 0, result.output
    text = invoke("export", "compare-spherenorm_tiny-TwoMetrics", "--out", tmp_path).stdout
    (found,) = (part for part in text.split("\n\n") if "Scores" in part)
    sgd, adamp, lost = csv.DictReader(found.splitlines()[1:])
    assert [name for name in sgd if name in ("score", "error")] == ["score", "error"]
    gap = float(adamp["minus baseline"])
    assert gap == pytest.approx(float(adamp["score"]) - float(sgd["score"]), rel=1e-9)
    assert lost["score"] == ""


FALLING = "spherenorm_tiny:falling"


def test_a_recipe_with_a_schedule_of_its_own_is_refused_under_the_runs(tmp_path):
    """It would step by the product of both. Alone, it steps as the run's own schedule does."""
    refused = compare(tmp_path / "refused", f"sgd,{FALLING}")
    assert refused.exit_code == 2
    (line,) = refused.output.splitlines()
    remedy = "--set falling:schedule=constant"
    assert all(text in line for text in (FALLING, "StepSize.lr", "'cosine'", remedy))
    assert not list(tmp_path.glob("refused/runs/*"))
    constant = compare(
        tmp_path / "all", f"sgd,{FALLING}", "--set", "schedule=constant", "--dry-run"
    )
    assert constant.exit_code == 0, constant.output

    more = ("--set", "sgd:momentum=0.9", *remedy.split())
    accepted = compare(tmp_path, f"sgd,{FALLING}", *more, seeds="0:2", trials=2)
    assert accepted.exit_code == 0, accepted.output
    tests = {"sgd": [], FALLING: []}
    for spec, summary in stored(tmp_path):
        assert spec.get("schedule", "cosine") == (
            "cosine" if spec["recipe"] == "sgd" else "constant"
        )
        tests[spec["recipe"]].append(summary["test"])
    assert sorted(tests[FALLING]) == pytest.approx(sorted(tests["sgd"]), rel=1e-4)


def test_a_schedule_of_a_momentum_goes_its_own_way(tmp_path):
    found = compare(tmp_path, "sgd,spherenorm_tiny:warmed_momentum", "--dry-run")
    assert found.exit_code == 0, found.output


def test_a_setting_of_one_optimizer_goes_before_that_of_all(tmp_path):
    settings = ("momentum=0.5", "careful:momentum=0.8", "careful:epochs=1", "epochs=2")
    more = [word for setting in settings for word in ("--set", setting)]
    made = compare(tmp_path, f"sgd,{OWN}", *more, seeds="0:1", trials=1)
    assert made.exit_code == 0, made.output
    chosen = {
        spec["recipe"]: (spec["hyper_parameters"]["momentum"], spec.get("epochs", 1))
        for spec, _ in stored(tmp_path)
    }
    assert chosen == {"sgd": (0.5, 2), OWN: (0.8, 1)}
    study = "spherenorm_tiny:TinyStudy"
    common = ("--tier", "smoke", "--out", tmp_path / "study", "--dry-run", "--set")
    assert invoke("run", study, *common, "sgd:schedule=constant").exit_code == 0


@pytest.mark.parametrize("option", ["--set", "--search"])
def test_an_optimizer_has_its_name_in_the_table(tmp_path, option):
    value = "0.2" if option == "--set" else "0.1:0.3"
    for name in ("careful", OWN):
        own = f"{name}:delta={value}"
        found = compare(tmp_path, f"sgd,{OWN}", option, own, "--baseline", "careful", "--dry-run")
        assert found.exit_code == 0, found.output
    twice = ("careful:delta=0.2", f"{OWN}:delta=0.3")
    found = compare(tmp_path, f"sgd,{OWN}", "--set", twice[0], "--set", twice[1], "--dry-run")
    assert found.exit_code == 2
    assert "twice" in found.output
    other = "spherenorm_falling:careful"
    for optimizers, own, right in (
        (f"sgd,{OWN}", "carefull:delta=0.2", "did you mean careful?"),
        (f"{OWN},{other}", "careful:delta=0.2", OWN),  # of two alike
        (f"sgd,{OWN}", "carefull:schedule=constant", "did you mean careful?"),
        (f"sgd,{OWN}", "careful:epoch=3", "no hyper-parameter 'epoch'"),
    ):
        found = compare(tmp_path, optimizers, "--set", own, "--dry-run")
        assert found.exit_code == 2, found.output
        assert right in found.output, found.output


@pytest.mark.parametrize("content", ["", "word"])
def test_data_that_cannot_be_read_are_an_error_of_a_line(tmp_path, content):
    """A file that is missing, and one for which NumPy raises a ValueError."""
    task = "spherenorm_odd:Unreadable"
    found = compare(tmp_path, "sgd,adamp", "--set", f"content={content}", task=task)
    assert found.exit_code == 2
    (line,) = found.output.splitlines()
    assert re.search(r"'spherenorm_odd:Unreadable': .*\(spherenorm_odd.py, line \d+\)$", line)
    assert ("no-such-file.pt" in line) == (not content)


def test_an_error_is_told_once_with_what_to_do(tmp_path):
    raising = "spherenorm_tiny:raising"
    found = compare(tmp_path, f"sgd,{raising}", seeds="0:1", trials=1)
    assert found.exit_code == 1
    assert found.output.count("this recipe gave up") == 1
    assert "mend what failed, then `resume` runs the rest" in found.output
    report = invoke("report", "--out", tmp_path)
    assert report.output.count("this recipe gave up") == 1
