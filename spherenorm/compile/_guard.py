"""Guards: which recorded step stands for a rule.

The numbers in a rule are the arguments of its recorded step. Everything else in it is the key of
the record, compared by value: its classes with their code, and each field that is no number. The
recipe that made the rule is never recorded; it runs at every step.
"""

from __future__ import annotations

import enum
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from numbers import Real
from types import (
    BuiltinFunctionType,
    CellType,
    FunctionType,
    MethodDescriptorType,
    ModuleType,
    NoneType,
)
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spherenorm import rules
from spherenorm._fields import derived
from spherenorm._manifold import Euclidean, Sphere
from spherenorm._numerics import Scalar
from spherenorm._views import View
from spherenorm.core import Chain, Rule


class UnsupportedRuleError(Exception):
    """A rule's step cannot be recorded, or not run on this path; the message says why."""


Key = tuple[Any, ...]
_EXACT = (bool, int, float, str, bytes, NoneType, torch.dtype, torch.device)
"""The types of values that are equal only to what does the same."""
_PLAIN = (
    *_EXACT,
    enum.Enum,
    np.generic,
    Real,
    BuiltinFunctionType,
    MethodDescriptorType,
)
"""Other values that a rule may hold; a class or a module may change inside."""


@dataclass(frozen=True, eq=False)
class Guard:
    """A rule, divided into its numbers and the rest.

    Attributes:
        rule: the rule.
        numbers: the numbers among its fields, in order, unread if they are tensors.
        steps: for each, whether it is a step size, which schedules take to 0 and back.
        key: everything else, hashable; rules of equal keys differ in their numbers only.
        foreign: the names of what is not the library's own, which may read what changes unseen.
        refusal: why the rule cannot be recorded; None if it can. Its key then leaves out what may
            change inside.
    """

    rule: Rule
    numbers: tuple[Scalar, ...]
    steps: tuple[bool, ...]
    key: Key
    foreign: tuple[str, ...]
    refusal: str | None

    @classmethod
    def of(cls, rule: Rule) -> Guard:
        """Divide `rule`."""
        reader = _Reader()
        key = reader.read(rule, type(rule).__name__)
        foreign, refusal = tuple(dict.fromkeys(reader.foreign)), next(iter(reader.refusals), None)
        return cls(rule, tuple(reader.numbers), tuple(reader.steps), key, foreign, refusal)

    @property
    def names(self) -> str:
        """The classes to name in an error: those that are not the library's, else the rules."""
        rules = (self.rule, *self.rule.within)
        return ", ".join(self.foreign or [type(rule).__name__ for rule in rules])

    @property
    def dtypes(self) -> list[torch.dtype]:
        """The dtype of each number; a Python number is a double."""
        return [n.dtype if isinstance(n, Tensor) else torch.float64 for n in self.numbers]

    def with_visible_steps(self) -> Guard:
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


class _Reader:
    """Reads a rule once, in the order in which `_replaced` writes."""

    def __init__(self) -> None:
        self.numbers: list[Scalar] = []
        self.steps: list[bool] = []
        self.foreign: list[str] = []
        self.refusals: list[str] = []
        self._functions: dict[FunctionType, int] = {}
        self._codes: dict[type, Key] = {}
        """The code of classes that were read; rules share what they inherit."""

    def read(
        self, value: Any, what: str, through_zero: bool = False, declared: bool = False
    ) -> Key:
        if _is_number(value, through_zero, declared):
            self.numbers.append(value if isinstance(value, Tensor) else float(value))
            self.steps.append(through_zero)
            return ("number", value.dtype if isinstance(value, Tensor) else float)
        if type(value) in _EXACT:
            return (type(value), repr(value) if type(value) is float else value)  # 0.0 is not -0.0
        if type(value) is View and self._is_own(value):  # the most frequent, as good as a name
            return (View, value.dim, value.groups)
        if type(value) in (tuple, list):
            return (type(value), *(self.read(v, f"{what}[{i}]") for i, v in enumerate(value)))
        if type(value) is dict:
            items = ((self.read(k, what), self.read(v, f"{what}[{k!r}]")) for k, v in value.items())
            return (dict, *items)
        if _has_fields(value):
            return self._object(value, what)
        self.foreign.append(f"{what} of type {type(value).__name__}")
        if isinstance(value, _PLAIN) and not _is_bound(value):
            return (type(value), value)
        if isinstance(value, FunctionType):
            if value in self._functions:  # one that calls itself is in its own closure
                return (FunctionType, self._functions[value])
            self._functions[value] = len(self._functions)
            defaults = (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
            within = (*_contents(value), *defaults)
            parts = tuple(self._constant(v, f"{what}'s closure") for v in within)
            return (FunctionType, value.__code__, _Held(value.__globals__), *parts)
        self.refusals.append(f"{what} is {_short(value)}, which may change inside")
        return (type(value),)

    def _object(self, value: Any, what: str) -> Key:
        cls = type(value)
        if isinstance(value, Rule):
            what = cls.__name__  # wherever in a chain it is
            if type(value).measure is not Rule.measure:
                self.refusals.append(f"{what} measures all weights together")
        own = self._is_own(value)
        if not own:
            self.foreign.append(cls.__name__)
        parts = tuple(
            (name, self.read(part, f"{what}.{name}", through_zero, declared))
            for name, part, through_zero, declared in _attributes(value)
        )
        return (cls, () if own else self._code(cls), *parts)

    def _constant(self, value: Any, what: str) -> Key:
        """A value in a closure cannot be replaced, so its numbers are part of the key."""
        if type(value) in (float, int):
            return (type(value), repr(value))
        count = len(self.numbers)
        key = self.read(value, what)
        if len(self.numbers) > count:
            self.refusals.append(f"{what} holds {_short(value)}, which may change inside")
        return key

    def _is_own(self, value: Any) -> bool:
        """True of an object of a class of the library that is as it was imported."""
        cls = type(value)
        same = cls in _ORIGINAL and self._code(cls) == _ORIGINAL[cls]
        return same and _held(value).keys() <= _declared(cls).keys()

    def _code(self, cls: type) -> Key:
        """The code of a class and of what it inherits: in a notebook, methods are edited."""
        for each in cls.__mro__:
            if each not in self._codes:
                known = _KNOWN.get(each)
                self._codes[each] = known.code() if known else _own_code(each)
        return tuple(self._codes[each] for each in cls.__mro__)


def _is_bound(value: Any) -> bool:
    """True of a built-in method of an object, such as a dict's `get`."""
    whose = getattr(value, "__self__", None) if isinstance(value, BuiltinFunctionType) else None
    return not isinstance(whose, type | ModuleType | None)


def _is_number(value: Any, through_zero: bool, declared: bool) -> bool:
    """Tell what a record takes as an argument.

    A Python 0 is none, since a rule may leave its term out, unless its field says otherwise; nor
    is an integer, with which a rule may count, unless its field is declared a number.
    """
    if isinstance(value, Tensor):
        return type(value) is Tensor and value.ndim == 0 and value.is_floating_point()
    if type(value) not in (float, np.float64) and not (declared and type(value) is int):
        return False
    return value != 0 or through_zero


def _replaced(
    value: Any, numbers: Iterator[Scalar], through_zero: bool = False, declared: bool = False
) -> Any:
    if _is_number(value, through_zero, declared):
        return next(numbers)
    if type(value) in (tuple, list):
        return type(value)(_replaced(v, numbers) for v in value)
    if type(value) is dict:
        return {_replaced(k, numbers): _replaced(v, numbers) for k, v in value.items()}
    if not _has_fields(value):
        return value
    # Without __post_init__: what that derives from numbers is an attribute, and replaced too. (A
    # copy of a frozen class with slots would raise.)
    other = object.__new__(type(value))
    for name, part, *kind in _attributes(value):
        object.__setattr__(other, name, _replaced(part, numbers, *kind))
    return other


def _has_fields(value: Any) -> bool:
    """Tell rules, and frozen dataclasses such as manifolds and views."""
    if isinstance(value, type):
        return False
    frozen: bool = is_dataclass(value) and type(value).__dataclass_params__.frozen  # type: ignore
    return isinstance(value, Rule) or frozen


def _attributes(value: Any) -> Iterator[tuple[str, Any, bool, bool]]:
    """(name, value, may be an argument at 0, is declared a number) of each attribute."""
    declared = _declared(type(value))
    for name, kind in declared.items():
        if hasattr(value, name):  # a field without a default may be set later
            yield name, getattr(value, name), *kind
    for name, part in _held(value).items():
        if name not in declared:
            yield name, part, False, False


def _declared(cls: type) -> Mapping[str, tuple[bool, bool]]:
    """(may be an argument at 0, is declared a number) of each field."""
    if cls in _FIELDS:
        return _FIELDS[cls]
    return {
        f.name: (f.metadata.get("through_zero", False), "interval" in f.metadata)
        for f in fields(cls)
    }


def _held(value: Any) -> dict[str, Any]:
    """The attributes of an instance, without those that are derived from others and cached."""
    held: dict[str, Any] = getattr(value, "__dict__", {})
    cls = type(value)
    return {n: x for n, x in held.items() if type(getattr(cls, n, None)) is not derived}


def _own_code(cls: type) -> Key:
    """The code of a class, without what it inherits."""
    found: list[Any] = []
    for name, member in vars(cls).items() if cls is not object else ():
        written = getattr(member, "__code__", None)  # not made by dataclass
        own = written is not None and written.co_filename != "<string>"
        if own or not (name.startswith("__") and name.endswith("__")):
            found.append((name, _member(member)))
    return tuple(found)


def _function(member: Any) -> Any:
    """The function in a member of a class; anything else as it is."""
    return member.fget if isinstance(member, property) else getattr(member, "__func__", member)


def _member(member: Any) -> Any:
    function: Any = _function(member)
    if isinstance(function, FunctionType):
        within = (*_contents(function), *(function.__defaults__ or ()))
        named = (function.__kwdefaults__ or {}).items()
        return (function.__code__, *map(_same, within), *((name, _same(v)) for name, v in named))
    return _same(member)


def _same(value: Any) -> Any:
    if type(value) in _EXACT:
        return (type(value), repr(value) if type(value) is float else value)
    return _Held(value)


class _Held:
    """Equal to what holds the same object, whose place in memory no other takes meanwhile."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return type(other) is _Held and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def _contents(function: FunctionType) -> list[Any]:
    return [cell.cell_contents for cell in function.__closure__ or () if cell != CellType()]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


class _Noted:
    """The code of a class of the library, which is read anew where one of its members is another.

    Comparing its members with what they were costs far less than reading their code.
    """

    def __init__(self, cls: type) -> None:
        self._cls = cls
        self._note()

    def code(self) -> Key:
        """See `_own_code`."""
        members = vars(self._cls)
        same = [*members] == self._names and all(map(operator.is_, members.values(), self._members))
        code, held = self._read()
        if not (same and code == self._code and all(map(operator.is_, held, self._held))):
            self._note()
        return self._written

    def _note(self) -> None:
        self._written = _own_code(self._cls)
        self._names, self._members = [*vars(self._cls)], [*vars(self._cls).values()]
        found = map(_function, self._members)
        self._functions = [each for each in found if isinstance(each, FunctionType)]
        self._cells = [cell for each in self._functions for cell in each.__closure__ or ()]
        self._with_keywords = [each for each in self._functions if each.__kwdefaults__]
        self._code, self._held = self._read()

    def _read(self) -> tuple[list[Any], list[Any]]:
        """The code and the defaults of the functions, and what they hold in closures."""
        code: list[Any] = [*map(_CODE, self._functions)]
        code += [dict(each.__kwdefaults__ or {}) for each in self._with_keywords]
        return code, list(map(_CONTENTS, self._cells))


_CODE = operator.attrgetter("__code__", "__defaults__", "__kwdefaults__")
_CONTENTS = operator.attrgetter("cell_contents")
_FIELDS: dict[type, Mapping[str, tuple[bool, bool]]] = {}
_OWN = [Chain, Euclidean, Sphere, View, *(getattr(rules, name) for name in rules.__all__)]
_FIELDS.update({cls: _declared(cls) for cls in _OWN})
_KNOWN = {each: _Noted(each) for cls in _OWN for each in cls.__mro__[:-1]}
_ORIGINAL = {cls: (*(_KNOWN[each].code() for each in cls.__mro__[:-1]), ()) for cls in _OWN}
"""The code of the library's classes; one that was changed is no longer the library's."""
