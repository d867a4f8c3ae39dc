"""Errors of code that a user brought along, such as a recipe or a model, said in one line."""

from __future__ import annotations

import traceback
from pathlib import Path

from spherenorm._installed import is_installed

LIBRARY = tuple(
    Path(__file__).resolve().parents[1] / name
    for name in ("spherenorm", "spherenorm_theory", "spherenorm_experiments")
)
"""Folders whose lines a user did not write."""


def one_line(error: BaseException) -> str:
    """The first line of an error's message, with its kind where the message alone says little."""
    text = str(error).strip().partition("\n")[0]
    return text if isinstance(error, ValueError) and text else f"{type(error).__name__}: {text}"


def located(error: BaseException) -> str:
    """`one_line`, and after it the last line of a user's own code that led there, if there is one.

    Example:
        >>> located(KeyError("lr"))
        "KeyError: 'lr'"
    """
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<") and not _is_library(Path(frame.filename).resolve())
    ]
    place = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
    return f"{one_line(error)}{place}"


def _is_library(path: Path) -> bool:
    return is_installed(path) or any(path.is_relative_to(root) for root in LIBRARY)
