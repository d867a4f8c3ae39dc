"""`run`: what it prints and exits with, interrupted, and twice at the same time."""

import html
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

from commands import ROOT, STUDY, claims_of, invoke, process, run_and_note, run_tiny

from spherenorm_experiments.comparison import parse_overrides, parse_seeds
from spherenorm_experiments.store import Store


def test_run_again_status_and_resume_know_what_is_there(ran):
    assert "0 runs now, 6 results" in run_tiny(ran).output
    assert json.loads(invoke("status", "--out", ran, "--json").output) == {
        "runs": {"finished": 6},
        "problems": [],
        "running": [],
    }
    resumed = invoke("resume", "--out", ran, "--jobs", 0)
    assert (resumed.exit_code, "0 runs now" in resumed.output) == (0, True)
    assert [claim["verdict"] for claim in claims_of(ran)] == ["not tested"]  # two seeds


def test_dry_run_runs_nothing_knows_what_is_there_and_counts_shared_runs_once(tmp_path, ran):
    options = "--tier", "smoke", "--dry-run", "--json", "--out"
    both = "run", STUDY, "spherenorm_tiny:AgainStudy", *options
    one, again, total = json.loads(invoke(*both, tmp_path / "new").output)
    assert one["runs"] == again["runs"] == total["runs"] == total["to run"] == 4
    assert one["steps"] == again["steps"] == total["steps"]
    assert not (tmp_path / "new").exists()
    row, _ = json.loads(invoke("run", STUDY, *options, ran).output)
    assert (row["runs"], row["cached"], row["to run"]) == (6, 6, 0)


def test_a_store_that_cannot_be_written_or_read_has_its_own_code(tmp_path, ran, monkeypatch):
    (tmp_path / "file").write_text("")
    assert run_tiny(tmp_path / "file").exit_code == 3

    def refused(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refused)
    result = invoke("status", "--out", ran)
    assert (result.exit_code, len(result.output.splitlines())) == (3, 1)


def test_failed_and_diverged_runs_are_named_and_the_others_finish(tmp_path):
    result = run_tiny(tmp_path, "--seeds", "1", study="spherenorm_tiny:FailingStudy")
    assert result.exit_code == 1
    assert "RuntimeError: this recipe gave up" in result.output
    status = json.loads(invoke("status", "--out", tmp_path, "--json").output)
    assert status["runs"] == {"finished": 1, "failed": 1, "diverged": 1}
    assert "this recipe gave up" in status["problems"][0]["error"]
    assert invoke("report", "--out", tmp_path).exit_code == 0
    page = html.unescape((tmp_path / "report.html").read_text())
    assert "failed: spherenorm_tiny:raising: RuntimeError: this recipe gave up" in page
    assert re.search(r"1 of them diverged\s+\(spherenorm_tiny:exploding, seed 0: step", page)


def test_an_arm_more_is_a_study_that_shares_what_has_run(tmp_path):
    common = ("--tier", "smoke", "--seeds", "0:2", "--jobs", 0, "--out", tmp_path)
    first = invoke("run", "spherenorm_bench:TINY_TABLE", *common)
    assert first.exit_code == 0, first.output
    second = invoke("run", "spherenorm_bench:TINY_MORE", *common)
    assert second.exit_code == 0, second.output
    assert "4 runs now" in second.output  # two points on two seeds
    text = invoke("export", "tiny-more", "--out", tmp_path).stdout
    (scores,) = (part for part in text.split("\n\n") if ": Scores" in part)
    assert [line.split(",")[0] for line in scores.splitlines()[2:]] == ["sgd", "sgdp", "careful"]
    found = [(claim["study"], claim["name"], claim["seeds"]) for claim in claims_of(tmp_path)]
    assert found == [
        ("tiny-more (smoke)", "score.sgdp.sgd", 2),
        ("tiny-more (smoke)", "score.careful.sgd", 2),
        ("tiny-table (smoke)", "score.sgdp.sgd", 2),
    ]
    assert "0 runs now" in invoke("resume", "--out", tmp_path, "--jobs", 0).output


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


def test_interrupted_it_exits_130_and_resumes(tmp_path):
    """The one test of the command as a process of its own."""
    command = process("run", STUDY, "--tier", "smoke", "--out", tmp_path, "--jobs", "2")
    child = subprocess.Popen(
        [*command, "--set", "delay=0.08"],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 300
    while not any((tmp_path / "runs").glob("*/status.json")) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.3)
    os.killpg(child.pid, signal.SIGINT)  # as a terminal does: to the whole group
    _, stderr = child.communicate(timeout=300)
    assert child.returncode == 130, stderr
    assert "spherenorm resume" in stderr
    *progress, last = stderr.splitlines()
    assert last.startswith("interrupted; ")
    assert all(" of 4 runs, " in line for line in progress)  # on a machine that is busy
    folders = list(Store(tmp_path).folders())
    assert any(folder.summary() is None for folder in folders)
    result = invoke("resume", "--out", tmp_path, "--jobs", 0)
    assert result.exit_code == 0, result.output
    assert "6 results" in result.output


def test_two_commands_on_one_store_run_everything_once(tmp_path, forkserver):
    notes = [tmp_path / "a.json", tmp_path / "b.json"]
    both = [
        forkserver.Process(target=run_and_note, args=(note, tmp_path / "out", "delay=0.01"))
        for note in notes
    ]
    for each in both:
        each.start()
    for each in both:
        each.join(300)
    assert [each.exitcode for each in both] == [0, 0]
    assert all(json.loads(note.read_text())["studies"] == {"tiny": 6} for note in notes)
    folders = list(Store(tmp_path / "out").folders())
    assert [folder.status()["state"] for folder in folders] == ["finished"] * 6
