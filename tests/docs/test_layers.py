"""Imports go one way: between packages and rooms; classes are short, docstrings state."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = {
    "spherenorm": (
        *("support", "_annotations", "_numerics", "operations", "record"),
        *(
            "_views",
            "_measures",
            "_fields",
            "_invariance",
            "_manifold",
            "_steps",
            "_parts",
            "core",
            "rules",
        ),
        *("_registry", "recipes", "zoo", "wrappers", "compile", "functional", "optim", "testing"),
        *("metrics", "probes", "audit", "_explanation", "_export", "cli", "__main__"),
    ),
    "spherenorm_theory": ("algebra", "laws", "_run_law", "proofs", "checks", "report", "cli"),
    "spherenorm_experiments": (
        *("errors", "streams", "code", "metrics", "spec", "task", "lookup", "recipes"),
        *("store", "ranks", "probes", "run", "data", "train", "loop", "sweep", "execute", "jobs"),
        *("stats", "tables"),
        *("runs", "claims", "pictures", "plan", "study", "design", "entries", "shown"),
        *("comparison", "comparing", "paper.statements", "paper.shared", "campaign", "sections"),
        *("paper", "extra", "page", "paper.pages"),
        "cli",
    ),
}
"""Of each package, from the bottom to the top; the packages too are in this order.

A folder in a room may have a place of its own, such as `paper.shared`.
"""
PACKAGES = [*ROOMS]
HOMES = {
    "spherenorm": ROOT,
    "spherenorm_theory": ROOT / "theory",
    "spherenorm_experiments": ROOT / "experiments",
}
"""The folder of each package, of which Python is told; it is no package itself."""
FILES = [path for name in PACKAGES for path in sorted((HOMES[name] / name).rglob("*.py"))]
FORBIDDEN = {
    "spherenorm": {"matplotlib", "rich", "typer", "sympy", "sklearn"},
    "spherenorm_theory": set(),
    "spherenorm_experiments": set(),
}


def parts_of(path):
    """The names of a module, its package's first."""
    home = next(home for home in reversed(HOMES.values()) if path.is_relative_to(home))
    return path.relative_to(home).with_suffix("").parts


def name_of(path):
    return path.relative_to(ROOT).as_posix()


def room_of(package, inner):
    """The room of a module, given its names below the package; the longest that is known."""
    names = [".".join(inner[:end]) for end in range(len(inner), 0, -1)]
    return next((name for name in names if name in ROOMS[package]), ".".join(inner[:1]))


def place_of(path):
    """(package, room) of a module; the room of a package's own `__init__` is ""."""
    package, *inner = parts_of(path)
    return package, room_of(package, [name for name in inner if name != "__init__"])


def imports(path):
    """The modules that a file imports, inside functions too, as tuples of names."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "a relative import"
            module = tuple(node.module.split("."))
            rooms = ROOMS.get(module[0], ()) if len(module) == 1 else ()
            inner = [(*module, alias.name) for alias in node.names if alias.name in rooms]
            yield from inner or [module]


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_go_one_way(path):
    package, room = place_of(path)
    rooms = ROOMS[package]
    assert not room or room in rooms, "a room that has no place"
    for module in imports(path):
        assert module[0] not in FORBIDDEN[package], module
        if module[0] not in PACKAGES:
            continue
        assert PACKAGES.index(module[0]) <= PACKAGES.index(package), module
        outside = module[0] != package
        other = room_of(module[0], module[1:])
        if room and not outside:
            assert len(module) > 1, "a room imports from rooms, not from its own package"
            assert rooms.index(other) <= rooms.index(room), module
        # A module at the top of its package is a room of its own.
        inside = module[1:] if outside else () if other == room else module[other.count(".") + 2 :]
        assert not any(part.startswith("_") for part in inside), f"the private {module}"


@pytest.mark.parametrize(
    ("package", "room"), [(p, room) for p in PACKAGES for room in ROOMS[p]], ids="-".join
)
def test_no_circle_within_a_room(package, room):
    files = [path for path in FILES if place_of(path) == (package, room)]
    modules = {parts_of(path): path for path in files}
    waiting = {
        module: {other for other in imports(path) if other in modules and other != module}
        for module, path in modules.items()
    }
    while waiting:
        free = [module for module, needed in waiting.items() if not needed & waiting.keys()]
        assert free, f"a circle among {sorted(waiting)}"
        for module in free:
            del waiting[module]


def test_no_folder_of_the_paper_imports_another():
    folder = ROOT / "experiments" / "spherenorm_experiments" / "paper"
    for path in sorted(folder.glob("*/*.py")):
        free = {path.parent.name, "shared", "statements"}
        for module in imports(path):
            if module[:2] == ("spherenorm_experiments", "paper"):
                assert {*module[2:3]} & free, f"{name_of(path)}: {module}"


FOLDERS = ("spherenorm", "theory", "experiments", "benchmarks", "docs", "tests", "examples")


def test_nothing_is_imported_by_the_name_of_a_folder():
    """In a checkout `theory` and `experiments` are importable, but a user's own may be meant."""
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                names += [node.module] if isinstance(node, ast.ImportFrom) else []
                tops = {str(name).partition(".")[0] for name in names}
                assert not tops & {"theory", "experiments"}, name_of(path)


def test_the_library_does_no_input_or_output():
    for path in (ROOT / "spherenorm").rglob("*.py"):
        calls = {
            n.func.id
            for n in ast.walk(ast.parse(path.read_text()))
            if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
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


LONGEST_CLASS = 150
QUESTIONS = ("What", "How", "Where", "Whether", "Whatever")
"""A docstring that starts so describes its subject by a riddle."""
EVERY_FILE = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("path", EVERY_FILE, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_classes_are_short_and_docstrings_state(path):
    for node in ast.walk(ast.parse(path.read_text())):
        # of a module, class or function, and below a constant or a field
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))) if text.strip():
                assert text.split()[0].strip(",:") not in QUESTIONS, text
        if isinstance(node, ast.ClassDef):
            assert node.end_lineno - node.lineno < LONGEST_CLASS, node.name
