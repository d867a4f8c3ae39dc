"""Tensors in nested values: what a model takes, keeps and returns."""

from __future__ import annotations

import collections
import copy
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn

_CACHES = ("past_key_values", "past_key_value", "cache", "kv_cache")
_ATOMS = (type, str, bytes, int, float, complex, types.NoneType, types.ModuleType)
_CODE = (types.FunctionType, types.BuiltinFunctionType, types.MethodType)
_CONTAINERS = (tuple, list, set, frozenset, collections.deque)


def tensors_of(value: Any, seen: dict[int, Any] | None = None) -> Iterator[Tensor]:
    """The tensors in dicts, lists, tuples, sets and attributes, in order, each once.

    Modules and functions are not gone through.
    """
    seen = {} if seen is None else seen
    if id(value) in seen or isinstance(value, (*_ATOMS, *_CODE, nn.Module)):
        return
    seen[id(value)] = value  # kept, so that no other gets its identity
    if isinstance(value, Tensor):
        yield value
        return
    items: Any = value
    if isinstance(value, Mapping):
        items = value.values()
    elif not isinstance(value, _CONTAINERS):
        items = getattr(value, "__dict__", {}).values()
    for item in items:
        yield from tensors_of(item, seen)


def outputs_of(value: Any) -> Iterator[Tensor]:
    """The tensors in what a model returns, without caches of keys and values.

    Raises:
        ValueError: the model returns an object whose tensors cannot be found.
    """
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not (isinstance(key, str) and key.lstrip("_") in _CACHES):
                yield from outputs_of(item)
    elif isinstance(value, _CONTAINERS):
        for item in value:
            yield from outputs_of(item)
    elif isinstance(value, Tensor):
        yield value
    elif not isinstance(value, (*_ATOMS, *_CODE, nn.Module)):
        kind = type(value)
        if kind.__name__.endswith("Cache"):
            return
        if not hasattr(value, "__dict__"):
            raise ValueError(
                f"the model returns a {kind.__name__}, in which no tensors can be found: pass a"
                " loss that takes them out"
            )
        yield from outputs_of(vars(value))


def changed(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A deep copy of a nested value in which each tensor is replaced by `change` of it."""
    return copy.deepcopy(value, {id(x): change(x) for x in tensors_of(value)})
