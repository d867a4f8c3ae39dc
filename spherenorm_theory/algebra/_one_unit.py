"""A weight of one unit, which a law is about."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from spherenorm import Rule, View, as_view

__all__ = ["shape_of_one_unit", "views_of"]


def shape_of_one_unit(rule: Rule, dimension: int) -> tuple[int, ...]:
    """A shape of `dimension` entries, all on one dimension, that is one unit under each view.

    Raises:
        ValueError: there is none, since a view makes several units of every weight.
    """
    views = [*views_of(rule)]
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
            if all(_count_units(replace(view, groups=None), shape) == 1 for view in views):
                return shape
    shown = ", ".join(map(str, views))
    raise ValueError(
        "a law is about a weight of one unit, and no shape is one unit under all of the views "
        f"{shown}"
    )


def views_of(rule: Rule) -> Iterator[View]:
    """The views of a rule, of the rules within it and of their manifolds."""
    for part in rule.tree():
        for holder in (part, getattr(part, "manifold", None)):
            yield from map(as_view, getattr(holder, "views", ()))
            view = getattr(holder, "view", None)
            if view is not None:
                yield as_view(view)


def _count_units(view: View, shape: tuple[int, ...]) -> int:
    """The number of units of a weight, 0 where the view takes no weight of this shape."""
    try:
        return len(view.rows(torch.empty(shape)))
    except ValueError:
        return 0
