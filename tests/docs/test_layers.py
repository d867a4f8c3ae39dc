"""Imports go one way: between the packages, and between the rooms of each package.

A room is a folder of a package, or a module at its top. Nothing is listed here, so that a new
module needs no entry.
"""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOMES = {
    "spherenorm": ROOT,
    "spherenorm_theory": ROOT / "theory",
    "spherenorm_experiments": ROOT / "experiments",
    "spherenorm_paper": ROOT / "experiments",
}
"""The folder of each package. A package may import those above it in this list, never below."""
PACKAGES = [*HOMES]
FILES = {
    ".".join(path.relative_to(home).with_suffix("").parts).removesuffix(".__init__"): path
    for package, home in HOMES.items()
    for path in sorted((home / package).rglob("*.py"))
}
"""The path of each module, by its name."""
NOT_IN_THE_LIBRARY = {"matplotlib", "rich", "typer", "sympy", "sklearn"}
FOLDERS = ("spherenorm", "theory", "experiments", "benchmarks", "docs", "tests", "examples")


def imported_modules(path):
    """The modules that a file imports, inside functions too; submodules by their full name.

    Imports for type checkers alone do not count.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: a relative import"
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                yield submodule if submodule in FILES else node.module


def room_of(module):
    """The package and the first folder or module in it: ("spherenorm", "rules")."""
    return tuple(module.split(".")[:2])


def find_cycle(graph):
    """Nodes of a directed graph that lie on cycles, or lead to them."""
    waiting = {node: set(targets) - {node} for node, targets in graph.items()}
    while True:
        free = [node for node, targets in waiting.items() if not targets & waiting.keys()]
        if not free:
            return sorted(waiting)
        for node in free:
            del waiting[node]


@pytest.mark.parametrize("module", FILES)
def test_packages_import_one_way(module):
    package = module.split(".")[0]
    for imported in imported_modules(FILES[module]):
        top = imported.split(".")[0]
        if package == "spherenorm":
            assert top not in NOT_IN_THE_LIBRARY, imported
        if top in PACKAGES:
            assert PACKAGES.index(top) <= PACKAGES.index(package), imported


@pytest.mark.parametrize("package", ["spherenorm", "spherenorm_theory"])
def test_rooms_import_one_way(package):
    graph = {}
    for module, path in FILES.items():
        if module.startswith(f"{package}."):  # the package's own __init__ imports all rooms
            rooms = {room_of(name) for name in imported_modules(path) if name.startswith(package)}
            graph.setdefault(room_of(module), set()).update(rooms)
            assert (package,) not in rooms, f"{module} imports from its own package's __init__"
    assert not find_cycle(graph)


@pytest.mark.parametrize("package", PACKAGES)
def test_modules_of_a_room_import_one_way(package):
    graph = {
        module: {name for name in imported_modules(path) if room_of(name) == room_of(module)}
        for module, path in FILES.items()
        if module.startswith(f"{package}.")
    }
    assert not find_cycle(graph)


def test_a_cycle_is_found():
    assert find_cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["a", "b", "c"]
    assert find_cycle({"a": {"a", "b"}, "b": set()}) == []


def test_no_folder_of_the_paper_imports_another():
    folder = ROOT / "experiments" / "spherenorm_paper"
    for path in sorted(folder.glob("*/*.py")):
        allowed = {path.parent.name, "shared", "statements"}
        for module in imported_modules(path):
            names = module.split(".")
            if names[0] == "spherenorm_paper":
                assert {*names[1:2]} & allowed, f"{path}: {module}"


def test_nothing_is_imported_by_the_name_of_a_folder():
    """In a checkout `theory` and `experiments` are importable, but a user's own may be meant."""
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            tops = {module.partition(".")[0] for module in imported_modules(path)}
            assert not tops & {"theory", "experiments"}, path


def test_the_library_does_no_input_or_output():
    for path in (ROOT / "spherenorm").rglob("*.py"):
        calls = {
            node.func.id
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        assert not calls & {"print", "open", "input"}, path


def test_importing_the_library_imports_no_compiler_and_no_package_of_a_writer():
    """Dynamo takes as long to import as torch itself."""
    heavy = ["torch._dynamo", "torch._inductor", "triton", "sympy", "rich"]
    heavy += ["pyarrow", "tensorboard", "lightning", "transformers"]
    code = f"import sys, spherenorm; print([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
