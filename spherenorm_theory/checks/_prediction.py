"""Predictions: a law run forward from |w_0|^2 and the lengths of the steps."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import sympy as sp

from spherenorm_theory.algebra import Array
from spherenorm_theory.checks._trajectory import Trajectory
from spherenorm_theory.laws import NormGrowth, StepLaw, W, product, squared_norm_after

Follow = Callable[[list[Array], dict[str, Array]], list[Array]]
"""From |w|^2 and the cross terms, and the numbers of a step, to those after it."""


def predict(law: NormGrowth, measured: Trajectory) -> Array:
    """|w_t|^2 at every step, from |w_0|^2 and the law alone; shape (steps + 1, units).

    The law is fed with |s_t|^2 (and <m_t, s_t> where it holds that), and with the hyper-parameters
    of each step. The cross terms start as they were measured, which is at 0 where buffers are 0,
    and follow their own recursion. A law whose cross term is open is fed with <w_t, s_t>, which
    leaves an identity to check.
    """
    told = law.recursion if law.first is None else law.first.recursion
    unknowns = [] if law.open_because else [x for x in law.recursion if x in told]
    follow = _follower(law, unknowns)
    follow_first = follow if law.first is None else _follower(law.first, unknowns)
    start = measured.squared_norm[0]
    state = [start, *(measured.products[str(unknown)][0] for unknown in unknowns)]
    predicted = [start]
    for time in range(len(measured.squared_norm) - 1):
        products = {name: values[time] for name, values in measured.products.items()}
        state = (follow if time else follow_first)(state, products)
        predicted.append(state[0])
    return np.stack(predicted)


def _follower(law: StepLaw, unknowns: list[sp.Symbol]) -> Follow:
    """The recursion of |w|^2 and `unknowns`, compiled."""
    keep = 1 - law.kappa
    cross = product("w", "s") if law.open_because else law.cross
    squared = W if law.constant else squared_norm_after(keep, 2 * keep * cross)
    # The names that a law without an open case holds are known: roots of counters.
    known = law.step.facts.definitions
    formulas = (squared, *(law.recursion[u] for u in unknowns))
    equations = [formula.subs(known) for formula in formulas]
    symbols = {s for equation in equations for s in equation.free_symbols}
    inputs = sorted(symbols - {W, *unknowns}, key=str)
    compiled = sp.lambdify([W, *unknowns, *inputs], equations, "numpy")

    def follow(state: list[Array], products: dict[str, Array]) -> list[Array]:
        after = compiled(*state, *(products[str(s)] for s in inputs))
        return [np.broadcast_to(x, state[0].shape) for x in after]

    return follow
