"""Folders of installed packages, and of Python's own: no user wrote what is in them."""

from __future__ import annotations

import site
import sysconfig
from pathlib import Path

FOLDERS = tuple(
    Path(path).resolve()
    for path in (
        *(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        *site.getsitepackages(),
        site.getusersitepackages(),
    )
)


def is_installed(path: Path) -> bool:
    """True if a file is in one of these folders; the path has no symbolic links."""
    return any(path.is_relative_to(folder) for folder in FOLDERS)
