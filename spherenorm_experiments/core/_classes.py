"""The classes of a room, by their names: one file each, found when they are asked for."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from typing import Any

__all__ = ["classes_in"]


def classes_in(package: str, *bases: type) -> dict[str, type[Any]]:
    """The classes with a `name` that the public modules of a package define, by that name.

    Args:
        package: the dotted name of the package.
        bases: only subclasses of one of these.

    Example:
        >>> from spherenorm_experiments.core import Task
        >>> classes_in("spherenorm_experiments.tasks", Task)["digits"].__module__
        'spherenorm_experiments.tasks.digits'
    """
    room = importlib.import_module(package)
    found = {}
    for info in pkgutil.iter_modules(room.__path__):
        if info.name.startswith("_"):
            continue
        module = importlib.import_module(f"{package}.{info.name}")
        for cls in vars(module).values():
            own = inspect.isclass(cls) and cls.__module__ == module.__name__
            if own and issubclass(cls, bases) and hasattr(cls, "name"):
                found[cls.name] = cls
    return dict(sorted(found.items()))
