"""Stationary points of the one-step recursion under random gradients.

A random gradient is orthogonal to its weight and uncorrelated with the momentum. In expectation one
step maps the products |w|^2, <w, m> and |m|^2 to rational functions of themselves; at a stationary
point it changes none of them.

A step along the sign of a momentum has no such finite set of products. Its point is a sum over all
earlier steps, of the correlations that signs of Gaussian entries have.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
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
    step = read_random_step(traced)
    sign = find_sign(step)
    if sign is None:
        refuse_opaque(step)
    moment = find_second_moment(step)
    if moment is not None:
        at_rest = {step.algebra.space.gram("g", "g"): _resting_gradient(step, moment)}
        for name, meaning in step.facts.definitions.items():
            step.facts.definitions[name] = sp.cancel(drop_transients(meaning, step).subs(at_rest))
    _refuse_other_decay(step)
    refuse_unless_homogeneous(step, moment, relative=moment is not None or sign is not None)
    return step


def read_random_step(traced: Trace) -> OneStep:
    """One step in the mean field, with gradients that are orthogonal to weight and momenta."""
    step = _without_bystanders(one_step(traced, mean_field=True))
    _decorrelate(step)
    return step


def refuse_opaque(step: OneStep) -> None:
    """Refuse a step along an entrywise operation that has no mean."""
    opaque = [atom for atom in step.weight.terms if atom in step.algebra.opaque]
    if opaque:
        raise NoEquilibriumError(
            f"no equilibrium of {step.traced.name} is derived: "
            f"{step.algebra.opaque[opaque[0]].origin} is not linear in the gradients, in the mean "
            "either"
        )


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

    In the units of `unit_scale`; of a step along a sign in those of its learning rate, at any
    |g|^2.

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
    if (sign := find_sign(step)) is not None:
        squared, moved_by = _point_of_sign(step, sign, 1 - kappa, drive.map(resolve), resolve)
        return squared.subs(held), sp.Integer(1), moved_by.subs(held)
    after = step.after
    equations = [resolve(space.inner(drive, drive)) - S]
    pairs = [("w", "w"), *buffer_pairs(step)]
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


class ArcsineSum(sp.Function):  # type: ignore[misc]  # sympy has no types
    """sum over k = 1, 2, ... of a^k arcsin(r b^(k-1)), for |a b| < 1: of floats a float."""

    nargs = 3

    @classmethod
    def eval(cls, a: sp.Expr, r: sp.Expr, b: sp.Expr) -> sp.Expr | None:
        if a == 0 or r == 0:
            return sp.Integer(0)
        numbers = all(x.is_number for x in (a, r, b))
        measured = any(x.has(sp.Float) for x in (a, r, b))
        return _arcsine_sum(a, r, b) if numbers and measured else None

    def _eval_evalf(self, prec: int) -> sp.Expr:
        return _arcsine_sum(*self.args)


def _arcsine_sum(*arguments: sp.Expr) -> sp.Expr:
    a, r, b = map(float, arguments)
    if not abs(a * b) < 1:
        return sp.nan
    terms = 1 + math.ceil(math.log(1e-17) / math.log(abs(a * b))) if b else 1
    k = np.arange(terms)
    return sp.Float(float((a ** (k + 1) * np.arcsin(r * b**k)).sum()))


def find_sign(step: OneStep) -> str | None:
    """The atom u = sign(v) of a step w' = a w + c u, where v is a sum of gradients; else None."""
    opaque, moving = step.algebra.opaque, step.weight.terms.keys() - {"w"}
    if len(moving) != 1 or not moving <= opaque.keys():
        return None
    (atom,) = moving
    _, function, arguments = opaque[atom]
    random = {"g", *step.buffers}
    return atom if function is np.sign and {*arguments[0].terms} <= random else None


def _point_of_sign(
    step: OneStep, sign: str, kept: sp.Expr, drive: Vector, resolve: Callable[[sp.Expr], sp.Expr]
) -> tuple[sp.Expr, sp.Expr]:
    """|w|^2 and |w' - w|^2 at rest under w' = a w + c sign(v), for Gaussian gradients.

    The weight is c times the sum of a^k u over earlier steps. With r_k the correlation of the signs
    of one entry, k steps apart,

        |w|^2 = c^2 d s / (1 - a^2),    s = 1 + 2 sum_k a^k r_k,
        |w' - w|^2 = |w|^2 ((1 - a^2) / s - (1 - a)^2) / a.

    Gaussian entries of correlation rho have signs of correlation 2 arcsin(rho) / pi. Of one
    momentum, v = p m + q g and m' = b m + e g, it is rho_k = rho_1 b^(k-1).

    Args:
        step, sign: w' and u.
        kept: a.
        drive: c u, where nothing else moves the weight.
        resolve: a formula after many steps, without names.

    Raises:
        NoEquilibriumError: something else does, v holds several momenta or one of more than
            gradients, or the step changes with other numbers than the hyper-parameters.

    Source: Van Vleck and Middleton 1966 (arcsine law); Kosson et al. 2024 have the limit of small
    correlations.
    """
    name, buffers = step.traced.name, step.buffers
    if len(buffers) > 1 or {*drive.terms} != {sign}:
        what = "of several momenta" if len(buffers) > 1 else "of which a part is taken away"
        raise NoEquilibriumError(f"no equilibrium of {name} is derived: a step along a sign {what}")
    (v,), one = step.algebra.opaque[sign].arguments, sp.Integer(1)
    shares: list[sp.Expr] = [sp.Integer(0), one, sp.Integer(0), sp.Integer(0)]
    for m in buffers:
        if entering := sorted({*step.states[m].terms} - {m, "g"}):
            raise NoEquilibriumError(
                f"no equilibrium of {name} is derived: a step along a sign of a momentum that "
                f"{', '.join(entering)} enters"
            )
        shares = [v[m], v["g"], step.states[m][m], step.states[m]["g"]]
    a, c, p, q, b, e = map(resolve, (kept, drive[sign], *shares))
    _refuse_unknown(step, [a, c, p, q, b, e], [])
    variance = p**2 * e**2 / (1 - b**2) + q**2
    first = p * (q * e + p * e**2 * b / (1 - b**2)) / variance
    s = 1 + 4 / sp.pi * ArcsineSum(a, sp.cancel(first), b)
    squared = c**2 * DIMENSION * s / (1 - a**2)
    return squared, squared * ((1 - a**2) / s - (1 - a) ** 2) / a


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
    space, after, pairs = step.algebra.space, step.after, buffer_pairs(step)
    equations = [step.inner(after[a], after[b]) - space.gram(a, b) for a, b in pairs]
    unknowns = [space.gram(a, b) for a, b in pairs]
    _refuse_unknown(step, equations, [*unknowns, W, space.gram("g", "g")])
    solution = _solve(step, equations, unknowns)
    squared = space.inner(law.drive, law.drive)
    return solution, normalize_signs(sp.cancel(squared.subs(solution)))


def _decorrelate(step: OneStep) -> None:
    """Put <m, g> = 0 for every buffer m."""
    step.algebra.space.known.update({(m, "g"): sp.Integer(0) for m in step.buffers})


def buffer_pairs(step: OneStep) -> list[tuple[str, str]]:
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
