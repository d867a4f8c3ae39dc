"""The command starts fast, says which extra is missing, and ends at once while it imports."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import ROOT, STUDY, invoke, run_tiny

from spherenorm import bind, recipe_names
from spherenorm_experiments.core import find_task_class, places
from spherenorm_experiments.study import find_study, study_classes

SCRIPT = "import sys\nfrom spherenorm_experiments.cli import main\n"
"""The console script, but for its end."""

HEAVY = ("torch", "numpy", "plotly", "pandas", "sympy", "sklearn", "spherenorm")


def console_script(*arguments, before="", after=""):
    code = f"import sys\n{before}\nsys.argv = ['spherenorm', *{[*map(str, arguments)]!r}]\n"
    code += f"{SCRIPT}try:\n    code = main()\nexcept SystemExit as end:\n    code = end.code\n"
    return [sys.executable, "-c", f"{code}{after}\nsys.exit(code)"]


def ended(*arguments, **parts):
    command = console_script(*arguments, **parts)
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "arguments", [("--help",), ("run", "--help"), ("theory", "--help"), ("list",), ("status",)]
)
def test_what_only_looks_imports_no_torch(tmp_path, arguments):
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
        (("--help",), "rich", "experiments"),
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


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="looks into /proc")
def test_ctrl_c_while_it_still_imports_is_one_line(tmp_path):
    command = console_script("run", STUDY, "--out", tmp_path / "out")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path))}
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True
    )
    while "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text():
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=300)
    assert (process.returncode, stderr) == (130, "interrupted, nothing ran\n")
