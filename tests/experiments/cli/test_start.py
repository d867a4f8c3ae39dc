"""The command lists what there is, says which extra is missing, and ends while it imports."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import ROOT, STUDY, invoke, run_tiny

from spherenorm import bind, recipe_names
from spherenorm_experiments.cli._app import app
from spherenorm_experiments.core import find_task_class, places
from spherenorm_experiments.study import find_study, study_classes

SCRIPT = "import sys\nfrom spherenorm.__main__ import main\n"
"""The console script, but for its end."""

HEAVY = ("torch._dynamo", "plotly", "pandas", "sympy", "sklearn")


def console_script(*arguments, before="", after=""):
    code = f"import sys\n{before}\nsys.argv = ['spherenorm', *{[*map(str, arguments)]!r}]\n"
    code += f"{SCRIPT}try:\n    code = main()\nexcept SystemExit as end:\n    code = end.code\n"
    return [sys.executable, "-c", f"{code}{after}\nsys.exit(code)"]


def catches(pid, number):
    """True if a process has a handler for a signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    return bool(int(re.search(r"^SigCgt:\s*(\w+)", status, re.M)[1], 16) >> (number - 1) & 1)


def ended(*arguments, **parts):
    command = console_script(*arguments, **parts)
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_help_has_a_line_for_each_command_and_names_a_missing_extra():
    loaded = ended("--help")
    lacking = ended("--help", before="sys.modules['typer'] = None")
    assert (loaded.returncode, lacking.returncode) == (0, 0)
    lines = {line.split()[0]: line for line in lacking.stdout.splitlines() if line[:2] == "  "}
    for command in app.registered_commands:
        assert command.callback.__doc__.splitlines()[0] in loaded.stdout
        assert "pip install 'spherenorm[experiments]'" in lines[command.name]
    assert "pip install 'spherenorm[theory]'" in lines["theory"]
    assert "pip" not in lines["audit"]


@pytest.mark.parametrize(("arguments", "code"), [((), 2), (("rnu",), 2)])
def test_no_command_and_an_unknown_one_are_wrong(arguments, code):
    result = ended(*arguments)
    assert result.returncode == code
    assert "run" in result.stdout + result.stderr


@pytest.mark.parametrize("arguments", [("run", "--help"), ("list",), ("status",)])
def test_what_only_looks_imports_little(tmp_path, arguments):
    if arguments == ("status",):
        run_tiny(tmp_path)
        arguments = "status", "--out", tmp_path
    loaded = f"print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)"
    result = ended(*arguments, after=loaded)
    assert (result.returncode, result.stderr) == (0, "[]\n")


def test_the_list_is_of_what_the_modules_have():
    """It is read from the sources, since to import them takes seconds."""
    listed = json.loads(invoke("list", "--json").output)
    assert listed["studies"] == {name: find_study(name).title() for name in study_classes()}
    assert listed["tasks"] == {
        name: find_task_class(name).__doc__.splitlines()[0] for name in places("TASKS")
    }
    known = {name: f"({', '.join(bind(name).defaults)})" for name in listed["recipes"]}
    assert listed["recipes"] == known
    assert listed["recipes"].keys() <= set(recipe_names())
    assert "adamp" in invoke("list").output


@pytest.mark.parametrize(
    ("arguments", "module", "extra"),
    [
        (("run", "t1"), "typer", "experiments"),
        (("run", "t1"), "plotly", "experiments"),
        (("list",), "rich", "experiments"),
        (("theory", "sgdp"), "sympy", "theory"),
    ],
)
def test_a_missing_extra_is_one_sentence(arguments, module, extra):
    result = ended(*arguments, before=f"sys.modules[{module!r}] = None")
    named = " ".join(("spherenorm", *arguments[:1]))
    expected = f"error: {named} needs {module}: pip install 'spherenorm[{extra}]'\n"
    assert (result.returncode, result.stderr, result.stdout) == (2, expected, "")


@pytest.mark.parametrize("command", ["theory", "audit"])
def test_a_command_needs_only_its_own_extra(command):
    missing = ("plotly", "sklearn", "scipy", "jinja2", *(("typer", "rich") * (command == "audit")))
    result = ended(command, "--help", before=f"sys.modules |= dict.fromkeys({missing})")
    assert result.returncode == 0, result.stderr


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="looks into /proc")
def test_ctrl_c_while_it_still_imports_is_one_line(tmp_path):
    command = console_script("run", STUDY, "--out", tmp_path / "out")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path))}
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True
    )
    while not catches(process.pid, signal.SIGTERM):  # not yet begun
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=300)
    assert (process.returncode, stderr) == (130, "interrupted, nothing ran\n")
