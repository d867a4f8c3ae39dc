"""The key of a rule: which recorded step stands for it.

The numbers among a rule's fields are the arguments of its recorded step. All else is its key: its
classes and the values of the other fields. A class that runs again in a notebook is another class.
What the code of a class reads besides its fields is not in the key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from types import NoneType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spherenorm import rules
from spherenorm.fields import cached_property
from spherenorm.manifolds import Euclidean, Sphere
from spherenorm.numerics import Scalar
from spherenorm.rule import Chain, Rule
from spherenorm.views import View
from spherenorm.zoo import rules as zoo_rules


class UnsupportedRuleError(Exception):
    """A rule's step cannot be recorded, or not run by an executor; the message says why."""


class OtherNumbersError(UnsupportedRuleError):
    """An executor would give other numbers than the rule's own code."""


ZOO_RULES = {getattr(zoo_rules, name) for name in zoo_rules.__all__}
_OWN = {
    *(Chain, Euclidean, Sphere, View),
    *(getattr(rules, name) for name in rules.__all__),
    *ZOO_RULES,
}
"""The library's classes, whose code reads nothing but fields, update and state."""
_CONSTANT = (bool, int, float, str, bytes, NoneType, torch.dtype, torch.device)
Field = tuple[str, bool, bool]
_FIELDS: dict[type, tuple[Field, ...]] = {}
"""(name, goes through 0, is declared a number) of the fields of each class that was read."""


@dataclass(frozen=True, eq=False)
class RuleKey:
    """A rule, divided into its numbers and the rest.

    Attributes:
        rule: the rule.
        numbers: the numbers among its fields, in order; tensors are not read.
        steps: for each, whether it is a step size, which schedules take to 0 and back.
        rest: everything else, hashable; rules of equal rests differ in their numbers only.
        foreign: the names of classes that are not the library's, which may read what changes.
        refusal: why the rule cannot be recorded; None if it can.
    """

    rule: Rule
    numbers: tuple[Scalar, ...]
    steps: tuple[bool, ...]
    rest: Any
    foreign: tuple[str, ...]
    refusal: str | None

    @classmethod
    def of(cls, rule: Rule) -> RuleKey:
        """Divide `rule`."""
        reader = _Reader()
        rest = reader.read(rule, type(rule).__name__)
        foreign, refusal = tuple(dict.fromkeys(reader.foreign)), next(iter(reader.refusals), None)
        return cls(rule, tuple(reader.numbers), tuple(reader.steps), rest, foreign, refusal)

    @property
    def names(self) -> str:
        """The classes to name in an error: those that are not the library's, else the rules."""
        rules = (self.rule, *self.rule.children)
        return ", ".join(self.foreign or [type(rule).__name__ for rule in rules])

    @property
    def dtypes(self) -> list[torch.dtype]:
        """The dtype of each number; a Python number is a double."""
        return [n.dtype if isinstance(n, Tensor) else torch.float64 for n in self.numbers]

    def with_visible_steps(self) -> RuleKey:
        """The same rule with step sizes of 1/2, at which what a step of 0 hides can be compared."""
        numbers = [
            n if not step else torch.full_like(n, 0.5) if isinstance(n, Tensor) else 0.5
            for n, step in zip(self.numbers, self.steps, strict=True)
        ]
        return replace(self, rule=self.with_numbers(numbers), numbers=tuple(numbers))

    def with_numbers(self, numbers: Sequence[Scalar]) -> Rule:
        """The rule with other numbers in the place of its own."""
        rule: Rule = _replaced(self.rule, iter(numbers))
        return rule

    def rule_on(self, device: torch.device) -> Rule:
        """Return the rule with its tensors on `device`; those on the CPU mix with any device's."""
        numbers = [
            n.to(device) if isinstance(n, Tensor) and not n.is_cpu and n.device != device else n
            for n in self.numbers
        ]
        same = all(n is old for n, old in zip(numbers, self.numbers, strict=True))
        return self.rule if same else self.with_numbers(numbers)


class _Reader:
    """Reads a rule once, in the order in which `_replaced` writes."""

    def __init__(self) -> None:
        self.numbers: list[Scalar] = []
        self.steps: list[bool] = []
        self.foreign: list[str] = []
        self.refusals: list[str] = []

    def read(
        self, value: Any, what: str, zero_is_ordinary: bool = False, declared: bool = False
    ) -> Any:
        if _is_number(value, zero_is_ordinary, declared):
            self.numbers.append(value if isinstance(value, Tensor) else float(value))
            self.steps.append(zero_is_ordinary)
            return ("number", value.dtype if isinstance(value, Tensor) else float)
        cls = type(value)
        if cls in _CONSTANT:
            return (cls, repr(value) if cls is float else value)  # 0.0 is not -0.0
        if cls in (tuple, list):
            return (cls, *(self.read(v, f"{what}[{i}]") for i, v in enumerate(value)))
        if isinstance(value, Enum):
            return (cls, value.name)
        if not _has_fields(value):
            text = repr(value)
            text = text if len(text) <= 80 else f"{text[:77]}..."
            self.refusals.append(f"{what} is {text}, which may change inside")
            return (cls,)
        if isinstance(value, Rule):
            what = cls.__name__  # wherever in a chain it is
            if cls.global_sum_terms is not Rule.global_sum_terms:
                self.refusals.append(f"{what} measures all weights together")
        if cls not in _OWN:
            self.foreign.append(cls.__name__)
            held = {n for n in getattr(value, "__dict__", {}) if not _is_derived(cls, n)}
            for name in sorted(held - {f for f, *_ in _fields(cls)}):
                self.refusals.append(f"{what} keeps {name!r} beside its fields")
        return (cls, *(self.read(getattr(value, f), f"{what}.{f}", *k) for f, *k in _fields(cls)))


def _fields(cls: type) -> tuple[Field, ...]:
    if cls not in _FIELDS:
        _FIELDS[cls] = tuple(
            (f.name, f.metadata.get("zero_is_ordinary", False), "interval" in f.metadata)
            for f in fields(cls)
        )
    return _FIELDS[cls]


def _is_derived(cls: type, name: str) -> bool:
    return type(getattr(cls, name, None)) is cached_property


def _has_fields(value: Any) -> bool:
    """Tell rules, and frozen dataclasses such as manifolds and views."""
    frozen = is_dataclass(value) and type(value).__dataclass_params__.frozen  # type: ignore
    return not isinstance(value, type) and (isinstance(value, Rule) or frozen)


def _is_number(value: Any, zero_is_ordinary: bool, declared: bool) -> bool:
    """Tell what a record takes as an argument.

    A Python 0 is none, since a rule may leave its term out, unless its field says otherwise; nor
    is an integer, with which a rule may count, unless its field is declared a number.
    """
    if isinstance(value, Tensor):
        return type(value) is Tensor and value.ndim == 0 and value.is_floating_point()
    if type(value) not in (float, np.float64) and not (declared and type(value) is int):
        return False
    return value != 0 or zero_is_ordinary


def _replaced(
    value: Any, numbers: Iterator[Scalar], zero_is_ordinary: bool = False, declared: bool = False
) -> Any:
    if _is_number(value, zero_is_ordinary, declared):
        return next(numbers)
    if type(value) in (tuple, list):
        return type(value)(_replaced(v, numbers) for v in value)
    if not _has_fields(value):
        return value
    # Without __post_init__, which a tensor without memory does not pass.
    other = object.__new__(type(value))
    for name, *kind in _fields(type(value)):
        object.__setattr__(other, name, _replaced(getattr(value, name), numbers, *kind))
    return other
