"""The weight that a law is about: one unit under all views, of which numbers may hold the size d.

Rules of several units, whose law would not be of one, are refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import sympy as sp
import torch

from spherenorm import Rule, View, as_view
from spherenorm import rules as r
from spherenorm.record import Call, Record
from spherenorm_theory.algebra.letters import Letter
from spherenorm_theory.algebra.symbols import DIMENSION, exact
from spherenorm_theory.algebra.trace import TraceError

PRODUCTS = 6
"""Matrix products of a step, at most; those of the library's readable rules have three."""
POWERS = [sp.Rational(p, 2) for p in (2, 1, -1, -2, 4, -4)]
"""Of the size of a weight, in a number of a step."""


def declared_views(rule: Rule) -> Iterator[tuple[str, View]]:
    """The views of a rule, of the rules within it and of their manifolds, by their class."""
    # The rules inside the rule of a letter are not looked into.
    is_letter = isinstance(rule, Letter)
    for holder in [rule.rule] if is_letter else [rule, rule.manifold]:
        view = getattr(holder, "view", None)
        for declared in (*getattr(holder, "views", ()), *(() if view is None else (view,))):
            yield type(holder).__name__, as_view(declared)
    for child in () if is_letter else rule.children:
        yield from declared_views(child)


def views_of(rule: Rule) -> tuple[View, ...]:
    """Each view that a rule declares, once."""
    return tuple(dict.fromkeys(view for _, view in declared_views(rule)))


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
    if isinstance(rule, Rule) and any(isinstance(each, r.Blocks) for each in rule.walk()):
        raise TraceError(
            "Blocks steps each block of rows as a weight of its own: the law of a block is the law "
            "of its recipe"
        )


def refuse_rules(rule: Rule, letters: tuple[Rule, ...]) -> None:
    """Refuse rules that act on several weights, or on several units, at once.

    Raises:
        TraceError: naming the rule.
    """
    for each in rule.walk():
        name = type(each).__name__
        if type(each).global_sum_terms is not Rule.global_sum_terms:
            raise TraceError(f"{name} measures all weights together, and a law is of one")
        if isinstance(each, r.FixedSpectralNorm):
            raise TraceError(
                f"units interact: {name} divides by the largest singular value, which powers of "
                "the weight's Gram matrix give"
            )
    matrices = [each.view for each in letters if isinstance(each, r.Orthogonalize)]
    for holder, view in declared_views(rule) if matrices else ():
        if count_units(view, (6, 6)) > max(1, *(count_units(x, (6, 6)) for x in matrices)):
            raise TraceError(
                f"units interact: {holder} acts on each unit of its view {view}, and "
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


def refuse_shared_states(
    rule: Rule, views: Sequence[View], shape: Sequence[int], inside: set[str]
) -> None:
    """Refuse states of which units share entries, such as a moment of each column.

    Args:
        rule: of the states.
        views: of its units.
        shape: of a weight of one unit.
        inside: the states of letters, of which a law says nothing.

    Raises:
        TraceError: naming the state.
    """
    weight = torch.ones([2 if n == 1 else n for n in shape], dtype=torch.float64)
    try:
        states = {n: x for n, x in rule.init(weight).items() if n not in inside}
    except Exception:  # a rule of one shape alone
        return
    own = {n: x for n, x in states.items() if x.shape != weight.shape and x.numel() != 1}
    splitting = [each for each in views if count_units(each, tuple(weight.shape))]
    if own and not any(
        all(x.shape == view.unit_sums(weight).shape for x in own.values()) for view in splitting
    ):
        units = count_units(views[0], tuple(weight.shape))
        name, value = max(own.items(), key=lambda item: item[1].numel() not in (0, units))
        raise TraceError(
            f"units interact: they share the state {name!r}, of shape {tuple(value.shape)} for a "
            f"weight of shape {tuple(weight.shape)}"
        )


# The size of the weight


def with_sizes(records: Sequence[Record], sizes: Sequence[int]) -> Record:
    """The first record, with c d^p for each number that follows the size d of the weight.

    Args:
        records: of one step, for weights of different sizes.
        sizes: the numbers of entries of the weights.

    Raises:
        TraceError: the records differ in an operation, or in a number that is no c d^p.
    """
    first, calls = records[0], dict[int, Call]()
    names = [[call.name for call in record.needed] for record in records]
    if any(each != names[0] for each in names):
        pairs = zip(first.needed, *names, strict=False)
        other = next((call for call, *each in pairs if len({*each}) > 1), first.needed[-1])
        raise TraceError(
            f"the code does other operations for weights of {' and '.join(map(str, sizes))} "
            f"entries, from {other.line} on"
        )
    for call, *others in zip(*(record.needed for record in records), strict=True):
        alike = (call, *others)
        arguments = zip(*(each.arguments for each in alike), strict=True)
        options = {n: [each.options[n] for each in alike] for n in call.options}
        calls[id(call)] = replace(
            call,
            arguments=tuple(_general(call, each, sizes) for each in arguments),
            options={n: _general(call, each, sizes) for n, each in options.items()},
        )
    return replace(first, calls=tuple(calls.get(id(call), call) for call in first.calls))


def _general(call: Call, entries: Sequence[Any], sizes: Sequence[int]) -> Any:
    """An argument that holds for every size."""
    first = entries[0]
    plain = isinstance(first, (int, float)) and not isinstance(first, bool)
    if not plain or all(entry == first for entry in entries):
        return first
    for power in POWERS:
        factors = [entry / float(size**power) for entry, size in zip(entries, sizes, strict=True)]
        if all(math.isclose(factor, factors[0], rel_tol=1e-13) for factor in factors):
            return exact(factors[0]) * DIMENSION**power
    shown = ", ".join(f"{e:g} for {n} entries" for e, n in zip(entries, sizes, strict=True))
    raise TraceError(f"a number depends on the shape of the weight ({shown}); it is in {call.line}")
