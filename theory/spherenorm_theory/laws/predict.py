"""A law run forward: the norm over many steps, from its start and the lengths of the steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import sympy as sp

from spherenorm_theory.algebra import Array, Norm, Trace
from spherenorm_theory.laws.split import CROSS, Split
from spherenorm_theory.laws.step import W


def predict_norms(
    law: Split, norms: Any, drive: Any, measured: Mapping[str, Any], given: Mapping[str, Any]
) -> Array:
    """|w_t| at each step, as `Law.predict` says."""
    start, lengths = _start_and_lengths(norms, drive)
    steps = len(lengths)
    products = {name: _over_steps(name, value, steps) for name, value in measured.items()}
    schedule = read_schedule(law.step.traced, given, steps)
    # A cross term that is measured is not carried.
    carried = {x for x in law.unknowns if str(x) not in products and not law.open_because}
    before = {W: start**2, **{x: np.zeros_like(start) for x in sorted(carried, key=str)}}
    before |= _counters(law, products)
    given_at = (
        {
            **{symbol.name: value[time] for symbol, value in schedule.items()},
            **{name: value[time] for name, value in products.items()},
            "|s|": length,
        }
        for time, length in enumerate(lengths)
    )
    predicted = [start]
    for time, after in enumerate(follow(law, before, given_at)):
        predicted.append(np.sqrt(np.maximum(after[W], 0)))
        if not np.isfinite(predicted[-1]).all():
            raise ValueError(f"{law.name}: the law gives no finite norm after step {time}")
    return np.stack(predicted)


def _counters(law: Split, products: Mapping[str, Any]) -> dict[sp.Symbol, Any]:
    """The counters, of which `init` gives the first value."""
    names = {letter: name for name, letter in law.step.letters.items()}
    starts = {n: law.step.traced.starts[names[n]] for n in law.step.counters}
    return {
        law.step.scalars[n]: float(x)
        for n, x in starts.items()
        if x is not None and n not in products and n in law.step.scalars
    }


def follow(
    law: Split, start: Mapping[sp.Expr, Any], given: Iterable[Mapping[str, Any]]
) -> Iterator[dict[sp.Expr, Any]]:
    """|w|^2, cross terms and counters after each step.

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
    if x == W:
        if law.length is not None:
            return law.length**2
        cross = CROSS if law.open_because else law.cross
        return law.keep**2 * W + Norm("s") ** 2 + 2 * law.keep * cross
    if x in law.recursion:
        return law.recursion[x]
    return sp.sympify(law.step.states[x.name])


def read_schedule(traced: Trace, given: Mapping[str, Any], steps: int) -> dict[sp.Symbol, Array]:
    """A value per step for each hyper-parameter; a number is the same at every step."""
    schedules = {n: v for n, v in given.items() if n in traced.symbols and np.ndim(v) > 0}
    plain = {n: v for n, v in given.items() if n not in schedules}
    schedules = {n: _over_steps(n, v, steps) for n, v in schedules.items()}
    first = {n: float(v[0]) for n, v in schedules.items() if steps}
    values = {s: np.full(steps, v) for s, v in traced.values(**plain, **first).items()}
    for end in (np.min, np.max) if steps else ():
        traced.values(**plain, **{n: float(end(v)) for n, v in schedules.items()})
    return values | {traced.symbols[n]: v for n, v in schedules.items()}


def _start_and_lengths(norms: Any, drive: Any) -> tuple[Array, Array]:
    """|w_0| of each unit, and |s_t| of each unit in each step."""
    lengths, norms = np.asarray(drive, dtype=float), np.asarray(norms, dtype=float)
    if lengths.ndim == 0:
        raise ValueError("drive holds |s_t| for each step: give an array of shape (steps, ...)")
    start = norms[0] if norms.ndim == lengths.ndim and len(norms) == len(lengths) + 1 else norms
    if not (np.isfinite(lengths).all() and np.isfinite(start).all() and (lengths >= 0).all()):
        raise ValueError("norms and drive are lengths: finite numbers, and none below 0")
    try:
        shape = np.broadcast_shapes(start.shape, lengths.shape[1:])
    except ValueError as error:
        raise ValueError(
            f"norms of shape {norms.shape} do not fit drive of shape {lengths.shape}: |w_0| has "
            "the shape of one step, |w_t| one more step than drive"
        ) from error
    return np.broadcast_to(start, shape).copy(), lengths


def _over_steps(name: str, value: Any, steps: int) -> Array:
    values = np.asarray(value, dtype=float)
    if values.ndim == 0 or len(values) != steps:
        raise ValueError(f"{name} needs a value for each of {steps} steps, got {values.shape}")
    return values


def compile_formula(law: Split, expression: sp.Expr) -> Callable[[Mapping[str, Any]], Any]:
    """A formula as a function of values by name."""
    expression = law.step.facts.spell_out(expression)
    symbols = sorted(expression.free_symbols, key=str)
    function = sp.lambdify(symbols, expression, "numpy", dummify=True)

    def number(known: Mapping[str, Any]) -> Any:
        if lacking := [s.name for s in symbols if s.name not in known]:
            why = f" ({law.open_because})" if law.open_because else ""
            raise ValueError(
                f"{law.name}: the law needs {', '.join(lacking)} of each step, which norms and "
                f"drive do not give{why}; give measured={{'{lacking[0]}': ...}}"
            )
        with np.errstate(all="ignore"):
            return function(*(known[s.name] for s in symbols))

    return number
