"""Where the norm settles under weight decay, and how far a weight then turns per step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import sympy as sp

from spherenorm.registry import Recipe
from theory.norm_growth import NormGrowth, S, W, in_terms_of, norm_growth
from theory.one_step import OneStep, one_step
from theory.symbols import Vector, upright
from theory.text import show
from theory.trace import Trace, trace

__all__ = [
    "DIMENSION",
    "GAMMA",
    "Equilibrium",
    "NoEquilibriumError",
    "equilibrium",
    "late",
    "stationary_buffers",
]

GAMMA = sp.Symbol("gamma", positive=True)
"""The gradient's norm at |w| = 1: of a scale-invariant function, |g| = gamma / |w|."""

DIMENSION = sp.Symbol("d", positive=True)


class NoEquilibriumError(ValueError):
    """The norm of a recipe settles nowhere, or not where a formula says."""


@dataclass(frozen=True)
class Equilibrium:
    """The stationary point of the one-step recursion of |w|^2, <w, m> and |m|^2.

    Random gradients: each has norm gamma / |w|, is orthogonal to its weight and uncorrelated with the momentum. An entrywise
    second moment is replaced by its mean over the entries, d of them, and bias corrections have died out.

    Attributes:
        name, traced: the recipe's name and trace.
        fourth_power: |w|^4, in gamma or d and the hyper-parameters.
        squared_rotation: the squared effective step |w'/|w| - w/|w||^2 = |w' - w|^2 / |w|^2; for a small step, the squared
            angle in radians.
        assumptions: those of the derivation beside the ones above.
        open: the cases that the formulas leave open, such as whether a clip acts at the equilibrium's |g|.
    """

    name: str
    traced: Trace
    fourth_power: sp.Expr
    squared_rotation: sp.Expr
    assumptions: tuple[str, ...] = ()
    open: tuple[str, ...] = ()

    def leading(self, expression: sp.Expr, small: str = "lr") -> sp.Expr:
        """The leading term of a rational expression for a small hyper-parameter."""
        symbol = sp.Symbol(small, positive=True)
        if not expression.is_rational_function(symbol):
            raise ValueError(
                f"{self.name}: an expression with a root of {small} in it has no leading term here"
            )
        numerator, denominator = (
            sp.Poly(part, symbol) for part in sp.fraction(sp.cancel(expression))
        )
        (low, a), (high, b) = (
            min(((m[0], c) for m, c in p.terms())) for p in (numerator, denominator)
        )
        return upright(a / b * symbol ** (low - high))

    def formulas(self) -> dict[str, str]:
        """|w|^4 and the squared effective step in text, with their leading terms for a small learning rate."""
        texts = {}
        for name, exact in (
            ("|w|^4", self.fourth_power),
            ("(effective step)^2", self.squared_rotation),
        ):
            leading = self.leading(exact) if exact.is_rational_function() else exact
            texts[name] = (
                show(exact) if leading == exact else f"{show(exact)} ~ {show(leading)} for small lr"
            )
        return texts

    def __str__(self) -> str:
        lines = [f"equilibrium of {self.name} under decay and random gradients"]
        lines += [f"  {name:18} = {formula}" for name, formula in self.formulas().items()]
        return "\n".join([*lines, *(f"  where              {case}" for case in self.open)])

    __repr__ = __str__


def equilibrium(recipe: str | Recipe | Trace, **given: Any) -> Equilibrium:
    """Where the norm of a scale-invariant weight settles under `recipe`, and how far the weight then turns per step.

    Args:
        recipe: as for `norm_growth`.
        given: hyper-parameters to hold at a value; eps=0.0 for preconditioned recipes, whose eps spoils the closed form.

    Raises:
        NoEquilibriumError: the recipe has no decay, keeps the norm constant, or its stationary point has no closed form.
    """
    return _equilibrium(
        recipe if isinstance(recipe, Trace) else _traced(recipe, tuple(sorted(given.items())))
    )


@cache
def _traced(recipe: str | Recipe, given: tuple[tuple[str, Any], ...]) -> Trace:
    return trace(recipe, **dict(given))


@cache
def _equilibrium(traced: Trace) -> Equilibrium:
    # With a counter, symbols first and given numbers after: sums that hold (9/10)^t would be brought to a denominator of 10^t.
    general = (
        replace(traced, numbers={n: sp.Symbol(n, positive=True) for n in traced.numbers})
        if traced.scalar_states
        else traced
    )
    held = {general.numbers[name]: number for name, number in traced.numbers.items()}
    if norm_growth(general).constant:
        raise NoEquilibriumError(f"{traced.name}: the norm never changes")
    step = one_step(general, mean_field=True)
    opaque = [a for a in step.weight.terms if a in step.algebra.opaque]
    if opaque:
        raise NoEquilibriumError(
            f"{traced.name}: {step.algebra.opaque[opaque[0]]} is not linear in the gradients, in the mean either"
        )
    point = stationary(step)
    w = Vector.atom("w")
    moved = step.weight - w
    squared = late(step.settled(moved, moved), step)
    G = step.algebra.space.gram("g", "g")
    # At |w| = 1: |g| = gamma / |w| ties |w|^4 to |g|^2; a preconditioned step sees only d, with v = 1, which ties |w|^2 to d.
    fourth = (DIMENSION / point[G]) ** 2 if _second_moment(step) else GAMMA**2 / point[G]
    rotation = squared.subs(_unit_scale(step)).subs(point)
    fourth, rotation = (upright(sp.cancel(formula.subs(held))) for formula in (fourth, rotation))
    if fourth == 0 or fourth.has(sp.zoo, sp.oo) or not fourth.free_symbols & {GAMMA, DIMENSION}:
        raise NoEquilibriumError(f"{traced.name}: the norm does not settle")
    return Equilibrium(
        traced.name,
        traced,
        fourth,
        rotation,
        tuple(step.algebra.assumptions),
        _cases(step, held, fourth, rotation),
    )


def _cases(step: OneStep, held: dict[sp.Symbol, sp.Expr], *formulas: sp.Expr) -> tuple[str, ...]:
    """What the names of open cases in `formulas` mean."""
    meanings = step.algebra.definitions
    cases = []
    for name in sorted(sp.Tuple(*formulas).free_symbols & {*meanings}, key=str):
        meaning = meanings[name]
        for inner in reversed(meanings):  # a meaning holds earlier names
            meaning = meaning.subs(inner, meanings[inner])
        cases.append(f"{name} is {show(sp.piecewise_fold(meaning.subs(held)))}")
    return tuple(cases)


def _second_moment(step: OneStep) -> sp.Symbol | None:
    """The state that averages |g|^2 / d, if the step keeps one."""
    G = step.algebra.space.gram("g", "g")
    moments = [
        sp.Symbol(n, positive=True)
        for n, v in step.states.items()
        if not isinstance(v, Vector) and v.has(G)
    ]
    return moments[0] if moments else None


def _unit_scale(step: OneStep) -> dict[sp.Symbol, sp.Expr]:
    """The units in which |w| = 1 and, for a preconditioned step, v = 1: then |g|^2 = d v = d."""
    moment, G = _second_moment(step), step.algebra.space.gram("g", "g")
    return {
        W: sp.Integer(1),
        **({moment: sp.Integer(1), DIMENSION: G} if moment is not None else {}),
    }


def stationary(step: OneStep) -> dict[sp.Symbol, sp.Expr]:
    """The Gram entries at which one step changes none of them in expectation, in the units of `_unit_scale`.

    Raises:
        NoEquilibriumError: there is no such point, or it has no closed form.
    """
    space, buffers, units = step.algebra.space, step.buffers, _unit_scale(step)
    space.known.update({(b, "g"): sp.Integer(0) for b in buffers})
    G, moment = space.gram("g", "g"), _second_moment(step)
    if moment is not None:
        if (
            sp.simplify(late(step.states[moment.name], step).subs(G, DIMENSION * moment) - moment)
            != 0
        ):
            raise NoEquilibriumError(
                f"{step.traced.name}: the second moment {moment} is not of gradients alone (coupled decay enters it)"
            )
        for name, meaning in step.algebra.definitions.items():
            step.algebra.definitions[name] = sp.cancel(
                late(meaning, step).subs(G, DIMENSION * moment)
            )

    kappa = norm_growth(step.traced).kappa
    if kappa == 0:
        raise NoEquilibriumError(f"{step.traced.name}: without decay the norm does not settle")

    def settled(expression: sp.Expr) -> sp.Expr:
        return late(step.algebra.expand(expression, everything=True), step)

    drive = step.weight - Vector.atom("w") * (1 - kappa)
    after: dict[str, Any] = {"w": step.weight, **step.states}
    pairs = [
        ("w", "w"),
        *(("w", b) for b in buffers),
        *((a, b) for i, a in enumerate(buffers) for b in buffers[i:]),
    ]
    equations = [settled(space.inner(drive, drive)) - S]
    for a, b in pairs:
        value = settled(space.inner(after[a], after[b]))
        # In terms of |s|^2 the first equations are linear, with a projection in the step too.
        traded = (
            in_terms_of(step, drive.map(settled), "s", *(after[x].map(settled) for x in (a, b)))
            if a == "w"
            else value
        )
        simple = traded.free_symbols <= value.free_symbols | {S}
        equations.append((traded if simple else value) - space.gram(a, b))
    unknowns = [S, *(space.gram(a, b) for a, b in pairs[1:]), G]
    return _solve(step, [e.subs(units) for e in equations], unknowns)


def stationary_buffers(law: NormGrowth) -> tuple[dict[sp.Symbol, sp.Expr], sp.Expr]:
    """The cross terms and buffer products at which they stay under random gradients, at frozen |w|^2 and |g|^2, and |s|^2 there."""
    step = one_step(law.step.traced)
    space, buffers = step.algebra.space, step.buffers
    space.known.update({(b, "g"): sp.Integer(0) for b in buffers})
    after: dict[str, Any] = {"w": step.weight, **step.states}
    pairs = [
        *(("w", b) for b in buffers),
        *((a, b) for i, a in enumerate(buffers) for b in buffers[i:]),
    ]
    equations = [step.inner(after[a], after[b]) - space.gram(a, b) for a, b in pairs]
    solution = _solve(step, equations, [space.gram(a, b) for a, b in pairs])
    squared = space.inner(law.drive, law.drive)
    return solution, upright(sp.cancel(squared.subs(solution)))


def late(expression: sp.Expr, step: OneStep) -> sp.Expr:
    """`expression` after many steps: powers beta^t, with t a counter of the state, are 0."""
    counters = {
        sp.Symbol(n, positive=True) for n, v in step.states.items() if not isinstance(v, Vector)
    }
    return expression.replace(
        lambda e: e.is_Pow and bool(e.exp.free_symbols & counters), lambda e: sp.Integer(0)
    )


def _sample(step: OneStep, expression: sp.Expr) -> float:
    """`expression` with momenta at 1/2 and everything else small."""
    inside = {"[0, 1)", "[0, 1]"}
    return complex(
        expression.subs(
            {
                s: 0.5 if step.traced.intervals.get(s.name) in inside else 1e-3
                for s in expression.free_symbols
            }
        )
    ).real


def _polynomial(expression: sp.Expr) -> sp.Expr:
    """The numerator, without the powers of positive symbols that divide it."""
    numerator = sp.fraction(sp.cancel(expression))[0]
    return sp.expand(
        sp.Mul(
            *(
                f
                for f in sp.Mul.make_args(sp.factor_terms(numerator))
                if not f.as_base_exp()[0].is_positive
            )
        )
    )


def _solve(
    step: OneStep, equations: list[sp.Expr], unknowns: list[sp.Symbol]
) -> dict[sp.Symbol, sp.Expr]:
    """The solution, found by eliminating one unknown after the other from an equation in which it is linear.

    A last quadratic (Nesterov momentum under a projection) has two roots: the one near 0 is the cross term that decay leaves.
    """
    try:
        return _eliminated(step, equations, unknowns)
    except sp.PolynomialError as error:
        raise NoEquilibriumError(
            f"{step.traced.name}: no closed form, its equations are no polynomials in the products"
        ) from error


def _eliminated(
    step: OneStep, equations: list[sp.Expr], unknowns: list[sp.Symbol]
) -> dict[sp.Symbol, sp.Expr]:
    solution: dict[sp.Symbol, sp.Expr] = {}
    equations, left = [e for e in map(_polynomial, equations) if e != 0], list(unknowns)
    while left and equations:
        choices = [(e, x) for e in equations for x in left if e.has(x) and sp.degree(e, x) == 1]
        choices = choices or [
            (e, x)
            for e in equations
            for x in left
            if e.free_symbols & {*left} == {x} and sp.degree(e, x) == 2
        ]
        if not choices:
            break
        equation, unknown = min(
            choices, key=lambda c: (len(c[0].free_symbols & {*left}), sp.count_ops(c[0]))
        )
        value = min(
            map(upright, sp.solve(equation, unknown)), key=lambda root: abs(_sample(step, root))
        )
        solution = {x: upright(v.subs(unknown, value)) for x, v in solution.items()} | {
            unknown: value
        }
        left.remove(unknown)
        equations = [_polynomial(e.subs(unknown, value)) for e in equations if e is not equation]
        equations = [e for e in equations if e != 0]
    if left or equations:
        raise NoEquilibriumError(
            f"{step.traced.name}: no closed form for {', '.join(map(str, left)) or 'an equation left over'}"
        )
    return solution
