"""A budget for symbolic work: it ends in a refusal that says what grew, never in a hang."""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections.abc import Iterator
from itertools import islice

import sympy as sp

__all__ = ["SECONDS", "TERMS", "BudgetError", "budget", "spend", "spend_terms"]

SECONDS = 60.0
"""Of processor time, for one law. Those of the library take one or two."""

TERMS = 4000
"""Nodes of one expression that is to be simplified. Those of the library have some hundreds."""

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
