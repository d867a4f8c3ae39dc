"""Errors of code that a user brought along, such as a recipe, and of packages that are missing."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from spherenorm.support import describe_with_user_line, require_module

EXTRAS = {
    "PIL": "data",
    "faster_coco_eval": "data",
    "kaleido": "pictures",
    "matplotlib": "data",
    "pandas": "experiments",
    "pyarrow": "data",
    "pytorch_metric_learning": "data",
    "ray": "ray",
    "skimage": "data",
    "sklearn": "experiments",
    "soundfile": "data",
    "submitit": "slurm",
    "torch": "tensorboard",
}
"""The extra of `pyproject.toml` that installs a package; of torch, what its board needs."""


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
        raise raised(
            str(error) if said else f"{kind} {name!r}: {describe_with_user_line(error)}"
        ) from error


def written(cls: type, method: str = "") -> str:
    """A user's class, or a method of it, with its file and line."""
    thing: Any = inspect.unwrap(getattr(cls, method)) if method else cls
    name, place = f"{method}() of {cls.__name__}" if method else cls.__name__, ""
    with suppress(OSError, TypeError):  # a class of an interactive session has no file
        file, line = inspect.getsourcefile(thing), inspect.getsourcelines(thing)[1]
        place = f" ({Path(file or '').name}, line {line})"
    return f"{name}{place}"


def require_extra(module: str, purpose: str) -> Any:
    """Import an optional module.

    Args:
        module: its name, whose package is a key of `EXTRAS`.
        purpose: the feature that needs it; the error begins with it.

    Raises:
        MissingExtraError: the module is missing; it is a ValueError too.
    """
    extra = EXTRAS[module.partition(".")[0]]
    missing = f"{purpose} needs the extra {extra} ({{error}}): pip install 'spherenorm[{extra}]'"
    return require_module(module, missing)
