"""Errors of code that a user brought along, such as a recipe or a study."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from spherenorm.support import located

__all__ = ["RecipeError", "users_code"]


class RecipeError(ValueError):
    """There is no such recipe, or its module cannot be imported."""


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
