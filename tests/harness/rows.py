"""The rows: each optimizer with settings that exercise its rules, and an oracle.

A row has every promise tested (`recipes/`), every executor (`compile/`), every way to run a recipe
(`optim/`, `functional/`) and every sharding (`sharded/`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pytest
import torch
from torch import Tensor

import spherenorm as sn
from spherenorm import Recipe, Rule, chain, rules, wrappers
from spherenorm.optim import RecipeOptimizer
from tests.harness.gradients import gradient

Loop = Callable[..., Generator[Tensor, tuple[Tensor, float], None]]
"""An oracle: a generator that yields the weight, and is sent a gradient and the learning rate.

It takes the first weight and the settings of the row (see `loops`).
"""


@dataclass(frozen=True)
class Row:
    """A recipe with settings that exercise all of its rules.

    Attributes:
        recipe: a recipe or its registered name.
        settings: its hyper-parameters that are not at their defaults.
        oracle: a torch optimizer class or a plain loop that takes the same steps in float64.
        oracle_settings: those that the oracle has besides, or instead.
        scaled: names of settings by which the size of a gradient counts: `(x, -1)` is divided by
            the gradient's scale, `(x, 1)` multiplied.
        fewest: the fewest dimensions of a weight that it takes.
    """

    recipe: Recipe | str
    settings: dict[str, Any] = field(default_factory=dict)
    oracle: type[torch.optim.Optimizer] | Loop | None = None
    oracle_settings: dict[str, Any] = field(default_factory=dict)
    scaled: tuple[tuple[str, int], ...] = ()
    fewest: int = 0

    def __str__(self) -> str:
        name = self.recipe if isinstance(self.recipe, str) else self.recipe.__name__
        return "-".join([name, *(f"{key}={value}" for key, value in self.settings.items())])

    @property
    def id(self) -> str:
        return str(self)

    @cached_property
    def cls(self) -> type[RecipeOptimizer]:
        """The optimizer class of the recipe."""
        return sn.torch_optimizer(self.recipe)

    def rule(self, **replaced: Any) -> Rule:
        return sn.bind(self.recipe, **{**self.settings, **replaced}).rule

    def optimizer(self, weights: Iterable[Any], **options: Any) -> RecipeOptimizer:
        return self.cls(weights, **{**self.settings, **options})

    def parameters(self, dtype: torch.dtype = torch.float64, seed: int = 0) -> list[Tensor]:
        """`parameters`, of the shapes that the recipe takes."""
        return [weight for weight in parameters(dtype, seed) if weight.ndim >= self.fewest]


def mine(lr: float = 0.1, momentum: float = 0.9, weight_decay: float = 0.0) -> Rule:
    """A user's recipe, which wrappers take."""
    return chain(rules.HeavyBall(momentum), rules.DecoupledDecay(weight_decay), rules.StepSize(lr))


def apart(lr: float = 0.1, momentum: float = 0.9, betas: tuple[float, float] = (0.9, 0.95)) -> Rule:
    """A user's recipe with magnitude and direction apart, entry by entry.

    Its eps keeps the gain of a scale-invariant row, whose gradient is rounding, from Adam's steps.
    """
    moved = chain(rules.RadialProjection("channel"), rules.HeavyBall(momentum), rules.StepSize(lr))
    gain = chain(rules.AdaptiveMoments(*betas, eps=1e-2), rules.StepSize(lr))
    return chain(rules.Gain(moved, gain, free=True))


hyperball_mine = wrappers.hyperball(mine)
rotational_mine = wrappers.rotational(mine)
radial_brake_mine = wrappers.radial_brake(mine)

ROWS = [
    Row("sgd", {"lr": 0.05}),
    Row("sgd", {"lr": 0.05, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.01}),
    Row("sgd", {"lr": 0.05, "momentum": 0.9, "nesterov": True}),
    Row("sgdw", {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}),
    Row("sgdp", {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}),
    Row("sgdp", {"lr": 0.05, "momentum": 0.9, "nesterov": True, "per": "unit"}),
    Row("sgdp", {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01, "project_buffer": True}),
    Row("adam", {"lr": 0.01, "weight_decay": 0.01}),
    Row("adamw", {"lr": 0.01}),
    Row("adamp", {"lr": 0.01, "weight_decay": 0.01}),
    Row("adamp", {"lr": 0.01, "nesterov": True, "per": "unit"}),
    Row("rmsprop", {"lr": 0.01, "momentum": 0.9, "centered": True, "eps": 1e-3}),
    Row("sgdg"),
    Row("adamg"),
    Row("lars", {"lr": 1.0, "weight_decay": 0.01, "trust": 0.05}),
    Row("adamc", {"lr": 0.01, "max_lr": 1.0, "weight_decay": 1.0}),
    Row("lamb", {"lr": 0.01, "weight_decay": 0.01}),
    Row("lion", {"lr": 0.01, "weight_decay": 0.01}),
    Row("adamh"),
    Row("ngpt"),
    Row("nora", {"weight_decay": 0.01}),
    Row("orthograd", {"lr": 0.01, "weight_decay": 0.01}),
    Row("muon", {"lr": 0.01}, fewest=2),
    Row("muonh", fewest=2),
    Row("muonsphere", fewest=2),
    Row("normuon", {"lr": 0.01}, fewest=2),
    Row("spel", {"momentum": 0.9}, fewest=2),
    Row("muown", {"weight_decay": 0.01}, fewest=2),
    Row("angularmuown", fewest=2),
    Row("mdmuon", fewest=2),
    Row("scion", {"lr": 0.01, "radius": 1.0}, fewest=2),
    Row(hyperball_mine),
    Row(rotational_mine),
    Row(radial_brake_mine),
    Row(apart, {"lr": 0.02}),
]

ANY_WEIGHTS = pytest.mark.filterwarnings("ignore:.*(cannot move|another norm than 1)")
"""For tests of all rows on any weights, also on those that an optimizer on the sphere warns of."""

SHAPES = ((4, 3), (3, 2, 2, 2), (5,), ())
"""A matrix, a convolution, a bias and a scalar."""


def parameters(dtype: torch.dtype = torch.float64, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
        for shape in SHAPES
    ]


def set_gradients(weights: list[Tensor], step: int) -> None:
    """The gradients of a step, which take the scale-invariance test through all its branches."""
    generator = torch.Generator().manual_seed(1000 + step)  # not the weights' own numbers
    for weight in weights:
        weight.grad = gradient("alternating", weight.detach().double(), generator, step).to(
            weight.dtype
        )


def train(optimizer: torch.optim.Optimizer, steps: range) -> None:
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    for step in steps:
        set_gradients(weights, step)
        optimizer.step()
