"""Tasks, studies and layouts by their names, as the folders of the paper give them.

A folder says in its `__init__` what it has, each as `module:Name` below itself:

    TASKS = {"detection": "detection:Detection"}

So a list of names imports no task, and a task imports no other.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from typing import Any, Literal

FOLDERS = ("spherenorm_experiments.paper", "spherenorm_experiments.extra")
"""Each of them and each folder in it may have things with a name."""

Kind = Literal["TASKS", "STUDIES", "LAYOUTS"]


@functools.cache
def places(kind: Kind) -> dict[str, str]:
    """The place of each thing of a kind, by its name; nothing is imported for it.

    Example:
        >>> places("TASKS")["detection"]
        'spherenorm_experiments.paper.detection.detection:Detection'
    """
    found: dict[str, str] = {}
    for folder in FOLDERS:
        top = importlib.import_module(folder)
        inner = (info.name for info in pkgutil.iter_modules(top.__path__) if info.ispkg)
        for package in (top, *(importlib.import_module(f"{folder}.{name}") for name in inner)):
            own: dict[str, str] = getattr(package, kind, {})
            found |= {name: f"{package.__name__}.{place}" for name, place in own.items()}
    return dict(sorted(found.items()))


def named(kind: Kind, name: str) -> Any:
    """The thing of a kind that has this name.

    Raises:
        KeyError: there is none.

    Example:
        >>> named("TASKS", "digits").__name__
        'Digits'
    """
    module, _, attribute = places(kind)[name].partition(":")
    return getattr(importlib.import_module(module), attribute)
