"""The sources behind a run: a hash of all code that decides what a recipe, a rule or a task computes.

What counts is whole modules: the one that defines the thing or a base class of it, and whatever that imports, at the top
or inside a function, as far as it is neither installed nor Python's own. So an edited helper, constant or base class is seen
wherever it stands. A module that is found by its name only while the program runs is not.

Of spherenorm the parts that rules are made of count in the same way. What only runs them (the optimizers, the compiler, the
runner) gives the same numbers by test, or raises `FORMAT` in `experiments.spec`.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import inspect
import json
import site
import sys
import sysconfig
import textwrap
from pathlib import Path
from typing import Any

__all__ = ["digest", "source_digest"]

OURS = ("spherenorm", "experiments")
PARTS = ("rules", "chain", "geometry", "metrics", "rule", "update", "views")
COUNTED = (*(f"spherenorm.{part}" for part in PARTS), "experiments.tasks")
"""The modules of ours that are followed like a user's own."""

INSTALLED = tuple(
    Path(path).resolve()
    for path in (
        *(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        *site.getsitepackages(),
        site.getusersitepackages(),
    )
)


def digest(content: Any) -> str:
    """The SHA-256 of JSON content."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@functools.lru_cache(maxsize=1024)  # what is in memory is what runs, whatever becomes of the files
def source_digest(*things: Any) -> str:
    """The SHA-256 of the sources of functions, classes and modules, see above; without comments and docstrings.

    Raises:
        ValueError: a thing that is in no file.
    """
    alone: set[str] = set()
    names: set[str] = set()
    for thing in dict.fromkeys(
        part
        for whole in things
        for part in (inspect.getmro(whole) if inspect.isclass(whole) else (whole,))
    ):
        module = _imported_as(thing.__name__ if inspect.ismodule(thing) else thing.__module__)
        if _counts(module):
            names.add(module)
        elif thing in things:  # in a file of ours with much else in it, or installed: its own lines
            alone.add(_own_lines(thing))
    return digest([sorted(alone), sorted(_closure(names).items())])


def _imported_as(name: str) -> str:
    """The module's own name where it runs as a script: a worker, which imports it, agrees."""
    if name not in ("__main__", "__mp_main__") or (path := _file(name)) is None:
        return name
    spec = sys.modules[name].__spec__
    return path.stem if spec is None else spec.name


def _closure(names: set[str]) -> dict[str, str]:
    """The digests of these modules and of all that they import, by name."""
    found: dict[str, str] = {}
    waiting = set(names)
    while waiting:
        name = waiting.pop()
        if name in found or (path := _file(name)) is None:
            continue
        try:
            found[name], imported = _read(name, path, path.stat().st_mtime_ns)
        except (
            OSError,
            SyntaxError,
            ImportError,
        ):  # no file after all, no Python, an import from outside of the package
            if name in names:
                raise _unreadable(name) from None
            continue
        waiting |= {other for other in imported if _counts(other)}
    if missing := names - found.keys():
        raise _unreadable(missing.pop())
    return found


def _counts(name: str) -> bool:
    """Whether a module is followed: it is neither installed nor Python's own, and of ours one of those that compute."""
    top = name.partition(".")[0]
    if top in OURS:
        return any(name == counted or name.startswith(f"{counted}.") for counted in COUNTED)
    paths = [path for path in (_file(top), _file(name)) if path is not None]
    return top not in sys.stdlib_module_names and not any(
        path.is_relative_to(root) for path in paths for root in INSTALLED
    )


def _file(name: str) -> Path | None:
    """Where a module is, if it is one and in a file."""
    module = sys.modules.get(name)
    if module is not None:
        file = getattr(module, "__file__", None)
    else:
        try:
            spec = importlib.util.find_spec(name)
        except Exception:  # no module, or whatever importing the package around it may raise
            return None
        file = spec.origin if spec is not None and spec.has_location else None
    return Path(file).resolve() if file else None


@functools.lru_cache(maxsize=1024)
def _read(name: str, path: Path, _: int) -> tuple[str, frozenset[str]]:
    """The digest of a module's code, and the names of what it may import; a compiled one's bytes."""
    content = path.read_bytes()
    if path.suffix != ".py":
        return hashlib.sha256(content).hexdigest(), frozenset()
    tree = ast.parse(content)
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    imported: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = (
                importlib.util.resolve_name("." * node.level + (node.module or ""), package)
                if node.level
                else str(node.module)
            )
            imported |= {
                base,
                *(f"{base}.{alias.name}" for alias in node.names),
            }  # a name in it, or a module of it
    return _code(tree), frozenset(imported)


def _own_lines(thing: Any) -> str:
    try:
        return _code(ast.parse(textwrap.dedent(inspect.getsource(thing))))
    except (OSError, TypeError, SyntaxError):
        raise _unreadable(getattr(thing, "__name__", repr(thing))) from None


def _code(tree: ast.AST) -> str:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                node.body = node.body[1:] or [ast.Pass()]
    return digest(ast.dump(tree))


def _unreadable(name: str) -> ValueError:
    return ValueError(
        f"the source of {name} cannot be read, so its runs could not be told apart; put it in a file"
    )
