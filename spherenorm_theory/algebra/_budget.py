"""A budget for symbolic work: it ends in a refusal that says what grew, never in a hang."""

from __future__ import annotations

import contextlib
import ctypes
import math
import threading
import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import TypeAlias

import sympy as sp

SECONDS = 60.0
"""Of processor time, for one law. Those of the library take one or two."""

TERMS = 4000
"""Nodes of one expression that is to be simplified. Those of the library have some hundreds."""

EXPANDED = 20_000
"""Terms of one expression multiplied out over its common denominator, at most. Those of the library
have some hundreds; half a million take a minute."""

POLYNOMIAL = 800
"""Terms of one polynomial in hyper-parameters. Those of the library have less than fifty."""

_local = threading.local()


class BudgetError(ValueError):
    """A formula grew beyond what can be simplified in reasonable time."""


class _ExpiredError(Exception):
    """Raised in the working thread by the clock."""


def spend(expression: sp.Basic) -> None:
    """Count an expression that is about to be simplified.

    Raises:
        BudgetError: it has too many terms.
    """
    _local.latest = expression
    nodes = sum(1 for _ in islice(sp.preorder_traversal(expression), TERMS + 1))
    if nodes > TERMS:
        raise BudgetError(f"a formula grew beyond {TERMS} terms: {_describe(expression)}")
    if _count_expanded(expression) > EXPANDED:
        raise BudgetError(
            f"a formula grew beyond {EXPANDED} terms, multiplied out: {_describe(expression)}"
        )


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
def budget(name: str, seconds: float = SECONDS) -> Iterator[None]:
    """Limit the time of the work within; a budget inside of another one has no clock of its own.

    Args:
        name: of the recipe.
        seconds: of processor time.

    Raises:
        BudgetError: the time is over; with the formula that was being simplified.
    """
    if getattr(_local, "running", False):
        yield
        return
    _local.running, _local.latest = True, None
    done, lock = threading.Event(), threading.Lock()
    clock = threading.Thread(
        target=_watch, args=(threading.get_ident(), seconds, done, lock), daemon=True
    )
    clock.start()
    try:
        yield
    except _ExpiredError:
        raise BudgetError(
            f"{name}: no law within {seconds:g} seconds; {_describe(_local.latest)} grew too large"
        ) from None
    except BudgetError as error:
        raise BudgetError(f"{name}: {error}") from error
    finally:
        with lock:
            done.set()
        _local.running = False


def _watch(thread: int, seconds: float, done: threading.Event, lock: threading.Lock) -> None:
    """Raise an error in a thread, busy in Python code as all of sympy is, when its time is over.

    The processor's time: on a busy machine a law takes longer, and is found all the same.
    """
    start = time.process_time()
    while (left := seconds - (time.process_time() - start)) > 0:
        if done.wait(max(left, 0.05)):
            return
    with lock:
        if not done.is_set():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(thread), ctypes.py_object(_ExpiredError)
            )


def _describe(expression: sp.Basic | None) -> str:
    if expression is None:
        return "a formula"
    names = ", ".join(sorted(str(s) for s in expression.free_symbols))
    nodes = sum(1 for _ in sp.preorder_traversal(expression))
    return f"a formula of {nodes} terms in {names}"
