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


def spherenorm(folder, *words):
    paths = os.pathsep.join([str(folder), os.environ["PYTHONPATH"]])
    command = [sys.executable, "-m", "spherenorm", *map(str, words)]
    given = {"cwd": folder, "env": os.environ | {"PYTHONPATH": paths}}
    return subprocess.run(command, capture_output=True, text=True, check=False, **given)


def test_its_study_runs_on_its_own_data(tmp_path):
    assert ROOT.is_dir()
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(line.removeprefix(" " * 8) for line in text.splitlines()))
    listed = json.loads(spherenorm(tmp_path, "list", "--json").stdout)
    assert listed["studies"]["odd-study"] == "Odd: a stranger's benchmark"
    assert listed["tasks"]["strange"] == "A task that needs its numbers on disk."
    assert "A Strange Set" in spherenorm(tmp_path, "data", "list").stdout
    words = ("run", "odd-study", "--tier", "smoke", "--jobs", 0, "--data", tmp_path)
    lacking = spherenorm(tmp_path, *words)
    assert lacking.returncode != 0
    assert "strange-set" in lacking.stdout + lacking.stderr
    (tmp_path / "strange-set").mkdir()
    (tmp_path / "strange-set" / "numbers.txt").write_text("1")
    ran = spherenorm(tmp_path, *words)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    page = spherenorm(tmp_path, "report", "odd-study", "--json")
    assert page.returncode == 0, page.stderr
    assert (tmp_path / "runs" / "report.html").exists()
    words = ("--task", "strange", "--optimizers", "sgd,sgdp", "--search", "lr=0.1:1", "--dry-run")
    compared = spherenorm(tmp_path, "compare", *words, "--data", tmp_path)
    assert compared.returncode == 0, compared.stderr
    assert "compare" in compared.stdout
