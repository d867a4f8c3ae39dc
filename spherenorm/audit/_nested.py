"""Tensors in nested values: what a model takes and returns."""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import functools
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn

_CACHES = ("past_key_values", "past_key_value", "cache", "kv_cache")
_CONTAINERS = (tuple, list, set, frozenset, collections.deque)
_FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial)
_NO_CONTAINERS = (type, str, bytes, int, float, complex, types.NoneType, types.ModuleType)


def change_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A copy of a nested value in which every tensor is replaced by `change` of it.

    Dicts, lists, tuples, named tuples and dataclasses are gone through; anything else is copied if
    it can be.
    """
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return _changed_mapping(value, change)
    if isinstance(value, tuple | list):
        items = [change_tensors(item, change) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        copied = copy.copy(value)
        for field in dataclasses.fields(value):
            new = change_tensors(getattr(value, field.name), change)
            object.__setattr__(copied, field.name, new)
        return copied
    try:
        return copy.deepcopy(value)
    except Exception:  # a generator, a file, a lock
        return value


def _changed_mapping(value: Mapping[Any, Any], change: Callable[[Tensor], Tensor]) -> Any:
    items = {key: change_tensors(item, change) for key, item in value.items()}
    try:
        copied: Any = copy.copy(value)
        for key, item in items.items():
            copied[key] = item
    except TypeError:  # a mapping that cannot be written to
        return items
    return copied


def tensors_of(value: Any) -> Iterator[Tensor]:
    """The tensors that a value holds, each once: in containers, attributes, parts and closures."""
    return _tensors_of(value, {}, is_output=False)


def outputs_of(value: Any) -> Iterator[Tensor]:
    """The tensors in what a model returns, in order, each once.

    Modules among the outputs do not count, nor do caches of keys and values: an entry or attribute
    named "past_key_values" or "cache", or an object whose class is named so.
    """
    return _tensors_of(value, {}, is_output=True)


def _tensors_of(value: Any, seen: dict[int, Any], is_output: bool) -> Iterator[Tensor]:
    if id(value) in seen or isinstance(value, _NO_CONTAINERS):
        return
    seen[id(value)] = value  # kept, so that no other gets its identity
    items: Iterable[Any] = ()
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, _FUNCTIONS):
        items = () if is_output else _variables_of(value)
    elif isinstance(value, _CONTAINERS) or (is_output and isinstance(value, Iterator)):
        items = value
    elif isinstance(value, Mapping) or not (is_output and _is_no_output(value)):
        entries = value if isinstance(value, Mapping) else _attributes_of(value)
        items = [item for key, item in entries.items() if not (is_output and _is_cache(key))]
    for item in items:
        yield from _tensors_of(item, seen, is_output)


def _is_no_output(value: Any) -> bool:
    return isinstance(value, nn.Module) or type(value).__name__.endswith("Cache")


def _is_cache(key: Any) -> bool:
    return isinstance(key, str) and key.lstrip("_") in _CACHES


def _variables_of(function: Any) -> Iterator[Any]:
    """The values that a function keeps: in its closure and defaults, or of a partial or method."""
    if isinstance(function, functools.partial):
        yield from (function.func, *function.args, *function.keywords.values())
    elif isinstance(function, types.MethodType):
        yield from (function.__func__, function.__self__)
    else:
        yield from function.__defaults__ or ()
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):  # it has no value yet
                yield cell.cell_contents


def _attributes_of(value: Any) -> dict[str, Any]:
    """The attributes of an object, those in slots included."""
    slots = [vars(kind).get("__slots__", ()) for kind in type(value).__mro__]
    names = [name for s in slots for name in ((s,) if isinstance(s, str) else s)]
    in_slots = {name: getattr(value, name) for name in names if hasattr(value, name)}
    return {**in_slots, **getattr(value, "__dict__", {})}
