"""Norms, turns and gradients of hidden weights, step by step, and the laws of their turns."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from spherenorm_experiments.extra.equilibrium import predict
from spherenorm_experiments.runs import Result
from spherenorm_experiments.spec import Spec

LATE = 0.5
"""The share of the steps before those over which stationary averages are taken."""

BLOCKS = "blocks."
"""Begins the names of a transformer's hidden weights; of others the invariant weights count."""

Part = tuple[float, float]
"""Of a run: the progress at its start and at its end."""


class Rotations(NamedTuple):
    """The measurements of a run: arrays of shape (probed steps, hidden weights).

    Attributes:
        progress: of the run before each step, in [0, 1); shape (probed steps,).
        rates: the learning rate of each step.
    """

    progress: np.ndarray
    rates: np.ndarray
    norms: np.ndarray
    turns: np.ndarray
    gradients: np.ndarray

    @classmethod
    def of(cls, item: Result) -> Rotations | None:
        """Those of a run; None if it was not probed."""
        probed = [record for record in item.metrics if "rotation" in record]
        views = item.summary["views"]
        names = [name for name in views if name.startswith(BLOCKS)]
        names = names or [name for name, view in views.items() if view is not None]
        if not probed or not names:
            return None
        found = np.array([[each["rotation"][name] for name in names] for each in probed])
        total, per_epoch = item.summary["steps"], item.summary["steps_per_epoch"]
        before = np.array([each["step"] - 1 for each in probed])
        factors = [item.spec.rate_factor(int(step), total, per_epoch) for step in before]
        rates = item.spec.hyper_parameters["lr"] * np.array(factors)
        return cls(before / total, rates, *np.moveaxis(found, -1, 0))

    def within(self, low: float, high: float) -> np.ndarray:
        """True at the steps of this part of the run."""
        return (low <= self.progress) & (self.progress < high)

    @property
    def late_turns(self) -> np.ndarray:
        """The turns at the steps of the second half."""
        late: np.ndarray = self.turns[self.within(LATE, 1.0)]
        return late


Law = Callable[[float], float]
"""The turn per step as a function of the learning rate."""


def law_of(spec: Spec) -> Law | None:
    """The law of a recipe's turn, as theory has it; None without one.

    On the hyperball a step that is orthogonal to the weight turns it by arctan(lr), and a
    rotational optimizer by lr on the average. Of a recipe with decay it is the turn at which decay
    and steps balance (`spherenorm_experiments.extra.equilibrium`), which it only comes to.
    """
    if spec.recipe.startswith("hyperball("):
        return math.atan
    if spec.recipe.startswith("rotational("):
        return float
    return functools.partial(_turn_under_decay, _given(spec)) if spec.recipe == "adamw" else None


def law_with_momentum(spec: Spec) -> Law | None:
    """The law of the turn on the hyperball, with what momentum does to it; None of other recipes.

    That of `spherenorm_theory.turn_at_rest`, for gradients that are random and orthogonal to the
    weight.
    """
    if not spec.recipe.startswith("hyperball("):
        return None
    return functools.partial(_turn_at_rest, spec.recipe, _given(spec))


def _given(spec: Spec) -> str:
    """The hyper-parameters but for the learning rate, as the key of a cache."""
    return json.dumps({name: x for name, x in spec.hyper_parameters.items() if name != "lr"})


@functools.cache
def _turn_at_rest(recipe: str, others: str, rate: float) -> float:
    from spherenorm_theory import turn_at_rest  # sympy takes a second to import

    return turn_at_rest(recipe, lr=rate, **json.loads(others))


@functools.cache
def _turn_under_decay(others: str, rate: float) -> float:
    """The turn of AdamW in equilibrium."""
    found = predict("adamw", {**json.loads(others), "lr": rate})
    return math.nan if found is None else found.step


def turn_over_law(item: Result, law_of: Callable[[Spec], Law | None] = law_of) -> float | None:
    """The turn over that of the law at the rate of each step: the mean over late steps and weights.

    None if the recipe has no law, or nothing was measured.
    """
    law, found = law_of(item.spec), Rotations.of(item)
    if law is None or found is None:
        return None
    rates = found.rates[found.within(LATE, 1.0)].tolist()
    return float((found.late_turns / np.array([[law(rate)] for rate in rates])).mean())


def late_turn(item: Result) -> float | None:
    """The root mean square turn per step over the hidden weights, late in the run."""
    found = Rotations.of(item)
    return found and float(np.sqrt((found.late_turns**2).mean()))


def spread_over_layers(item: Result) -> float | None:
    """The standard deviation of the late mean turns of hidden weights over their mean."""
    found = Rotations.of(item)
    means = found and found.late_turns.mean(0)
    return None if means is None else float(means.std(ddof=1) / means.mean())


def norm_growth(item: Result) -> float | None:
    """The last norm over the first one measured: the geometric mean over hidden weights."""
    found = Rotations.of(item)
    return found and float(np.exp(np.log(found.norms[-1] / found.norms[0]).mean()))


def growth(item: Result, what: str, early: Part, late: Part) -> float | None:
    """The norm of all hidden weights together, or of their gradients, late over early in a run.

    Args:
        what: norms | gradients.
        early, late: parts of the run, over whose steps the mean square is taken.

    Returns:
        The ratio; None if nothing was measured in one of the parts.
    """
    found = Rotations.of(item)
    if found is None or not all(found.within(*part).any() for part in (early, late)):
        return None
    squares = (getattr(found, what) ** 2).sum(1)
    ends = [squares[found.within(*part)].mean() for part in (late, early)]
    return float(np.sqrt(ends[0] / ends[1]))
