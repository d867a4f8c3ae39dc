"""The sources behind a run: a hash of all code that decides what a recipe, rule or task computes.

Whole modules count: the one that defines the thing or a base class of it, and all modules that it
imports, at the top or inside a function, unless they are installed or Python's own. So an edited
helper, constant or base class is seen in any of them. A module that is imported by a name that only
the running program knows is not seen.

Of spherenorm, the parts that rules are made of count in the same way. The parts that only run them
(the optimizers, the compiler, the engine) give the same numbers by test; a change that does not
raises `FORMAT` in `spherenorm_experiments.core._identity`.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import inspect
import json
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from spherenorm.support import is_installed
from spherenorm_experiments.core._equal_sources import EQUAL_SOURCES

OURS = ("spherenorm", "spherenorm_experiments")
CORE = "spherenorm_experiments.core"
PARTS = (
    *("core", "_fields", "_invariance", "_manifold", "_numerics", "_steps", "_views"),
    *("metrics", "rules"),
)
"""The modules of spherenorm that rules are made of."""
COUNTED = (
    *(f"spherenorm.{part}" for part in PARTS),
    *("spherenorm_experiments.paper", "spherenorm_experiments.extra"),
    *("spherenorm_experiments.core._losses", "spherenorm_experiments.core._metrics"),
    *("spherenorm_experiments.core._schedules", "spherenorm_experiments.engine._probes"),
)
"""The modules of ours that are followed like a user's own.

Networks count, and so do data sets: a fingerprint has a file's bytes, not what is cut from it.
"""


def digest(content: Any) -> str:
    """The SHA-256 of JSON content."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def source_digest(*things: Any) -> str:
    """The SHA-256 of the sources of functions, classes and modules, as this module counts them.

    Comments and docstrings are left out. Sources that were shown to compute what earlier ones did
    have the digest of these, see `EQUAL_SOURCES`.

    Raises:
        ValueError: a thing that is in no file.
    """
    found = _taken(*things)[0]
    return EQUAL_SOURCES.get(found, found)


def source_texts(*things: Any) -> dict[str, str]:
    """The source of each module that `source_digest` counts, by its name, as it was counted."""
    return dict(_taken(*things)[1])


@functools.lru_cache(maxsize=1024)  # the code in memory runs, even if its file changes later
def _taken(*things: Any) -> tuple[str, dict[str, str]]:
    alone, names = _counted(*things)
    found = _closure(names)
    digests = sorted((name, module.digest) for name, module in found.items())
    texts = {name: module.text for name, module in found.items() if module.text is not None}
    return digest([sorted(alone), digests]), texts


class _Module(NamedTuple):
    """A module as it is read: the digest of its code, what it may import, and its text if any."""

    digest: str
    imported: frozenset[str]
    text: str | None


def _counted(*things: Any) -> tuple[set[str], set[str]]:
    """The digests of things whose lines alone count, and the names of the modules that count."""
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
        elif thing in things:  # of a module of ours that does not count, or installed: its lines
            alone.add(_own_lines(thing))
    return alone, names


def _imported_as(name: str) -> str:
    """The module's own name where it runs as a script: a worker, which imports it, agrees."""
    if name not in ("__main__", "__mp_main__") or (path := _file(name)) is None:
        return name
    spec = sys.modules[name].__spec__
    return path.stem if spec is None else spec.name


def _closure(names: set[str]) -> dict[str, _Module]:
    """These modules and all that they import, by name."""
    found: dict[str, _Module] = {}
    waiting = set(names)
    while waiting:
        name = waiting.pop()
        if name in found or (path := _file(name)) is None:
            continue
        try:
            found[name] = _read(name, path, path.stat().st_mtime_ns)
        except (OSError, SyntaxError, ImportError):
            # The file is gone, is no Python, or imports from outside of its package.
            if name in names:
                raise _unreadable(name) from None
            continue
        waiting |= {other for other in found[name].imported if _counts(other)}
    if missing := names - found.keys():
        raise _unreadable(missing.pop())
    return found


def _counts(name: str) -> bool:
    """True if a module is followed: one of ours that computes, or one of the user's own."""
    top = name.partition(".")[0]
    if top in OURS:
        return any(name == counted or name.startswith(f"{counted}.") for counted in COUNTED)
    home = _file(top)
    if home is None and top in sys.stdlib_module_names:
        return False  # a file of the user's own may have the name of one of Python's
    if home is not None and is_installed(home):
        return False  # to look for a module would import the packages around it
    path = _file(name)
    return path is None or not is_installed(path)


def _file(name: str) -> Path | None:
    """The file of a module, if it is a module and has one."""
    module = sys.modules.get(name)
    if module is not None:
        file = getattr(module, "__file__", None)
    else:
        try:
            spec = importlib.util.find_spec(name)
        except Exception:  # no module, or importing the package around it fails
            return None
        file = spec.origin if spec is not None and spec.has_location else None
    return Path(file).resolve() if file else None


@functools.lru_cache(maxsize=1024)
def _read(name: str, path: Path, _: int) -> _Module:
    """A module; the digest of one that is compiled is that of its bytes."""
    content = path.read_bytes()
    if path.suffix != ".py":
        return _Module(hashlib.sha256(content).hexdigest(), frozenset(), None)
    tree = ast.parse(content)
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    imported: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {part for alias in node.names for part in _with_parents(alias.name)}
        elif isinstance(node, ast.ImportFrom):
            base = str(node.module)
            if node.level:
                relative = "." * node.level + (node.module or "")
                base = importlib.util.resolve_name(relative, package)
            # An imported name may be a module.
            imported |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
            imported |= _homes(base, [alias.name for alias in node.names])
    return _Module(_code(tree), frozenset(imported), importlib.util.decode_source(content))


def _homes(base: str, names: Sequence[str]) -> set[str]:
    """The modules that define what a task takes from `core`, such as its loss."""
    if base != CORE:  # other packages are read themselves
        return set()
    found = (getattr(sys.modules[CORE], name, None) for name in names)
    return {thing.__module__ for thing in found if hasattr(thing, "__module__")}


def _with_parents(name: str) -> list[str]:
    """`import a.b` makes `a` known too."""
    parts = name.split(".")
    return [".".join(parts[: i + 1]) for i in range(len(parts))]


def _own_lines(thing: Any) -> str:
    try:
        return _code(ast.parse(textwrap.dedent(inspect.getsource(thing))))
    except (OSError, TypeError, SyntaxError):
        raise _unreadable(getattr(thing, "__name__", repr(thing))) from None


def _code(tree: ast.AST) -> str:
    """The digest of a syntax tree without its docstrings."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return digest(ast.dump(tree))


def _unreadable(name: str) -> ValueError:
    why = f"the source of {name} cannot be read, so its runs could not be told apart"
    return ValueError(f"{why}; put it in a file")
