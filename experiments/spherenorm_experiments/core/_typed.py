"""Type hints, held against values from a command line or a JSON file."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


def fits(value: Any, hint: Any) -> bool:
    """True if `value` is of the type `hint`.

    A list passes for a tuple, an integer for a float, anything for an unknown hint.
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(fits(value, argument) for argument in arguments)
    if origin is Literal:
        return value in arguments
    if origin is tuple and Ellipsis not in arguments:
        same_length = isinstance(value, list | tuple) and len(value) == len(arguments)
        return same_length and all(map(fits, value, arguments))
    if inspect.isclass(origin) and issubclass(origin, Sequence):
        return isinstance(value, list | tuple) and all(fits(item, arguments[0]) for item in value)
    if hint in (int, float):
        numbers = int if hint is int else int | float
        return isinstance(value, numbers) and not isinstance(value, bool)
    try:
        return isinstance(value, hint)
    except TypeError:
        return True


def with_tuples(value: Any, hint: Any) -> Any:
    """A value that fits the hint, with tuples for the lists of JSON where the hint has tuples.

    Example:
        >>> with_tuples([4, [4]], tuple[int, tuple[int, ...]])
        (4, (4,))
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return with_tuples(value, next(kind for kind in arguments if fits(value, kind)))
    if not isinstance(value, list) or tuple not in (hint, origin):
        return value
    kinds = (
        arguments[:1] * len(value) if Ellipsis in arguments else arguments or (Any,) * len(value)
    )
    return tuple(map(with_tuples, value, kinds))


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
    return list | tuple if isinstance(default, list | tuple) else Any
