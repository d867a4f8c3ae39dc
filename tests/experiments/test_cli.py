"""The command line: what it prints, what it exits with, and that it can be interrupted."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from spherenorm_tiny import tiny_spec
from typer.testing import CliRunner

from experiments.__main__ import app, parse_seeds, parse_settings
from experiments.store import Store

ROOT = Path(__file__).parents[2]
STUDY = "spherenorm_tiny:TinyStudy"


def invoke(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "220", "NO_COLOR": "1"})


def run_tiny(out, *more):
    return invoke("run", STUDY, "--tier", "smoke", "--jobs", 1, "--out", out, *more)


def test_run_status_report_resume(tmp_path):
    first = run_tiny(tmp_path)
    assert first.exit_code == 0, first.output
    assert "6 runs now, 6 results in 1 studies; 0 diverged, 0 failed" in first.output
    assert "2/2 runs" in first.output  # the second round
    again = run_tiny(tmp_path)
    assert "0 runs now" in again.output
    assert json.loads(invoke("status", "--out", tmp_path, "--json").output) == {"runs": {"finished": 6}, "problems": []}
    resumed = invoke("resume", "--out", tmp_path, "--jobs", 1)
    assert resumed.exit_code == 0
    assert "0 runs now" in resumed.output
    written = invoke("report", "--out", tmp_path)
    assert written.exit_code == 0
    assert "tiny: SGDP's norm is smaller" in written.output
    claims = json.loads(invoke("report", "--out", tmp_path, "--json").output)["claims"]
    assert claims[0]["outcome"] == "inconclusive"  # two seeds


def test_dry_run_runs_nothing_and_knows_what_is_there(tmp_path):
    rows = json.loads(run_tiny(tmp_path, "--dry-run", "--json").output)
    assert (rows[0]["runs"], rows[0]["cached"], rows[0]["to run"]) == (4, 0, 4)
    assert not (tmp_path / "runs").exists()
    run_tiny(tmp_path)
    rows = json.loads(run_tiny(tmp_path, "--dry-run", "--json").output)
    assert (rows[0]["runs"], rows[0]["cached"], rows[0]["to run"]) == (6, 6, 0)


def test_status_tells_a_running_process_from_a_dead_one(tmp_path):
    for name in ("a", "b"):
        Store(tmp_path).folder(tiny_spec(seed=ord(name))).write_status("running")
    with Store(tmp_path).folder(tiny_spec(seed=ord("a"))).lock():
        assert json.loads(invoke("status", "--out", tmp_path, "--json").output)["runs"] == {"running": 1, "killed": 1}


def test_list():
    names = json.loads(invoke("list", "--json").output)
    assert {"t1", "f3", "detector"} <= names["studies"].keys()
    assert {"digits", "rosenbrock", "tagging"} <= names["tasks"].keys()
    assert "adamp" in invoke("list").output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "norm-grwth"), "did you mean norm-growth"),
        (("run", "nowhere:Study"), "nowhere"),
        (("run", STUDY, "--optimizers", "sgpd"), "no recipe is named 'sgpd'; did you mean sgd"),
        (("run", STUDY, "--optimizers", "nowhere:f"), "no module 'nowhere'"),
        (("run", STUDY, "--seeds", "many"), "give a count (3), a range (0:10) or a list (1,4,7)"),
        (("run", STUDY, "--seeds", "5:2"), "give a count"),
        (("run", STUDY, "--tier", "smal"), "no tier is named 'smal'; did you mean small"),
        (("run", STUDY, "--device", "abacus"), "'abacus' cannot be used"),
        (("run", STUDY, "--backend", "lokal"), "did you mean local"),
        (("run", STUDY, "--set", "momentum=1.5"), "momentum"),
        (("run", STUDY, "--set", "momentun=0.5"), "no run has a setting 'momentun'; did you mean momentum"),
        (("run", STUDY, "--set", "momentum"), "give key=value"),
        (("run", STUDY, "--set", "epochs=many"), "epochs must be an integer"),
        (("run", STUDY, "--jobs", "0"), "--jobs"),
        (("report",), "`python -m experiments run` comes first"),
    ],
)
def test_a_wrong_command_says_what_would_be_right_and_runs_nothing(tmp_path, arguments, message):
    result = invoke(*arguments, "--out", tmp_path)
    assert result.exit_code == 2, result.output
    assert message in result.output
    assert not (tmp_path / "runs").exists()


def test_failed_runs_are_named_and_the_others_finish(tmp_path):
    result = run_tiny(tmp_path, "--optimizers", "sgdp,spherenorm_tiny:raising")
    assert result.exit_code == 1
    assert "RuntimeError: this recipe gave up" in result.output
    status = json.loads(invoke("status", "--out", tmp_path, "--json").output)
    assert status["runs"]["failed"] == 2
    assert status["runs"]["finished"] >= 2
    assert "this recipe gave up" in status["problems"][0]["error"]


def test_a_diverged_run_is_a_result_and_shown(tmp_path):
    result = run_tiny(tmp_path, "--optimizers", "sgdp,spherenorm_tiny:exploding")
    assert result.exit_code == 0
    assert re.search("[24] diverged, 0 failed", result.output)
    invoke("report", "--out", tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert re.search(r"[24] of them diverged\s+\(spherenorm_tiny:exploding as SGDP?, seed 0: step", page)


def test_a_store_that_cannot_be_written_has_its_own_code(tmp_path):
    (tmp_path / "file").write_text("")
    result = run_tiny(tmp_path / "file")
    assert result.exit_code == 3
    assert "cannot write" in result.output


def test_parse():
    assert parse_seeds("3") == (0, 1, 2)
    assert parse_seeds("2:5") == (2, 3, 4)
    assert parse_seeds("1,4,1") == (1, 4)
    assert parse_settings(["lr=0.1", "nesterov=true", "betas=[0.9, 0.99]", "schedule=step", "nu=null"]) == {
        "lr": 0.1,
        "nesterov": True,
        "betas": [0.9, 0.99],
        "schedule": "step",
        "nu": None,
    }


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_interrupted_by_ctrl_c_it_exits_130_and_resumes(tmp_path, jobs):
    command = [sys.executable, "-m", "experiments", "run", STUDY, "--tier", "smoke", "--out", str(tmp_path), "--jobs", jobs]
    process = subprocess.Popen([*command, "--set", "delay=0.15"], cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 60
    while not any((tmp_path / "runs").glob("*/status.json")) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.3)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole group
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "go on with: python -m experiments resume" in stderr
    folders = list(Store(tmp_path).folders())
    assert any(folder.summary() is None for folder in folders)
    result = invoke("resume", "--out", tmp_path, "--jobs", 1)
    assert result.exit_code == 0, result.output
    assert "6 results" in result.output


def test_two_commands_on_one_store_run_everything_once(tmp_path):
    command = [sys.executable, "-m", "experiments", "run", STUDY, "--tier", "small", "--out", str(tmp_path), "--jobs", "1", "--json"]
    both = [subprocess.Popen([*command, "--set", "delay=0.01"], cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [process.communicate(timeout=120)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert all(json.loads(output)["studies"] == {"tiny": 9} for output in outputs)
    starts = [folder.status()["pid"] for folder in Store(tmp_path).folders()]
    assert len(starts) == 9
    assert not list(tmp_path.rglob("*.corrupt-*"))


def test_tensorboard_files(tmp_path):
    pytest.importorskip("tensorboard")
    result = run_tiny(tmp_path, "--tensorboard")
    assert result.exit_code == 0, result.output
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = next((tmp_path / "tensorboard").iterdir())
    events = EventAccumulator(str(folder))
    events.Reload()
    metrics = Store(tmp_path).root / "runs" / folder.name / "metrics.jsonl"
    losses = [json.loads(line)["loss"] for line in metrics.read_text().splitlines()]
    assert [event.value for event in events.Scalars("loss")] == pytest.approx(losses, rel=1e-6)
