"""A stranger's package: its task, its study and its data set are found by its entry point alone."""

import json
import os
import subprocess
import sys

from commands import ROOT

FILES = {
    "stranger/__init__.py": """
        TASKS = {"strange": "tasks:Strange"}
        STUDIES = {"odd-study": "tasks:STUDY"}
        LAYOUTS = {"strange-set": "tasks:LAYOUT"}
        """,
    "stranger/tasks.py": """
        from spherenorm_tiny import Tiny
        from spherenorm_experiments import Comparison, Condition, Setup
        from spherenorm_experiments.lookup import Layout

        LAYOUT = Layout("strange-set", "A Strange Set", "strange-set/numbers.txt",
                        ("numbers.txt",), "a stranger")

        class Strange(Tiny):
            "A task that needs its numbers on disk."
            name = "strange"
            def data(self):
                LAYOUT.folder()
                return super().data()

        STUDY = Comparison("odd-study", "Odd: a stranger's benchmark", arms=["sgd", "sgdp"],
                           tune={"lr": [0.1]},
                           conditions=[Condition("", "strange", real=Setup(task="strange"))])
        """,
    "stranger-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: stranger\nVersion: 1\n",
    "stranger-1.dist-info/entry_points.txt": "[spherenorm.studies]\nstranger = stranger\n",
}


COMMANDS = """
import json, sys
from typer.testing import CliRunner
from spherenorm_experiments.cli import app

results = [CliRunner().invoke(app, words) for words in json.loads(sys.argv[1])]
print(json.dumps([[result.exit_code, result.stdout, result.stderr] for result in results]))
"""


def spherenorm(folder, *commands):
    """Return exit code, stdout and stderr of commands, in one process that finds the package."""
    paths = os.pathsep.join([str(folder), os.environ["PYTHONPATH"]])
    words = json.dumps([[*map(str, command)] for command in commands])
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, words],
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": paths},
    )
    return json.loads(done.stdout.splitlines()[-1])


def test_its_study_runs_on_its_own_data(tmp_path):
    assert ROOT.is_dir()
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(line.removeprefix(" " * 8) for line in text.splitlines()))
    run = ("run", "odd-study", "--tier", "smoke", "--jobs", 0, "--data", tmp_path)
    listed, data, lacking = spherenorm(tmp_path, ("list", "--json"), ("data", "list"), run)
    names = json.loads(listed[1])
    assert names["studies"]["odd-study"] == "Odd: a stranger's benchmark"
    assert names["tasks"]["strange"] == "A task that needs its numbers on disk."
    assert "A Strange Set" in data[1]
    assert lacking[0] != 0
    assert "strange-set" in lacking[1] + lacking[2]
    (tmp_path / "strange-set").mkdir()
    (tmp_path / "strange-set" / "numbers.txt").write_text("1")
    words = ("--task", "strange", "--optimizers", "sgd,sgdp", "--search", "lr=0.1:1", "--dry-run")
    ran, page, compared = spherenorm(
        tmp_path,
        run,
        ("report", "odd-study", "--json"),
        ("compare", *words, "--data", tmp_path),
    )
    assert ran[0] == 0, ran
    assert page[0] == 0, page
    assert (tmp_path / "runs" / "report.html").exists()
    assert compared[0] == 0, compared
    assert "compare" in compared[1]
