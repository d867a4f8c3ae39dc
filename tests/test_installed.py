"""An installed package works beside a user's own folders, whatever they are called."""

import ast
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = (
    *("spherenorm", "theory/spherenorm_theory"),
    *("experiments/spherenorm_experiments", "experiments/spherenorm_paper"),
)
ORDINARY = ("experiments", "theory", "benchmarks")
"""Names that a user's own folders have."""


def unpacked(kind, folder):
    """The folder into which a wheel of this checkout was unpacked, which is to install it."""
    hatchling = pytest.importorskip("hatchling.build", reason="of the extra test")
    here = Path.cwd()
    os.chdir(ROOT)
    try:
        name = getattr(hatchling, f"build_{kind}")(str(folder))
    finally:
        os.chdir(here)
    with zipfile.ZipFile(folder / name) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return unpacked("wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def editable(tmp_path_factory):
    return unpacked("editable", tmp_path_factory.mktemp("editable"))


PAIRS = {
    "wheel-packages": (),
    "editable-folders": (),
    "wheel-folders": pytest.mark.long,
    "editable-packages": pytest.mark.long,
}
"""The source of our packages and the kind of a user's folders: neither depends on the other."""


@pytest.fixture(
    params=[pytest.param(pair.split("-"), id=pair, marks=PAIRS[pair]) for pair in PAIRS]
)
def installed(request, tmp_path):
    """The folder of an install, and a user's project.

    The project has folders of all of these names, with or without an `__init__.py`.
    """
    install, kind = request.param
    for name in ORDINARY:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "train.py").write_text(f"OWN = {name!r}\n")
        if kind == "packages":
            (folder / "__init__.py").write_text("")
    return request.getfixturevalue(install), tmp_path


FROM_A_WHEEL = pytest.mark.parametrize("installed", [["wheel", "packages"]], indirect=True)


def run(site, folder, *command):
    """A process in a user's folder, with our packages from `site` alone, and what it points to."""
    pointers = [line for path in site.glob("*.pth") for line in path.read_text().splitlines()]
    paths = os.pathsep.join([str(site), *pointers])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_wheel_has_every_file_of_the_packages(wheel):
    for package in (ROOT / name for name in PACKAGES):
        here = {path.relative_to(package.parent) for path in package.rglob("*") if path.is_file()}
        here = {path for path in here if "__pycache__" not in path.parts}
        there = {p.relative_to(wheel) for p in (wheel / package.name).rglob("*") if p.is_file()}
        assert there == here
        assert Path(package.name, "py.typed") in there
    packages = {path.name for path in wheel.iterdir() if path.suffix != ".dist-info"}
    assert packages == {"spherenorm_command.py", *(Path(name).name for name in PACKAGES)}
    entries = next(wheel.glob("*.dist-info")) / "entry_points.txt"
    assert "spherenorm = spherenorm_command:main" in entries.read_text()


README = (ROOT / "README.md").read_text(encoding="utf-8")
LINK = re.compile(r"\]\(([^)\s]+)\)")


def test_an_index_shows_the_readme_without_links_that_lead_nowhere(wheel):
    """An index's page has the text alone: no picture, and no file beside it."""
    metadata = (next(wheel.glob("*.dist-info")) / "METADATA").read_text(encoding="utf-8")
    assert "Description-Content-Type: text/markdown" in metadata
    targets = LINK.findall(metadata)
    assert "https://arxiv.org/abs/2006.08217" in targets
    assert all(target.startswith("https://") for target in targets)
    for block in re.findall(r"^```.*?^```$", README, re.M | re.S):
        assert block in metadata


def test_with_the_address_of_the_repository_each_link_leads_to_its_file():
    pytest.importorskip("hatchling", reason="of the extra test")
    from hatch_build import long_description

    source = "https://forge.example/spherenorm"
    before, after = LINK.findall(README), LINK.findall(long_description(README, f"{source}/"))
    assert any(not target.startswith("https:") for target in before)
    for target, absolute in zip(before, after, strict=True):
        if target.startswith("https:"):
            assert absolute == target
            continue
        path = ROOT / target.partition("#")[0]
        kind = "tree" if path.is_dir() else "raw" if path.suffix == ".png" else "blob"
        assert path.exists()
        assert absolute == f"{source}/{kind}/HEAD/{target}"


def imported_packages(folder):
    """Return the packages that modules import as they are imported, without Python's own."""
    names = set()
    for path in folder.rglob("*.py"):
        for node in ast.parse(path.read_bytes()).body:
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names.add(node.module.partition(".")[0])
    return names - sys.stdlib_module_names


@pytest.mark.parametrize("package", PACKAGES)
def test_what_a_package_imports_is_declared(package):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extra = Path(package).name.partition("_")[2].replace("paper", "experiments")
    needs = [*project["dependencies"], *project["optional-dependencies"].get(extra, ())]
    if "spherenorm[theory]" in needs:
        needs += project["optional-dependencies"]["theory"]
    declared = {re.match(r"[\w-]+", need)[0].replace("-", "_") for need in needs}
    ours = {"spherenorm_command", *(Path(name).name for name in PACKAGES)}
    assert imported_packages(ROOT / package) - ours <= declared


def test_the_readme_runs_in_a_project_of_ones_own(installed):
    site, project = installed
    blocks = re.findall(r"^```python\n(.*?)^```", README, re.M | re.S)
    own = "\n".join(f"from {name}.train import OWN as {name}" for name in ORDINARY)
    check = f"assert {list(ORDINARY)!r} == [{', '.join(ORDINARY)}]"
    home = ROOT if any(site.glob("*.pth")) else site
    ours = f"assert sn.__file__ == {str(home / 'spherenorm' / '__init__.py')!r}, sn.__file__"
    first = blocks[:2]  # the others run in tests/docs
    text = "\n".join([own, *first, check, ours, *(f"from {n} import train" for n in ORDINARY)])
    (project / "readme.py").write_text(text)
    run(site, project, "readme.py")


@FROM_A_WHEEL
def test_the_console_script_is_the_command(installed):
    """The script that pip writes into `bin/` for the entry point."""
    site, project = installed
    (project / "experiments" / "models.py").write_text(
        "import torch\n"
        "from benchmarks.train import OWN\n\n"
        "def model():\n"
        "    net = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5))\n"
        "    return net, torch.randn(16, 6)\n"
    )
    script = project.parent / "script.py"
    script.write_text("import sys\nfrom spherenorm_command import main\nsys.exit(main())\n")
    assert "scale-invariant" in run(site, project, script, "audit", "experiments.models:model")
