"""Every Python block of the README and of docs/ runs, page by page."""

import re
import sys
from pathlib import Path

import pytest

from spherenorm import _registry as registry

ROOT = Path(__file__).parents[2]
READMES = [ROOT / name / "README.md" for name in ("", "theory", "experiments")]
PAGES = [*READMES, *sorted((ROOT / "docs").glob("*.md"))]
ELSEWHERE = ("integrations.md",)  # its sections run one by one: test_integrations
WITH_CODE = [
    page for page in PAGES if "```python" in page.read_text() and page.name not in ELSEWHERE
]
RESULTS = sorted((ROOT / "experiments" / "results").glob("*.md"))


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.name)
def test_blocks_run(page, monkeypatch, tmp_path):
    """A block that begins with a file's name is that file, for the blocks after it to import."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    text = page.read_text()
    blocks = list(re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    assert blocks
    namespace = {"__name__": page.stem}
    for block in blocks:
        if named := re.match(r"# (\w+\.py)\n", block[1]):
            (tmp_path / named[1]).write_text(block[1])
            monkeypatch.delitem(sys.modules, named[1][:-3], raising=False)  # another page's
            continue
        line = text.count("\n", 0, block.start()) + 1
        exec(compile("\n" * line + block[1], str(page), "exec"), namespace)


@pytest.mark.parametrize("page", [*PAGES, *RESULTS], ids=lambda page: page.name)
def test_links_within_the_repository_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        made = target.startswith("generated/")  # by the build, which checks these
        assert made or (page.parent / target).exists(), target


def test_files_that_pages_name_exist():
    """`spherenorm/record.py`, `_record.py` and `compile/` are all names of what is there."""
    there = {
        f"/{path.relative_to(ROOT)}" for path in ROOT.rglob("*.py") if ".venv" not in path.parts
    }
    folders = {f"{Path(path).parent}/" for path in there}
    for page in PAGES:
        for name in re.findall(r"`([\w/]*\w(?:\.py|/))`", page.read_text()):
            if name not in ("_name.py", "my_optimizers.py", "waves.py", "plans/", "runs/"):
                assert any(path.endswith(f"/{name}") for path in there | folders), (page, name)
