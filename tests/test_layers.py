"""Imports go one way: between packages, between the rooms of a package, and within a room."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = {
    "spherenorm": (
        *("_errors", "_files", "_installed", "_interval", "_located", "_numerics"),
        *("operations", "record"),
        *("_modules", "_progress", "_text", "_views", "_measures", "_fields", "_update"),
        *("support", "_manifold"),
        *("_hooks", "_tree", "_outline", "_step", "_rule", "_chain", "_shared", "_when", "rules"),
        *("_order", "_registry", "recipes", "compile", "functional", "optim", "testing"),
        *("metrics", "toys", "probes", "audit", "_explanation", "__main__"),
    ),
    "theory": ("algebra", "laws", "_promise", "proofs", "checks", "report", "__main__"),
    "experiments": (
        *("core", "data", "networks", "engine", "tasks", "door", "results", "pictures", "studies"),
        *("campaign", "page", "cli", "worker", "__main__"),
    ),
}
"""Of each package, from the bottom to the top; the packages too are in this order."""
PACKAGES = [*ROOMS]
FILES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
FORBIDDEN = {
    "spherenorm": {"matplotlib", "rich", "typer", "sympy", "sklearn"},
    "theory": set(),
    "experiments": set(),
}
ALLOWED = {"spherenorm/_progress.py": {"rich"}}


def name_of(path):
    return path.relative_to(ROOT).as_posix()


def place_of(path):
    """(package, room, file) of a module; the room of a package's own `__init__` is ""."""
    package, *rooms, file = path.relative_to(ROOT).with_suffix("").parts
    room = rooms[0] if rooms else file
    return package, "" if room == "__init__" else room, file


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
    package, room, _ = place_of(path)
    rooms = ROOMS[package]
    assert not room or room in rooms, "a room that has no place"
    for module in imports(path):
        allowed = ALLOWED.get(name_of(path), set())
        assert module[0] not in FORBIDDEN[package] - allowed, module
        if module[0] not in PACKAGES:
            continue
        assert PACKAGES.index(module[0]) <= PACKAGES.index(package), module
        outside = module[0] != package
        if room and not outside:
            assert len(module) > 1, "a room imports from rooms, not from its own package"
            assert rooms.index(module[1]) <= rooms.index(room), module
        # A module at the top of its package is a room of its own.
        inside = module[1:] if outside else module[2:] if module[1:2] != (room,) else ()
        assert not any(part.startswith("_") for part in inside), f"the private {module}"


@pytest.mark.parametrize(
    ("package", "room"), [(p, room) for p in PACKAGES for room in ROOMS[p]], ids="-".join
)
def test_no_circle_within_a_room(package, room):
    files = [path for path in FILES if place_of(path)[:2] == (package, room)]
    modules = {path.relative_to(ROOT).with_suffix("").parts: path for path in files}
    waiting = {
        module: {other for other in imports(path) if other in modules and other != module}
        for module, path in modules.items()
    }
    while waiting:
        free = [module for module, needed in waiting.items() if not needed & waiting.keys()]
        assert free, f"a circle among {sorted(waiting)}"
        for module in free:
            del waiting[module]


def test_the_library_does_no_input_or_output():
    for path in (ROOT / "spherenorm").rglob("*.py"):
        calls = {
            n.func.id
            for n in ast.walk(ast.parse(path.read_text()))
            if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
        }
        assert not calls & {"print", "open", "input"}, path


def test_importing_the_library_imports_no_compiler():
    """Dynamo takes as long to import as torch itself."""
    heavy = ["torch._dynamo", "torch._inductor", "triton", "sympy", "rich"]
    code = f"import sys, spherenorm; print([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
