"""Dataclass fields that check their values: hyper-parameters, choices, views and state names.

Rules and manifolds are frozen dataclasses. Construction checks every field that one of these
functions declares, and every field declared as `bool`:

    nu: Scalar = hyper("(0, inf)")                # a number in an interval, or a 0-dim tensor
    per: Per = choice("tensor", "unit")           # one of a few values; the first is the default
    view: ViewLike = view("channel")              # a view, passed by name or as a View
    views: Sequence[ViewLike] = views("channel")  # several views
    buffer: str = state_name("momentum")          # the name of a state
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import typing
from collections.abc import Callable, Collection
from dataclasses import MISSING, dataclass, field, fields
from numbers import Real
from typing import Any, Generic, NamedTuple, Self, TypeVar

from torch import Tensor
from torch.compiler import is_compiling
from typing_extensions import dataclass_transform

from spherenorm.numerics import as_number
from spherenorm.schedule import Schedule
from spherenorm.views import View, ViewLike, as_view

T = TypeVar("T")


@dataclass(frozen=True)
class Interval:
    """An interval of the real numbers.

    Args:
        low: the lower end.
        high: the upper end.
        open_low: exclude the lower end.
        open_high: exclude the upper end.

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
        """Read an interval such as "[0, 1)" or "(0, inf)".

        Raises:
            ValueError: the text is not an interval.
        """
        match = re.fullmatch(r"([\[(])(\S+), (\S+)([\])])", text)
        if match is None:
            raise ValueError(f'write an interval as "[0, 1)" or "(0, inf)", got {text!r}')
        return cls(float(match[2]), float(match[3]), match[1] == "(", match[4] == ")")

    def __contains__(self, value: float) -> bool:
        """Return True if `value` lies in the interval; nan lies in none."""
        above_low = self.low < value if self.open_low else self.low <= value
        below_high = value < self.high if self.open_high else value <= self.high
        return above_low and below_high

    def intersect(self, other: Interval) -> Interval:
        """Return the numbers that lie in both intervals.

        Example:
            >>> print(Interval.parse("[0, 1)").intersect(Interval.parse("(0, inf)")))
            (0, 1)
        """
        low, open_low = max((x.low, x.open_low) for x in (self, other))
        high, closed_high = min((x.high, not x.open_high) for x in (self, other))
        return Interval(low, high, open_low, not closed_high)

    def __str__(self) -> str:
        opening = "(" if self.open_low else "["
        closing = ")" if self.open_high else "]"
        return f"{opening}{_format_end(self.low)}, {_format_end(self.high)}{closing}"


def _format_end(end: float) -> str:
    if math.isfinite(end):
        return f"{end:g}"
    return "∞" if end > 0 else "-∞"


# The kinds of fields


def hyper(interval: str, default: Any = MISSING, *, zero_is_ordinary: bool = False) -> Any:
    """Declare a hyper-parameter: a number in an interval, a 0-dim tensor, or a schedule.

    Tensors may have any value. The numbers of a schedule (`spherenorm.schedule`) must be in the
    interval; a step puts one of them in its place before the rule runs.

    The field stores a number of any type as a Python int or float, so that rules compute with it in
    double precision.

    Args:
        interval: the interval of the number, such as "[0, 1)".
        default: the default of the field. With None, the field accepts None too.
        zero_is_ordinary: the rule computes with 0 as with any other number, as for a step size in a
            warmup. By default a rule may skip a term whose factor is the Python number 0, so the
            compiled step for 0 is another one than for other numbers.

    Raises:
        TypeError: here or at construction, if the value is neither a number nor a tensor.
        ValueError: here or at construction, if a number or a value of a schedule lies outside the
            interval, or a tensor is not 0-dim.

    Example:
        >>> class Shrink(Rule):
        ...     share: Scalar = hyper("[0, 1)", 0.5)
        >>> Shrink(1.0)
        Traceback (most recent call last):
        ValueError: Shrink: share must be in [0, 1), got 1.0
    """
    parsed_interval = Interval.parse(interval)
    if default is not MISSING and default is not None:
        check_number(default, parsed_interval, "hyper: the default must be")
    metadata = {
        "kind": "number",
        "interval": parsed_interval,
        "zero_is_ordinary": zero_is_ordinary,
    }
    return field(default=default, metadata=metadata)


def choice(*allowed: Any) -> Any:
    """Declare a field for one of a few values; the first is the default.

    Raises:
        ValueError: at construction, if the value is not one of them.

    Example:
        >>> class Norm(Rule):
        ...     per: str = choice("tensor", "unit")
        >>> Norm().per
        'tensor'
        >>> Norm("row")
        Traceback (most recent call last):
        ValueError: Norm: per must be "tensor" or "unit", got 'row'
    """
    return field(default=allowed[0], metadata={"kind": "choice", "allowed": allowed})


def view(default: ViewLike | None = MISSING) -> Any:
    """Declare a field for a view; it accepts a name or a `View` and stores a `View`.

    Args:
        default: the default of the field. With None, the field accepts None too.

    Raises:
        ValueError: at construction, if no view has that name.

    Example:
        >>> class Normalize(Rule):
        ...     view: ViewLike = view("channel")
        >>> Normalize("layer").view
        View(dim=None, groups=None)
    """
    return field(default=default, metadata={"kind": "view"})


def views(*default: ViewLike) -> Any:
    """Declare a field for several views; it accepts names or Views and stores a tuple of Views.

    Args:
        *default: the default views.

    Raises:
        TypeError: at construction, if the value is one name instead of a sequence.
        ValueError: at construction, if no view has one of the names.

    Example:
        >>> class Test(Rule):
        ...     views: Sequence[ViewLike] = views("channel", "layer")
        >>> [str(view) for view in Test(["dim=1"]).views]
        ['dim=1']
    """
    return field(default=default, metadata={"kind": "views"})


def state_name(default: str) -> Any:
    """Declare a field for the name of a state, with which checkpoints of other libraries load.

    Raises:
        ValueError: at construction, if the value is not an identifier, or is "step".
    """
    return field(default=default, metadata={"kind": "state_name"})


# The check of each kind: takes a value, what the field allows, and the start of an error message


def check_number(value: Any, interval: Interval, must_be: str) -> float | Tensor:
    """Return a number as a Python int or float; tensors and schedules unchanged; see `hyper`.

    Args:
        must_be: the start of an error message, such as "StepSize: lr must be".
    """
    if isinstance(value, Tensor):
        if value.ndim:
            shape = tuple(value.shape)
            raise ValueError(f"{must_be} a number or a 0-dim tensor, got shape {shape}")
        return value
    if isinstance(value, Schedule):
        _check_schedule(value, interval, must_be)
        return value
    try:
        number = as_number(value)
    except ValueError as error:
        raise ValueError(f"{must_be} in {interval}: {error}") from None
    if isinstance(number, bool) or not isinstance(number, Real):
        raise TypeError(f"{must_be} a number or a tensor, got {value!r}")
    if float(number) not in interval:
        raise ValueError(f"{must_be} in {interval}, got {value!r}")
    return number  # type: ignore[return-value]  # int or float


def _check_schedule(schedule: Schedule, interval: Interval, must_be: str) -> None:
    """Check the extreme values of a schedule, if they are known before its steps."""
    for t in schedule.extreme_times() or ():
        number: Any = schedule(t)
        if number not in interval:
            raise ValueError(
                f"{must_be} in {interval}, got {number!r} from a schedule at step {t:g}"
            )


def _check_hyper(value: Any, ends: tuple[float, float, bool, bool], must_be: str) -> float | Tensor:
    # Optimizers make rules in their steps, so nearly all numbers take this shorter way.
    if type(value) is float and ends[0] < value < ends[1]:
        return value
    return check_number(value, Interval(*ends), must_be)


def _check_choice(value: Any, allowed: tuple[Any, ...], must_be: str) -> Any:
    if value not in allowed:
        options = " or ".join(f'"{option}"' for option in allowed)
        raise ValueError(f"{must_be} {options}, got {value!r}")
    return value


def _check_view(value: Any, allowed: None, must_be: str) -> View:
    return as_view(value)


def _check_views(value: Any, allowed: None, must_be: str) -> tuple[View, ...]:
    if isinstance(value, str):
        raise TypeError(f"{must_be} a sequence of views, got {value!r}")
    return tuple(as_view(item) for item in value)


def _check_state_name(value: Any, allowed: None, must_be: str) -> str:
    if not isinstance(value, str) or not value.isidentifier() or value == "step":
        raise ValueError(f"{must_be} the name of a state other than 'step', got {value!r}")
    return value


def _check_bool(value: Any, allowed: None, must_be: str) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{must_be} True or False, got {value!r}")
    return value


_CHECKS: dict[str, Callable[[Any, Any, str], Any]] = {
    "number": _check_hyper,
    "choice": _check_choice,
    "view": _check_view,
    "views": _check_views,
    "state_name": _check_state_name,
    "bool": _check_bool,
}


class _FieldCheck(NamedTuple):
    """A field that construction checks: its name, kind, allowed values, and if None is allowed."""

    name: str
    kind: str
    allowed: Any
    allows_none: bool


def _field_checks(cls: type) -> tuple[_FieldCheck, ...]:
    """Return the fields of a dataclass that construction checks."""
    return _read_field_checks(cls)


# Dynamo treats the result as a constant when a compiled function constructs a rule, and accepts
# plain values only: kinds are therefore text, and intervals their ends. It would look through
# `functools.cache`, which is why that is one function further down. (`assume_constant_result` sets
# the same attribute, but imports the compiler.)
_field_checks._dynamo_marked_constant = True  # type: ignore[attr-defined]


@functools.cache
def _read_field_checks(cls: type) -> tuple[_FieldCheck, ...]:
    try:
        types = typing.get_type_hints(cls)
    except Exception:  # an annotation names a class that does not exist at run time
        types = {item.name: item.type for item in fields(cls)}
    checks = []
    for item in fields(cls):
        kind = item.metadata.get("kind")
        if kind is None and types[item.name] in (bool, "bool"):
            kind = "bool"
        if kind is None:
            continue
        allowed = item.metadata.get("allowed")
        if kind == "number":
            allowed = dataclasses.astuple(item.metadata["interval"])
        checks.append(_FieldCheck(item.name, kind, allowed, item.default is None))
    return tuple(checks)


# The base class


class cached_property(Generic[T]):
    """`functools.cached_property` for frozen dataclasses and torch.compile.

    That one takes a lock before Python 3.12, which Dynamo cannot trace. While Dynamo traces, this
    one computes the value without storing it.
    """

    def __init__(self, function: Callable[[Any], T]) -> None:
        self.function = function
        self.__doc__ = function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type) -> T:
        if instance is None:
            return self  # type: ignore[return-value]
        value = self.function(instance)
        if not is_compiling():
            object.__setattr__(instance, self.name, value)
        return value


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class FrozenDataclass:
    """Base of frozen dataclasses that check their fields; subclasses may omit the decorator."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__repr__" not in cls.__dict__:
            cls.__repr__ = FrozenDataclass.__repr__  # type: ignore[method-assign]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        # Decorate here and not in __init_subclass__: an explicit @dataclass(frozen=True) runs after
        # that, and raises a TypeError if the class is decorated.
        if "__dataclass_fields__" not in cls.__dict__:
            for base in reversed(cls.__mro__):
                if issubclass(base, FrozenDataclass) and "__dataclass_fields__" not in vars(base):
                    dataclass(frozen=True, init=_has_generated_init(base))(base)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        check_fields(self)

    def __repr__(self) -> str:
        """Show the fields; `Rule.name` only where it is set."""
        instance: Any = self
        texts = []
        for item in fields(instance):
            if item.repr or (item.name == "name" and instance.name):
                texts.append(f"{item.name}={getattr(instance, item.name)!r}")
        return f"{type(self).__qualname__}({', '.join(texts)})"


def _has_generated_init(cls: type) -> bool:
    """Return True if `cls` has an `__init__` that `dataclass` wrote, not one written by hand."""
    code = getattr(cls.__init__, "__code__", None)  # type: ignore[misc]
    return code is not None and code.co_filename == "<string>"


def check_fields(instance: Any, names: Collection[str] | None = None) -> None:
    """Check the fields of a frozen dataclass, and convert numbers and views.

    Args:
        instance: the dataclass.
        names: the fields to check; None for all.

    Raises:
        TypeError, ValueError: with the class, the field, the value and what the field allows.
    """
    cls = type(instance)
    for name, kind, allowed, allows_none in _field_checks(cls):
        if names is not None and name not in names:
            continue
        value = getattr(instance, name)
        if value is None and allows_none:
            continue
        converted = _CHECKS[kind](value, allowed, f"{cls.__name__}: {name} must be")
        # Set it even if nothing changed: torch.compile cannot compare identities before 2.13.
        object.__setattr__(instance, name, converted)


def views_of(instance: Any) -> list[View]:
    """Return the views among the fields of a frozen dataclass."""
    result: list[View] = []
    for name, kind, _, _ in _field_checks(type(instance)):
        value = getattr(instance, name)
        if kind == "view" and value is not None:
            result.append(value)
        elif kind == "views":
            result.extend(value)
    return result
