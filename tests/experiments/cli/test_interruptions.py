"""Commands that are interrupted, and commands at the same time."""

import json
import os
import signal
import subprocess
import time

import pytest
from commands import ROOT, STUDY, invoke, process

from spherenorm_experiments.engine import Store


@pytest.mark.parametrize(
    ("jobs", "how"),
    [
        pytest.param("1", signal.SIGINT, marks=pytest.mark.long),
        ("2", signal.SIGINT),
        pytest.param("2", signal.SIGTERM, marks=pytest.mark.long),
    ],
)
def test_interrupted_it_exits_130_and_resumes(tmp_path, jobs, how):
    command = process("run", STUDY, "--tier", "smoke", "--out", tmp_path, "--jobs", jobs)
    child = subprocess.Popen(
        [*command, "--set", "delay=0.15"],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 300
    while not any((tmp_path / "runs").glob("*/status.json")) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.3)
    if how == signal.SIGINT:
        os.killpg(child.pid, how)  # as a terminal does: to the whole group
    else:
        child.send_signal(how)
    _, stderr = child.communicate(timeout=300)
    assert child.returncode == 130, stderr
    assert stderr.startswith("interrupted; go on with: spherenorm resume")
    assert len(stderr.splitlines()) == 1
    folders = list(Store(tmp_path).folders())
    assert any(folder.summary() is None for folder in folders)
    result = invoke("resume", "--out", tmp_path, "--jobs", 1)
    assert result.exit_code == 0, result.output
    assert "6 results" in result.output


def test_two_commands_on_one_store_run_everything_once(tmp_path):
    options = ("--tier", "smoke", "--jobs", 1, "--json", "--set", "delay=0.01")
    command = process("run", STUDY, "--out", tmp_path, *options)
    both = [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    outputs = [each.communicate(timeout=300)[0] for each in both]
    assert [each.returncode for each in both] == [0, 0]
    assert all(json.loads(output)["studies"] == {"tiny": 6} for output in outputs)
    starts = [folder.status()["pid"] for folder in Store(tmp_path).folders()]
    assert len(starts) == 6
