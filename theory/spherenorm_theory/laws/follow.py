"""A law run forward, from a start and what each step is told."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import sympy as sp

from spherenorm_theory.algebra.symbols import Norm
from spherenorm_theory.laws.split import CROSS, Split
from spherenorm_theory.laws.step import W


def follow(
    law: Split, start: Mapping[sp.Expr, Any], given: Iterable[Mapping[str, Any]]
) -> Iterator[dict[sp.Expr, Any]]:
    """|w|^2 and cross terms after each step.

    Args:
        law: of the steps.
        start: the values before the first step.
        given: what each step is told, by name: hyper-parameters, |s|, products that are measured.
    """
    values = dict(start)
    compiled = {x: compile_formula(law, _after(law, x)) for x in values}
    for told in given:
        known = {**told, **{_name(x): _root(x, value) for x, value in values.items()}}
        after = {x: number(known) for x, number in compiled.items()}
        values = {
            x: np.broadcast_to(value, np.shape(start[x])) if np.ndim(start[x]) else value
            for x, value in after.items()
        }
        yield values


def _name(x: sp.Expr) -> str:
    return "|w|" if x == W else str(x)


def _root(x: sp.Expr, value: Any) -> Any:
    return np.sqrt(np.maximum(value, 0)) if x == W else value


def _after(law: Split, x: sp.Expr) -> sp.Expr:
    """The formula of a quantity after the present step."""
    if x != W:
        return law.recursion[x]
    if law.length is not None:
        return law.length**2
    cross = CROSS if law.open_because else law.cross
    return law.keep**2 * W + Norm("s") ** 2 + 2 * law.keep * cross


def compile_formula(law: Split, expression: sp.Expr) -> Callable[[Mapping[str, Any]], Any]:
    """A formula as a function of values by name."""
    expression = law.step.facts.spell_out(expression)
    symbols = sorted(expression.free_symbols, key=str)
    function = sp.lambdify(symbols, expression, "numpy", dummify=True)

    def number(known: Mapping[str, Any]) -> Any:
        if lacking := [s.name for s in symbols if s.name not in known]:
            raise ValueError(f"{law.name}: the law needs {', '.join(lacking)} of each step")
        with np.errstate(all="ignore"):
            return function(*(known[s.name] for s in symbols))

    return number
