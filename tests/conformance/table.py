"""The conformance table: every optimizer is one row, which has every property tested."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from spherenorm import Rule, chain, optim, rules, torch_optimizer, wrappers
from spherenorm.optim import RecipeOptimizer
from tests.gradients import gradient


@dataclass(frozen=True)
class Row:
    """An optimizer class with settings that exercise all of its rules."""

    cls: type[RecipeOptimizer]
    settings: dict[str, Any] = field(default_factory=dict)
    fewest: int = 0
    """The fewest dimensions of a weight that it takes."""

    @property
    def id(self) -> str:
        return self.cls.__name__ + "".join(
            f"-{key}={value}" for key, value in self.settings.items()
        )

    def rule(self, **replaced: Any) -> Rule:
        return self.cls.recipe(**{**self.settings, **replaced})

    def parameters(self, dtype: torch.dtype = torch.float64, seed: int = 0) -> list[Tensor]:
        """`parameters`, of the shapes that the optimizer takes."""
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


Apart = torch_optimizer(apart)
HyperballMine = torch_optimizer(wrappers.hyperball(mine))
RotationalMine = torch_optimizer(wrappers.rotational(mine))
RadialBrakeMine = torch_optimizer(wrappers.radial_brake(mine))

ROWS = [
    Row(optim.SGD, {"lr": 0.05}),
    Row(optim.SGD, {"lr": 0.05, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.01}),
    Row(optim.SGD, {"lr": 0.05, "momentum": 0.9, "nesterov": True}),
    Row(optim.SGDW, {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}),
    Row(optim.SGDP, {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}),
    Row(optim.SGDP, {"lr": 0.05, "momentum": 0.9, "nesterov": True, "per": "unit"}),
    Row(optim.SGDP, {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01, "project_buffer": True}),
    Row(optim.Adam, {"lr": 0.01, "weight_decay": 0.01}),
    Row(optim.AdamW, {"lr": 0.01}),
    Row(optim.AdamP, {"lr": 0.01, "weight_decay": 0.01}),
    Row(optim.AdamP, {"lr": 0.01, "nesterov": True, "per": "unit"}),
    Row(optim.RMSprop, {"lr": 0.01, "momentum": 0.9, "centered": True, "eps": 1e-3}),
    Row(optim.SGDG),
    Row(optim.AdamG),
    Row(optim.Lars, {"lr": 1.0, "weight_decay": 0.01, "trust": 0.05}),
    Row(optim.AdamC, {"lr": 0.01, "max_lr": 1.0, "weight_decay": 1.0}),
    Row(optim.Lamb, {"lr": 0.01, "weight_decay": 0.01}),
    Row(optim.Lion, {"lr": 0.01, "weight_decay": 0.01}),
    Row(optim.AdamH),
    Row(optim.NGPT),
    Row(optim.Nora, {"weight_decay": 0.01}),
    Row(optim.OrthoGrad, {"lr": 0.01, "weight_decay": 0.01}),
    Row(optim.Muon, {"lr": 0.01}, fewest=2),
    Row(optim.MuonH, fewest=2),
    Row(optim.MuonSphere, fewest=2),
    Row(optim.NorMuon, {"lr": 0.01}, fewest=2),
    Row(optim.SPEL, {"momentum": 0.9}, fewest=2),
    Row(optim.Muown, {"weight_decay": 0.01}, fewest=2),
    Row(optim.AngularMuown, fewest=2),
    Row(optim.MDMuon, fewest=2),
    Row(optim.Scion, {"lr": 0.01, "radius": 1.0}, fewest=2),
    Row(HyperballMine),
    Row(RotationalMine),
    Row(RadialBrakeMine),
    Row(Apart, {"lr": 0.02}),
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
