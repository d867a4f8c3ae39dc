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
    NoneType,
)
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spherenorm import rules
from spherenorm._chain import Chain
from spherenorm._manifold import Euclidean, Sphere
from spherenorm._numerics import Scalar
from spherenorm._rule import Rule
from spherenorm._views import View

__all__ = ["Guard", "UnsupportedRuleError"]


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
    """

    rule: Rule
    numbers: tuple[Scalar, ...]
    steps: tuple[bool, ...]
    key: Key
    foreign: tuple[str, ...]

    @classmethod
    def of(cls, rule: Rule) -> Guard:
        """Divide `rule`.

        Raises:
            UnsupportedRuleError: it holds what may change inside.
        """
        reader = _Reader()
        key = reader.read(rule, type(rule).__name__)
        if reader.measuring:
            names = ", ".join(reader.measuring)
            raise UnsupportedRuleError(f"{names} measures all weights together")
        foreign = tuple(dict.fromkeys(reader.foreign))
        return cls(rule, tuple(reader.numbers), tuple(reader.steps), key, foreign)

    @property
    def names(self) -> str:
        """The classes to name in an error: those that are not the library's, else the rules."""
        rules = (self.rule, *self.rule.children())
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
        self.measuring: list[str] = []
        self.codes: dict[type, Key] = {}
        """The code of classes that were read; rules share what they inherit."""
        self.unchanged: dict[type, bool] = {}
        """Of the library's classes, and what they inherit: whether they are as they were."""

    def read(
        self, value: Any, what: str, through_zero: bool = False, declared: bool = False
    ) -> Key:
        if _is_number(value, through_zero, declared):
            self.numbers.append(value if isinstance(value, Tensor) else float(value))
            self.steps.append(through_zero)
            return ("number", value.dtype if isinstance(value, Tensor) else float)
        if type(value) in _EXACT:
            return (type(value), repr(value) if type(value) is float else value)  # 0.0 is not -0.0
        if self._is_plain_view(value):  # the most frequent object, as good as a name
            return (View, value.dim, value.groups)
        if type(value) in (tuple, list):
            return (type(value), *(self.read(v, f"{what}[{i}]") for i, v in enumerate(value)))
        if type(value) is dict:
            items = ((self.read(k, what), self.read(v, f"{what}[{k!r}]")) for k, v in value.items())
            return (dict, *items)
        if _has_fields(value):
            return self._object(value, what)
        self.foreign.append(f"{what} of type {type(value).__name__}")
        if isinstance(value, _PLAIN):
            return (type(value), value)
        if isinstance(value, FunctionType):
            defaults = (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
            within = (*_contents(value), *defaults)
            parts = tuple(_constant(self, v, f"{what}'s closure") for v in within)
            return (FunctionType, value.__code__, _Held(value.__globals__), *parts)
        raise UnsupportedRuleError(f"{what} is {_short(value)}, which may change inside")

    def _object(self, value: Any, what: str) -> Key:
        cls = type(value)
        if isinstance(value, Rule):
            what = cls.__name__  # wherever in a chain it is
            if value.defines("measure"):
                self.measuring.append(what)
        known = _ORIGINAL.get(cls)
        if known is None or not all(map(self._is_unchanged, known)):
            self.foreign.append(cls.__name__)
            code = _code(cls, self.codes)
        elif not _held(value).keys() <= _declared(cls).keys():
            self.foreign.append(cls.__name__)
            code = ()
        else:
            code = ()
        parts = tuple(
            (name, self.read(part, f"{what}.{name}", through_zero, declared))
            for name, part, through_zero, declared in _attributes(value)
        )
        return (cls, code, *parts)

    def _is_plain_view(self, value: Any) -> bool:
        own = type(value) is View and vars(value).keys() <= _FIELDS[View].keys()
        return own and all(map(self._is_unchanged, _ORIGINAL[View]))

    def _is_unchanged(self, own: _Own) -> bool:
        if own.cls not in self.unchanged:
            self.unchanged[own.cls] = own.is_unchanged()
        return self.unchanged[own.cls]


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


def _constant(reader: _Reader, value: Any, what: str) -> Key:
    """A value in a closure cannot be replaced, so its numbers are part of the key."""
    if type(value) in (float, int):
        return (type(value), repr(value))
    count = len(reader.numbers)
    key = reader.read(value, what)
    if len(reader.numbers) > count:
        raise UnsupportedRuleError(f"{what} holds {_short(value)}, which may change inside")
    return key


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
    """The attributes of an instance; one with slots has no others than its fields."""
    held: dict[str, Any] = getattr(value, "__dict__", {})
    return held


def _code(cls: type, known: dict[type, Key]) -> Key:
    """The code of a class and of what it inherits: in a notebook, methods are edited in place.

    Args:
        cls: the class.
        known: the code of classes by themselves, to which those read here are added.
    """
    for each in cls.__mro__:
        if each not in known:
            known[each] = _own_code(each)
    return tuple(known[each] for each in cls.__mro__)


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


class _Own:
    """A class of the library, or one that it inherits from, as it was imported.

    Comparing its members with what they were costs far less than reading their code.
    """

    def __init__(self, cls: type) -> None:
        self.cls, self._mro, self._written = cls, cls.__mro__, _own_code(cls)
        self._note()

    def _note(self) -> None:
        self._names, self._members = [*vars(self.cls)], [*vars(self.cls).values()]
        found = map(_function, self._members)
        self._functions = [each for each in found if isinstance(each, FunctionType)]
        self._cells = [cell for each in self._functions for cell in each.__closure__ or ()]
        self._with_keywords = [each for each in self._functions if each.__kwdefaults__]
        self._code, self._held = self._read()

    def is_unchanged(self) -> bool:
        """True if the code is the same, at once if each member is the same object."""
        if self.cls.__mro__ is not self._mro:
            return False
        if not self._is_as_noted():
            if _own_code(self.cls) != self._written:
                return False
            self._note()  # Python adds members of its own, such as __annotations__
        return True

    def _is_as_noted(self) -> bool:
        members = vars(self.cls)
        if [*members] != self._names:
            return False
        code, held = self._read()
        same = all(map(operator.is_, members.values(), self._members))
        return same and code == self._code and all(map(operator.is_, held, self._held))

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
_KNOWN = {each: _Own(each) for cls in _OWN for each in cls.__mro__ if each is not object}
_ORIGINAL = {cls: [_KNOWN[each] for each in cls.__mro__ if each is not object] for cls in _OWN}
"""The library's classes as they are; one that was changed is no longer the library's."""
