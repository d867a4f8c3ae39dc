"""Schedules: hyper-parameters that are functions of the step count t = 1, 2, ...

    rule = sn.chain(
        sn.rules.HeavyBall(sn.schedule.trapezoid(0.85, 0.95, up=300, steps=3000, down=50)),
        sn.rules.StepSize(sn.schedule.warmup_cosine(3e-3, warmup=100, steps=3000)),
    )

A schedule stands wherever a hyper-parameter does, in a rule, a recipe or an optimizer. It is
checked against the interval of its field at once, a recipe may compute with it (`lr *
weight_decay`), and its own numbers may be tensors, to sweep or differentiate them. `Rule.at_step`
puts the number of a step in its place before a rule runs, so no rule knows of schedules.

The convention of the ends: a warmup reaches its peak at step `warmup`, and a decay would reach
`final` at step `steps + 1`, one after the last, so that no step has a learning rate of 0.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar

import torch
from torch import Tensor

from spherenorm.numerics import Scalar, as_number, safe_sqrt

__all__ = [
    "Schedule",
    "cooldown",
    "cosine",
    "of",
    "piecewise",
    "trapezoid",
    "warmup_cosine",
    "wsd",
]

T = TypeVar("T", float, Tensor)
Shape = Literal["linear", "cosine", "sqrt", "square", "jump"]
Times = list[float] | None
"""The steps at which a schedule has its extremes; None if nobody knows them."""


# Arithmetic that is written once for Python numbers and for tensors


def _clip(x: T) -> T:
    return x.clamp(0, 1) if isinstance(x, Tensor) else min(max(x, 0.0), 1.0)


def _cos(x: T) -> T:
    return torch.cos(x) if isinstance(x, Tensor) else math.cos(x)


def _sqrt(x: T) -> T:
    return safe_sqrt(x) if isinstance(x, Tensor) else math.sqrt(x)


def _unit_step(x: Any, threshold: Any) -> Any:
    """Return 1 where x >= threshold, else 0."""
    reached = x >= threshold
    if isinstance(reached, Tensor):
        return torch.where(reached, torch.ones_like(x + threshold), 0)
    return float(reached)


def _progress(t: Any, start: Any, end: Any) -> Any:
    """Return (t - start) / (end - start), clipped to [0, 1]; without a width, 1 from `end` on."""
    width = end - start
    if not isinstance(width, Tensor):
        return _clip((t - start) / width) if width else _unit_step(t, end)
    share = _clip((t - start) / torch.where(width == 0, 1, width))
    return torch.where(torch.as_tensor(t >= end), 1, share)


def _divide(x: Any, y: Any) -> Any:
    """Return x / y, and infinity or nan for a division of numbers by 0, as torch does."""
    if isinstance(x, Tensor) or isinstance(y, Tensor) or y != 0:
        return x / y
    return math.copysign(math.inf, x) if x else math.nan


def _power(x: Any, y: Any) -> Any:
    """Return x^y, and infinity or nan for a number without one, as torch does."""
    if isinstance(x, Tensor) or isinstance(y, Tensor):
        return x**y
    if x == 0 and y < 0:
        return math.inf
    value = x**y
    return math.nan if isinstance(value, complex) else value


def _share_of_cosine(x: Any) -> Any:
    angle = math.pi * x
    share = (1 - _cos(angle)) / 2
    return share


_SHAPES: dict[str, Callable[[Any], Any]] = {
    "linear": lambda x: x,
    "cosine": _share_of_cosine,
    "sqrt": _sqrt,
    "square": lambda x: 1 - (1 - x) ** 2,
    "jump": lambda x: _unit_step(x, 1),
}
"""For each shape, the share of the way between two knots, by the share of the time. Monotone."""

_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": _divide,
    "pow": _power,
}


_NO_VALUE = None, math.nan
"""In the place of the last step and its value, before there are any."""

if TYPE_CHECKING:
    _Number = float  # for type checkers, a schedule may stand wherever a hyper-parameter does
else:
    _Number = object


class Schedule(_Number):
    """A hyper-parameter that is a function of the step count t = 1, 2, ...

    It adds, subtracts, multiplies, divides and takes powers like a number, and the result is a
    schedule. It has no value before a step, so a recipe cannot branch on it; it compares with a
    number where the answer is the same at all steps.

    Example:
        >>> rate = sn.schedule.warmup_cosine(0.4, warmup=2, steps=3)
        >>> [round(rate(t), 3) for t in (1, 2, 3, 4)]
        [0.2, 0.4, 0.2, 0.0]
        >>> (0.5 * rate)(2), rate(torch.tensor(2.0))
        (0.2, tensor(0.4000))
    """

    def __call__(self, t: Scalar) -> Scalar:
        """Return the value at step t: a number if t and the numbers of the schedule are such."""
        # To ask for a type takes less time than `isinstance` of Tensor, which has a metaclass.
        if type(t) is not int and isinstance(t, Tensor):
            return self.evaluate(t)
        # A step asks for a number several times: to use it, to show it, to check it.
        last_t, value = self.__dict__.get("_last", _NO_VALUE)
        if t != last_t:
            value = self.evaluate(float(t))
            if type(value) is float:
                self.__dict__["_last"] = t, value
        result: Scalar = value
        return result

    def evaluate(self, t: Scalar) -> Scalar:
        """Return the value at step t; see `__call__`."""
        raise NotImplementedError

    def extreme_times(self) -> Times:
        """Return steps from 1 on that have the extreme values; None if nobody knows them."""
        raise NotImplementedError

    @property
    def has_known_range(self) -> bool:
        """True if all values are between those at `extreme_times`."""
        return False

    def __add__(self, other: Any) -> Schedule:
        return Combination("add", self, other)

    def __radd__(self, other: Any) -> Schedule:
        return Combination("add", other, self)

    def __sub__(self, other: Any) -> Schedule:
        return Combination("sub", self, other)

    def __rsub__(self, other: Any) -> Schedule:
        return Combination("sub", other, self)

    def __mul__(self, other: Any) -> Schedule:
        return Combination("mul", self, other)

    def __rmul__(self, other: Any) -> Schedule:
        return Combination("mul", other, self)

    def __truediv__(self, other: Any) -> Schedule:
        return Combination("div", self, other)

    def __rtruediv__(self, other: Any) -> Schedule:
        return Combination("div", other, self)

    def __pow__(self, other: Any, modulo: None = None) -> Schedule:
        return Combination("pow", self, other)

    def __rpow__(self, other: Any, modulo: None = None) -> Schedule:
        return Combination("pow", other, self)

    def __neg__(self) -> Schedule:
        return Combination("mul", -1.0, self)

    def __lt__(self, other: Any) -> bool:
        return self._compare(operator.lt, other)

    def __le__(self, other: Any) -> bool:
        return self._compare(operator.le, other)

    def __gt__(self, other: Any) -> bool:
        return self._compare(operator.gt, other)

    def __ge__(self, other: Any) -> bool:
        return self._compare(operator.ge, other)

    def _compare(self, operation: Callable[[Any, Any], bool], number: Any) -> bool:
        """Return the answer of a comparison if it is the same at all steps.

        Raises:
            TypeError: it is not, or nobody knows.
        """
        if self.has_known_range and isinstance(number, Real):
            answers = {operation(self(t), number) for t in self.extreme_times() or ()}
            if len(answers) == 1:
                return answers.pop()
        self._refuse_to_be_a_number()

    def _refuse_to_be_a_number(self, *_: Any) -> NoReturn:
        raise TypeError(
            "a schedule has no value before a step: a recipe may add, subtract, multiply, divide "
            "and take powers of it, but not round it, branch on it, or compare it with a number on "
            f"both sides of which it is, got {self}"
        )

    __float__ = __int__ = __bool__ = _refuse_to_be_a_number
    __abs__ = __floor__ = __ceil__ = __round__ = _refuse_to_be_a_number


@dataclass(frozen=True)
class Knots(Schedule):
    """A way through knots: the value is v_i at time t_i, and between two knots

        v_i + (v_{i+1} - v_i) shape_i((t - t_i) / (t_{i+1} - t_i)).

    Before the first knot it is v_0, after the last one v_n. `piecewise` makes one.

    Args:
        times: t_0 <= t_1 <= ..., in steps.
        values: v_0, v_1, ...
        shapes: one for each pair of neighbors: "linear"; "cosine", half a wave; "sqrt", fast at
            first; "square", 1 - (1 - x)^2; "jump", which has the later value from its time on.

    Raises:
        TypeError: a time or a value is neither a number nor a 0-dim tensor.
        ValueError: the lengths do not fit, times decrease, a number is not finite, or there is no
            such shape.

    Example:
        >>> Knots((1, 3), (0.0, 1.0), ("linear",))(2)
        0.5
    """

    times: tuple[Scalar, ...]
    values: tuple[Scalar, ...]
    shapes: tuple[Shape, ...]

    def __post_init__(self) -> None:
        n = len(self.times)
        if not n or len(self.values) != n or len(self.shapes) != n - 1:
            raise ValueError(
                f"a schedule of {n} times needs as many values and {max(n - 1, 0)} shapes, got "
                f"{len(self.values)} and {len(self.shapes)}"
            )
        for shape in self.shapes:
            if shape not in _SHAPES:
                names = ", ".join(map(repr, _SHAPES))
                raise ValueError(f"a schedule's shape must be one of {names}, got {shape!r}")
        # Floats are arguments of a compiled step, where integers are part of its structure.
        for name in ("times", "values"):
            numbers = tuple(_check_number(x, name) for x in getattr(self, name))
            object.__setattr__(self, name, numbers)
        # Between equal values, a jump is exact, where a share of each would round.
        shapes = tuple(
            "jump" if _is_number(v) and _is_number(w) and v == w else shape
            for shape, (v, w) in zip(self.shapes, itertools.pairwise(self.values), strict=True)
        )
        object.__setattr__(self, "shapes", shapes)
        for earlier, later in itertools.pairwise(self.times):
            if _is_number(earlier) and _is_number(later) and earlier > later:
                raise ValueError(
                    f"the times of a schedule must not decrease, got {earlier:g} before {later:g} "
                    f"in {self.times}; do its parts take more steps than there are?"
                )

    def evaluate(self, t: Scalar) -> Scalar:
        # A knot counts by its share less that of the next one. So values are exact at knots, and
        # knots that are not the neighbors of t add 0.
        if self._has_numbers and (type(t) is float or not isinstance(t, Tensor)):
            times, values = self.times, self.values
            i = bisect.bisect_right(times, t) - 1
            if not 0 <= i < len(self.shapes):
                return values[max(i, 0)]
            # t is between the two knots, so that its progress needs no limits.
            share = _SHAPES[self.shapes[i]]((t - times[i]) / (times[i + 1] - times[i]))
            number: Scalar = values[i] * (1 - share) + values[i + 1] * share
            return number
        shares = [1.0, *(self._share(i, t) for i in range(len(self.shapes))), 0.0]
        value = 0 * t
        for knot_value, (share, next_share) in zip(
            self.values, itertools.pairwise(shares), strict=True
        ):
            value = value + knot_value * (share - next_share)
        return value

    def _share(self, i: int, t: Scalar) -> Any:
        """Return the share of the way from knot i to the next one, in [0, 1]."""
        return _SHAPES[self.shapes[i]](_progress(t, self.times[i], self.times[i + 1]))

    @functools.cached_property
    def _has_numbers(self) -> bool:
        return all(map(_is_number, (*self.times, *self.values)))

    @property
    def has_known_range(self) -> bool:
        return self._has_numbers

    def extreme_times(self) -> Times:
        if not self._has_numbers:
            return None
        return [1.0, *(float(t) for t in self.times if t > 1)]


@dataclass(frozen=True)
class Combination(Schedule):
    """The result of arithmetic with a schedule.

    Args:
        operation: "add", "sub", "mul", "div" or "pow".
        first, second: a schedule and a number or 0-dim tensor, or two schedules.
    """

    operation: str
    first: Any
    second: Any

    def __post_init__(self) -> None:
        for name in ("first", "second"):
            value = getattr(self, name)
            if not isinstance(value, Schedule):
                object.__setattr__(self, name, _check_number(value, "factors"))

    def evaluate(self, t: Scalar) -> Scalar:
        first, second = (
            side(t) if isinstance(side, Schedule) else side for side in (self.first, self.second)
        )
        value: Scalar = _ARITHMETIC[self.operation](first, second)
        return value

    def extreme_times(self) -> Times:
        times: list[float] = []
        for side in (self.first, self.second):
            side_times = side.extreme_times() if isinstance(side, Schedule) else []
            if side_times is None or isinstance(side, Tensor):
                return None
            times.extend(side_times)
        return sorted(set(times))

    @property
    def has_known_range(self) -> bool:
        """True if it is monotone in its one schedule.

        A product of two, such as m (1 - m), may be largest between two knots.
        """
        sides = [side for side in (self.first, self.second) if isinstance(side, Schedule)]
        times = sides[0].extreme_times()
        if len(sides) > 1 or times is None or not sides[0].has_known_range:
            return False
        is_linear = self.operation in ("add", "sub", "mul")
        if is_linear or (self.operation == "div" and sides[0] is self.first):
            return True
        return all(sides[0](t) > 0 for t in times)


@dataclass(frozen=True)
class OfFunction(Schedule):
    """A user's function of the step count; `of` makes one."""

    function: Callable[[Tensor], Any]

    def evaluate(self, t: Scalar) -> Scalar:
        if isinstance(t, Tensor):
            return self._evaluate(t)
        value = self._evaluate(torch.tensor(t, dtype=torch.float64, device="cpu"))
        return value.item()

    def _evaluate(self, t: Tensor) -> Tensor:
        result = self.function(t)
        try:
            value = torch.as_tensor(result, dtype=t.dtype, device=t.device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(
                f"schedule.of: the function must return a number or a 0-dim tensor, got {result!r}"
            ) from error
        if value.ndim:
            raise ValueError(
                f"schedule.of: the function must return a number or a 0-dim tensor, got shape "
                f"{tuple(value.shape)}"
            )
        return value

    def extreme_times(self) -> Times:
        return None


def _is_number(value: Scalar) -> bool:
    return not isinstance(value, Tensor)


def _check_number(value: Any, what: str) -> Scalar:
    """Return a number of a schedule as a float, and a 0-dim tensor unchanged."""
    if isinstance(value, Tensor):
        if value.ndim:
            raise ValueError(
                f"the {what} of a schedule must be numbers or 0-dim tensors, got shape "
                f"{tuple(value.shape)}"
            )
        return value
    number = as_number(value)
    if isinstance(number, bool) or not isinstance(number, Real):
        raise TypeError(f"the {what} of a schedule must be numbers or 0-dim tensors, got {value!r}")
    if not math.isfinite(number):
        raise ValueError(f"the {what} of a schedule must be finite, got {value!r}")
    return float(number)


# The schedules that people use


def _step_after(steps: Scalar, function: str) -> Scalar:
    """Return the step after the last one, at which a decay would reach its end."""
    if steps is None:  # of a hyper-parameter that is filled in later
        raise TypeError(
            f"schedule.{function}: steps must be the number of all steps, got None; where a run "
            "has yet to fill it in, take a constant in place of the schedule"
        )
    if isinstance(steps, (str, bool, Schedule)):
        raise TypeError(f"schedule.{function}: steps must be a number, got {steps!r}")
    if isinstance(steps, Real) and not steps >= 1:
        raise ValueError(f"schedule.{function}: steps must be at least 1, got {steps!r}")
    step_after = steps + 1
    return step_after


def warmup_cosine(
    peak: Scalar, warmup: Scalar, steps: Scalar, final: Scalar = 0.0, start: Scalar = 0.0
) -> Schedule:
    """Return a linear warmup to `peak`, followed by half a cosine wave to `final`.

    Args:
        peak: the value of step number `warmup`.
        warmup: the number of steps of the warmup; 0 leaves it out.
        steps: the number of all steps.
        final: the value that step `steps + 1` would have, and all later ones.
        start: the value that step 0 would have.

    Raises:
        TypeError: `steps` is no number.
        ValueError: `steps` is below 1, or the warmup is longer.

    Example:
        >>> rate = warmup_cosine(1.0, warmup=4, steps=11)
        >>> [rate(t) for t in (1, 4, 8, 12)]
        [0.25, 1.0, 0.5, 0.0]

    Source: Loshchilov and Hutter 2017 (SGDR), with the warmup of Goyal et al. 2017.
    """
    end = _step_after(steps, "warmup_cosine")
    return Knots((0, warmup, end), (start, peak, final), ("linear", "cosine"))


def cosine(peak: Scalar, steps: Scalar, final: Scalar = 0.0) -> Schedule:
    """Return half a cosine wave from `peak`, at step 1, to `final`, at step `steps + 1`.

    Args:
        peak: the value of step 1.
        steps: the number of all steps.
        final: the value that step `steps + 1` would have, and all later ones.

    Raises:
        TypeError: `steps` is no number.
        ValueError: `steps` is below 1.

    Example:
        >>> [cosine(1.0, steps=4)(t) for t in (1, 3, 5)]
        [1.0, 0.5, 0.0]
    """
    return Knots((1, _step_after(steps, "cosine")), (peak, final), ("cosine",))


def cooldown(
    peak: Scalar, steps: Scalar, last: Scalar, final: Scalar = 0.0, shape: Shape = "sqrt"
) -> Schedule:
    """Return a constant, and a decay over the last steps.

    Args:
        peak: the constant, which the first of the last steps has, too.
        steps: the number of all steps.
        last: the number of steps that decay.
        final: the value that step `steps + 1` would have, and all later ones.
        shape: "sqrt" is 1 - sqrt(x); see `Knots`.

    Raises:
        TypeError: `steps` is no number.
        ValueError: `steps` is below 1.

    Example:
        >>> rate = cooldown(1.0, steps=8, last=4)
        >>> [rate(t) for t in (1, 5, 6, 9)]
        [1.0, 1.0, 0.5, 0.0]

    Source: Hägele et al. 2024, arXiv:2405.18392.
    """
    end = _step_after(steps, "cooldown")
    return Knots((steps - last + 1, end), (peak, final), (shape,))


def wsd(
    peak: Scalar,
    warmup: Scalar,
    steps: Scalar,
    last: Scalar,
    final: Scalar = 0.0,
    shape: Shape = "sqrt",
) -> Schedule:
    """Return warmup, stable, decay: a linear warmup, a constant, and a decay over the last steps.

    Args:
        peak: the constant, from step number `warmup` on.
        warmup: the number of steps of the warmup; 0 leaves it out.
        steps: the number of all steps.
        last: the number of steps that decay.
        final: the value that step `steps + 1` would have, and all later ones.
        shape: the shape of the decay, such as "linear"; see `Knots`.

    Raises:
        TypeError: `steps` is no number.
        ValueError: `steps` is below 1, or warmup and decay are longer.

    Example:
        >>> rate = wsd(1.0, warmup=2, steps=8, last=4, shape="linear")
        >>> [rate(t) for t in (1, 2, 5, 6, 8)]
        [0.5, 1.0, 1.0, 0.75, 0.25]

    Source: Hu et al. 2024 (MiniCPM), arXiv:2404.06395.
    """
    end = _step_after(steps, "wsd")
    times = (0, warmup, steps - last + 1, end)
    return Knots(times, (0, peak, peak, final), ("linear", "linear", shape))


def trapezoid(low: Scalar, high: Scalar, up: Scalar, steps: Scalar, down: Scalar) -> Schedule:
    """Return a linear way from `low` up to `high`, a constant, and a linear way back to `low`.

    Args:
        low: the value that step 0 and step `steps + 1` would have.
        high: the constant, from step number `up` on.
        up: the number of steps of the way up.
        steps: the number of all steps.
        down: the number of steps of the way back.

    Raises:
        TypeError: `steps` is no number.
        ValueError: `steps` is below 1, or the two ways are longer.

    Example:
        >>> momentum = trapezoid(0.8, 0.9, up=2, steps=8, down=2)
        >>> [round(momentum(t), 3) for t in (1, 2, 7, 8, 9)]
        [0.85, 0.9, 0.9, 0.85, 0.8]

    Source: the momentum of modded-nanogpt, from 0.85 to 0.95 and back.
    """
    end = _step_after(steps, "trapezoid")
    times = (0, up, steps - down + 1, end)
    return Knots(times, (low, high, high, low), ("linear",) * 3)


def piecewise(knots: Mapping[Scalar, Scalar], shape: Shape = "jump") -> Schedule:
    """Return a schedule through values at given steps.

    Args:
        knots: the value by the step, in rising order; the first one holds before its step, too.
        shape: the shape between two values: "jump" keeps each value until the step of the next one.

    Raises:
        ValueError: the steps decrease, or there are none.

    Example:
        >>> rate = piecewise({1: 0.1, 100: 0.01, 150: 0.001})
        >>> [rate(t) for t in (1, 99, 100, 149, 150)]
        [0.1, 0.1, 0.01, 0.01, 0.001]
        >>> piecewise({0: 0.0, 10: 1.0}, "linear")(5)
        0.5
    """
    return Knots(tuple(knots), tuple(knots.values()), (shape,) * max(len(knots) - 1, 0))


def of(function: Callable[[Tensor], Any]) -> Schedule:
    """Return a schedule of a pure function of the step count.

    Its values are checked at every step of an optimizer, and a checkpoint does not hold it.

    Args:
        function: takes t as a 0-dim tensor and returns a 0-dim tensor or a number; it may not
            branch on t in Python, since t may be batched or recorded.

    Example:
        >>> rate = of(lambda t: 0.1 / t.sqrt())
        >>> rate(4)
        0.05

    Raises:
        TypeError: it is no function.
    """
    if not callable(function):
        raise TypeError(f"schedule.of takes a function of the step count, got {function!r}")
    return OfFunction(function)


# Hyper-parameters with schedules in them


def schedules_in(value: Any) -> list[Schedule]:
    """Return the schedules in a hyper-parameter, without arithmetic between them."""
    if isinstance(value, Combination):
        return [*schedules_in(value.first), *schedules_in(value.second)]
    if type(value) in (tuple, list):
        return [schedule for item in value for schedule in schedules_in(item)]
    return [value] if isinstance(value, Schedule) else []


def is_scheduled(value: Any) -> bool:
    """Return True for a schedule, and for a tuple or list that holds one."""
    if type(value) in (tuple, list):
        return any(map(is_scheduled, value))
    return isinstance(value, Schedule)


def is_checked_at_once(value: Any) -> bool:
    """Return True if the values of all schedules in a hyper-parameter are known before a step."""
    if type(value) in (tuple, list):
        return all(map(is_checked_at_once, value))
    return not isinstance(value, Schedule) or value.has_known_range


def value_at(value: Any, t: Scalar) -> Any:
    """Return a hyper-parameter with its values at step t in the place of schedules."""
    if isinstance(value, Schedule):
        return value(t)
    if type(value) in (tuple, list):
        return type(value)([value_at(item, t) for item in value])
    return value


def to_words(value: Any) -> Any:
    """Return a hyper-parameter with tuples of words and numbers in the place of schedules.

    Checkpoints hold these, since `torch.load(weights_only=True)` loads no other objects. A user's
    function becomes the word "function" alone.
    """
    if isinstance(value, Knots):
        return ("knots", value.times, value.values, value.shapes)
    if isinstance(value, Combination):
        return (value.operation, to_words(value.first), to_words(value.second))
    if isinstance(value, Schedule):
        return ("function",)
    if type(value) in (tuple, list):
        return type(value)(map(to_words, value))
    return value


def from_words(words: Any, functions: Any = None) -> Any:
    """Return the hyper-parameter that `to_words` wrote.

    Args:
        words: the result of `to_words`.
        functions: a hyper-parameter with a schedule of a function wherever `words` has one.

    Raises:
        ValueError: there is no function in such a place, or the words are no schedule.
    """
    if type(words) not in (tuple, list):
        return words
    kind = words[0] if words and isinstance(words[0], str) else None
    if kind == "function":
        if isinstance(functions, OfFunction):
            return functions
        raise ValueError(
            "the checkpoint has a schedule of a function, which it does not hold: construct the "
            "optimizer with that schedule before loading"
        )
    if kind == "knots" and len(words) == 4:
        return Knots(*map(tuple, words[1:]))
    if kind in _ARITHMETIC and len(words) == 3:
        is_same = isinstance(functions, Combination)
        return Combination(
            kind,
            from_words(words[1], functions.first if is_same else None),
            from_words(words[2], functions.second if is_same else None),
        )
    if kind is not None:
        raise ValueError(f"the checkpoint has a schedule that this version does not know: {words}")
    inner = functions if type(functions) in (tuple, list) else ()
    pairs = itertools.zip_longest(words, inner[: len(words)])
    return type(words)(from_words(item, function) for item, function in pairs)
