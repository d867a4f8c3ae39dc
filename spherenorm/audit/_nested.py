"""Tensors in nested values: what a model takes and returns."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor

__all__ = ["change_tensors", "outputs_of", "tensors_of"]

_CACHES = ("past_key_values", "past_key_value", "cache")


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
    """The tensors of a nested value in order, each once; attributes of other objects count."""
    return _tensors_of(value, set(), caches=True)


def outputs_of(value: Any) -> Iterator[Tensor]:
    """The same for what a model returns, without caches of keys and values.

    A cache is an entry or an attribute named "past_key_values" or "cache", or an object whose class
    is named so.
    """
    return _tensors_of(value, set(), caches=False)


def _tensors_of(value: Any, seen: set[int], caches: bool) -> Iterator[Tensor]:
    if id(value) in seen or isinstance(value, type):
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if caches or not (isinstance(key, str) and key.endswith(_CACHES)):
                yield from _tensors_of(item, seen, caches)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _tensors_of(item, seen, caches)
    elif not callable(value) and (caches or not type(value).__name__.endswith("Cache")):
        yield from _tensors_of(getattr(value, "__dict__", {}), seen, caches)
