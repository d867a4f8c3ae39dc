"""Tasks, studies and layouts by name: those of the folders of the paper, and a user's own.

A folder says in its `__init__` what it has, each as `module:Name` below itself:

    TASKS = {"detection": "detection:Detection"}

So a list of names imports no task, and a task imports no other. A thing of a user's own has the
name `module:Class`.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Literal, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from spherenorm.support import did_you_mean, look_up, unknown_name
from spherenorm_experiments.errors import users_code
from spherenorm_experiments.task import AnyTask

FOLDERS = ("spherenorm_experiments.paper", "spherenorm_experiments.extra")
"""Each of them and each folder in it may have things with a name."""

Kind = Literal["TASKS", "STUDIES", "LAYOUTS"]

LENIENT = ConfigDict(arbitrary_types_allowed=True, allow_inf_nan=True)


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


def find_task_class(name: str) -> type[AnyTask]:
    """The class of the task called `name`, or `module:Class`.

    Raises:
        ValueError: there is none.
    """
    if ":" in name:
        with users_code("task", name):
            return look_up("task", name, "class", inspect.isclass)  # type: ignore[no-any-return]
    known = places("TASKS")
    if name not in known:
        raise unknown_name("task", name, known, "(your own: module:Class)")
    return named("TASKS", name)  # type: ignore[no-any-return]


def find_task(name: str, options: Mapping[str, Any] | None = None) -> AnyTask:
    """The task called `name` (or `module:Class`) with these options.

    Raises:
        ValueError: an unknown task or option, or an option's value that is none of its choices.
    """
    cls: Any = find_task_class(name)
    hints, known = get_type_hints(cls), [f.name for f in fields(cls)]
    given = {}
    for option, value in (options or {}).items():
        if option not in known:
            right = did_you_mean(option, known) if known else "it has none"
            raise ValueError(f"task {name!r} has no option {option!r}; {right}")
        given[option] = as_hinted(value, hints[option], f"task {name!r}", option)
    task: AnyTask = cls(**given)
    return task


def as_hinted(value: Any, hint: Any, owner: str, name: str) -> Any:
    """A value from a command line or a JSON file as its type hint has it: a list as a tuple.

    Raises:
        ValueError: it is of another type; the message has owner, name, value and the reason.
    """
    adapter = _adapter(hint)
    try:
        return value if adapter is None else adapter.validate_python(value)
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise ValueError(f"{name}={json.dumps(value)} is no value for {owner}: {reason}") from None


@functools.cache
def _adapter(hint: Any) -> TypeAdapter[Any] | None:
    """The validator of a type; None for one that pydantic does not know."""
    try:
        return TypeAdapter(hint, config=LENIENT)
    except Exception:  # of many types; it takes no configuration for a model, either
        return None


def hints_of(function: Callable[..., Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The type hints of a function's arguments; the type of the default where there is none."""
    try:
        written = get_type_hints(function)
    except NameError:  # a name that only a type checker imports
        written = {}
    return {name: written.get(name, _kind(default)) for name, default in defaults.items()}


def _kind(default: Any) -> Any:
    if isinstance(default, bool | str):
        return type(default)
    if isinstance(default, int | float):
        return float | None  # None often stands for "without"
    return list[Any] if isinstance(default, list | tuple) else Any
