"""Tasks by name: those of the folders of the paper, and a user's own as `module:Class`."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from spherenorm.support import did_you_mean, look_up, unknown_name
from spherenorm_experiments.core._errors import users_code
from spherenorm_experiments.core._task import AnyTask
from spherenorm_experiments.core._typed import fits, with_tuples
from spherenorm_experiments.named import named, places


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
        _require_value(name, option, value, hints[option], getattr(cls, option, None))
        given[option] = with_tuples(value, hints[option])
    task: AnyTask = cls(**given)
    return task


def _require_value(task: str, option: str, value: Any, hint: Any, default: Any) -> None:
    choices = get_args(hint) if get_origin(hint) is Literal else ()
    if choices and value not in choices:
        listed = ", ".join(map(str, choices))
        raise ValueError(f"task {task!r}: {option} is one of {listed}, got {value!r}")
    if not fits(value, hint):
        wrong = f"{option}={json.dumps(value)} is no value for task {task!r}"
        raise ValueError(f"{wrong}; one is {json.dumps(default)}")
