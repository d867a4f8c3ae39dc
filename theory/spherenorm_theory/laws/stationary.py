"""A stationary point in numbers: its norm and turn, and whether it attracts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import sympy as sp

from spherenorm_theory.algebra import DIMENSION, RANK, SCALE, SHARE, Trace
from spherenorm_theory.laws.kernels import Directed, OverlapSum, overlap_of
from spherenorm_theory.laws.mean_field import MeanStep, NoEquilibriumError, drop_transients
from spherenorm_theory.laws.orthogonal import scale_of
from spherenorm_theory.laws.step import GAMMA, Step

Shape = int | Sequence[int]
"""The entries of a unit, or the shape of the weight, which an orthogonal factor needs."""


@dataclass(frozen=True, eq=False)
class Stationary:
    """A point that one step of the mean field leaves as it is.

    Attributes:
        name, traced: the recipe's name and trace.
        fourth_power: |w|^4, in gamma or d and the hyper-parameters.
        squared_rotation: the squared effective step |w'/|w'| - w/|w||^2 = |w' - w|^2 / |w|^2; for a
            small step, the squared angle in radians.
        kappa: the decay of one step.
        step: the step in the mean field.
        directed: the step as one along a sign or an orthogonal factor, where it is one.
        open: the cases that the formulas leave open, such as whether a clip acts at the
            equilibrium's |g|.
    """

    name: str
    traced: Trace
    fourth_power: sp.Expr
    squared_rotation: sp.Expr
    kappa: sp.Expr
    step: Step
    directed: Directed | None = None
    open: tuple[str, ...] = ()

    def squared_norm(
        self, values: Mapping[sp.Symbol, float], shape: Shape, gamma: float = 1.0
    ) -> float:
        """|w|^2 in numbers.

        Args:
            values: the hyper-parameters.
            shape: d, the entries of a unit; of an orthogonal factor, the shape of the matrix.
            gamma: the root mean square of |w| |g|.

        Raises:
            NoEquilibriumError: the norm does not settle at these numbers, or a case is open.
        """
        entries = shape if isinstance(shape, int) else math.prod(shape)
        fourth = self.fourth_power.subs({**values, DIMENSION: entries, GAMMA: gamma})
        return self._root(self._of_shape(fourth, shape), "|w|^4", values)

    def rotation(self, values: Mapping[sp.Symbol, float], shape: Shape = (64, 64)) -> float:
        """The effective step in numbers, at hyper-parameters `values`.

        Args:
            values: the hyper-parameters.
            shape: of the weight, which matters to orthogonal factors alone.

        Raises:
            NoEquilibriumError: the norm does not settle at these numbers.
        """
        squared = self._of_shape(self.squared_rotation.subs(values), shape)
        return self._root(squared, "(effective step)^2", values)

    def _of_shape(self, formula: sp.Expr, shape: Shape) -> sp.Expr:
        """A formula with the length of an orthogonal factor, and its overlaps, for a shape."""
        if self.directed is None or self.directed.is_sign:
            return formula
        if isinstance(shape, int):
            raise ValueError(f"{self.name}: the shape of the matrix is needed, got {shape} entries")
        overlap = overlap_of(self.directed.made, shape)
        rank = min(shape[0], math.prod(shape[1:]))
        scale = scale_of(self.directed.made.function, shape)  # type: ignore[arg-type]
        known = {RANK: rank, SCALE: scale, SHARE: overlap.square / (scale**2 * rank)}
        sums = {x: x.of(overlap) for x in formula.atoms(OverlapSum)}
        return formula.xreplace(sums).subs(known)

    def _root(self, square: sp.Expr, what: str, values: Mapping[sp.Symbol, float]) -> float:
        """The root of a quantity, which is one positive number at hyper-parameters `values`.

        Raises:
            NoEquilibriumError: it is none, or the point does not attract.
        """
        if square.free_symbols:
            lacking = ", ".join(sorted(map(str, square.free_symbols)))
            where = "".join(f"; {case}" for case in self.open)
            raise NoEquilibriumError(
                f"{self.name}: {what} depends on {lacking}, which has no one number{where}"
            )
        number = complex(math.nan) if square.is_finite is False else complex(square)
        if abs(number.imag) > 1e-12 * abs(number.real) or not 0 < number.real < math.inf:
            shown = ", ".join(f"{s}={v:g}" for s, v in values.items())
            raise NoEquilibriumError(
                f"{self.name}: the norm does not settle at {shown}: {what} would be {number:.4g}"
            )
        radius = self.spectral_radius(tuple(sorted(values.items(), key=str)))
        if radius > 1 + 1e-6:
            shown = ", ".join(f"{s}={v:g}" for s, v in values.items())
            raise NoEquilibriumError(
                f"{self.name}: the norm does not settle at {shown}: a step multiplies the distance "
                f"to the point by {radius:.4g}"
            )
        return math.sqrt(number.real)

    @cache  # noqa: B019  (the object lives in a cache itself)
    def spectral_radius(self, values: tuple[tuple[sp.Symbol, float], ...]) -> float:
        """The factor by which a step multiplies a small distance to the stationary point.

        That of the recursion of |w|^2, <w, m> and |m|^2; below 1 the point attracts. 0 for a step
        along a direction, whose weight is a sum over the past with a share below 1.
        """
        if self.directed is not None:
            a = sp.sympify(drop_transients(self.directed.keep, self.step)).subs(dict(values))
            return abs(float(a)) if not a.free_symbols else 0.0
        fourth = self.fourth_power.subs({**dict(values), GAMMA: 1, DIMENSION: 1})
        if self.open or fourth.free_symbols:
            return 0.0
        return self._map.spectral_radius(dict(values), float(sp.re(fourth)) ** 0.25)

    @cached_property
    def _map(self) -> MeanStep:
        return MeanStep.of(self.step)
