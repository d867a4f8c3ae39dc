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
from functools import cached_property
from typing import Any

import numpy as np
import sympy as sp

from spherenorm import rules as r
from spherenorm_theory.equilibria.mean_field import (
    FixedPoint,
    NoEquilibriumError,
    compile_formulas,
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

MAX_TERMS = 4000
"""Largest number of terms of a sum over earlier steps."""


def arcsine_law(rho: Array) -> Any:
    """Return the correlation of the signs of Gaussian numbers with the correlation rho."""
    return 2 / math.pi * np.arcsin(rho)


class OverlapSum(sp.Function):  # type: ignore[misc]  # sympy has no types
    """The sum over k = 1, 2, ... of a^k F(r b^(k-1)), for |a b| < 1.

    F is the overlap of orthogonal factors, which depends on the shape of the matrix. The value in
    numbers has the F of signs, with which formulas are compared with the iterated step.
    """

    nargs = 3

    def overlap(self, rho: Array) -> Any:
        """Return F(rho)."""
        return arcsine_law(rho)

    def _eval_evalf(self, prec: int) -> sp.Expr:
        a, r, b = map(float, self.args)
        k = np.arange(MAX_TERMS)
        return sp.Float(float((a ** (k + 1) * self.overlap(r * b**k)).sum()))


class ArcsineSum(OverlapSum):
    """The sum over k = 1, 2, ... of a^k arcsin(r b^(k-1)), for |a b| < 1."""

    def overlap(self, rho: Array) -> Any:
        """Return arcsin(rho)."""
        return np.arcsin(rho)

    @classmethod
    def eval(cls, a: sp.Expr, r: sp.Expr, b: sp.Expr) -> sp.Expr | None:
        return sp.S.Zero if a == 0 or r == 0 else None


@dataclass(frozen=True)
class HomogeneousStep:
    """A step w' = a w + c u along a direction u of degree 0 in momenta.

    Attributes:
        step: the step on symbols.
        atom: the atom u.
        direction: what u is: a sign, or an orthogonal factor (behind `KeepNorm`, with its length).
        argument: D, of which u is a function.
        retention: a, a function of |w|, |u|, <w, u> and the hyper-parameters.
        factor: c, a function of the same.
    """

    step: Step
    atom: str
    direction: OpaqueVector
    argument: Vector
    retention: sp.Expr
    factor: sp.Expr

    @staticmethod
    def of(step: Step) -> HomogeneousStep | None:
        """Return this form of a step; None if it has no such direction.

        Raises:
            NoEquilibriumError: it has such a direction, and not this form.
        """
        opaque = step.algebra.opaque_vectors
        weight = step.algebra.expand_names(step.weight)
        atoms = [atom for atom in weight if atom != "w"]
        directions = [a for a in atoms if a in opaque and opaque[a].square is not None]
        if not directions:
            return None
        atom = directions[0]
        if len(atoms) > 1:
            raise NoEquilibriumError(
                f"no equilibrium of {step.traced.name} is derived: a step along "
                f"{show(opaque[atom].formula)} of which a part is taken away, or beside another one"
            )
        direction = opaque[atom]
        if isinstance(direction.rule, r.KeepNorm) and direction.argument is not None:
            # The stationary lengths of rows are their means, so that rows keep their shares.
            (inner_atom, *other_atoms) = direction.argument
            if other_atoms or not isinstance(opaque[inner_atom].rule, r.Orthogonalize):
                return None
            direction = opaque[inner_atom]
        assert direction.argument is not None
        argument = step.algebra.expand_names(direction.argument, canonical=True)
        homogeneous = HomogeneousStep(step, atom, direction, argument, weight["w"], weight[atom])
        momenta = homogeneous.momenta
        entering = {a for x in (argument, *momenta.values()) for a in x} - {"g", *momenta}
        if entering:
            raise NoEquilibriumError(
                f"no equilibrium of {step.traced.name} is derived: {show(direction.formula)} of a "
                f"momentum that {', '.join(sorted(entering))} enters"
            )
        return homogeneous

    @property
    def is_sign(self) -> bool:
        """True for a sign, False for an orthogonal factor."""
        return self.direction.rule is None

    @cached_property
    def momenta(self) -> dict[str, Vector]:
        """The momenta that D depends on, after the step, by their atoms before it."""
        step, momenta, to_visit = self.step, dict[str, Vector](), [self.argument]
        while to_visit:
            for m in step.buffers:
                if m in to_visit[0] and m not in momenta:
                    momenta[m] = step.algebra.expand_names(step.states[m])
                    to_visit.append(momenta[m])
            to_visit.pop(0)
        return momenta

    def correlations(self, values: Mapping[sp.Symbol, float]) -> Array:
        """Return rho_k of D_t and D_{t+k}, for k = 1, 2, ..., of uncorrelated gradients.

        Raises:
            NoEquilibriumError: a coefficient of a momentum is no number.
        """
        step, names, states = self.step, [*self.momenta], [*self.momenta.values()]

        def number(x: sp.Expr) -> float:
            coefficient = self._late_coefficient(x).subs(values)
            refuse_unknown(step.traced.name, coefficient.free_symbols)
            return float(coefficient)

        # The momenta x follow x' = transition x + input g, and D = readout x + direct g.
        transition = np.array([[number(state[m]) for m in names] for state in states])
        x = np.array([number(state["g"]) for state in states])
        readout = np.array([number(self.argument[m]) for m in names])
        response = [number(self.argument["g"])]
        while names and len(response) < MAX_TERMS:
            response.append(float(readout @ x))
            x = transition @ x
            if np.abs(x).max() < 1e-16 * max(1.0, abs(response[0])):
                break
        h = np.array(response)
        autocorrelation = np.correlate(h, h, "full")[len(h) - 1 :]
        rho: Array = np.clip(autocorrelation[1:] / autocorrelation[0], -1, 1)
        return rho

    def _late_coefficient(self, x: sp.Expr) -> sp.Expr:
        """Return a scalar after many steps, with its open branches written out."""
        expanded = self.step.algebra.expand_products(x, open_branches=True)
        return drop_transients(expanded, self.step)

    def fixed_point(
        self,
        values: Mapping[sp.Symbol, float],
        shape: int | Sequence[int],
        norm: float = 1.0,
        gamma: float = 1.0,
        overlap: Callable[[Array], Any] | None = None,
    ) -> FixedPoint:
        """Return the fixed point of the step, whatever the lengths of gradients.

        Args:
            values: all hyper-parameters.
            shape: shape of the weight.
            norm: norm at the start; a norm that is held stays there.
            gamma: not used.
            overlap: another F, with the length of signs.

        Raises:
            NoEquilibriumError: the step reaches none.
            ValueError: an orthogonal factor needs a shape, and got a number of entries.
        """
        step = self.step
        entries = square = float(shape if isinstance(shape, int) else math.prod(shape))
        values = {**{s: float(x) for s, x in step.traced.given_values.items()}, **values}
        overlap_law: Callable[[Array], Any] = overlap or arcsine_law
        if isinstance(self.direction.rule, r.Orthogonalize) and overlap is None:
            if isinstance(shape, int):
                raise ValueError(
                    f"{step.traced.name}: the shape of the matrix is needed, got {shape} entries"
                )
            measured = Overlap.of(self.direction.rule, tuple(shape))
            overlap_law, square = measured, measured.square
        overlaps = overlap_law(self.correlations(values))
        constant_states = {s: norm for a, s in step.scalars.items() if step.states.get(a) == s}
        # u may be as long as the orthogonal factor behind it, which is an atom, too.
        lengths = {
            Norm(atom): math.sqrt(square)
            for atom, opaque in step.algebra.opaque_vectors.items()
            if atom == self.atom or opaque is self.direction
        }
        constants = {**values, **constant_states, **lengths, DIMENSION: entries}
        symbols = [Norm("w"), Inner("w", self.atom), *constants]
        formulas = sp.Tuple(*map(self._late_coefficient, (self.retention, self.factor)))
        refuse_unknown(step.traced.name, formulas.free_symbols - {*symbols})
        function = compile_formulas(symbols, formulas)
        powers = np.arange(len(overlaps))

        def map_point(x: Array) -> tuple[Array, float]:
            squared_norm = math.exp(x[0])
            cosine = min(max(x[1], -1.0), 1.0)
            along = cosine * math.sqrt(squared_norm * square)
            a, c = function(math.sqrt(squared_norm), along, *constants.values())
            new_along = c * square * float(np.float_power(a, powers) @ overlaps)
            after = a * a * squared_norm + 2 * a * c * along + c * c * square
            squared_move = (a - 1) ** 2 * squared_norm + 2 * (a - 1) * c * along + c * c * square
            point = np.array([math.log(after), new_along / math.sqrt(after * square)])
            return point, squared_move / squared_norm

        start = np.array([2 * math.log(norm), 0.0])
        return find_fixed_point(step.traced.name, map_point, start, values)


def stationary_along(homogeneous: HomogeneousStep) -> tuple[sp.Expr, sp.Expr]:
    """Return the stationary |w|^4 and squared effective step, for a fixed retention a and step c u.

    With p, q the coefficients of momentum and gradient in D, and m' = b m + e g, the correlations
    are rho_k = rho_1 b^(k-1).

    Raises:
        NoEquilibriumError: a or c change with lengths, or D holds several momenta.
    """
    step, direction = homogeneous.step, show(homogeneous.direction.formula)
    name = step.traced.name
    a, c = (
        drop_transients(step.algebra.expand_and_simplify(x), step)
        for x in (homogeneous.retention, homogeneous.factor)
    )
    lengths = (a.free_symbols | c.free_symbols) - {*step.traced.symbols.values()}
    if any(isinstance(symbol, Inner) for symbol in lengths):
        raise NoEquilibriumError(
            f"no equilibrium of {name} is derived: a step along {direction} of which a part is "
            "taken away"
        )
    if lengths:
        raise NoEquilibriumError(
            f"{name}: the decay is no fixed share of the weight, it changes with "
            f"{', '.join(sorted(map(str, lengths)))}; such a norm has no closed form"
        )
    if len(homogeneous.momenta) > 1:
        raise NoEquilibriumError(
            f"no equilibrium of {name} is derived: {direction} of several momenta"
        )
    coefficients: list[sp.Expr] = [sp.S.Zero, sp.S.One, sp.S.Zero, sp.S.Zero]
    for m, state in homogeneous.momenta.items():
        argument = homogeneous.argument
        coefficients = [argument[m], argument["g"], state[m], state["g"]]
    p, q, b, e = (sp.cancel(drop_transients(x, step)) for x in coefficients)
    variance = p**2 * e**2 / (1 - b**2) + q**2
    first_correlation = sp.factor(p * (q * e + p * e**2 * b / (1 - b**2)) / variance)
    total, square = OverlapSum(a, first_correlation, b), SCALE**2 * SHARE * RANK
    if homogeneous.is_sign:
        total, square = 2 / sp.pi * ArcsineSum(a, first_correlation, b), DIMENSION
    s = 1 + 2 * total
    squared_norm = c**2 * square * s / (1 - a**2)
    return squared_norm**2, ((1 - a**2) / s - (1 - a) ** 2) / a
