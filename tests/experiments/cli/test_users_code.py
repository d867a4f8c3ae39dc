"""Commands with what users bring along: spaces, prints, `sys.exit`, files that cannot be read."""

import json
import os
import subprocess
import sys
from pathlib import Path

from commands import ROOT, STUDY, invoke, process, run_tiny


def test_spaces_between_optimizers_do_not_matter(tmp_path):
    rows = run_tiny(tmp_path, "--optimizers", "sgd, sgdp", "--dry-run", "--json")
    assert rows.exit_code == 0, rows.output
    assert json.loads(rows.stdout)[0]["runs"] == 4


def test_what_a_recipe_prints_is_not_in_the_json(tmp_path):
    optimizers = ("--optimizers", "spherenorm_tiny:printing", "--seeds", "1", "--json")
    for more in (("--dry-run",), ()):
        result = run_tiny(tmp_path, *optimizers, *more)
        assert result.exit_code == 0, result.output
        json.loads(result.stdout)
        assert "lr is 0.1" in result.stderr


def test_a_module_that_prints_when_it_is_imported_breaks_no_json(tmp_path, monkeypatch):
    """Most commands import the modules that a stored request names."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "spherenorm_talks.py").write_text(
        "from spherenorm_tiny import Tiny, TinyStudy\n"
        "from spherenorm.recipes import sgd\nprint('imported')\n"
        "class Talking(TinyStudy):\n    'Documented.'\n    name = 'talking'\n"
    )
    out, study = tmp_path / "out", "spherenorm_talks:Talking"
    given = ("--tier", "smoke", "--jobs", 2, "--out", out, "--json")
    arms = ("--optimizers", "spherenorm_talks:sgd,sgdp", "--seeds", 1)
    search = ("--search", "lr=1e-2:1", "--trials", 2)
    task = ("--task", "spherenorm_talks:Tiny")
    for command in (
        ("run", study, *arms, "--dry-run", *given),
        ("run", study, *arms, *given),
        ("compare", *task, *arms, *search, "--dry-run", *given),
        *((name, "--out", out, "--json") for name in ("report", "gc")),
    ):
        sys.modules.pop("spherenorm_talks", None)
        result = invoke(*command)
        assert result.exit_code == 0, result.output
        json.loads(result.stdout)
        assert "imported" in result.stderr or command[0] == "gc"


def test_a_module_that_exits_is_one_error(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "spherenorm_exits.py").write_text("raise SystemExit(5)\n")
    result = run_tiny(tmp_path / "out", "--optimizers", "spherenorm_exits:mine")
    assert result.exit_code == 2
    assert "recipe 'spherenorm_exits:mine': SystemExit: 5 (spherenorm_exits.py" in result.output


def test_a_file_that_cannot_be_read_is_one_error(tmp_path, monkeypatch):
    run_tiny(tmp_path, "--optimizers", "sgd", "--seeds", "1")
    original = Path.read_bytes

    def refused(path):
        if path.name == "status.json":
            raise PermissionError(13, "Permission denied")
        return original(path)

    monkeypatch.setattr(Path, "read_bytes", refused)
    result = invoke("status", "--out", tmp_path)
    assert result.exit_code == 3
    assert "cannot read" in result.output
    assert len(result.output.splitlines()) == 1


def test_the_time_limit_is_an_option(tmp_path):
    result = invoke("run", STUDY, "--time-limit", "0", "--out", tmp_path)
    assert result.exit_code == 2
    assert "time_limit must be positive seconds, got 0" in result.output


TALKS = """
import atexit, contextlib, os
from spherenorm.recipes import sgd as talking
with contextlib.suppress(OSError):
    os.write(1, b"imported\\n")  # as code in C does
atexit.register(print, "done")
"""


def test_what_c_prints_and_what_is_printed_at_exit_is_not_in_the_json(tmp_path):
    (tmp_path / "spherenorm_talks_in_c.py").write_text(TALKS)
    ours = [str(tmp_path), str(Path(__file__).parents[1])]
    path = os.pathsep.join([*ours, *filter(None, [os.environ.get("PYTHONPATH")])])
    optimizers = ("--optimizers", "sgd,spherenorm_talks_in_c:talking")
    command = process("run", STUDY, *optimizers, "--tier", "smoke", "--dry-run", "--json")
    environment = {**os.environ, "PYTHONPATH": path}
    result = subprocess.run(
        [*command, "--out", "none"],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)[0]["study"] == "tiny"
    assert result.stderr.splitlines()[-2:] == ["imported", "done"]


def test_an_answer_that_nobody_reads_is_no_error():
    command = process("list", "--json")
    closed = {"preexec_fn": lambda: os.close(1), "stderr": subprocess.PIPE}
    result = subprocess.run(command, cwd=ROOT, text=True, check=False, **closed)
    assert result.returncode == 0, result.stderr
