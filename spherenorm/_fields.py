"""The fields of rules and manifolds: each says what it may hold, and is checked on construction.

A rule is a frozen dataclass. Four kinds of fields know what they may hold:

    nu: Scalar = hyper("(0, inf)")              # a number in an interval, or a tensor
    view: ViewLike = view("channel")                # a view, given by name or as a View
    views: Sequence[ViewLike] = views("channel")  # several
    per: Per = choice("tensor", "unit")         # one of a few values, by default the first
"""

from __future__ import annotations

import math
import re
import typing
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from numbers import Real
from typing import Any, Generic, Self, TypeVar

from torch import Tensor
from torch.compiler import is_compiling
from typing_extensions import dataclass_transform

from spherenorm._numerics import as_number
from spherenorm._views import View, ViewLike, as_view

T = TypeVar("T")
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


def view(default: ViewLike | None = MISSING) -> Any:
    """A dataclass field for a view, which takes a name or a `View` and holds a `View`.

    Args:
        default: of the field. With None, the field takes None, too.

    Raises:
        ValueError: on construction, when a name is no view's.

    Example:
        >>> class Halved(Rule):
        ...     view: ViewLike = view("channel")
        >>> Halved("layer").view
        View(dim=None, groups=None)
    """
    return field(default=default, metadata={"kind": "view"})


def views(*default: ViewLike) -> Any:
    """A dataclass field for several views, which takes names or Views and holds a tuple of Views.

    Args:
        *default: the views that the field holds by default.

    Raises:
        TypeError: on construction, when the value is one name instead of a sequence.
        ValueError: on construction, when a name is no view's.

    Example:
        >>> class Tested(Rule):
        ...     views: Sequence[ViewLike] = views("channel", "layer")
        >>> [str(each) for each in Tested(["dim=1"]).views]
        ['dim=1']
    """
    return field(default=default, metadata={"kind": "views"})


def choice(*allowed: Any) -> Any:
    """A dataclass field for one of some values.

    Args:
        *allowed: the values; the first is the default.

    Raises:
        ValueError: on construction, when the value is another one.

    Example:
        >>> class Tested(Rule):
        ...     per: str = choice("tensor", "unit")
        >>> Tested().per
        'tensor'
        >>> Tested("row")
        Traceback (most recent call last):
        ValueError: Tested: per must be "tensor" or "unit", got 'row'
    """
    return field(default=allowed[0], metadata={"kind": "choice", "allowed": allowed})


def state_name(default: str) -> Any:
    """A dataclass field for the name of a state, by which checkpoints of other libraries load.

    Raises:
        ValueError: on construction, when it is no name, or "step", which counts steps.
    """
    return field(default=default, metadata={"kind": "name"})


def hyper(interval: str, default: Any = MISSING, *, through_zero: bool = False) -> Any:
    """A dataclass field for a number, checked on construction unless it is a tensor.

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
        >>> class Halved(Rule):
        ...     share: Scalar = hyper("[0, 1)", 0.5)
        >>> Halved(1.0)
        Traceback (most recent call last):
        ValueError: Halved: share must be in [0, 1), got 1.0
    """
    numbers = Interval.parse(interval)
    _INTERVALS[str(numbers)] = numbers
    metadata = {"kind": "number", "interval": numbers, "through_zero": through_zero}
    return field(default=default, metadata=metadata)


class derived(Generic[T]):
    """A property that a frozen dataclass computes once, from its fields.

    (That of functools has a lock before Python 3.12, which torch.compile cannot enter.)
    """

    def __init__(self, function: Callable[[Any], T]) -> None:
        self.function = function

    def __set_name__(self, owner: type, name: str) -> None:
        self.name, self.__doc__ = name, self.function.__doc__

    def __get__(self, holder: Any, owner: type) -> T:
        value = self.function(holder) if holder is not None else self
        if holder is not None and not is_compiling():
            object.__setattr__(holder, self.name, value)
        return value  # type: ignore[return-value]


def check_fields(holder: Any) -> None:
    """Check and convert the fields of a frozen dataclass, those declared as bool included.

    Raises:
        TypeError, ValueError: naming the class, the field and the value.
    """
    cls: Any = type(holder)
    for name, kind, allowed, optional in _declared(cls):
        value = getattr(holder, name)
        if not (optional and value is None):
            kept = _checked(value, kind, allowed, f"{cls.__name__}: {name} must be")
            # The class is frozen. (To ask whether they are one object, torch.compile needs 2.13.)
            object.__setattr__(holder, name, kept)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Checked:
    """A frozen dataclass that checks its fields on construction; the decorator may be left out."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__repr__" not in cls.__dict__:
            cls.__repr__ = Checked.__repr__  # type: ignore[method-assign]  # dataclass keeps it

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        for each in reversed(cls.__mro__) if "__dataclass_fields__" not in cls.__dict__ else ():
            if issubclass(each, Checked) and "__dataclass_fields__" not in each.__dict__:
                made = getattr(each.__init__, "__code__", None)  # of a base, by dataclass
                dataclass(frozen=True, init=bool(made and made.co_filename == "<string>"))(each)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        check_fields(self)

    def __getstate__(self) -> dict[str, Any]:
        """The attributes without those that are derived: a copy derives them of its own rules."""
        held, cls = vars(self), type(self)
        return {n: x for n, x in held.items() if type(getattr(cls, n, None)) is not derived}

    def __repr__(self) -> str:
        own: Any = self
        shown = [f.name for f in fields(own) if f.repr or (f.name == "name" and own.name)]
        return f"{type(self).__qualname__}({', '.join(f'{n}={getattr(self, n)!r}' for n in shown)})"


def views_of(holder: Any) -> list[View]:
    """The views among the fields of a frozen dataclass."""
    values = [getattr(holder, name) for name, kind, *_ in _declared(type(holder)) if "view" in kind]
    each = [view for value in values for view in (value if type(value) is tuple else (value,))]
    return [view for view in each if view is not None]


def _checked(value: Any, kind: str, allowed: Any, what: str) -> Any:
    if kind == "number":
        return checked_number(value, _INTERVALS[allowed], what)
    if kind == "view":
        return as_view(value)
    if kind == "views":
        if isinstance(value, str):
            raise TypeError(f"{what} a sequence of views, got {value!r}")
        return tuple(map(as_view, value))
    if kind == "name":
        if not (isinstance(value, str) and value.isidentifier() and value != "step"):
            raise ValueError(f"{what} the name of a state other than 'step', got {value!r}")
    elif kind == "bool":
        if not isinstance(value, bool):
            raise TypeError(f"{what} True or False, got {value!r}")
    elif value not in allowed:
        known = " or ".join(f'"{each}"' for each in allowed)
        raise ValueError(f"{what} {known}, got {value!r}")
    return value


def checked_number(value: Any, interval: Interval, what: str) -> float | Tensor:
    """A number of an interval as Python's own, or a 0-dim tensor; `hyper` says what is raised."""
    if isinstance(value, Tensor):
        if value.ndim:
            shape = tuple(value.shape)
            raise ValueError(f"{what} a number or a 0-dim tensor, got shape {shape}")
        return value
    try:
        number = as_number(value)
    except ValueError as error:
        raise ValueError(f"{what} in {interval}: {error}") from None
    if isinstance(number, bool) or not isinstance(number, Real):
        raise TypeError(f"{what} a number or a tensor, got {value!r}")
    if float(number) not in interval:
        raise ValueError(f"{what} in {interval}, got {value!r}")
    return number  # type: ignore[return-value]  # an int or a float


_INTERVALS: dict[str, Interval] = {}
"""The intervals of all fields, as they print."""
_DECLARED: dict[type, tuple[tuple[str, str, Any, bool], ...]] = {}
"""The checked fields of classes that were read once, since rules are made anew at every step."""


def _declared(cls: type) -> tuple[tuple[str, str, Any, bool], ...]:
    """The fields that are checked: name, kind, what is allowed, and whether None is."""
    if cls not in _DECLARED:
        try:
            hints = typing.get_type_hints(cls)
        except Exception:  # an annotation need not be resolvable; then its own words count
            hints = {f.name: f.type for f in fields(cls)}
        found = []
        for f in fields(cls):
            kind = f.metadata.get("kind") or ("bool" if hints[f.name] in (bool, "bool") else None)
            if kind is not None:
                allowed = str(f.metadata.get("interval")) if kind == "number" else None
                found.append((f.name, kind, f.metadata.get("allowed", allowed), f.default is None))
        _DECLARED[cls] = tuple(found)
    return _DECLARED[cls]


# As `torch.compiler.assume_constant_result` does, which imports the compiler. It works for plain
# constants, and so intervals are named by strings.
_declared._dynamo_marked_constant = True  # type: ignore[attr-defined]
