r"""Steps along a direction of degree 0: the sign of a momentum, or its orthogonal factor.

No finite set of products closes their recursion. But the weight is a sum over all earlier steps:
with w' = a w + c u, where the directions u of steps that are k apart have the correlation F_k,

    <w, u> = c |u|^2 sum_{k>=1} a^(k-1) F_k,
    |w|^2 = c^2 |u|^2 (1 + 2 sum_{k>=1} a^k F_k) / (1 - a^2).

The momenta D, of which u is a function, have the correlation rho_k, which the record gives, and
F_k = F(rho_k): (2 / pi) arcsin rho for signs of Gaussian entries; measured for orthogonal factors.

Source: Van Vleck and Middleton 1966 (arcsine law); Kosson et al. 2024 have the limit of small
correlations of signs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import sympy as sp

from spherenorm import rules as r
from spherenorm_theory.equilibria.mean_field import (
    FixedPoint,
    NoEquilibriumError,
    compiled,
    drop_transients,
    find_fixed_point,
    refuse_unknown,
)
from spherenorm_theory.evaluate import Array
from spherenorm_theory.opaque_rules import RANK, SCALE, SHARE, Overlap
from spherenorm_theory.printing import show
from spherenorm_theory.step import Step
from spherenorm_theory.symbols import DIMENSION, Inner, Norm, Vector
from spherenorm_theory.vectors import OpaqueVector

TERMS = 4000
"""Of a sum over earlier steps, at most."""


def arcsine_law(rho: Array) -> Any:
    """The correlation of signs of Gaussian numbers."""
    return 2 / math.pi * np.arcsin(rho)


class OverlapSum(sp.Function):  # type: ignore[misc]  # sympy has no types
    """sum over k = 1, 2, ... of a^k F(r b^(k-1)), for |a b| < 1.

    F is the overlap of orthogonal factors, which depends on the shape of the matrix; the value in
    numbers is that of signs, by which the formulas are held against the iterated step.
    """

    nargs = 3

    def overlap(self, rho: Array) -> Any:
        """F."""
        return arcsine_law(rho)

    def _eval_evalf(self, prec: int) -> sp.Expr:
        a, r, b = map(float, self.args)
        k = np.arange(TERMS)
        return sp.Float(float((a ** (k + 1) * self.overlap(r * b**k)).sum()))


class ArcsineSum(OverlapSum):
    """The same with F = arcsin."""

    def overlap(self, rho: Array) -> Any:
        """F."""
        return np.arcsin(rho)

    @classmethod
    def eval(cls, a: sp.Expr, r: sp.Expr, b: sp.Expr) -> sp.Expr | None:
        return sp.S.Zero if a == 0 or r == 0 else None


@dataclass(frozen=True)
class HomogeneousStep:
    """A step w' = a w + c u with a direction u of degree 0 in momenta.

    Attributes:
        step: the step.
        atom: u.
        made: what u is: a sign, or an orthogonal factor (behind `Graft`, as long).
        argument: D, of which u is a function.
        keep, factor: a and c, functions of |w|, |u|, <w, u> and the hyper-parameters.
    """

    step: Step
    atom: str
    made: OpaqueVector
    argument: Vector
    retention: sp.Expr
    factor: sp.Expr

    @staticmethod
    def of(step: Step) -> HomogeneousStep | None:
        """The form of a step, if it has this one.

        Raises:
            NoEquilibriumError: it is along such a direction, and not of this form.
        """
        opaque, refused = (
            step.algebra.opaque_vectors,
            f"no equilibrium of {step.traced.name} is derived:",
        )
        weight = step.algebra.expand_names(step.weight)
        moving = [a for a in weight if a != "w"]
        directed = [a for a in moving if a in opaque and opaque[a].square is not None]
        if not directed:
            return None
        (atom, *more) = directed
        if more or len(moving) > 1:
            raise NoEquilibriumError(
                f"{refused} a step along {show(opaque[atom].formula)} of which a part is taken "
                "away, or beside another one"
            )
        made = opaque[atom]
        if isinstance(made.rule, r.Graft) and made.argument is not None:
            # The lengths of rows at rest are at their mean, so that rows keep their shares.
            (inner, *others) = made.argument
            if others or not isinstance(opaque[inner].rule, r.Orthogonalize):
                return None
            made = opaque[inner]
        assert made.argument is not None
        argument = step.algebra.expand_names(made.argument, canonical=True)
        states = [step.algebra.expand_names(step.states[m]) for m in step.buffers if m in argument]
        entering = {a for x in (argument, *states) for a in x} - {"g", *step.buffers}
        if entering:
            names = ", ".join(sorted(entering))
            raise NoEquilibriumError(
                f"{refused} {show(made.formula)} of a momentum that {names} enters"
            )
        return HomogeneousStep(step, atom, made, argument, weight["w"], weight[atom])

    @property
    def is_sign(self) -> bool:
        """True for a sign, False for an orthogonal factor."""
        return self.made.rule is None

    @property
    def momenta(self) -> list[str]:
        """The momenta that the weight depends on."""
        return [m for m in self.step.buffers if m in self.step.states]

    def correlations(self, values: Mapping[sp.Symbol, float]) -> Array:
        """rho_k of D_t and D_{t+k}, for k = 1, 2, ..., of gradients that are uncorrelated."""
        step, names = self.step, self.momenta

        def number(x: sp.Expr) -> float:
            return float(drop_transients(x, step).subs(values))

        states = [step.algebra.expand_names(step.states[m]) for m in names]
        kept = np.array([[number(state[n]) for n in names] for state in states])
        x = np.array([number(state["g"]) for state in states])
        read = np.array([number(self.argument[m]) for m in names])
        response = [number(self.argument["g"])]
        while names and len(response) < TERMS:
            response.append(float(read @ x))
            x = kept @ x
            if np.abs(x).max() < 1e-16 * max(1.0, abs(response[0])):
                break
        h = np.array(response)
        whole = np.correlate(h, h, "full")[len(h) - 1 :]
        rho: Array = np.clip(whole[1:] / whole[0], -1, 1)
        return rho

    def fixed_point(
        self,
        values: Mapping[sp.Symbol, float],
        shape: int | Sequence[int],
        norm: float = 1.0,
        gamma: float = 1.0,
        overlap: Callable[[Array], Any] | None = None,
    ) -> FixedPoint:
        """The point at which the step rests, whatever the lengths of gradients.

        Args:
            values: all hyper-parameters.
            shape: of the weight.
            norm: from which it starts; a norm that is held stays there.
            gamma: not used.
            overlap: another F, of steps as long as signs.

        Raises:
            NoEquilibriumError: it does not rest.
            ValueError: an orthogonal factor of a number of entries, which has no shape.
        """
        step = self.step
        entries = square = float(shape if isinstance(shape, int) else math.prod(shape))
        values = {**{s: float(x) for s, x in step.traced.exact_values.items()}, **values}
        kernel: Callable[[Array], Any] = overlap or arcsine_law
        if isinstance(self.made.rule, r.Orthogonalize) and overlap is None:
            if isinstance(shape, int):
                raise ValueError(
                    f"{step.traced.name}: the shape of the matrix is needed, got {shape} entries"
                )
            measured = Overlap.of(self.made.rule, tuple(shape))
            kernel, square = measured, measured.square
        overlaps = kernel(self.correlations(values))
        held = {s: norm for n, s in step.scalars.items() if step.states.get(n) == s}
        # u may be as long as the factor behind it, which has a letter of its own.
        similar_shape = (
            a for a, x in step.algebra.opaque_vectors.items() if a == self.atom or x is self.made
        )
        lengths = {Norm(a): math.sqrt(square) for a in similar_shape}
        fixed = {**values, **held, **lengths, DIMENSION: entries}
        symbols = [Norm("w"), Inner("w", self.atom), *fixed]
        shares = (
            step.algebra.expand_products(x, open_branches=True)
            for x in (self.retention, self.factor)
        )
        whole = sp.Tuple(*(drop_transients(x, step) for x in shares))
        refuse_unknown(step.traced.name, whole.free_symbols - {*symbols})
        function = compiled(symbols, whole)
        powers = np.arange(len(overlaps))

        def move(x: Array) -> tuple[Array, float]:
            squared = math.exp(x[0])
            along = min(max(x[1], -1.0), 1.0) * math.sqrt(squared * square)  # of a cosine
            a, c = function(math.sqrt(squared), along, *fixed.values())
            new = c * square * float(np.float_power(a, powers) @ overlaps)
            after = a * a * squared + 2 * a * c * along + c * c * square
            moved = (a - 1) ** 2 * squared + 2 * (a - 1) * c * along + c * c * square
            return np.array([math.log(after), new / math.sqrt(after * square)]), moved / squared

        return find_fixed_point(step.traced.name, move, np.array([2 * math.log(norm), 0.0]), values)


def stationary_along(directed: HomogeneousStep) -> tuple[sp.Expr, sp.Expr]:
    """|w|^4 and the squared chord at rest, of a fixed share a and a step c u.

    With p, q the shares of momentum and gradient in D, and m' = b m + e g, the correlations
    are rho_k = rho_1 b^(k-1).

    Raises:
        NoEquilibriumError: a or c change with lengths, or D holds several momenta.
    """
    step, refused = directed.step, f"no equilibrium of {directed.step.traced.name} is derived:"
    a, c = (
        drop_transients(step.algebra.expand_and_simplify(x), step)
        for x in (directed.retention, directed.factor)
    )
    loose = (a.free_symbols | c.free_symbols) - {*step.traced.symbols.values()}
    if any(isinstance(s, Inner) for s in loose):
        made = show(directed.made.formula)
        raise NoEquilibriumError(f"{refused} a step along {made} of which a part is taken away")
    if loose:
        raise NoEquilibriumError(
            f"{step.traced.name}: the decay is no fixed share of the weight, it changes with "
            f"{', '.join(sorted(map(str, loose)))}; such a norm has no closed form"
        )
    if len(directed.momenta) > 1:
        raise NoEquilibriumError(f"{refused} {show(directed.made.formula)} of several momenta")
    shares: list[sp.Expr] = [sp.S.Zero, sp.S.One, sp.S.Zero, sp.S.Zero]
    for m in (m for m in directed.momenta if m in directed.argument):
        state = step.algebra.expand_names(step.states[m])
        shares = [directed.argument[m], directed.argument["g"], state[m], state["g"]]
    p, q, b, e = (sp.cancel(drop_transients(x, step)) for x in shares)
    variance = p**2 * e**2 / (1 - b**2) + q**2
    first = sp.factor(p * (q * e + p * e**2 * b / (1 - b**2)) / variance)
    total, square = OverlapSum(a, first, b), SCALE**2 * SHARE * RANK
    if directed.is_sign:
        total, square = 2 / sp.pi * ArcsineSum(a, first, b), DIMENSION
    s = 1 + 2 * total
    squared = c**2 * square * s / (1 - a**2)
    return squared**2, ((1 - a**2) / s - (1 - a) ** 2) / a
