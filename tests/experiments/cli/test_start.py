"""The command lists what there is, says which extra is missing, and imports little."""

import json
import subprocess
import sys

import pytest
from commands import ROOT, STUDY, invoke

from spherenorm import bind, recipe_names
from spherenorm_experiments.cli._app import app
from spherenorm_experiments.core import find_task_class, places
from spherenorm_experiments.study import find_study, study_classes

HEAVY = ("torch._dynamo", "plotly", "pandas", "sympy", "sklearn")


def console_script(*arguments, before="", after=""):
    """The console script in a process of its own, and lines around it."""
    code = f"import sys\n{before}\nsys.argv = ['spherenorm', *{[*map(str, arguments)]!r}]\n"
    code += "from spherenorm.__main__ import main\ntry:\n    code = main()\n"
    code += f"except SystemExit as end:\n    code = end.code\n{after}\nsys.exit(code)"
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_without_an_extra_the_help_and_its_commands_name_it():
    helped = console_script("--help", before="sys.modules['typer'] = None")
    lines = {line.split()[0]: line for line in helped.stdout.splitlines() if line[:2] == "  "}
    for command in app.registered_commands:
        assert "pip install 'spherenorm[experiments]'" in lines[command.name]
    assert "pip install 'spherenorm[theory]'" in lines["theory"]
    assert "pip" not in lines["audit"]
    ran = console_script("run", "t1", before="sys.modules['typer'] = None")
    assert (ran.returncode, ran.stdout, len(ran.stderr.splitlines())) == (2, "", 1)
    assert "pip install 'spherenorm[experiments]'" in ran.stderr


def test_what_only_looks_imports_little(ran):
    loaded = f"print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)"
    result = console_script("status", "--out", ran, after=loaded)
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


@pytest.mark.parametrize(
    ("module", "extra", "arguments"),
    [
        ("submitit", "slurm", ("run", STUDY, "--backend", "slurm")),
        ("submitit", "slurm", ("resume", "--backend", "slurm")),
        ("torch.utils.tensorboard", "tensorboard", ("run", STUDY, "--tensorboard")),
    ],
)
def test_a_missing_extra_is_named_before_anything_runs(
    tmp_path, monkeypatch, module, extra, arguments
):
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    (tmp_path / "runs").mkdir()
    result = invoke(*arguments, "--out", tmp_path)
    assert (result.exit_code, len(result.output.splitlines())) == (2, 1), result.output
    assert f"pip install 'spherenorm[{extra}]'" in result.output
    assert not list((tmp_path / "runs").iterdir())
