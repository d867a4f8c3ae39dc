"""Studies that are files: found by their paths, run, and found again by a store."""

import ast
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from commands import ROOT, invoke, process

import spherenorm_experiments
from spherenorm_experiments.comparison import find_study
from spherenorm_experiments.plan import Plan
from spherenorm_experiments.runs import Runs
from tests.harness import refuses

FOLDER = ROOT / "experiments" / "studies"
STUDIES = ("equilibrium", "lr_transfer", "norm_control", "norm_growth", "warm_up")

MINE = '''
"""A study of a user's own."""
import mine_helper
from spherenorm_experiments import Arm, Comparison, Condition

STUDY = Comparison("mine", "Mine: a study in a file", arms=["sgd", "sgdp"], tune={"lr": [0.1, 0.2]},
                   conditions=[Condition("", "spherenorm_tiny:Tiny")])
'''


SAID = """
from spherenorm_experiments import Arm, Comparison, Condition

class Said(Comparison):
    def summary(self, runs, decisions):
        return ["Two runs <ended>.", "Nothing follows."] if len(runs) == 2 else []

STUDY = Said("said", "Said: a study that says what came out", arms=["sgd", "sgdp"],
             tune={"lr": [0.1]}, conditions=[Condition("", "spherenorm_tiny:Tiny")])
"""


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_of_the_folder_asks_for_runs_and_has_claims(name):
    study = find_study(str(FOLDER / f"{name}.py"))
    assert study.trials(Plan("smoke"), Runs())
    assert {claim.cites.kind for claim in study.claims} == {"ours"}
    assert not any(decision.has_results for decision in study.evaluate_claims(Runs()))
    study.tables(Runs()), study.pictures(Runs())
    assert find_study(study.lookup_name).name == study.name


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_of_the_folder_imports_public_names_alone(name):
    """No other study, nothing of the paper, and of the framework what it documents."""
    tree = ast.parse((FOLDER / f"{name}.py").read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    modules = {node.module for node in imports}
    assert not modules & {path.stem for path in FOLDER.glob("*.py")}
    assert not any(module.startswith("spherenorm_paper") for module in modules)
    of_framework = {module for module in modules if module.startswith("spherenorm_experiments")}
    assert of_framework == {"spherenorm_experiments"}
    names = {x.name for node in imports if node.module in of_framework for x in node.names}
    assert names <= set(spherenorm_experiments.__all__)


def run_alone(folder, *words):
    """Run a command in a folder with copies of the studies; the repository's is not importable."""
    for name in STUDIES:
        (folder / name).mkdir()
        shutil.copy(FOLDER / f"{name}.py", folder / name)
    packages = [str(ROOT / part) for part in ("", "theory", "experiments")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(packages)}
    files = [f"{name}/{name}.py" for name in STUDIES]
    return subprocess.run(
        process("run", *files, "--tier", "smoke", "--jobs", 0, *words),
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_each_study_is_one_file_that_asks_for_runs_outside_the_repository(tmp_path):
    ran = run_alone(tmp_path, "--dry-run")
    assert ran.returncode == 0, ran.stderr
    for study in ("equilibrium", "lr-transfer", "norm-control", "warm-up"):
        assert study in ran.stdout


@pytest.mark.long
def test_each_study_is_one_file_that_runs_outside_the_repository(tmp_path):
    ran = run_alone(tmp_path)
    assert ran.returncode == 0, ran.stderr
    for title in ("Best rates", "Turns and norms", "Effective step and norm in equilibrium"):
        assert title in ran.stdout


def test_a_file_of_a_users_own_runs_and_is_found_again(tmp_path, monkeypatch):
    """Its neighbors are importable, in this process and in those that train."""
    monkeypatch.chdir(tmp_path)
    Path("mine").mkdir()
    Path("mine/mine_study.py").write_text(MINE)
    Path("mine/mine_helper.py").write_text("")
    ran = invoke("run", "mine/mine_study.py", "--tier", "smoke", "--out", "store", "--jobs", "1")
    assert ran.exit_code == 0, ran.output
    for command in ("resume", "report"):
        again = invoke(command, "--out", "store")
        assert again.exit_code == 0, again.output
    assert "mine" in invoke("export", "mine", "--out", "store").output


def test_a_study_says_what_came_out_on_the_terminal_and_on_its_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("said_study.py").write_text(SAID)
    ran = invoke("run", "said_study.py", "--tier", "smoke", "--out", "store", "--jobs", "0")
    assert ran.exit_code == 0, ran.output
    lines = ran.output.splitlines()[-4:]
    assert "2 results" in lines[0]
    assert lines[1:] == ["Two runs <ended>.", "Nothing follows.", "page: store/said.html"]
    page = Path("store/said.html").read_text()
    body = page[page.index("<main>") :]
    assert body.index("Said: a study") < body.index("Two runs &lt;ended&gt;.")
    assert body.index("Two runs &lt;ended&gt;.") < body.index("<figure") < body.index("Nothing f")


def test_a_file_without_one_study_says_what_to_give(tmp_path):
    empty, two = tmp_path / "empty_study.py", tmp_path / "two_studies.py"
    empty.write_text("")
    two.write_text("from spherenorm_tiny import TinyStudy as A\nclass B(A):\n    name = 'b'\n"
                   "class C(A):\n    name = 'c'\n")  # fmt: skip
    with refuses("empty_study.py", "one study", "none"):
        find_study(str(empty))
    with refuses("two_studies.py:B", "two_studies.py:C"):
        find_study(str(two))
    assert find_study(f"{two}:C").name == "c"
    with refuses("nowhere.py"):
        find_study(str(tmp_path / "nowhere.py"))
