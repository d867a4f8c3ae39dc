"""Which numbers of a recipe a graph takes as arguments, and of which rules it is the graph."""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from numbers import Integral, Real
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spherenorm.numerics import is_zero
from spherenorm.registry import Recipe, build, reference
from spherenorm.rule import Rule, Scalar

__all__ = ["Likeness", "UnsupportedGraphError", "filled", "flatten_numbers"]


class UnsupportedGraphError(Exception):
    """The step holds an operation that a graph has no word for, or what may change unnoticed."""


def flatten_numbers(hyper_parameters: Mapping[str, Any]) -> tuple[list[Scalar], Any]:
    """The numbers among hyper-parameters that may change from step to step, and the rest, which fixes the graph.

    A 0 belongs to the rest, since rules leave its term out; not so a learning rate of 0, with which many schedules end. So do
    integers, which recipes count with.
    Tensors are left where they are, unread: reading one would wait for its device.

    Raises:
        UnsupportedGraphError: a hyper-parameter that may change unnoticed.
    """
    numbers: list[Scalar] = []

    def take(value: Any, name: str) -> Any:
        if isinstance(value, tuple | list):
            return _Fixed(list if isinstance(value, list) else tuple, tuple(take(v, name) for v in value))
        if is_number(value) and not (is_zero(value) and name != "lr"):
            numbers.append(value if isinstance(value, Tensor) else float(value))
            return _Number(len(numbers) - 1)
        if not _is_plain(value):
            raise UnsupportedGraphError(f"the hyper-parameter {name}={value!r} may change inside")
        return _Fixed(type(value), value)

    return numbers, tuple((name, take(value, name)) for name, value in hyper_parameters.items())


def is_number(value: Any) -> bool:
    """Whether a graph can take `value` as an argument."""
    if isinstance(value, Tensor):
        return value.ndim == 0 and value.is_floating_point()
    return isinstance(value, Real) and not isinstance(value, Integral)


@dataclass(frozen=True)
class _Number:
    place: int


@dataclass(frozen=True)
class _Fixed:
    """True and 1 are equal, but not the same hyper-parameter."""

    type: type
    value: Any


def filled(structure: Any, numbers: list[Tensor]) -> dict[str, Any]:
    """The hyper-parameters of a structure with tensors for their numbers."""

    def fill(value: Any) -> Any:
        if isinstance(value, _Number):
            return numbers[value.place]
        return value.type(map(fill, value.value)) if value.type in (tuple, list) else value.value

    return {name: fill(value) for name, value in structure}


class Likeness:
    """What a graph was traced from, to notice that the recipe no longer makes it.

    A trace stands for all rules that differ in the numbers of `structure` only. But a recipe may read a global, and in a
    notebook the class of a rule, or the code of its methods, changes under it.

    Raises:
        UnsupportedGraphError: such changes would not be noticed, since a field or a closure holds what may change inside; or
        the recipe does more with its numbers than hand them on and compute.
    """

    def __init__(self, recipe: Recipe, structure: Any, count: int) -> None:
        try:
            with torch.device("meta"):
                self.rule = build(recipe, filled(structure, [torch.empty((), dtype=torch.float64) for _ in range(count)]))
        except Exception as error:  # a recipe may read its numbers, or be wrong
            raise UnsupportedGraphError(f"{reference(recipe)} does not take tensors for numbers: {error}") from error
        if not _is_plain(self.rule, _is_symbol) or (isinstance(recipe, FunctionType) and not _is_plain(recipe)):
            raise UnsupportedGraphError(f"{reference(recipe)}, or its rule, holds what may change inside")
        self.recipe, self.sources = recipe, _sources(recipe, self.rule)

    def of(self, rule: Rule) -> bool:
        """Whether `rule` is the one that was traced, its numbers aside."""
        return _alike(self.rule, rule) and _alike(self.sources, _sources(self.recipe, rule))


PLAIN = (bool, int, float, str, bytes, enum.Enum, type, BuiltinFunctionType, ModuleType, torch.dtype, torch.device, np.generic)


def _is_plain(value: Any, also: Callable[[Any], bool] = lambda value: False) -> bool:
    """Whether `value` is what it is for good, and equal only to what does the same."""
    parts = _parts(value)
    return value is None or isinstance(value, PLAIN) or also(value) or (parts is not None and all(_is_plain(each, also) for each in parts))


def _is_symbol(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_meta


def _parts(value: Any) -> Collection[Any] | None:
    """What a value consists of, if it is of a kind that consists of others."""
    if isinstance(value, tuple):
        return value
    if isinstance(value, FunctionType):  # a recipe may make it anew each time, of the same code
        return (*_contents(value), *(value.__defaults__ or ()))
    if is_dataclass(value) and not isinstance(value, type) and value.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        return vars(value).values() if hasattr(value, "__dict__") else [getattr(value, field.name) for field in fields(value)]
    return None


def _contents(function: FunctionType) -> list[Any]:
    return [cell.cell_contents for cell in function.__closure__ or () if cell != CellType()]


def _alike(traced: Any, now: Any) -> bool:
    if isinstance(traced, Tensor):
        return is_number(now) or is_zero(now)
    if type(traced) is not type(now):
        return False
    parts, others = _parts(traced), _parts(now)
    if parts is None or others is None:
        return traced is now or bool(traced == now)
    same_code = not isinstance(traced, FunctionType) or traced.__code__ is now.__code__
    return same_code and len(parts) == len(others) and all(map(_alike, parts, others))


def _sources(recipe: Recipe, rule: Rule) -> tuple[Any, ...]:
    """The code of a user's recipe, rules, geometries and views, and what it reads around it.

    Attributes of weights, the contents of lists, and what helpers of helpers do, are beyond it: `trace=False` is for those.
    """
    found: list[Any] = []

    def read(function: Any) -> None:
        if isinstance(function, FunctionType) and not str(function.__module__).startswith("spherenorm."):
            found.extend((function.__code__, *_contents(function)))
            around = [function.__globals__.get(name) for name in _names(function.__code__)]
            found.extend(each.__code__ if isinstance(each, FunctionType) else each if isinstance(each, PLAIN) else None for each in around)

    def walk(value: Any) -> None:
        if is_dataclass(value) and not isinstance(value, type):
            for cls in type(value).__mro__:
                if not str(cls.__module__).startswith(("spherenorm.", "builtins")):
                    for name, member in vars(cls).items():
                        if not name.startswith("__"):
                            read(member.fget if isinstance(member, property) else member)
        for each in _parts(value) or ():
            walk(each)

    read(recipe)
    walk(rule)
    return tuple(found)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)
