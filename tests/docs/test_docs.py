"""Every Python block of the README and of docs/ runs, page by page, or section by section."""

import os
import re
import subprocess
import sys
from pathlib import Path

import PIL.Image
import pytest
import torch
import yaml

from docs import norm_growth
from spherenorm import registry

ROOT = Path(__file__).parents[2]
READMES = [
    ROOT / name / "README.md" for name in ("", "theory", "experiments", "spherenorm/compile")
]
PAGES = [*READMES, *sorted((ROOT / "docs").glob("*.md"))]
BY_SECTION = ("integrations.md",)
"""Pages whose sections run one by one, in `test_a_section_runs`."""
WITH_CODE = [
    page for page in PAGES if "```python" in page.read_text() and page.name not in BY_SECTION
]
RESULTS = sorted((ROOT / "experiments" / "results").glob("*.md"))


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.name)
def test_blocks_run(page, monkeypatch, tmp_path):
    """A block that begins with the name of a file is written to it, for later blocks to import."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_recipes", dict(registry._recipes))
    text = page.read_text()
    blocks = list(re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    assert blocks
    namespace = {"__name__": page.stem}
    for block in blocks:
        file_name = re.match(r"# (\w+\.py)\n", block[1])
        if file_name:
            (tmp_path / file_name[1]).write_text(block[1])
            # Another page may have imported a module of this name.
            monkeypatch.delitem(sys.modules, file_name[1][:-3], raising=False)
            continue
        line = text.count("\n", 0, block.start()) + 1
        exec(compile("\n" * line + block[1], str(page), "exec"), namespace)


@pytest.mark.parametrize("page", [*PAGES, *RESULTS], ids=lambda page: page.name)
def test_links_within_the_repository_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        if target.startswith("generated/"):
            continue  # the build writes these pages, and checks their links
        assert (page.parent / target).exists(), target


def test_the_numbers_of_the_readme_are_those_of_the_committed_runs_of_the_demo(monkeypatch):
    """`make demo` prints these lines, too: at most eight, with its count of runs and its page."""
    monkeypatch.chdir(ROOT)  # the rows name the study by its path
    section = norm_growth.read_section()
    lines = section.summary
    assert len(lines) <= 6
    assert max(map(len, lines)) <= 80
    text = " ".join(lines)
    (first, sgd), (_, sgdp) = re.findall(r"SGDP? (\d+\.\d+) -> (\d+\.\d+)", text)
    ratio, *ratio_interval = re.search(r"ratio (\S+) \[(\S+), (\S+)\]", text).groups()
    gap = re.search(
        r"SGDP - SGD: \+(\S+) \[(\S+), (\S+)\] points: not decided, 6 seeds detect", text
    )
    assert gap, "the README says that six seeds do not decide"
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert f"from {first} to {sgd} under SGD and to {sgdp} under SGDP" in readme
    interval = "{} to {}".format(*ratio_interval)
    assert f"are {ratio} times as long (95 % interval {interval})" in readme
    assert "SGDP by {} points, interval {} to {}.".format(*gap.groups()) in readme
    assert f"from {first} to {sgd}, SGDP's to {sgdp}; in the second half" in readme
    assert f"turns the weights {ratio} times as far" in readme


def test_the_picture_of_the_readme_is_drawn_from_the_committed_runs(monkeypatch):
    monkeypatch.chdir(ROOT)
    with PIL.Image.open(norm_growth.IMAGE) as picture:
        assert picture.text["Runs"] == norm_growth.digest(norm_growth.read_section())


def test_the_workflow_runs_the_commands_of_the_readme_on_what_pyproject_admits():
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    readme, project = (ROOT / "README.md").read_text(), (ROOT / "pyproject.toml").read_text()
    commands = [step["run"] for step in jobs["readme"]["steps"] if "run" in step]
    (install,) = (command for command in commands if command.startswith("uv pip install"))
    assert (
        f"pip install {install.rpartition(' -e ')[1].strip()} {install.rpartition(' -e ')[2]}"
        in readme
    )
    (compare,) = (command for command in commands if command.startswith("spherenorm compare"))
    assert compare.partition(" --trials")[0] in readme
    (run,) = (command for command in commands if command.startswith("spherenorm run"))
    assert f"$(BIN)/{run}\n" in (ROOT / "Makefile").read_text()  # make demo
    oldest, newest = jobs["readme"]["strategy"]["matrix"]["include"]
    assert f'requires-python = ">={oldest["python-version"]}"' in project
    assert (oldest["resolution"], newest["resolution"]) == ("lowest-direct", "highest")


def test_files_that_pages_name_exist():
    """A page may write `spherenorm/record.py`, `record.py` or `compile/`."""
    files = {
        f"/{path.relative_to(ROOT)}" for path in ROOT.rglob("*.py") if ".venv" not in path.parts
    }
    folders = {f"{Path(path).parent}/" for path in files}
    for page in PAGES:
        for name in re.findall(r"`([\w/]*\w(?:\.py|/))`", page.read_text()):
            if name not in ("my_optimizers.py", "waves.py", "plans/", "runs/"):
                assert any(path.endswith(f"/{name}") for path in files | folders), (page, name)


TEXT = (ROOT / "docs" / "integrations.md").read_text()
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
TOP, *HEADINGS_AND_TEXTS = re.split(r"^## (.+)\n", TEXT, flags=re.MULTILINE)
SECTIONS = dict(zip(HEADINGS_AND_TEXTS[::2], HEADINGS_AND_TEXTS[1::2], strict=True))
OPTIONAL = ("lightning", "transformers", "accelerate", "hydra", "timm")


@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_runs(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall(SECTIONS[name])
    assert blocks
    for module in OPTIONAL:
        if re.search(rf"^(import|from) {module}\b", "".join(blocks), re.MULTILINE):
            pytest.importorskip(module, reason="of the extra integrations")
    file_name = re.match(r"# (\w+\.py)\n", blocks[0])
    if file_name:
        return run_in_two_processes(tmp_path / file_name[1], blocks[0])
    namespace = {"__name__": "section", "storage": str(tmp_path)}
    try:
        exec(BLOCK.search(TOP)[1], namespace)
        for block in blocks:
            exec(compile(block, f"docs/integrations.md, {name}", "exec"), namespace)
    finally:
        torch._dynamo.reset()


def run_in_two_processes(path, text):
    # Rarely, Python 3.11 aborts at its exit, because a thread of torch is still in C++.
    path.write_text(f"{text}\nimport os\nos._exit(0)\n")
    command = [*(sys.executable, "-m", "torch.distributed.run", "--standalone"), "--nproc-per-node"]
    result = subprocess.run(
        [*command, "2", path, path.parent / "checkpoint"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
