"""The key of a rule: which compiled step stands for it.

The numbers among a rule's fields, its hyper-parameters, are arguments of the compiled step. All
else is the rule's structure: its classes and the values of the other fields. A class that is
defined again in a notebook is another class. What the code of a class reads besides its fields is
not in the key.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from types import NoneType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from spherenorm import rules
from spherenorm.fields import cached_property
from spherenorm.manifolds import Euclidean, Sphere
from spherenorm.numerics import Scalar
from spherenorm.rule import Chain, Rule
from spherenorm.schedule import Combination, Knots
from spherenorm.views import View
from spherenorm.zoo import rules as zoo_rules

ZOO_RULES = {getattr(zoo_rules, name) for name in zoo_rules.__all__}
LIBRARY_CLASSES = {
    *(Chain, Euclidean, Sphere, View, Knots, Combination),
    *(getattr(rules, name) for name in rules.__all__),
    *ZOO_RULES,
}
"""Classes whose code reads nothing but fields, update and state."""
CONSTANT_TYPES = (bool, int, float, str, bytes, NoneType, torch.dtype, torch.device)
MAX_REPR = 80
"""Characters of a value in a reason."""


class FieldKind(NamedTuple):
    """Which numbers of a field are hyper-parameters, beside floats other than 0.

    Attributes:
        zero_is_ordinary: a schedule takes the number through 0, so that 0 is a number, too.
        is_hyper_parameter: the field is declared with `hyper`, so that an integer is a number, too.
    """

    zero_is_ordinary: bool = False
    is_hyper_parameter: bool = False


PLAIN_FIELD = FieldKind()


@dataclass(frozen=True, eq=False)
class RuleKey:
    """A rule, divided into its hyper-parameters and its structure.

    Attributes:
        rule: the rule.
        scalars: the numbers among its fields, in order; the values of tensors are not read.
        is_step_size: for each, whether it is a step size, which schedules take to 0 and back.
        structure: everything else, hashable; rules of equal structures share compiled steps.
        foreign: the names of classes that are not the library's, whose code may read what changes.
        unsupported_because: why the rule cannot be recorded; None if it can.
    """

    rule: Rule
    scalars: tuple[Scalar, ...]
    is_step_size: tuple[bool, ...]
    structure: Any
    foreign: tuple[str, ...]
    unsupported_because: str | None

    @classmethod
    def of(cls, rule: Rule) -> RuleKey:
        """Divide `rule`."""
        reader = _Reader()
        structure = reader.read(rule, type(rule).__name__)
        return cls(
            rule=rule,
            scalars=tuple(reader.scalars),
            is_step_size=tuple(reader.is_step_size),
            structure=structure,
            foreign=tuple(dict.fromkeys(reader.foreign)),
            unsupported_because=next(iter(reader.reasons), None),
        )

    @property
    def names(self) -> str:
        """The classes to name in an error: those that are not the library's, else the rules."""
        rules = (self.rule, *self.rule.children)
        return ", ".join(self.foreign or [type(rule).__name__ for rule in rules])

    @property
    def dtypes(self) -> list[torch.dtype]:
        """The dtype of each scalar; a Python number is a double."""
        return [x.dtype if isinstance(x, Tensor) else torch.float64 for x in self.scalars]

    def with_visible_steps(self) -> RuleKey:
        """Return the rule with step sizes of 1/2, at which faults show that a step of 0 hides."""
        scalars = list(self.scalars)
        for i, x in enumerate(self.scalars):
            if self.is_step_size[i]:
                scalars[i] = torch.full_like(x, 0.5) if isinstance(x, Tensor) else 0.5
        return replace(self, rule=self.with_scalars(scalars), scalars=tuple(scalars))

    def with_scalars(self, scalars: Sequence[Scalar]) -> Rule:
        """Return the rule with other hyper-parameters."""
        rule: Rule = _replace_scalars(self.rule, iter(scalars))
        return rule

    def rule_on(self, device: torch.device) -> Rule:
        """Return the rule with its tensors on `device`; those on the CPU mix with any device's."""
        scalars = [
            x.to(device) if isinstance(x, Tensor) and not x.is_cpu and x.device != device else x
            for x in self.scalars
        ]
        unchanged = all(new is old for new, old in zip(scalars, self.scalars, strict=True))
        return self.rule if unchanged else self.with_scalars(scalars)


class _Reader:
    """Reads a rule once, in the order in which `_replace_scalars` writes."""

    def __init__(self) -> None:
        self.scalars: list[Scalar] = []
        self.is_step_size: list[bool] = []
        self.foreign: list[str] = []
        self.reasons: list[str] = []

    def read(self, value: Any, path: str, kind: FieldKind = PLAIN_FIELD) -> Any:
        """Return the structure of a value; `path` is where it is, such as "StepSize.lr"."""
        if _is_scalar(value, kind):
            self.scalars.append(value if isinstance(value, Tensor) else float(value))
            self.is_step_size.append(kind.zero_is_ordinary)
            return ("scalar", value.dtype if isinstance(value, Tensor) else float)
        cls: Any = type(value)
        if cls in CONSTANT_TYPES:
            return (cls, repr(value) if cls is float else value)  # 0.0 is not -0.0
        if cls in (tuple, list):
            return (cls, *(self.read(v, f"{path}[{i}]") for i, v in enumerate(value)))
        if isinstance(value, Enum):
            return (cls, value.name)
        if not _has_fields(value):
            text = repr(value)
            if len(text) > MAX_REPR:
                text = f"{text[: MAX_REPR - 3]}..."
            self.reasons.append(f"{path} is {text}, which may change inside")
            return (cls,)
        if isinstance(value, Rule):
            path = cls.__name__  # wherever in a chain the rule is
            if cls.global_sum_terms is not Rule.global_sum_terms:
                self.reasons.append(f"{path} needs sums over all weights")
        if cls not in LIBRARY_CLASSES:
            self.foreign.append(cls.__name__)
            for name in _attributes_beside_fields(value):
                self.reasons.append(f"{path} keeps {name!r} beside its fields")
        members = [
            self.read(getattr(value, name), f"{path}.{name}", field_kind)
            for name, field_kind in _field_kinds(cls)
        ]
        return (cls, *members)


@functools.cache
def _field_kinds(cls: Hashable) -> tuple[tuple[str, FieldKind], ...]:
    return tuple(
        (f.name, FieldKind(f.metadata.get("zero_is_ordinary", False), "interval" in f.metadata))
        for f in fields(cls)  # type: ignore[arg-type]
    )


def _attributes_beside_fields(value: Any) -> list[str]:
    cls: Any = type(value)
    declared = {name for name, _ in _field_kinds(cls)}
    return sorted(
        name
        for name in getattr(value, "__dict__", {})
        if name not in declared and type(getattr(cls, name, None)) is not cached_property
    )


def _has_fields(value: Any) -> bool:
    """Tell rules, and frozen dataclasses such as manifolds and views, from other objects."""
    if isinstance(value, type):
        return False
    frozen = is_dataclass(value) and type(value).__dataclass_params__.frozen  # type: ignore
    return isinstance(value, Rule) or frozen


def _is_scalar(value: Any, kind: FieldKind) -> bool:
    """Tell what the compiled step takes as an argument.

    A Python 0 is part of the structure, since a rule may leave out the term that it multiplies,
    unless its field says otherwise; so is an integer, with which a rule may count, unless its
    field is a hyper-parameter.
    """
    if isinstance(value, Tensor):
        return type(value) is Tensor and value.ndim == 0 and value.is_floating_point()
    is_float = type(value) in (float, np.float64)
    if not is_float and not (kind.is_hyper_parameter and type(value) is int):
        return False
    return value != 0 or kind.zero_is_ordinary


def _replace_scalars(
    value: Any,
    scalars: Iterator[Scalar],
    kind: FieldKind = PLAIN_FIELD,
) -> Any:
    if _is_scalar(value, kind):
        return next(scalars)
    if type(value) in (tuple, list):
        return type(value)(_replace_scalars(v, scalars) for v in value)
    if not _has_fields(value):
        return value
    # Without __post_init__, whose checks read values, which a tensor on "meta" does not have.
    cls: Any = type(value)
    replaced = object.__new__(cls)
    for name, field_kind in _field_kinds(cls):
        new_value = _replace_scalars(getattr(value, name), scalars, field_kind)
        object.__setattr__(replaced, name, new_value)
    return replaced
