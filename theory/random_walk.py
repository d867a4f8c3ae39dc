"""The equilibrium laws and the growth ratios against float64 runs under random gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from spherenorm.registry import Recipe
from spherenorm.views import as_view
from theory.beyond import growth_ratio
from theory.equilibrium import DIMENSION, GAMMA, Equilibrium, NoEquilibriumError, equilibrium, late
from theory.norm_growth import S, W, norm_growth
from theory.tasks import TINY
from theory.trace import are_numbers, is_number

__all__ = ["Ratio", "Settled", "check_equilibrium", "check_ratio"]

TOLERANCE = 0.02
"""Relative, on |w| and on the effective step. What the formula leaves out, for d = 256: fluctuations of |g|^2 and of <m, g>, of
relative size sqrt(2 / d), which enter by their squares (0.4 % each); those of an entrywise second moment, of relative variance
2 (1 - beta2) / (1 + beta2), 1 % at beta2 = 0.99 (a longer memory would take as many steps to settle); and the error of the mean
over 64 units and the run, below 0.5 %."""

RATIO_TOLERANCE = 0.005
"""Relative, on the growth ratio: what 600 steps leave of the first and the last momentum, and of <m, g> where Nesterov's ratio takes it
for 0 on average, comes to 0.2 % or less; Nesterov's ratio is 34 % from the heavy ball's."""


@dataclass(frozen=True)
class Settled:
    """Predicted and measured values of one run, in equilibrium: root-mean-square norm and effective step of a unit."""

    law: Equilibrium
    source: str
    norm: tuple[float, float]
    rotation: tuple[float, float]

    @property
    def error(self) -> float:
        """The greater relative difference of the two."""
        return max(
            abs(measured / predicted - 1) for predicted, measured in (self.norm, self.rotation)
        )

    @property
    def passed(self) -> bool:
        return self.error <= TOLERANCE

    def __str__(self) -> str:
        return (
            f"{self.law.name} on {self.source}: |w| predicted {self.norm[0]:.4f}, measured {self.norm[1]:.4f}; "
            f"effective step {self.rotation[0]:.5f}, {self.rotation[1]:.5f}; off by {self.error:.2%}"
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
    **hypers: Any,
) -> Settled:
    """Run `recipe` with weight decay under random gradients, and compare norm and effective step with the equilibrium law.

    Args:
        recipe: as for `equilibrium`.
        source: "noise", the loss sum_i <a_i, w_i / |w_i|> with fresh Gaussian a_i; or "network", a linear layer, BatchNorm,
            ReLU and a readout of which every entry gets a fresh Gaussian weight.
        steps, warm_up: how many are measured, and how many go before. The run starts at half the predicted |w|^2.
        units, dimension: the weight has shape (units, dimension).
        hypers: hyper-parameters; give lr and weight_decay so that lr * weight_decay * warm_up is some units.

    Raises:
        ValueError: another source; NoEquilibriumError where the law has none, or has an open case in it.
    """
    if source not in ("noise", "network"):
        raise ValueError(f'source must be "noise" or "network", got {source!r}')
    structure = {n: v for n, v in hypers.items() if not (is_number(v) or are_numbers(v)) or v == 0}
    law = equilibrium(recipe, **structure)
    if law.open:
        raise NoEquilibriumError(f"{law.name}: not a number: {'; '.join(law.open)}")
    traced = law.traced
    values = traced.values(**hypers)
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(units, dimension, dtype=torch.float64, generator=generator)
    fourth = float(
        law.fourth_power.subs(values).subs(
            {DIMENSION: dimension, GAMMA: _scale(source, weight, generator)}
        )
    )
    view = as_view("channel")
    weight = weight / view.norm(weight) * (0.5 * fourth**0.5) ** 0.5
    rule = traced.recipe(**{**structure, **hypers})
    state = rule.init(weight)
    norms, turns, scales = [], [], []
    for time in range(warm_up + steps):
        leaf = weight.clone().requires_grad_()
        (grad,) = torch.autograd.grad(_loss(source, leaf, generator), leaf)
        new, state = rule.step(weight, grad, state)
        if time >= warm_up:
            turned = new / view.norm(new) - weight / view.norm(weight)
            norms.append(view.inner(weight, weight).mean().item())
            turns.append(view.inner(turned, turned).mean().item())
            scales.append((view.inner(grad, grad) * view.inner(weight, weight)).mean().item())
        weight = new
    gamma = float(np.mean(scales)) ** 0.5
    squared = float(law.fourth_power.subs(values).subs({DIMENSION: dimension, GAMMA: gamma})) ** 0.5
    turn = float(law.squared_rotation.subs(values))
    return Settled(
        law,
        source,
        (squared**0.5, float(np.mean(norms)) ** 0.5),
        (turn**0.5, float(np.mean(turns)) ** 0.5),
    )


@dataclass(frozen=True)
class Ratio:
    """The predicted and the measured ratio of a recipe's growth to that of its steps."""

    recipe: str
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        return abs(self.measured / self.predicted - 1)

    @property
    def passed(self) -> bool:
        return self.error <= RATIO_TOLERANCE

    def __str__(self) -> str:
        return f"growth / sum |s|^2 of {self.recipe} {self.predicted:.4f} predicted, {self.measured:.4f} measured: off by {self.error:.3%}"

    __repr__ = __str__


def check_ratio(
    recipe: str | Recipe,
    *,
    steps: int = 600,
    warm_up: int = 600,
    units: int = 16,
    dimension: int = 256,
    seed: int = 0,
    **hypers: Any,
) -> Ratio:
    """Run `recipe` under random gradients of length 1, orthogonal to their weights, and compare its growth with `beyond.growth_ratio`.

    Measured is sum (|w'|^2 - (1 - kappa)^2 |w|^2) / sum |s|^2 over steps and units, after `warm_up`.

    Args:
        recipe: as for `growth_ratio`.
        steps, warm_up, units, dimension, seed: as for `check_equilibrium`.
        hypers: hyper-parameters; with coupled decay the ratio hangs on the means of |w|^2 and |s|^2, which are then measured.
    """
    law = norm_growth(
        recipe,
        **{n: v for n, v in hypers.items() if not (is_number(v) or are_numbers(v)) or v == 0},
    )
    traced = law.step.traced
    values = traced.values(**hypers)
    keep = 1 - float(late(law.kappa, law.step).subs(values))
    rule = traced.recipe(**{**traced.structure, **hypers})
    generator = torch.Generator().manual_seed(seed)
    view = as_view("channel")

    def drawn() -> Tensor:
        return torch.randn(units, dimension, dtype=torch.float64, generator=generator)

    weight = drawn()
    weight = weight / view.norm(weight)
    state = rule.init(weight)
    grown = moved = squared = 0.0
    for time in range(warm_up + steps):
        grad = drawn()
        grad = grad - view.radial_coefficient(weight, grad) * weight
        new, state = rule.step(weight, grad / view.norm(grad), state)
        if time >= warm_up:
            step = new - keep * weight
            before = view.inner(weight, weight)
            grown += float((view.inner(new, new) - keep**2 * before).sum())
            moved += float(view.inner(step, step).sum())
            squared += float(before.sum())
        weight = new
    predicted = growth_ratio(traced).subs(values).subs({W: squared, S: moved})
    return Ratio(law.name, float(predicted), grown / moved)


def _loss(source: str, weight: Tensor, generator: torch.Generator) -> Tensor:
    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    if source == "noise":
        return (noise(*weight.shape) * functional.normalize(weight, dim=1, eps=TINY)).sum()
    hidden = functional.batch_norm(
        noise(32, weight.shape[1]) @ weight.T, None, None, training=True, eps=TINY
    ).relu()
    return (noise(*hidden.shape) * hidden).sum()


def _scale(source: str, weight: Tensor, generator: torch.Generator) -> float:
    """|w| |g| of the loss at the start, to start near the equilibrium."""
    leaf = weight.clone().requires_grad_()
    (grad,) = torch.autograd.grad(_loss(source, leaf, generator), leaf)
    return float((grad.square().sum(1) * weight.square().sum(1)).mean().sqrt())
