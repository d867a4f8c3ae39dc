"""Views of a rule, the weight that is one unit under all of them, and rules of several units."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from spherenorm import Rule, View, as_view
from spherenorm import rules as r
from spherenorm.record import Record
from spherenorm_theory.algebra.letters import Letter
from spherenorm_theory.algebra.trace import TraceError

PRODUCTS = 6
"""Matrix products of a step, at most; those of the library's readable rules have three."""
COUNTS = (torch.int32, torch.int64)
"""Integers in which no count of steps wraps around."""
MIXING: dict[type[Rule], str] = {
    r.SpectralPin: "divides by the largest singular value, which powers of the weight's Gram "
    "matrix give",
}
"""Rules that multiply matrices made of the weight, and how."""


def declared_views(rule: Rule) -> Iterator[tuple[str, str, tuple[View, ...]]]:
    """The views of a rule, of the rules within it and of their manifolds.

    Returns:
        The class, its field, "view" or "views", and the views that this has.
    """
    letters = [each for each in rule.tree() if isinstance(each, Letter)]
    inside = {id(part) for each in letters for part in each.rule.tree()}
    for part in (each for each in rule.tree() if id(each) not in inside):
        for holder in (part, getattr(part, "manifold", None)):
            view = getattr(holder, "view", None)
            own = {"views": getattr(holder, "views", ()), "view": () if view is None else (view,)}
            for field, views in own.items():
                if views:
                    yield type(holder).__name__, field, tuple(map(as_view, views))
    for each in letters:
        view = getattr(each.rule, "view", None)
        if view is not None:
            yield type(each.rule).__name__, "view", (as_view(view),)


def views_of(rule: Rule) -> tuple[View, ...]:
    """Each view that a rule declares, once."""
    return tuple(dict.fromkeys(view for _, _, views in declared_views(rule) for view in views))


def count_units(view: View, shape: tuple[int, ...]) -> int:
    """The number of units of a weight, 0 where the view takes no weight of this shape."""
    try:
        return len(view.rows(torch.empty(shape)))
    except ValueError:
        return 0


def shape_of_one_unit(views: tuple[View, ...], dimension: int) -> tuple[int, ...]:
    """A shape of `dimension` entries, all on one dimension, that is one unit under each view.

    Raises:
        ValueError: there is none, since a view makes several units of every weight.
    """
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
    raise ValueError(
        "a law is about a weight of one unit, and no shape is one unit under all of the views "
        f"{', '.join(map(str, views))}"
    )


# Refusals


def refuse_blocks(rule: object) -> None:
    """Refuse blocks of rows, of which each has a law.

    Raises:
        TraceError: naming the rule.
    """
    if isinstance(rule, Rule) and any(isinstance(each, r.Blocks) for each in rule.tree()):
        raise TraceError(
            "Blocks steps each block of rows as a weight of its own: the law of a block is the law "
            "of its recipe"
        )


def refuse_rules(rule: Rule, letters: tuple[Rule, ...]) -> None:
    """Refuse rules that act on several weights, or on several units, at once.

    Raises:
        TraceError: naming the rule.
    """
    for each in rule.tree():
        name = type(each).__name__
        if type(each).measure is not Rule.measure:
            raise TraceError(f"{name} measures all weights together, and a law is of one")
        if type(each) in MIXING:
            raise TraceError(f"units interact: {name} {MIXING[type(each)]}")
    matrices = [each.view for each in letters if isinstance(each, r.Orthogonalize)]
    for holder, field, views in declared_views(rule) if matrices else ():
        for view in views:
            if count_units(view, (6, 6)) > max(1, *(count_units(x, (6, 6)) for x in matrices)):
                raise TraceError(
                    f"units interact: {holder} acts on each unit of its {field} {view}, and "
                    f"Orthogonalize on a matrix of several of them ({matrices[0]})"
                )


def refuse_matrices(written: Record) -> None:
    """Refuse a step that multiplies matrices again and again.

    Raises:
        TraceError: with the line of the first product.
    """
    kinds = ("mm", "bmm", "addmm", "baddbmm")
    calls = [call for call in written.needed if call.packet in kinds]
    if len(calls) > PRODUCTS:
        raise TraceError(
            f"units interact: the step multiplies matrices {len(calls)} times, as an iteration of "
            "Newton and Schulz does, which mixes the rows of a weight; rules.Orthogonalize is one "
            f"letter of a law; it came from {calls[0].line}"
        )


def refuse_states(
    rule: Rule,
    views: tuple[View, ...],
    start: tuple[Tensor, Mapping[str, Tensor]],
    inside: set[str],
) -> None:
    """Refuse states of small integers, and those of which units share entries.

    Raises:
        TypeError: a state is of small integers or truth values, which are no real numbers.
        TraceError: units share one, such as a moment of each column.
    """
    unit, state = start
    for name, value in state.items():
        if value.dtype not in COUNTS and not value.is_floating_point():
            raise TypeError(
                f"the state {name!r} is of {value.dtype}, which wraps around or is logical, and a "
                "law is about real numbers"
            )
    weight = torch.ones([2 if n == 1 else n for n in unit.shape], dtype=torch.float64)
    try:
        several = {n: x for n, x in rule.init(weight).items() if n not in inside}
    except Exception:  # a rule of one shape alone
        return
    own = {n: x for n, x in several.items() if x.shape != weight.shape and x.numel() != 1}
    for view in (each for each in views if count_units(each, tuple(weight.shape))):
        if all(x.shape == view.total(weight).shape for x in own.values()):
            return
    if own:
        units = count_units(views[0], tuple(weight.shape))
        name, value = max(own.items(), key=lambda item: item[1].numel() not in (0, units))
        raise TraceError(
            f"units interact: they share the state {name!r}, of shape {tuple(value.shape)} for a "
            f"weight of shape {tuple(weight.shape)}"
        )
