"""The numbers that a hyper-parameter may be, as its rules declare them, and its symbol."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields

import sympy as sp
import torch

from spherenorm import Interval, Rule

__all__ = ["ANY", "RESERVED", "intervals_of", "probe", "symbol_of"]

ANY = Interval(-math.inf, math.inf, True, True)
"""Every number: a hyper-parameter that no rule declares may be any."""

RESERVED = frozenset(["1", "w", "g", "s", "u", "e", "d", "k", "j", "a", "z", "A", "b", "gamma"])
"""The names of symbols that laws have of their own."""


def symbol_of(name: str, interval: Interval) -> sp.Symbol:
    """The symbol of a hyper-parameter.

    It is positive where the interval holds no negative number, and real elsewhere. At 0, where the
    interval holds it, formulas keep their meaning by continuity; `Scalars.compare` decides nothing
    by the difference between 0 and a positive number without saying so.
    """
    free = f"{name}_hyper" if name in RESERVED else name
    return sp.Symbol(free, positive=True) if interval.low >= 0 else sp.Symbol(free, real=True)


def intervals_of(rule: Rule, tensors: Mapping[str, torch.Tensor]) -> dict[str, Interval]:
    """The interval of each hyper-parameter that reaches a rule's field as it is."""
    intervals: dict[str, Interval] = {}
    for part in rule.tree():
        for field in fields(part):
            if "interval" in field.metadata:
                value, declared = getattr(part, field.name), field.metadata["interval"]
                for name in (name for name, tensor in tensors.items() if tensor is value):
                    intervals[name] = _both(intervals.get(name, ANY), declared)
    return intervals


def probe(accepts: Callable[[float], bool], default: float) -> Interval:
    """The interval of a hyper-parameter of which rules take a function: the numbers they accept.

    Args:
        accepts: tells if a recipe can be built with a number.
        default: a number that is accepted.
    """
    size = max(abs(default), 1e-3)
    if any(accepts(-x) for x in (1e-6, 0.3, size)):
        return ANY
    below_one = default < 1 and not any(accepts(x) for x in (1.001, 2.0))
    high = 1.0 if below_one else math.inf
    return Interval(0.0, high, not accepts(0.0), not below_one or not accepts(1.0))


def _both(a: Interval, b: Interval) -> Interval:
    """The numbers of both intervals."""
    low, high = max(a.low, b.low), min(a.high, b.high)
    return Interval(low, high, not (low in a and low in b), not (high in a and high in b))
