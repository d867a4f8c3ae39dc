"""Errors of code that a user brought along, such as a recipe or a study, said in one line."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from experiments.core._installed import is_installed

__all__ = ["RecipeError", "located", "one_line", "users_code"]

LIBRARY = tuple(
    Path(__file__).resolve().parents[2] / name for name in ("spherenorm", "experiments")
)
"""Folders whose lines a user did not write."""


class RecipeError(ValueError):
    """There is no such recipe, or its module cannot be imported."""


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


@contextmanager
def users_code(kind: str, name: str, raised: type[ValueError] = ValueError) -> Iterator[None]:
    """Raise all that a user's module raises, `sys.exit` included, as an error that names it.

    Args:
        kind: of thing, such as "task".
        name: of the thing.
        raised: the type of the error.
    """
    try:
        yield
    except raised:
        raise
    except (Exception, SystemExit) as error:
        said = repr(name) in str(error)
        raise raised(str(error) if said else f"{kind} {name!r}: {located(error)}") from error


def _is_library(path: Path) -> bool:
    return is_installed(path) or any(path.is_relative_to(root) for root in LIBRARY)
