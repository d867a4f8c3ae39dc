"""Stationary points of the one-step recursion under random gradients.

A random gradient is orthogonal to its weight and uncorrelated with the momentum. In expectation one
step maps the products |w|^2, <w, m> and |m|^2 to rational functions of themselves; at a stationary
point it changes none of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import sympy as sp

from spherenorm_theory.algebra import (
    DIMENSION,
    Entries,
    NoClosedFormError,
    Trace,
    Vector,
    eliminate,
    normalize_signs,
    show,
    tidy,
)
from spherenorm_theory.laws._homogeneity import NoEquilibriumError, refuse_unless_homogeneous
from spherenorm_theory.laws._one_step import OneStep, express_inner, one_step
from spherenorm_theory.laws._quantities import S, W
from spherenorm_theory.laws._step_law import StepLaw


def drop_transients(expression: sp.Expr, step: OneStep) -> sp.Expr:
    """The expression after many steps: a power x^t of a counter t is 0 where |x| < 1.

    Names of formulas in a counter are written out first.

    Raises:
        NoEquilibriumError: the expression holds a power x^t of which |x| < 1 is not known, or the
            counter itself.
    """
    counters = {step.scalars[letter] for letter in step.counters}
    moving = {*counters}
    for name, meaning in step.facts.definitions.items():
        if meaning.free_symbols & moving and not meaning.has(sp.Piecewise):
            moving.add(name)
    for name in [n for n in reversed(step.facts.definitions) if n in moving]:
        expression = expression.subs(name, step.facts.definitions[name])
    if not expression.free_symbols & counters:
        return expression
    after = _limit_of_numbers(expression, counters)
    moving = {p for p in after.atoms(sp.Pow) if p.exp.free_symbols & counters}
    for power in moving:
        if not _vanishes(power, counters, step):
            raise NoEquilibriumError(
                f"{step.traced.name}: {show(power)} is not known to go to 0 after many steps"
            )
    after = after.xreplace(dict.fromkeys(moving, sp.Integer(0)))
    if left := after.free_symbols & counters:
        raise NoEquilibriumError(
            f"{step.traced.name}: the step changes with {', '.join(map(str, left))} for ever"
        )
    return after


def _vanishes(power: sp.Pow, counters: set[sp.Symbol], step: OneStep) -> bool:
    """Tell if |x| < 1 is known for a power x^(n t + c) with n > 0."""
    rates = [sp.diff(power.exp, counter) for counter in power.exp.free_symbols & counters]
    if not all(rate.is_positive for rate in rates):
        return False
    if power.base.is_number:
        return bool(abs(power.base) < 1)
    interval = step.facts.domains.get(power.base)
    return interval is not None and interval.low >= 0 and interval.high == 1 and 1 not in interval


def _limit_of_numbers(expression: sp.Expr, counters: set[sp.Symbol]) -> sp.Expr:
    """The expression with powers of numbers below 1 alone: (10^t - 9^t) / 10^t is 1 - (9/10)^t."""
    plain = [
        p
        for p in expression.atoms(sp.Pow)
        if p.base.is_number and abs(p.base) > 1 and p.exp.free_symbols & counters
    ]
    if not plain or len(counters) > 1:
        return expression
    (counter,) = counters
    numerator, denominator = sp.fraction(sp.together(sp.expand_power_exp(expression)))
    numerator, denominator = map(sp.expand, (numerator, denominator))
    greatest = max(_growth(term, counter) for term in sp.Add.make_args(denominator))
    if greatest == 1:
        return expression
    return _divided(numerator, greatest, counter) / _divided(denominator, greatest, counter)


def _growth(term: sp.Expr, counter: sp.Symbol) -> sp.Expr:
    """The number b of a term c b^t."""
    powers = [f for f in sp.Mul.make_args(term) if f.is_Pow and f.exp.has(counter)]
    return sp.Mul(*(f.base ** sp.diff(f.exp, counter) for f in powers if f.base.is_number))


def _divided(total: sp.Expr, base: sp.Expr, counter: sp.Symbol) -> sp.Expr:
    """A sum of terms c b^t, divided by base^t."""
    terms = []
    for term in sp.Add.make_args(total):
        growth = _growth(term, counter)
        rest = sp.simplify(term / growth**counter) if growth != 1 else term
        terms.append(rest * (growth / base) ** counter)
    return sp.Add(*terms)


def find_second_moment(step: OneStep) -> sp.Symbol | None:
    """The state that averages |g|^2, or |g|^2 / d, if the step keeps one."""
    G = step.algebra.space.gram("g", "g")
    numbers = {n: v for n, v in step.states.items() if not isinstance(v, Vector)}
    moments = [step.scalars[n] for n, v in numbers.items() if v.has(G)]
    return moments[0] if moments else None


def unit_scale(step: OneStep) -> dict[sp.Symbol, sp.Expr]:
    """The units in which the stationary point is found.

    Without a second moment |w| = 1, and |g| is unknown. With one, gradients of any length give the
    same step: v = 1, |g|^2 has the value that keeps it, and |w| is unknown.
    """
    one, moment = sp.Integer(1), find_second_moment(step)
    if moment is None:
        return {W: one}
    G = step.algebra.space.gram("g", "g")
    return {G: _resting_gradient(step, moment).subs(moment, one), moment: one}


def _resting_gradient(step: OneStep, moment: sp.Symbol) -> sp.Expr:
    """|g|^2 at which the second moment stays as it is.

    Raises:
        NoEquilibriumError: it holds more than gradients.
    """
    G = step.algebra.space.gram("g", "g")
    after = sp.expand(drop_transients(step.states[moment.name], step) - moment)
    slope = sp.cancel(sp.diff(after, G))
    rest = sp.cancel(-after.subs(G, 0) / slope)
    if slope.has(G) or rest.free_symbols - {DIMENSION, moment}:
        hypers = {*step.traced.symbols.values()}
        loose = sorted(map(str, rest.free_symbols - {DIMENSION, moment} - hypers))
        entering = "coupled decay" if W in rest.free_symbols else ", ".join(loose) or "a number"
        raise NoEquilibriumError(
            f"{step.traced.name}: the second moment {moment} is not of gradients alone "
            f"({entering} enters it)"
        )
    return rest


def read_mean_field_step(traced: Trace) -> OneStep:
    """One step under random gradients after many steps, with its second moment at rest.

    Raises:
        NoEquilibriumError: the step holds an entrywise operation that is not linear in the
            gradients, a second moment of more than gradients, or lengths that do not scale.
    """
    step = _without_bystanders(one_step(traced, mean_field=True))
    algebra = step.algebra
    opaque = [atom for atom in step.weight.terms if atom in algebra.opaque]
    if opaque:
        raise NoEquilibriumError(
            f"no equilibrium of {traced.name} is derived: {algebra.opaque[opaque[0]].origin} "
            "is not linear in the gradients, in the mean either"
        )
    _decorrelate(step)
    moment = find_second_moment(step)
    if moment is not None:
        at_rest = {algebra.space.gram("g", "g"): _resting_gradient(step, moment)}
        for name, meaning in step.facts.definitions.items():
            step.facts.definitions[name] = sp.cancel(drop_transients(meaning, step).subs(at_rest))
    _refuse_other_decay(step)
    refuse_unless_homogeneous(step, moment)
    return step


def _refuse_other_decay(step: OneStep) -> None:
    """Refuse a step that leaves the weight its length, or takes a share that changes with it.

    A projection acts on the products of the weight with other vectors; decay on the weight itself.
    """
    name, kept = step.traced.name, step.weight["w"]
    for symbol, meaning in reversed(step.facts.definitions.items()):
        kept = kept if meaning.has(sp.Piecewise) else kept.subs(symbol, meaning)
    products = {s: 0 for s in kept.free_symbols if s.name.startswith("<w,")}
    kept = drop_transients(tidy(kept.subs(products)), step)
    enters = any(isinstance(x, Vector) and x["w"] != 0 for x in step.states.values())
    if kept == 1 and not enters:
        raise NoEquilibriumError(f"{name}: without decay the norm does not settle")
    named = {*step.facts.definitions, *step.traced.symbols.values()}
    fixed = {*named, *step.scalars.values(), DIMENSION}
    if lengths := sorted(map(str, kept.free_symbols - fixed)):
        raise NoEquilibriumError(
            f"{name}: the decay is no fixed share of the weight, it changes with "
            f"{', '.join(lengths)}; such a norm has no closed form"
        )


def _without_bystanders(step: OneStep) -> OneStep:
    """The step without states that no later weight depends on, such as an average of weights."""
    needed: set[str] = set()
    waiting: list[Any] = [step.weight]
    while waiting:
        names = {*_names_in(waiting.pop())} - needed
        needed |= names
        algebra = step.algebra
        waiting += [
            x
            for names_of in (step.states, algebra.composites)
            for n, x in names_of.items()
            if n in names
        ]
        waiting += [x for n, made in algebra.opaque.items() if n in names for x in made.arguments]
        waiting += [x for symbol, x in step.facts.definitions.items() if symbol.name in names]
    return replace(step, states={n: x for n, x in step.states.items() if n in needed})


def _names_in(x: Any) -> Iterator[str]:
    """The atoms, states and names that a value holds."""
    for part in x.arguments if isinstance(x, Entries) else ():
        yield from _names_in(part)
    if isinstance(x, Vector):
        yield from x.terms
        x = sp.Tuple(*x.terms.values())
    for symbol in x.free_symbols if isinstance(x, sp.Basic) else ():
        yield symbol.name
        yield from re.split(r"[<>|,]", symbol.name)


def find_stationary_point(
    step: OneStep, kappa: sp.Expr, held: Mapping[sp.Symbol, sp.Expr]
) -> tuple[sp.Expr, sp.Expr, sp.Expr]:
    """|w|^2, |g|^2 and |w' - w|^2 that one step leaves as they are in expectation.

    In the units of `unit_scale`.

    Args:
        step: as `read_mean_field_step` returns it.
        kappa: the decay of one step.
        held: numbers for some of the hyper-parameters.

    Raises:
        NoEquilibriumError: there is no such point, or it has no closed form.
    """
    space, w = step.algebra.space, Vector.atom("w")
    G, moved = space.gram("g", "g"), sp.Dummy("|w'-w|^2", real=True)

    def resolve(expression: sp.Expr) -> sp.Expr:
        return drop_transients(step.facts.expand(expression, everything=True), step)

    drive = step.weight - w * (1 - kappa)
    after = step.after
    equations = [resolve(space.inner(drive, drive)) - S]
    pairs = [("w", "w"), *_buffer_pairs(step)]
    for a, b in pairs:
        value = resolve(space.inner(after[a], after[b]))
        if a == "w":
            # In terms of |s|^2 the first equations are linear, with a projection in the step too.
            vectors = (x.map(resolve) for x in (after[a], after[b]))
            in_drive = express_inner(step, drive.map(resolve), "s", *vectors)
            value = in_drive if in_drive.free_symbols <= value.free_symbols | {S} else value
        equations.append(value - space.gram(a, b))
    way = step.weight - w
    equations.append(resolve(space.inner(way, way)) - moved)
    units = unit_scale(step)
    free = G if W in units else W
    unknowns = [S, *(space.gram(a, b) for a, b in pairs[1:]), free, moved]
    equations = [e.subs(units).subs(held) for e in equations]
    _refuse_unknown(step, equations, unknowns)
    point = {**units, **_solve(step, equations, unknowns, [free, moved])}
    return point[W], point[G], point[moved]


def _refuse_unknown(
    step: OneStep, equations: Sequence[sp.Expr], unknowns: Sequence[sp.Symbol]
) -> None:
    """Refuse equations with a product that random gradients do not fix, as the mean of entries."""
    names = {*step.facts.definitions, *step.traced.symbols.values(), DIMENSION, *unknowns}
    if loose := sorted(sp.Tuple(*equations).free_symbols - names, key=str):
        raise NoEquilibriumError(
            f"{step.traced.name}: the step depends on {', '.join(map(str, loose))}, which random "
            "gradients do not fix"
        )


def find_stationary_buffers(law: StepLaw) -> tuple[dict[sp.Symbol, sp.Expr], sp.Expr]:
    """The products of the buffers at rest, at frozen |w|^2 and |g|^2, and |s|^2 there.

    Raises:
        NoEquilibriumError: they have no closed form.
    """
    step = one_step(law.step.traced)
    _decorrelate(step)
    space, after, pairs = step.algebra.space, step.after, _buffer_pairs(step)
    equations = [step.inner(after[a], after[b]) - space.gram(a, b) for a, b in pairs]
    unknowns = [space.gram(a, b) for a, b in pairs]
    _refuse_unknown(step, equations, [*unknowns, W, space.gram("g", "g")])
    solution = _solve(step, equations, unknowns)
    squared = space.inner(law.drive, law.drive)
    return solution, normalize_signs(sp.cancel(squared.subs(solution)))


def _decorrelate(step: OneStep) -> None:
    """Put <m, g> = 0 for every buffer m."""
    step.algebra.space.known.update({(m, "g"): sp.Integer(0) for m in step.buffers})


def _buffer_pairs(step: OneStep) -> list[tuple[str, str]]:
    """The products <w, m> and <m, n> of the buffers m, n."""
    buffers = step.buffers
    among = [(a, b) for i, a in enumerate(buffers) for b in buffers[i:]]
    return [*(("w", m) for m in buffers), *among]


def _solve(
    step: OneStep,
    equations: list[sp.Expr],
    unknowns: list[sp.Symbol],
    wanted: list[sp.Symbol] | None = None,
) -> dict[sp.Symbol, sp.Expr]:
    """The solution. Of two roots the one near 0 is taken: the cross term that decay leaves."""

    def size(root: sp.Expr) -> float:
        """|root| with momenta at 1/2 and everything else small."""
        momenta = {n for n, interval in step.traced.intervals.items() if interval.high == 1}
        values = {s: 0.5 if s.name in momenta else 1e-3 for s in root.free_symbols}
        return abs(complex(root.subs(values)).real)

    try:
        return eliminate(equations, unknowns, size, wanted)
    except NoClosedFormError as error:
        raise NoEquilibriumError(f"{step.traced.name}: {error}") from error
