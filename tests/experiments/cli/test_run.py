"""`run`: what it prints and what it exits with."""

import json
import re

import pytest
from commands import STUDY, arms_of, claims_of, invoke, run_tiny

from spherenorm_experiments.cli._options import parse_seeds
from spherenorm_experiments.study import _campaign, parse_overrides


def test_run_status_report_resume(tmp_path):
    first = run_tiny(tmp_path)
    assert first.exit_code == 0, first.output
    assert "6 runs now, 6 results in 1 studies; 0 diverged, 0 failed" in first.output
    assert "2/2 runs" in first.output  # the second round
    again = run_tiny(tmp_path)
    assert "0 runs now" in again.output
    assert json.loads(invoke("status", "--out", tmp_path, "--json").output) == {
        "runs": {"finished": 6},
        "problems": [],
        "running": [],
    }
    resumed = invoke("resume", "--out", tmp_path, "--jobs", 1)
    assert resumed.exit_code == 0
    assert "0 runs now" in resumed.output
    written = invoke("report", "--out", tmp_path)
    assert written.exit_code == 0
    assert "tiny (smoke): SGDP's norm is smaller" in written.output
    claims = json.loads(invoke("report", "--out", tmp_path, "--json").output)["claims"]
    assert claims[0]["verdict"] == "inconclusive"  # two seeds


def test_dry_run_runs_nothing_and_knows_what_is_there(tmp_path):
    rows = json.loads(run_tiny(tmp_path, "--dry-run", "--json").output)
    assert (rows[0]["runs"], rows[0]["cached"], rows[0]["to run"]) == (4, 0, 4)
    assert not (tmp_path / "runs").exists()
    run_tiny(tmp_path)
    rows = json.loads(run_tiny(tmp_path, "--dry-run", "--json").output)
    assert (rows[0]["runs"], rows[0]["cached"], rows[0]["to run"]) == (6, 6, 0)


def test_a_dry_run_of_the_full_tier_measures_its_hours(tmp_path, monkeypatch):
    monkeypatch.setattr(_campaign, "time_step", lambda run: 36.0)
    for tier, seen in (("smoke", False), ("full", True)):
        options = "--tier", tier, "--dry-run", "--json", "--out", tmp_path
        (row, _) = json.loads(invoke("run", STUDY, *options).output)
        assert (row["core hours"] == row["steps"] / 100) is seen
        assert row["seconds"] > 0 or not seen
    assert not (tmp_path / "runs").exists()


def test_dry_run_counts_shared_runs_once(tmp_path):
    both = STUDY, "spherenorm_tiny:AgainStudy"
    options = "--tier", "smoke", "--dry-run", "--json", "--out", tmp_path
    one, again, total = json.loads(invoke("run", *both, *options).output)
    assert (one["study"], again["study"], total["study"]) == (
        *("tiny", "again"),
        "total, shared runs once",
    )
    assert one["runs"] == again["runs"] == total["runs"] == total["to run"] == 4
    assert one["steps"] == again["steps"] == total["steps"]


def test_a_large_count_of_seeds_is_told_from_a_seed(tmp_path):
    assert (
        "note: --seeds 30: 30 seeds, 0 to 29; seed 30 alone is 30:31"
        in run_tiny(tmp_path, "--seeds", "30", "--dry-run").output
    )
    for seeds in ("3", "30:31", "30,31"):
        assert "note" not in run_tiny(tmp_path, "--seeds", seeds, "--dry-run").output


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("run weight-deca", "did you mean weight-decay"),
        ("run STUDY --optimizers sgpd", "no recipe is named 'sgpd'; did you mean sgd"),
        ("run STUDY --optimizers nowhere:f", "no module 'nowhere'"),
        ("run STUDY --seeds many", "give a count (3), a range (0:10) or a list (1,4,7)"),
        ("run STUDY --tier smal", "no tier is named 'smal'; did you mean small"),
        ("run STUDY --device abacus", "'abacus' cannot be used"),
        ("run STUDY --backend lokal", "did you mean local"),
        ("run STUDY --set momentum=1.5", "momentum"),
        ("run STUDY --set momentun=0.5", "no run has a setting 'momentun'; did you mean momentum"),
        ("run STUDY --set momentum", "give key=value"),
        ("run STUDY --set epochs=many", "epochs must be an integer"),
        (
            "run t1 --tier smoke --set width=1.5",
            "width=1.5 is no value for task 'network'; one is 32",
        ),
        ("run equilibrium --tier smoke --set width=-3", "task 'mlp' with width=-3: "),
        (
            "run STUDY --set nesterov=maybe",
            "nesterov=\"maybe\" is no value for recipe 'sgd'; one is false",
        ),
        (
            "run STUDY --optimizers adam --set betas=0.9",
            "betas=0.9 is no value for recipe 'adam'; one is [0.9, 0.999]",
        ),
        ("run STUDY --optimizers spherenorm_tiny:picky --set size=3", "KeyError: 'no size 3'"),
        (
            "run STUDY --optimizers spherenorm_broken:mine",
            "recipe 'spherenorm_broken:mine': ZeroDivisionError: division by zero",
        ),
        ("run STUDY --seeds 99999999999999999999999", "--seeds '99999999999999999999999': give"),
        ("run STUDY --seeds 0:123456789012", "at most 10000"),
        ("run STUDY --epochs 0", "epochs must be an integer of at least 1, got 0"),
        ("report", "`spherenorm run` comes first"),
        ("resume", "there is no store at"),
        ("status", "there is no store at"),
    ],
)
def test_a_wrong_command_says_what_would_be_right_and_runs_nothing(tmp_path, command, message):
    result = invoke(*command.replace("STUDY", STUDY).split(), "--out", tmp_path)
    assert result.exit_code == 2, result.output
    assert message in result.output
    assert len(result.output.splitlines()) == 1, "one line"
    assert not list(tmp_path.iterdir())


def test_a_recipe_of_ones_own_joins_what_ran_before(ran):
    result = run_tiny(ran, "--optimizers", "sgd,spherenorm_tiny:careful", "--seeds", "0:3")
    assert result.exit_code == 0, result.output
    claims = claims_of(ran)
    assert arms_of(ran) == ["SGD", "SGDP", "longer", "spherenorm_tiny:careful"]
    assert "smoke tier, seeds 0–2" in (ran / "report.html").read_text()
    assert [(claim["study"], claim["seeds"]) for claim in claims] == [("tiny (smoke)", 2)]


def test_a_contender_is_added_to_a_tuned_comparison_of_ones_own(tmp_path):
    """`report` knows it by its runs alone, and what has ended is not run again."""
    table, added = "spherenorm_bench:TINY_TABLE", "spherenorm_tiny:careful"
    common = ("--tier", "smoke", "--seeds", "0:2", "--jobs", 1, "--out", tmp_path)
    first = invoke("run", table, *common)
    assert first.exit_code == 0, first.output
    more = ("--optimizers", added, "--search", f"{added}:lr=0.1:0.2")
    second = invoke("run", table, *more, *common)
    assert second.exit_code == 0, second.output
    assert "4 runs now" in second.output  # a point on two seeds, then two seeds
    text = invoke("export", "tiny-table", "--out", tmp_path).stdout
    (scores,) = (part for part in text.split("\n\n") if ": Scores" in part)
    arms = [line.split(",")[0] for line in scores.splitlines()[2:]]
    assert arms == ["sgd", "sgdp", "careful (lr=0.1:0.2)"]
    (claim,) = claims_of(tmp_path)
    assert (claim["name"], claim["seeds"], claim["kind"]) == ("score.sgdp.sgd", 2, "ours")
    assert "0 runs now" in invoke("resume", "--out", tmp_path, "--jobs", 1).output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--search", "lr=0.1:1"), "--search and --like are of the contenders"),
        (("--optimizers", "adamp", "--search", "adam:lr=0.1:1"), "'adam' is none of --optimizers"),
        (("--optimizers", "adamp"), "give --search adamp:lr=1e-3:1, or --like sgd"),
    ],
)
def test_an_added_contender_needs_a_search(tmp_path, arguments, message):
    result = invoke("run", "spherenorm_bench:TINY_TABLE", *arguments, "--out", tmp_path / "out")
    assert (result.exit_code, len(result.output.splitlines())) == (2, 1), result.output
    assert message in result.output
    assert not (tmp_path / "out").exists()


def test_failed_runs_are_named_and_the_others_finish(tmp_path):
    result = run_tiny(tmp_path, "--optimizers", "sgdp,spherenorm_tiny:raising")
    assert result.exit_code == 1
    assert "RuntimeError: this recipe gave up" in result.output
    status = json.loads(invoke("status", "--out", tmp_path, "--json").output)
    assert status["runs"]["failed"] == 2
    assert status["runs"]["finished"] >= 2
    assert "this recipe gave up" in status["problems"][0]["error"]


def test_a_study_that_does_not_say_what_to_run_is_one_error(tmp_path):
    study = "error: study 'spherenorm_tiny:RaisesInTrials'"
    message = f"{study} does not say what to run: KeyError: 'nothing to run' (spherenorm_tiny.py"
    for more in ((), ("--dry-run",)):
        at_once = invoke(
            "run", "spherenorm_tiny:RaisesInTrials", "--tier", "smoke", "--out", tmp_path, *more
        )
        (line,) = at_once.output.splitlines()
        assert (at_once.exit_code, line.partition(", line")[0]) == (2, message)
    options = ("--tier", "smoke", "--set", "probe_every=4", "--jobs", 1, "--out", tmp_path)
    later = invoke("run", "spherenorm_tiny:RaisesInTrials", *options)
    assert later.exit_code == 1
    assert message in later.output
    assert "Traceback" not in later.output
    assert invoke("status", "--out", tmp_path).output.startswith("4 finished")


def test_a_diverged_run_is_a_result_and_shown(tmp_path):
    result = run_tiny(tmp_path, "--optimizers", "sgdp,spherenorm_tiny:exploding")
    assert result.exit_code == 0
    assert re.search("[24] diverged, 0 failed", result.output)
    invoke("report", "--out", tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert re.search(r"[24] of them diverged\s+\(spherenorm_tiny:exploding, seed 0: step", page)


def test_a_store_that_cannot_be_written_has_its_own_code(tmp_path):
    (tmp_path / "file").write_text("")
    result = run_tiny(tmp_path / "file")
    assert result.exit_code == 3
    assert "cannot write" in result.output


def test_parse():
    assert parse_seeds("3") == (0, 1, 2)
    assert parse_seeds("2:5") == (2, 3, 4)
    assert parse_seeds("1,4,1") == (1, 4)
    assert parse_overrides(
        ["lr=0.1", "nesterov=true", "betas=[0.9, 0.99]", "schedule=step", "nu=null"]
    ) == {
        "lr": 0.1,
        "nesterov": True,
        "betas": [0.9, 0.99],
        "schedule": "step",
        "nu": None,
    }
