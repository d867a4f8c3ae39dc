"""Commands that run nothing: they list, check data, say which extra is missing, import little."""

import json
import signal
import subprocess
import sys
import time
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from commands import ROOT, STUDY, invoke

import spherenorm_experiments.lookup as layout_module
from spherenorm import bind, recipe_names
from spherenorm_experiments.comparison import find_study, study_classes
from spherenorm_experiments.lookup import FOLDER, Layout, find_task_class, registered

HEAVY = ("torch._dynamo", "plotly", "pandas", "sympy", "sklearn")


def console_script(*arguments, before="", after=""):
    """The console script and lines around it, as a process of its own."""
    code = f"import sys\n{before}\nsys.argv = ['spherenorm', *{[*map(str, arguments)]!r}]\n"
    code += "from spherenorm_command import main\ntry:\n    code = main()\n"
    code += f"except SystemExit as end:\n    code = end.code\n{after}\nsys.exit(code)"
    return [sys.executable, "-c", code]


def ended(*arguments, **around):
    command = console_script(*arguments, **around)
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_help_has_every_command_and_imports_none_of_them():
    loaded = "print([name for name in sys.modules if name.endswith(('torch', 'typer'))])"
    helped = ended("--help", after=loaded)
    lines = {line.split()[0]: line.split()[1:] for line in helped.stdout.splitlines() if line}
    assert helped.stdout.endswith("[]\n")
    for entry in entry_points(group="spherenorm.commands"):
        assert len(lines[entry.name]) > 2


def test_a_missing_extra_is_one_line():
    ran = ended("run", "t1", before="sys.modules['typer'] = None")
    assert (ran.returncode, ran.stdout, len(ran.stderr.splitlines())) == (2, "", 1)
    assert "pip install 'spherenorm[experiments]'" in ran.stderr


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="looks into /proc")
def test_ctrl_c_while_it_still_imports_is_one_line(tmp_path):
    command = console_script("run", STUDY, "--out", tmp_path / "out")
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    while "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text():
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=300)
    assert (process.returncode, stderr) == (130, "interrupted, nothing ran\n")


def test_what_only_looks_imports_little(ran):
    loaded = f"print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)"
    result = ended("status", "--out", ran, after=loaded)
    assert (result.returncode, result.stderr) == (0, "[]\n")


def test_the_list_is_of_what_the_modules_have():
    """It is read from the sources, since to import them takes seconds."""
    listed = json.loads(invoke("list", "--json").output)
    assert listed["studies"] == {name: find_study(name).title() for name in study_classes()}
    assert listed["tasks"] == {
        name: find_task_class(name).__doc__.splitlines()[0] for name in registered("TASKS")
    }
    known = {name: f"({', '.join(bind(name).defaults)})" for name in listed["recipes"]}
    assert listed["recipes"] == known
    assert listed["recipes"].keys() <= set(recipe_names())


@pytest.fixture
def pair(monkeypatch):
    """One layout, of two files, in place of the real ones."""
    layout = Layout("pair", "A Pair", "pair/\n  a.txt\n  b.txt", ("a.txt", "b.txt"), "a test")
    monkeypatch.setattr(layout_module, "layouts", lambda: {"pair": layout})
    return layout


def command(*arguments):
    result = invoke(*arguments)
    return result.exit_code, result.output


def test_check_names_what_is_missing(pair, tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER, "")
    folder = tmp_path / "pair"
    folder.mkdir()
    (folder / "a.txt").write_text("x\n")
    code, text = command("data", "check", "--data", tmp_path)
    assert code == 1
    assert "lacks b.txt; expected\npair/" in text
    (folder / "b.txt").write_text("y\n")
    assert command("data", "check", "pair", "--data", tmp_path) == (0, "pair: complete\n")


def test_wrong_names_and_folders_are_usage_errors(pair, tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER, "")
    assert "there is no such folder" in command("data", "check", "--data", tmp_path / "no")[1]
    assert "no data set is named 'pear'" in command("data", "check", "pear", "--data", tmp_path)[1]
