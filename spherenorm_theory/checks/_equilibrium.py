"""The equilibrium laws against float64 runs under random gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from torch import Generator

from spherenorm import Recipe, as_view
from spherenorm_theory.checks._problems import Problem, Weights, noise, random_readout
from spherenorm_theory.checks._simulation import Transition, simulate, structure_of
from spherenorm_theory.laws import Equilibrium, NoEquilibriumError, equilibrium

__all__ = ["EquilibriumCheck", "check_equilibrium"]

TOLERANCE = 0.02
"""Relative, on |w| and on the effective step.

The formula leaves out, for d = 256: fluctuations of |g|^2 and of <m, g>, of relative size
sqrt(2 / d), which enter by their squares (0.4 % each); those of an entrywise second moment, of
relative variance 2 (1 - beta2) / (1 + beta2), 1 % at beta2 = 0.99 (a longer memory would take as
many steps to settle); and the error of the mean over 64 units and the run, below 0.5 %.
"""

SOURCES = {"noise": noise, "network": random_readout}


@dataclass(frozen=True)
class EquilibriumCheck:
    """Predicted and measured values of one run in equilibrium.

    Attributes:
        law: the equilibrium that was checked.
        source: of the gradients.
        norm: predicted and measured root-mean-square norm of a unit.
        rotation: predicted and measured root-mean-square effective step of a unit.
    """

    law: Equilibrium
    source: str
    norm: tuple[float, float]
    rotation: tuple[float, float]

    @property
    def error(self) -> float:
        """The greater relative difference of the two."""
        pairs = (self.norm, self.rotation)
        return max(abs(measured / predicted - 1) for predicted, measured in pairs)

    @property
    def passed(self) -> bool:
        """True if both agree within the tolerance."""
        return self.error <= TOLERANCE

    def __str__(self) -> str:
        return (
            f"{self.law.name} on {self.source}: "
            f"|w| predicted {self.norm[0]:.4f}, measured {self.norm[1]:.4f}; "
            f"effective step {self.rotation[0]:.5f}, {self.rotation[1]:.5f}; "
            f"off by {self.error:.2%}"
        )

    __repr__ = __str__


def check_equilibrium(
    recipe: str | Recipe,
    source: str = "noise",
    *,
    steps: int = 600,
    warm_up: int = 600,
    units: int = 64,
    dimension: int = 256,
    seed: int = 0,
    **hyper_parameters: Any,
) -> EquilibriumCheck:
    """Run `recipe` with weight decay under random gradients, against its equilibrium law.

    Args:
        recipe: as for `equilibrium`.
        source: "noise" or "network", the losses of `noise` and `random_readout`.
        steps, warm_up: how many are measured, and how many go before, from half the predicted
            |w|^2.
        units, dimension, seed: the weight has shape (units, dimension), drawn from the seed.
        hyper_parameters: of the run; lr * weight_decay * warm_up should be some units.

    Raises:
        ValueError: another source.
        NoEquilibriumError: the law has no equilibrium, or leaves a case open.

    Example:
        >>> check_equilibrium("sgdw", lr=0.1, weight_decay=0.1, momentum=0.9).passed
        True
    """
    if source not in SOURCES:
        raise ValueError(f'source must be "noise" or "network", got {source!r}')
    structure = structure_of(hyper_parameters)
    law = _closed_equilibrium(recipe, structure)
    values = law.traced.values(**hyper_parameters)
    squared_norm = partial(law.squared_norm, values, dimension)
    problem = _start_near_equilibrium(SOURCES[source](units, dimension), squared_norm)
    rule = law.traced.recipe(**{**structure, **hyper_parameters})
    norm, turn, gamma = _measure(simulate(rule, problem, warm_up + steps, seed), warm_up)
    predicted = squared_norm(gamma) ** 0.5, law.rotation(values)
    return EquilibriumCheck(law, source, (predicted[0], norm), (predicted[1], turn))


def _closed_equilibrium(recipe: str | Recipe, structure: dict[str, Any]) -> Equilibrium:
    """The equilibrium of a recipe, if it leaves no case open."""
    law = equilibrium(recipe, **structure)
    if law.open:
        raise NoEquilibriumError(f"{law.name}: not a number: {'; '.join(law.open)}")
    return law


def _start_near_equilibrium(problem: Problem, squared_norm: Callable[[float], float]) -> Problem:
    """The problem, started at half of the |w|^2 that is predicted from its first gradient."""
    view = as_view("channel")

    def start(generator: Generator) -> Weights:
        weights = problem.start(generator)
        weight, grad = weights["w"], problem.gradients(weights, generator)["w"]
        gamma = float((grad.square().sum(1) * weight.square().sum(1)).mean().sqrt())
        return {"w": weight / view.norm(weight) * (0.5 * squared_norm(gamma)) ** 0.5}

    return replace(problem, start=start)


def _measure(
    transitions: Iterator[dict[str, Transition]], warm_up: int
) -> tuple[float, float, float]:
    """The root mean squares of |w|, of the effective step and of |w| |g| after the warm-up."""
    view = as_view("channel")
    norms, turns, scales = [], [], []
    for step in islice(transitions, warm_up, None):
        weight, grad, new = step["w"].weight, step["w"].grad, step["w"].new_weight
        turned = new / view.norm(new) - weight / view.norm(weight)
        squared = view.inner(weight, weight)
        norms.append(squared.mean().item())
        turns.append(view.inner(turned, turned).mean().item())
        scales.append((view.inner(grad, grad) * squared).mean().item())
    norm, turn, gamma = (float(np.mean(values)) ** 0.5 for values in (norms, turns, scales))
    return norm, turn, gamma
