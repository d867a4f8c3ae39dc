"""The fields of rules and manifolds: each converts and checks its own value.

A rule is a frozen dataclass. Three kinds of fields know what they may hold:

    nu: Scalar = hyper("(0, inf)")           # a number in an interval, or a tensor
    view: ViewField = view("channel")        # a view, given by name or as a View
    per: Per = choice("tensor", "unit")      # one of a few values, by default the first
"""

from __future__ import annotations

import math
import re
import typing
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field, fields
from numbers import Real
from typing import Any, Generic, TypeVar, overload

from torch import Tensor

from spherenorm._numerics import as_number
from spherenorm._views import View, ViewLike, as_view

_SPELLING = re.compile(r"([\[(])(\S+), (\S+)([\])])")


@dataclass(frozen=True)
class Interval:
    """The real numbers between two ends.

    Args:
        low: the lower end.
        high: the upper end.
        open_low: the lower end does not belong to it.
        open_high: the upper end does not belong to it.

    Example:
        >>> Interval.parse("[0, 1)")
        Interval(low=0.0, high=1.0, open_low=False, open_high=True)
        >>> 0 in Interval.parse("[0, 1)"), 1 in Interval.parse("[0, 1)")
        (True, False)
        >>> print(Interval.parse("(0, inf)"))
        (0, ∞)
    """

    low: float
    high: float
    open_low: bool = False
    open_high: bool = False

    @classmethod
    def parse(cls, text: str) -> Interval:
        """The interval written as `text`, such as "[0, 1)" or "(0, inf)".

        Raises:
            ValueError: the text is no interval.
        """
        match = _SPELLING.fullmatch(text)
        if match is None:
            raise ValueError(f'an interval is written as "[0, 1)" or "(0, inf)", got {text!r}')
        return cls(float(match[2]), float(match[3]), match[1] == "(", match[4] == ")")

    def __contains__(self, value: float) -> bool:
        """Tell if `value` lies in the interval; nan lies in none."""
        above = self.low < value if self.open_low else self.low <= value
        below = value < self.high if self.open_high else value <= self.high
        return above and below

    def __str__(self) -> str:
        left, right = "(" if self.open_low else "[", ")" if self.open_high else "]"
        return f"{left}{_shown(self.low)}, {_shown(self.high)}{right}"


def _shown(end: float) -> str:
    return f"{end:g}" if math.isfinite(end) else "∞" if end > 0 else "-∞"


Given = TypeVar("Given")
Kept = TypeVar("Kept")


class ConvertedField(Generic[Given, Kept]):
    """A dataclass field that converts its value once, when it is set; frozen classes included.

    Args:
        convert: takes a value and the field's name in messages, such as "UnitClip: view"; returns
            what the field holds, or raises.
        default: the field's default, unconverted; `dataclasses.MISSING` for none.
    """

    def __init__(self, convert: Callable[[Given, str], Kept], default: Any = MISSING) -> None:
        self.convert, self.default = convert, default

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Given: ...
    @overload
    def __get__(self, instance: object, owner: type) -> Kept: ...
    def __get__(self, instance: object | None, owner: type) -> Given | Kept:
        if instance is not None:
            kept: Kept = instance.__dict__[self.name]
            return kept
        if self.default is MISSING:  # so that dataclass sees no default
            raise AttributeError(self.name)
        default: Given = self.default
        return default

    def __set__(self, instance: object, value: Given) -> None:
        instance.__dict__[self.name] = self.convert(
            value, f"{type(instance).__name__}: {self.name}"
        )


ViewField = ConvertedField[ViewLike, View]
"""The type of a field made by `view("channel")`: set to a name or a `View`, read as a `View`.

Example:
    >>> sn.rules.UnitClip(0.1, "layer").view
    View(dim=None, groups=None)
"""
OptionalViewField = ConvertedField[ViewLike | None, View | None]
"""The type of a field made by `view(None)`: as `ViewField`, or None.

Example:
    >>> print(sn.rules.RadialProjection().view, sn.rules.RadialProjection("channel").view)
    None channel
"""
ViewsField = ConvertedField[Sequence[ViewLike], tuple[View, ...]]
"""The type of a field made by `views(...)`: set to names or Views, read as a tuple of Views.

Example:
    >>> [str(each) for each in sn.rules.ScaleInvarianceTest().views]
    ['channel', 'layer']
"""


@overload
def view(default: ViewLike = ...) -> ViewField: ...
@overload
def view(default: None) -> OptionalViewField: ...
def view(default: Any = MISSING) -> Any:
    """A dataclass field for a view, which takes a name or a `View` and holds a `View`.

    Args:
        default: of the field. With None, the field takes None, too.

    Raises:
        ValueError: on construction, when a name is no view's.

    Example:
        >>> @dataclass(frozen=True)
        ... class Halved(Rule):
        ...     view: ViewField = view("channel")
        >>> Halved("layer").view
        View(dim=None, groups=None)
    """

    def convert(value: ViewLike | None, what: str) -> View | None:
        if value is None and default is None:
            return None
        return as_view(value)  # type: ignore[arg-type]

    return ConvertedField(convert, default)


def views(*default: ViewLike) -> ViewsField:
    """A dataclass field for several views, which takes names or Views and holds a tuple of Views.

    Args:
        *default: the views that the field holds by default.

    Raises:
        TypeError: on construction, when the value is one name instead of a sequence.
        ValueError: on construction, when a name is no view's.

    Example:
        >>> @dataclass(frozen=True)
        ... class Tested(Rule):
        ...     views: ViewsField = views("channel", "layer")
        >>> [str(each) for each in Tested(["dim=1"]).views]
        ['dim=1']
    """

    def convert(value: Sequence[ViewLike], what: str) -> tuple[View, ...]:
        if isinstance(value, str):
            raise TypeError(f"{what} must be a sequence of views, got {value!r}")
        return tuple(map(as_view, value))

    return ConvertedField(convert, default)


def choice(*allowed: Given) -> ConvertedField[Given, Given]:
    """A dataclass field for one of some values.

    Args:
        *allowed: the values; the first is the default.

    Raises:
        ValueError: on construction, when the value is another one.

    Example:
        >>> @dataclass(frozen=True)
        ... class Tested(Rule):
        ...     per: str = choice("tensor", "unit")
        >>> Tested().per
        'tensor'
        >>> Tested("row")
        Traceback (most recent call last):
        ValueError: Tested: per must be "tensor" or "unit", got 'row'
    """

    def convert(value: Given, what: str) -> Given:
        if value not in allowed:
            known = " or ".join(f'"{each}"' for each in allowed)
            raise ValueError(f"{what} must be {known}, got {value!r}")
        return value

    return ConvertedField(convert, allowed[0])


def hyper(interval: str, default: Any = MISSING, *, through_zero: bool = False) -> Any:
    """A dataclass field of a rule for a number, checked on construction unless it is a tensor.

    It holds a number of any type as Python's own, with which a rule computes in double.

    Args:
        interval: where the number must lie, such as "[0, 1)".
        default: of the field. With None, the field takes None, too.
        through_zero: the rule computes with 0 as with any other number. Otherwise a rule may leave
            the term of a Python 0 out, so a recorded step with 0 is another one than without.

    Raises:
        TypeError: on construction, when the value is neither a number nor a tensor.
        ValueError: on construction, when a number lies outside the interval, or a tensor is not
            0-dim.

    Example:
        >>> @dataclass(frozen=True)
        ... class Halved(Rule):
        ...     share: Scalar = hyper("[0, 1)", 0.5)
        >>> Halved(1.0)
        Traceback (most recent call last):
        ValueError: Halved: share must be in [0, 1), got 1.0
    """
    numbers = Interval.parse(interval)
    _INTERVALS[str(numbers)] = numbers
    metadata = {"interval": numbers, "through_zero": through_zero}
    return field(default=default, metadata=metadata)


def check_numbers(rule: Any) -> None:
    """Check and convert the fields of a dataclass that are numbers or truth values; see `hyper`.

    Raises:
        TypeError: a field that is declared as bool is not True or False; and as `hyper`.
        ValueError: as `hyper`.
    """
    cls: Any = type(rule)
    for name, interval, optional in _checked_fields(cls):
        value, what = getattr(rule, name), f"{cls.__name__}: {name} must be"
        if interval is None:
            if not isinstance(value, bool):
                raise TypeError(f"{what} True or False, got {value!r}")
        elif not (optional and value is None):
            kept = _checked_number(value, _INTERVALS[interval], what)
            if kept is not value:
                object.__setattr__(rule, name, kept)  # the class is frozen


def _checked_number(value: Any, interval: Interval, what: str) -> float | Tensor:
    if isinstance(value, Tensor):
        if value.ndim:
            shape = tuple(value.shape)
            raise ValueError(f"{what} a number or a 0-dim tensor, got shape {shape}")
        return value
    number = as_number(value)
    if isinstance(number, bool) or not isinstance(number, Real):
        raise TypeError(f"{what} a number or a tensor, got {value!r}")
    if float(number) not in interval:
        raise ValueError(f"{what} in {interval}, got {value!r}")
    return number  # type: ignore[return-value]  # an int or a float


_INTERVALS: dict[str, Interval] = {}
"""The intervals of all fields, as they print."""
_Checked = tuple[tuple[str, str | None, bool], ...]
_CHECKED: dict[type, _Checked] = {}
"""The checked fields of classes that were read once, since rules are made anew at every step."""


def _checked_fields(cls: type) -> _Checked:
    """The fields that are numbers or truth values: name, interval of a number, may it be None."""
    if cls not in _CHECKED:
        try:
            declared = typing.get_type_hints(cls)
        except Exception:  # an annotation need not be resolvable; then its own words count
            declared = {f.name: f.type for f in fields(cls)}
        numbers = {
            f.name: str(f.metadata["interval"]) for f in fields(cls) if "interval" in f.metadata
        }
        _CHECKED[cls] = tuple(
            (f.name, numbers.get(f.name), f.default is None)
            for f in fields(cls)
            if f.name in numbers or declared.get(f.name) in (bool, "bool")
        )
    return _CHECKED[cls]


# As `torch.compiler.assume_constant_result` does, which imports the compiler. It works for plain
# constants, and so intervals are named by strings.
_checked_fields._dynamo_marked_constant = True  # type: ignore[attr-defined]
