"""A limit of terms for symbolic work: beyond it a refusal says which formula grew."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Iterator
from contextvars import ContextVar
from functools import lru_cache
from itertools import islice
from typing import TypeAlias

import sympy as sp

TERMS = 4000
"""Nodes of one expression that is to be simplified. Those of the library have some hundreds."""

EXPANDED = 20_000
"""Terms of one expression multiplied out over its common denominator, at most. Those of the library
have some hundreds; half a million take a minute."""

NODES = 100_000
"""Nodes of one expression, parts that occur twice counted twice. The library's have less than a
thousand; where an iteration doubles them, twelve steps would take an hour."""

POLYNOMIAL = 800
"""Terms of one polynomial in hyper-parameters. Those of the library have less than fifty."""

TOTAL = 200_000
"""Terms of all expressions of one law that are to be simplified. The library's have 4,000."""

_left: ContextVar[list[int] | None] = ContextVar("left", default=None)
"""The terms that are left of a budget."""


class BudgetError(ValueError):
    """A formula grew beyond what can be simplified in reasonable time."""


def spend(expression: sp.Basic) -> None:
    """Count an expression that is about to be simplified.

    Raises:
        BudgetError: it has too many terms, or the budget has too few left.
    """
    nodes, expanded = _count_terms(expression)
    if nodes > TERMS:
        raise BudgetError(f"a formula grew beyond {TERMS} terms: {_describe(expression)}")
    if expanded > EXPANDED:
        raise BudgetError(
            f"a formula grew beyond {EXPANDED} terms, multiplied out: {_describe(expression)}"
        )
    left = _left.get()
    if left is not None:
        left[0] -= nodes + expanded
        if left[0] < 0:
            raise BudgetError(f"its formulas have too many terms, up to {_describe(expression)}")


@lru_cache(maxsize=8192)
def _count_terms(expression: sp.Basic) -> tuple[int, int]:
    """Nodes of an expression, and a bound of its terms multiplied out; 0 for a long one."""
    nodes = sum(1 for _ in islice(sp.preorder_traversal(expression), TERMS + 1))
    return nodes, _count_expanded(expression) if nodes <= TERMS else 0


def _count_expanded(expression: sp.Basic) -> int:
    """A bound of the terms of an expression over its common denominator, all multiplied out."""
    known: dict[sp.Basic, _Fraction] = {}

    def power_of(base: sp.Basic, power: int) -> int:
        return math.comb(count(base)[0] + power - 1, power)

    def count(e: sp.Basic) -> _Fraction:
        if e not in known:
            known[e] = read(e)
        return known[e]

    def read(e: sp.Basic) -> _Fraction:
        if e.is_Add or e.is_Mul:
            parts = [count(part) for part in e.args]
            below: Counter[sp.Basic] = Counter()
            for _, own in parts:
                below = below | own if e.is_Add else below + own
            if e.is_Mul:
                return math.prod(above for above, _ in parts), below
            missing = ((above, below - own) for above, own in parts)
            return sum(
                n * math.prod(power_of(*b) for b in rest.items()) for n, rest in missing
            ), below
        if not (e.is_Pow and e.exp.is_Integer):
            return 1, Counter()
        n, own = int(e.exp), count(e.base)[1]
        raised = Counter({base: power * abs(n) for base, power in own.items()})
        if n > 0:
            return power_of(e.base, n), raised
        alone = count(e.base)[0] == 1
        above = math.prod(power_of(*b) for b in raised.items())
        return above, Counter({} if alone else {e.base: -n})

    above, below = count(expression)
    return max(above, math.prod(power_of(*b) for b in below.items()))


_Fraction: TypeAlias = tuple[int, "Counter[sp.Basic]"]
"""Terms of a numerator, and the denominators with their powers."""


def require_size(expression: sp.Basic) -> None:
    """Refuse an expression that doubles from step to step before anything walks through it.

    Raises:
        BudgetError: it has too many nodes.
    """
    if sum(1 for _ in islice(sp.preorder_traversal(expression), NODES + 1)) > NODES:
        raise BudgetError(f"a formula grew beyond {NODES} terms")


def spend_terms(count: int, what: str, symbols: object) -> None:
    """Count the terms of a polynomial in the hyper-parameters, of which a law is to be made.

    Args:
        count: of its terms.
        what: the polynomial, in text.
        symbols: of its coefficients, in text.

    Raises:
        BudgetError: it has too many.
    """
    if count > POLYNOMIAL:
        raise BudgetError(
            f"{what} grew beyond {POLYNOMIAL} terms in {symbols}; hold some of these at numbers"
        )


@contextlib.contextmanager
def budget(name: str, terms: int = TOTAL) -> Iterator[None]:
    """Limit the terms of the work within; a budget inside of another one has no limit of its own.

    Args:
        name: of the recipe.
        terms: of all expressions that are simplified.

    Raises:
        BudgetError: there are more.
    """
    if _left.get() is not None:
        yield
        return
    token = _left.set([terms])
    try:
        yield
    except BudgetError as error:
        raise BudgetError(f"{name}: {error}") from error
    finally:
        _left.reset(token)


def _describe(expression: sp.Basic) -> str:
    names = ", ".join(sorted(str(s) for s in expression.free_symbols))
    nodes = sum(1 for _ in sp.preorder_traversal(expression))
    return f"a formula of {nodes} terms in {names}"
