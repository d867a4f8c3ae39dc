"""Scales: what a step does to a weight and gradients of other lengths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import sympy as sp

from spherenorm_theory.algebra import NumericEvaluator, Vector, show
from spherenorm_theory.laws._one_step import OneStep

SCALE = 1.7
"""The factor by which lengths are multiplied."""

POINTS = 3
"""Random points at which a coefficient is compared with itself at other lengths."""


class NoEquilibriumError(ValueError):
    """The norm of a recipe has no equilibrium, or none in closed form.

    Example:
        >>> try:
        ...     equilibrium("sgd", weight_decay=0.0)
        ... except NoEquilibriumError as error:
        ...     print(error)
        sgd: without decay the norm does not settle
    """


def refuse_unless_homogeneous(step: OneStep, moment: sp.Symbol | None, relative: bool) -> None:
    """Refuse a step that does not scale, so that no one norm can be set to 1.

    A weight, gradients and momenta that are c times as long must give a weight c times as long. Of
    a relative step, gradients c times as long must give the same weight.

    Args:
        step: the step.
        moment: its second moment, if it keeps one.
        relative: the step divides gradients by the second moment, or takes their sign.

    Raises:
        NoEquilibriumError: a coefficient of the step changes with the lengths.
    """
    lengths = dict.fromkeys(("g", *step.buffers), 1) | {"w": 0 if relative else 1}
    for m in step.buffers if moment is not None else ():
        share = step.states[m]["g"]
        if not _scales(step, share, 0, lengths, moment):
            lengths[m] = 0  # of gradients that are divided by the root of the second moment
    for after, atom, coefficient in _coefficients(step):
        power = lengths[after] - lengths.get(atom, 0)
        if not _scales(step, coefficient, power, lengths, moment):
            whole = step.facts.expand(coefficient, everything=True)
            of = "gradients" if relative else "the weight and its gradients"
            raise NoEquilibriumError(
                f"{step.traced.name}: the step does not scale with {of}: "
                f"it holds {show(whole)} times {atom}{_advice(step, whole)}"
            )


def _advice(step: OneStep, coefficient: sp.Expr) -> str:
    eps = step.traced.symbols.get("eps")
    return "; eps=0.0 holds it at 0" if eps in coefficient.free_symbols else ""


def _coefficients(step: OneStep) -> Iterator[tuple[str, str, sp.Expr]]:
    """(result, source, coefficient) of each term of the new weight and buffers."""
    after = {"w": step.weight, **{m: step.states[m] for m in step.buffers}}
    for name, vector in after.items():
        if isinstance(vector, Vector):
            for atom, coefficient in vector.terms.items():
                yield name, atom, coefficient


def _scales(
    step: OneStep,
    coefficient: sp.Expr,
    power: int,
    lengths: Mapping[str, int],
    moment: sp.Symbol | None,
) -> bool:
    """Tell if a coefficient is multiplied by a power of the scale."""
    before, after = (
        _at_scale(step, lengths, moment, scale).scalar(coefficient) for scale in (1.0, SCALE)
    )
    if power == 0 and np.array_equal(before, after, equal_nan=True):
        return True
    return bool((np.abs(after - before * SCALE**power) <= 1e-9 * np.abs(before)).all())


def _at_scale(
    step: OneStep, lengths: Mapping[str, int], moment: sp.Symbol | None, scale: float
) -> NumericEvaluator:
    """Random numbers for a step: vectors times powers of the scale, the moment times its square."""
    rng = np.random.default_rng(0)
    vectors = {
        atom: rng.normal(size=(POINTS, 5)) * scale ** lengths.get(atom, 0)
        for atom in ("w", "g", *step.states)
    }
    names = (s.name for s in (*step.traced.symbols.values(), *step.scalars.values()))
    values = {name: rng.uniform(0.2, 0.8) for name in names}
    if moment is not None:
        values[moment.name] *= scale**2
    return NumericEvaluator(step.algebra, vectors, values)
