"""The intervals and views that the rules of a recipe declare."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace

import sympy as sp
import torch

from spherenorm import Interval, Rule, View, as_view

ANY = Interval(-math.inf, math.inf, True, True)
"""The interval of a hyper-parameter that no rule declares."""

RESERVED = frozenset(["1", "w", "g", "s", "u", "e", "d", "k", "j", "a", "z", "A", "b", "gamma"])
"""The names of symbols that laws have of their own."""


def symbol_of(name: str, interval: Interval) -> sp.Symbol:
    """The symbol of a hyper-parameter.

    It is positive where the interval holds no negative number, and real elsewhere. Where the
    interval holds 0, formulas hold there by continuity; a comparison that 0 decides otherwise than
    positive numbers becomes an assumption of the law.
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


def shape_of_one_unit(rule: Rule, dimension: int) -> tuple[int, ...]:
    """A shape of `dimension` entries, all on one dimension, that is one unit under each view.

    Raises:
        ValueError: there is none, since a view makes several units of every weight.
    """
    views = views_of(rule)
    for view in views:
        if view.groups not in (None, 1):
            raise ValueError(
                f"the view {view} makes {view.groups} units of a weight or more, and a law is "
                f"about one; each moves as a weight under {replace(view, groups=1)}: give that "
                "view instead"
            )
    for n in range(2, 6):
        for place in reversed(range(n)):
            shape = (1,) * place + (dimension,) + (1,) * (n - 1 - place)
            if all(count_units(replace(view, groups=None), shape) == 1 for view in views):
                return shape
    shown = ", ".join(map(str, views))
    raise ValueError(
        "a law is about a weight of one unit, and no shape is one unit under all of the views "
        f"{shown}"
    )


def declared_views(rule: Rule) -> Iterator[tuple[str, str, tuple[View, ...]]]:
    """The views of a rule, of the rules within it and of their manifolds.

    Returns:
        The class, its field, "view" or "views", and the views that this has.
    """
    for part in rule.tree():
        for holder in (part, getattr(part, "manifold", None)):
            view = getattr(holder, "view", None)
            own = {"views": getattr(holder, "views", ()), "view": () if view is None else (view,)}
            for field, views in own.items():
                if views:
                    yield type(holder).__name__, field, tuple(map(as_view, views))


def views_of(rule: Rule) -> tuple[View, ...]:
    """Each view that a rule declares, once."""
    return tuple(dict.fromkeys(view for _, _, views in declared_views(rule) for view in views))


def count_units(view: View, shape: tuple[int, ...]) -> int:
    """The number of units of a weight, 0 where the view takes no weight of this shape."""
    try:
        return len(view.rows(torch.empty(shape)))
    except ValueError:
        return 0
