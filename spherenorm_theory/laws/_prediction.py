"""A law run forward: the norm over many steps, from its start and the lengths of the steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import sympy as sp

from spherenorm_theory.algebra import Array, Trace
from spherenorm_theory.laws._quantities import S, W, product
from spherenorm_theory.laws._step_law import StepLaw, squared_norm_after

CROSS = product("w", "s")


def predict_norms(
    law: StepLaw,
    first: StepLaw | None,
    norms: Any,
    drive: Any,
    measured: Mapping[str, Any],
    given: Mapping[str, Any],
) -> Array:
    """|w_t| at each step, as `NormGrowth.predict` says."""
    start, lengths = _start_and_lengths(norms, drive)
    steps = len(lengths)
    products = {name: _over_steps(name, value, steps) for name, value in measured.items()}
    schedule = read_schedule(law.step.traced, given, steps)
    # A cross term that is measured is not carried.
    carried = {x for x in law.unknowns if str(x) not in products and not law.open_because}
    unknowns = sorted(carried, key=str)
    _refuse_missing(law, first, unknowns, products)
    values: dict[sp.Symbol, Any] = {W: start**2, **dict.fromkeys(unknowns, np.zeros_like(start))}
    scalars = _start_of_scalars(law, [law.law.rhs, *(law.recursion[u] for u in unknowns)])
    predicted = [start]
    for time, length in enumerate(lengths):
        now = first if first is not None and time == 0 else law
        known = {
            **{symbol: value[time] for symbol, value in schedule.items()},
            **{sp.Symbol(name, real=True): value[time] for name, value in products.items()},
            **values,
            **scalars,
            S: length**2,
        }
        after = {W: _squared_after(now, bool(law.open_because)), **_recursions(now, law, unknowns)}
        values = {x: np.broadcast_to(_number(now, e, known), start.shape) for x, e in after.items()}
        scalars = _scalars_after(now, scalars, known)
        predicted.append(np.sqrt(np.maximum(values[W], 0)))
        if not np.isfinite(predicted[-1]).all():
            _refuse_infinite(law, schedule, time)
    return np.stack(predicted)


def predict_range(
    law: StepLaw, first: StepLaw | None, norms: Any, drive: Any, given: Mapping[str, Any]
) -> tuple[Array, Array]:
    """The least and the greatest |w_t|, since |<w, s>| <= |w| |s|."""
    start, lengths = _start_and_lengths(norms, drive)
    schedule = read_schedule(law.step.traced, given, len(lengths))
    least, greatest = [start], [start]
    scalars = _start_of_scalars(law, [law.kappa])
    for time, length in enumerate(lengths):
        now = first if first is not None and time == 0 else law
        known = {**{symbol: value[time] for symbol, value in schedule.items()}, **scalars}
        keep = abs(_number(now, 1 - now.kappa, known))
        low, high = keep * least[-1], keep * greatest[-1]
        least.append(np.maximum(np.maximum(low - length, length - high), 0))
        greatest.append(high + length)
        scalars = _scalars_after(now, scalars, known)
    return np.stack(least), np.stack(greatest)


def read_schedule(traced: Trace, given: Mapping[str, Any], steps: int) -> dict[sp.Symbol, Array]:
    """A value per step for each hyper-parameter; a number is the same at every step."""
    schedules = {n: v for n, v in given.items() if n in traced.symbols and np.ndim(v) > 0}
    plain = {n: v for n, v in given.items() if n not in schedules}
    values = {s: np.full(steps, v) for s, v in traced.values(**plain).items()}
    schedules = {n: _over_steps(n, v, steps) for n, v in schedules.items()}
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


def _start_of_scalars(law: StepLaw, formulas: Sequence[sp.Expr]) -> dict[sp.Symbol, Any]:
    """The counters that formulas ask for, of which the first value is known."""
    names = {letter: name for name, letter in law.step.letters.items()}
    counters = {law.step.scalars[n]: n for n in law.step.counters}
    found: dict[sp.Symbol, Any] = {}
    waiting = list(formulas)
    while waiting:
        asked = _spell_out(law, waiting.pop()).free_symbols
        for symbol in asked & counters.keys() - found.keys():
            letter = counters[symbol]
            start = law.step.traced.starts[names[letter]]
            if isinstance(start, sp.Expr):
                found[symbol] = float(start)
                waiting.append(sp.sympify(law.step.states[letter]))
    return found


def _scalars_after(
    now: StepLaw, scalars: Mapping[sp.Symbol, Any], known: Mapping[sp.Symbol, Any]
) -> dict[sp.Symbol, Any]:
    """The counters after a step."""
    letters = {symbol.name: symbol for symbol in scalars}
    return {
        symbol: _number(now, sp.sympify(now.step.states[letter]), known)
        for letter, symbol in letters.items()
    }


def _squared_after(law: StepLaw, is_open: bool) -> sp.Expr:
    keep = 1 - law.kappa
    return (
        W
        if law.constant
        else squared_norm_after(keep, 2 * keep * (CROSS if is_open else law.cross))
    )


def _recursions(now: StepLaw, law: StepLaw, unknowns: list[sp.Symbol]) -> dict[sp.Symbol, sp.Expr]:
    return {x: now.recursion.get(x, law.recursion[x]) for x in unknowns}


def _refuse_missing(
    law: StepLaw, first: StepLaw | None, unknowns: list[sp.Symbol], products: Mapping[str, Any]
) -> None:
    if law.constant:
        return
    loose = _unknown_at_start(law, first)
    known = {
        *law.step.facts.definitions,
        *law.step.traced.symbols.values(),
        W,
        S,
        *unknowns,
    }
    known -= loose
    asked = {s for u in unknowns for s in law.recursion[u].free_symbols} | law.kappa.free_symbols
    asked |= {CROSS} if law.open_because else law.cross.free_symbols
    lacking = {str(s) for s in asked - known - {*law.step.scalars.values()}} - products.keys()
    if lacking:
        unstarted = ", ".join(sorted({*map(str, loose)} & lacking))
        why = law.open_because or (f"nothing tells where {unstarted} starts" if unstarted else "")
        why = f" ({why})" if why else ""
        raise ValueError(
            f"{law.name}: the law needs {', '.join(sorted(lacking))} of each step{why}; give "
            "measured={'" + sorted(lacking)[0] + "': ...}, or use predict_range"
        )


def _refuse_infinite(law: StepLaw, schedule: Mapping[sp.Symbol, Array], time: int) -> None:
    """Refuse a norm that is not finite: most laws divide |s|^2 by the learning rate."""
    zeros = ", ".join(
        f"{symbol} = 0 at step {np.flatnonzero(values[: time + 1] == 0)[0]}"
        for symbol, values in schedule.items()
        if (values[: time + 1] == 0).any()
    )
    why = f": it divides by a number that is 0 ({zeros}); use predict_range" if zeros else ""
    raise ValueError(f"{law.name}: the law gives no finite norm after step {time}{why}")


def _unknown_at_start(law: StepLaw, first: StepLaw | None) -> set[sp.Symbol]:
    """The cross terms whose first value neither `init` nor the law of the first step gives."""
    told = first.recursion if first is not None else {}
    unknown = set()
    for name, letter in law.step.letters.items():
        start, cross = law.step.traced.starts[name], product("w", letter)
        if start is None or (start not in (0, (0, 0)) and cross not in told):
            unknown.add(cross)
    return unknown


def _number(law: StepLaw, expression: sp.Expr, known: Mapping[sp.Symbol, Any]) -> Any:
    """A formula at arrays."""
    expression = _spell_out(law, expression)
    symbols = sorted(expression.free_symbols, key=str)
    by_name = {s.name: value for s, value in known.items()}
    if lacking := [s.name for s in symbols if s.name not in by_name]:
        raise ValueError(
            f"{law.name}: the law needs {', '.join(lacking)} of each step, which norms and drive "
            "do not give"
        )
    function = _compiled(expression, tuple(symbols))
    with np.errstate(all="ignore"):
        return function(*(by_name[s.name] for s in symbols))


def _spell_out(law: StepLaw, expression: sp.Expr) -> sp.Expr:
    """A formula with names replaced by their meanings."""
    for name in reversed(law.step.facts.definitions):
        if expression.has(name):
            expression = expression.subs(name, law.step.facts.definitions[name])
    return expression


@lru_cache(maxsize=1024)
def _compiled(expression: sp.Expr, symbols: tuple[sp.Symbol, ...]) -> Any:
    return sp.lambdify([*symbols], expression, "numpy", dummify=True)
