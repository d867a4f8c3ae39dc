"""A law run forward: the norm over many steps, from its start and the lengths of the steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import sympy as sp

from spherenorm_theory.algebra import Array, Trace
from spherenorm_theory.laws._quantities import S, W, product
from spherenorm_theory.laws._step_law import StepLaw, squared_norm_after

CROSS = product("w", "s")


def predict_norms(
    law: StepLaw,
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
    _refuse_missing(law, unknowns, products)
    formulas = [law.law.rhs, *(law.recursion[u] for u in unknowns)]
    before = {
        W: start**2,
        **dict.fromkeys(unknowns, np.zeros_like(start)),
        **_start_of_scalars(law, formulas),
    }
    given_at = (
        {
            **{symbol.name: value[time] for symbol, value in schedule.items()},
            **{name: value[time] for name, value in products.items()},
            S.name: length**2,
        }
        for time, length in enumerate(lengths)
    )
    predicted = [start]
    for time, after in enumerate(follow(law, before, given_at)):
        predicted.append(np.sqrt(np.maximum(after[W], 0)))
        if not np.isfinite(predicted[-1]).all():
            _refuse_infinite(law, schedule, time)
    return np.stack(predicted)


def follow(
    law: StepLaw, start: Mapping[sp.Symbol, Any], given: Iterable[Mapping[str, Any]]
) -> Iterator[dict[sp.Symbol, Any]]:
    """|w|^2, cross terms and counters after each step.

    Args:
        law: of the steps, with that of the first one.
        start: the values before the first step.
        given: what each step is told, by name: hyper-parameters, |s|^2, products that are measured.
    """
    values = dict(start)
    compiled: dict[sp.Symbol, Callable[[Mapping[str, Any]], Any]] = {}
    for time, told in enumerate(given):
        if time < 2:
            now = law.first if law.first is not None and time == 0 else law
            compiled = {x: compile_formula(now, _after(now, law, x)) for x in values}
        known = {**told, **{x.name: value for x, value in values.items()}}
        after = {x: number(known) for x, number in compiled.items()}
        values = {
            x: np.broadcast_to(value, start[x].shape) if np.ndim(start[x]) else value
            for x, value in after.items()
        }
        yield values


def _after(now: StepLaw, law: StepLaw, x: sp.Symbol) -> sp.Expr:
    """The formula of a quantity after the present step."""
    if x == W:
        keep = 1 - now.kappa
        cross = CROSS if law.open_because else now.cross
        return W if now.constant else squared_norm_after(keep, 2 * keep * cross)
    if x in law.recursion:
        return now.recursion.get(x, law.recursion[x])
    return sp.sympify(now.step.states[x.name])


def predict_range(
    law: StepLaw, norms: Any, drive: Any, given: Mapping[str, Any]
) -> tuple[Array, Array]:
    """The least and the greatest |w_t|, since |<w, s>| <= |w| |s|."""
    start, lengths = _start_and_lengths(norms, drive)
    schedule = read_schedule(law.step.traced, given, len(lengths))
    hypers = [{s.name: x[time] for s, x in schedule.items()} for time in range(len(lengths))]
    counters = _start_of_scalars(law, [law.kappa])
    before = [counters, *follow(law, counters, hypers)]
    keeps = [compile_formula(each, 1 - each.kappa) for each in (law.first or law, law)]
    least, greatest = [start], [start]
    for time, length in enumerate(lengths):
        known = {**hypers[time], **{s.name: x for s, x in before[time].items()}}
        keep = abs(keeps[time > 0](known))
        low, high = keep * least[-1], keep * greatest[-1]
        least.append(np.maximum(np.maximum(low - length, length - high), 0))
        greatest.append(high + length)
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
        asked = law.step.facts.spell_out(waiting.pop()).free_symbols
        for symbol in asked & counters.keys() - found.keys():
            letter = counters[symbol]
            start = law.step.traced.starts[names[letter]]
            if isinstance(start, sp.Expr):
                found[symbol] = float(start)
                waiting.append(sp.sympify(law.step.states[letter]))
    return found


def _refuse_missing(law: StepLaw, unknowns: list[sp.Symbol], products: Mapping[str, Any]) -> None:
    if law.constant:
        return
    loose = _unknown_at_start(law)
    known = {*law.step.facts.definitions, *law.step.traced.symbols.values(), W, S, *unknowns}
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


def _unknown_at_start(law: StepLaw) -> set[sp.Symbol]:
    """The cross terms whose first value neither `init` nor the law of the first step gives."""
    told = law.first.recursion if law.first is not None else {}
    unknown = set()
    for name, letter in law.step.letters.items():
        start, cross = law.step.traced.starts[name], product("w", letter)
        if start is None or (start not in (0, (0, 0)) and cross not in told):
            unknown.add(cross)
    return unknown


def compile_formula(law: StepLaw, expression: sp.Expr) -> Callable[[Mapping[str, Any]], Any]:
    """A formula as a function of values by name."""
    expression = law.step.facts.spell_out(expression)
    symbols = sorted(expression.free_symbols, key=str)
    function = sp.lambdify(symbols, expression, "numpy", dummify=True)

    def number(known: Mapping[str, Any]) -> Any:
        if lacking := [s.name for s in symbols if s.name not in known]:
            raise ValueError(
                f"{law.name}: the law needs {', '.join(lacking)} of each step, which norms and "
                "drive do not give"
            )
        with np.errstate(all="ignore"):
            return function(*(known[s.name] for s in symbols))

    return number
