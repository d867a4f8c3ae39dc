"""A command that is interrupted, and two commands at the same time."""

import json
import os
import signal
import subprocess
import time

from commands import ROOT, STUDY, invoke, process, run_and_note

from spherenorm_experiments.engine import Store


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
    assert len(stderr.splitlines()) == 1
    folders = list(Store(tmp_path).folders())
    assert any(folder.summary() is None for folder in folders)
    result = invoke("resume", "--out", tmp_path, "--jobs", 1)
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
