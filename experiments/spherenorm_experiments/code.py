"""The code behind a run: the modules that were loaded when it trained, by the bytes of their files.

It is a column of a row and no part of a run's name: a row whose code has changed since is trained
again, unless `--accept-code` keeps it, and a report marks it as old.

Modules that are installed, and Python's own, do not count; of spherenorm those do that compute. A
module that is loaded by a name that only the running program knows counts as any other.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

from spherenorm.support import PACKAGES, is_installed

SUFFIXES = (".py", *(f".{name.rpartition('.')[2]}" for name in EXTENSION_SUFFIXES))

COMPUTES = {
    *("data", "execute", "extra", "lookup", "loop", "metrics", "paper", "probes", "ranks"),
    *("recipes", "run", "spec", "streams", "sweep", "task", "train"),
}
"""Parts of `spherenorm_experiments` that decide numbers; the others ask for runs or show them."""

SHOWS = (
    *("spherenorm.cli", "spherenorm.__main__", "spherenorm_theory"),
    *(
        f"spherenorm_experiments.paper.{name}"
        for name in ("statements", "findings", "pages", "thirteen", "shared.detection")
    ),
)
"""Other modules of ours that change no number."""


def digest(content: Any) -> str:
    """The SHA-256 of JSON content."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def loaded_code() -> dict[str, str]:
    """The name and the digest of each module that counts, of those that are loaded here."""
    found = {}
    for given, module in list(sys.modules.items()):
        file, name = getattr(module, "__file__", None) or "", given
        if given in ("__main__", "__mp_main__"):  # by its own name: a worker imports it as that
            spec = getattr(module, "__spec__", None)
            name = Path(file).stem if spec is None else spec.name
        path = _counted_file(name, file)
        if path is not None:
            found[name] = file_digest(path)
    return found


def source_texts(names: dict[str, str]) -> dict[str, str]:
    """The sources of the user's own modules among these: ours are those of a version."""
    own = sorted(name for name in names if name.partition(".")[0] not in PACKAGES)
    files = [(name, _file(name)) for name in own]
    return {name: path.read_text(errors="replace") for name, path in files if path is not None}


def changed_modules(code: dict[str, str]) -> list[str]:
    """Those of these modules that have other bytes here, or are not here."""
    files = {name: _file(name) for name in code}
    return sorted(
        name for name, path in files.items() if path is None or file_digest(path) != code[name]
    )


@functools.cache  # the code in memory runs, even if its file changes later
def file_digest(path: Path) -> str:
    """The SHA-256 of a file's bytes, as it was when this process first asked."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


@functools.cache
def _counted_file(name: str, file: str) -> Path | None:
    """The file of a loaded module; None of one that does not count."""
    path, (top, *inner) = Path(file), name.split(".")
    if not path.is_absolute() or path.suffix not in SUFFIXES:  # (`torch.ops` says "_ops.py")
        return None
    shows = any(name == each or name.startswith(f"{each}.") for each in SHOWS)
    shows |= top == "spherenorm_experiments" and not COMPUTES & {*inner[:1]}
    path = path.resolve()
    if shows or not path.is_file() or (is_installed(path) and top not in PACKAGES):
        return None
    return path


def _file(name: str) -> Path | None:
    """The file of a module, loaded or not; None if there is no such module here."""
    if name in sys.modules:
        file = getattr(sys.modules[name], "__file__", None)
        return Path(file).resolve() if file else None
    try:
        spec = importlib.util.find_spec(name)
    except Exception:  # importing the package around it fails
        return None
    return Path(spec.origin).resolve() if spec is not None and spec.origin else None
