"""The rows: each optimizer with settings that exercise its rules, and an oracle.

A row has every promise tested (`recipes/`), every executor (`compile/`), every way to run a recipe
(`optim/`, `functional/`) and every sharding (`sharded/`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import adamp
import pytest
import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, RMSprop

import spherenorm as sn
from spherenorm import Recipe, Rule, chain, rules, wrappers
from spherenorm.optim import RecipeOptimizer
from tests.harness import loops
from tests.harness.gradients import FAMILIES, gradient

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
        oracle_settings: those that the oracle has besides, or instead; None: it does not take it.
        scaled: names of settings by which the size of a gradient counts: `(x, -1)` is divided by
            the gradient's scale, `(x, 1)` multiplied.
        families: of gradients at which rounding does not decide what the oracle does.
        fewest: the fewest dimensions of a weight that it takes.
    """

    recipe: Recipe | str
    settings: dict[str, Any] = field(default_factory=dict)
    oracle: type[torch.optim.Optimizer] | Loop | None = None
    oracle_settings: dict[str, Any] = field(default_factory=dict)
    scaled: tuple[tuple[str, int], ...] = ()
    families: tuple[str, ...] = FAMILIES
    fewest: int = 0

    def __str__(self) -> str:
        name = self.recipe if isinstance(self.recipe, str) else self.recipe.__name__
        return "-".join([name, *(f"{key}={value}" for key, value in self.settings.items())])

    @property
    def id(self) -> str:
        return str(self)

    @cached_property
    def together(self) -> bool:
        """True if a step looks at all weights; then the oracle takes and yields them in a list."""
        return self.rule().needs_global_sums

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
    return chain(rules.GainAndDirection(moved, gain, free_norm=True))


averaged_mine = wrappers.averaged(mine)
hyperball_mine = wrappers.hyperball(mine)
rotational_mine = wrappers.rotational(mine)
radial_brake_mine = wrappers.radial_brake(mine)

GRADIENT = (("lr", -1),)
"""Steps of which grow with the gradient."""
REGULARIZED = (*GRADIENT, ("weight_decay", 1))
DECAY = (("weight_decay", 1),)
EPS = (("eps", 1),)
GAINS = ("random", "layer_tangential", "alternating")
"""Families that give each row a radial part, without which a gain's gradient is rounding."""
RELEASE = {"eps": 1e-16}
"""The release adds eps to norms, too."""

ROWS = [
    Row("sgd", {"lr": 0.05}, SGD, scaled=GRADIENT),
    Row(
        "sgd",
        {"lr": 0.05, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.01},
        SGD,
        scaled=REGULARIZED,
    ),
    Row("sgd", {"lr": 0.05, "momentum": 0.9, "nesterov": True}, SGD, scaled=GRADIENT),
    Row(
        "sgdw",
        {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01},
        loops.sgdw,
        scaled=REGULARIZED,
    ),
    Row(
        "sgdp",
        {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01},
        loops.sgdp,
        scaled=REGULARIZED,
    ),
    Row(
        "sgdp",
        {"lr": 0.05, "momentum": 0.9, "nesterov": True, "per": "unit"},
        loops.sgdp,
        scaled=GRADIENT,
    ),
    Row(
        "sgdp",
        {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01, "project_buffer": True},
        adamp.SGDP,
        {**RELEASE, "project_buffer": None},
        scaled=REGULARIZED,
    ),
    Row("adam", {"lr": 0.01, "weight_decay": 0.01}, Adam, scaled=DECAY),
    Row("adamw", {"lr": 0.01}, AdamW),
    Row("adamp", {"lr": 0.01, "weight_decay": 0.01}, loops.adamp),
    Row("adamp", {"lr": 0.01, "nesterov": True, "per": "unit"}, loops.adamp),
    Row(
        "rmsprop",
        {"lr": 0.01, "momentum": 0.9, "centered": True, "eps": 1e-3},
        RMSprop,
        scaled=EPS,  # a centered moment nearly cancels at first
    ),
    Row("sgdg", oracle=loops.sgdg),
    Row("adamg", oracle=loops.adamg),
    Row("lars", {"lr": 1.0, "weight_decay": 0.01, "trust": 0.05}, loops.lars, scaled=DECAY),
    Row("adamc", {"lr": 0.01, "max_lr": 1.0, "weight_decay": 1.0}, loops.adamc),
    Row("lamb", {"lr": 0.01, "weight_decay": 0.01}, loops.lamb),
    Row("lion", {"lr": 0.01, "weight_decay": 0.01}, loops.lion),
    Row("adamh", oracle=loops.adamh),
    Row("ngpt", oracle=loops.ngpt),
    Row("nora", {"weight_decay": 0.01}, loops.nora),
    Row("orthograd", {"lr": 0.01, "weight_decay": 0.01}, loops.orthograd),
    Row("muon", {"lr": 0.01}, loops.muon, fewest=2),
    Row("muonh", oracle=loops.muonh, fewest=2),
    Row("muonsphere", oracle=loops.muonsphere, fewest=2),
    Row("normuon", {"lr": 0.01}, loops.normuon, fewest=2),
    Row("spel", {"momentum": 0.9}, loops.spel, fewest=2),
    Row("muown", {"weight_decay": 0.01}, loops.muown, families=GAINS, fewest=2),
    Row("angularmuown", oracle=loops.angularmuown, families=GAINS, fewest=2),
    Row("mdmuon", oracle=loops.mdmuon, families=GAINS, fewest=2),
    Row("scion", {"lr": 0.01, "radius": 1.0}, loops.scion, fewest=2),
    Row(averaged_mine, {"decay": 0.9}, SGD, {"momentum": 0.9, "decay": None}, scaled=GRADIENT),
    Row(hyperball_mine, oracle=loops.hyperball_mine),
    Row(rotational_mine, oracle=loops.rotational_mine),
    Row(radial_brake_mine, oracle=loops.radial_brake_mine, scaled=(*GRADIENT, ("floor", 1))),
    Row(apart, {"lr": 0.02}, loops.apart, families=GAINS),
]


def flags(**values: tuple[Any, ...]) -> list[dict[str, Any]]:
    """All settings with these values."""
    return [dict(zip(values, each, strict=True)) for each in itertools.product(*values.values())]


PLAIN = {"coefficients": "plain", "momentum": 0.8}
BETAS = {"betas": (0.8, 0.95), "eps": 1e-5}
VARIANTS = [
    *(
        Row("sgd", {"lr": 0.02, **each}, SGD, scaled=REGULARIZED)
        for each in [
            *flags(momentum=(0.0, 0.9), dampening=(0.0, 0.3), weight_decay=(0.0, 0.02)),
            {"momentum": 0.9, "nesterov": True, "weight_decay": 0.02},
        ]
    ),
    *(
        Row("sgdw", {"lr": 0.02, "weight_decay": 0.1, **each}, loops.sgdw, scaled=REGULARIZED)
        for each in flags(momentum=(0.0, 0.9), dampening=(0.0, 0.3), nesterov=(False, True))
    ),
    *(
        Row(
            "sgdp",
            {
                **{"lr": 0.02, "momentum": 0.9, "dampening": 0.2, "weight_decay": 0.05},
                **{"nesterov": nesterov, "project_buffer": not nesterov},
            },
            adamp.SGDP,
            {**RELEASE, "project_buffer": None},
            scaled=REGULARIZED,
        )
        for nesterov in (False, True)
    ),
    *(
        Row("sgdp", {"lr": 0.02, "weight_decay": 0.5, **each}, loops.sgdp, scaled=REGULARIZED)
        for each in (
            {"dampening": 0.3, "wd_ratio": 0.5, "delta": 1e-9},
            {"momentum": 0.9, "views": ("layer",), "per": "unit"},
            {"momentum": 0.9, "project_buffer": True, "dampening": 0.3, "per": "unit"},
        )
    ),
    *(
        Row(
            "adamp",
            {"lr": 0.02, "weight_decay": 0.05, "eps": 1e-16, "nesterov": nesterov},
            adamp.AdamP,
        )
        for nesterov in (False, True)
    ),
    *(
        Row("adamp", {"lr": 0.02, "weight_decay": 0.5, **BETAS, **each}, loops.adamp)
        for each in (
            {"wd_ratio": 0.5, "delta": 0.9},
            {"views": ("layer", "dim=1"), "per": "unit"},
            {"nesterov": True, "views": ("dim=1",)},
        )
    ),
    Row("adam", {"lr": 0.02, "weight_decay": 0.03, **BETAS}, Adam, scaled=DECAY),
    Row("adamw", {"lr": 0.02, "weight_decay": 0.3, **BETAS}, AdamW),
    Row("adamc", {"lr": 0.02, "weight_decay": 0.3, **BETAS, "max_lr": 0.05}, loops.adamc),
    Row("adamc", {"lr": 0.02, "weight_decay": 0.3}, AdamW),  # max_lr stands for lr
    *(
        Row(
            "rmsprop",
            {"lr": 1e-3, "alpha": 0.95, "eps": 1e-3, **each},
            RMSprop,
            scaled=(*EPS, *DECAY),
        )
        for each in flags(momentum=(0.0, 0.9), weight_decay=(0.0, 0.02), centered=(False, True))
    ),
    *(
        Row(name, {"lr": 0.05, **each, "view": view}, getattr(loops, name), scaled=scaled)
        for view in ("channel", "layer", "dim=1")
        for name, each, scaled in (
            ("sgdg", {"momentum": 0.5, "nu": None, "alpha": 0.3}, (*GRADIENT, ("alpha", 1))),
            ("adamg", {**BETAS, "nu": 3.0, "alpha": 0.0}, ()),
            ("lars", {"momentum": 0.5, "weight_decay": 0.1, "trust": 0.3}, DECAY),
            ("lamb", {**BETAS, "weight_decay": 0.1}, ()),
            ("adamh", BETAS, ()),
            ("ngpt", BETAS, ()),
            ("nora", {"momentum": 0.8, "weight_decay": 0.1}, ()),
            ("orthograd", {**BETAS, "weight_decay": 0.1}, ()),
        )
    ),
    Row("lion", {"lr": 0.01, "betas": (0.6, 0.8), "weight_decay": 0.1}, loops.lion),
    *(
        Row("muon", {"lr": 0.02, **PLAIN, **each}, loops.muon, fewest=2)
        for each in (
            {"nesterov": False, "scale": "match_rms_adamw", "weight_decay": 0.3},
            {"scale": "spectral", "weight_decay": 0.0},
            {"scale": "aspect", "coefficients": "polar_express"},
        )
    ),
    *(
        Row(name, {"lr": 0.02, **PLAIN, "view": "channel"}, getattr(loops, name), fewest=3)
        for name in ("muon", "muonh", "scion")
    ),
    Row("muonh", {**PLAIN, "nesterov": False}, loops.muonh, fewest=2),
    Row("muonsphere", {**PLAIN, "radius": 3.0}, loops.muonsphere, fewest=2),
    Row("normuon", {"lr": 0.02, **PLAIN, "beta2": 0.7, "scale": "none"}, loops.normuon, fewest=2),
    Row("spel", {"lr": 0.05}, loops.spel, fewest=2),
    *(
        Row(
            name,
            {"lr": 0.02, **PLAIN, "betas": (0.8, 0.9), "gain_ratio": 0.5},
            getattr(loops, name),
            families=GAINS,
            fewest=2,
        )
        for name in ("muown", "angularmuown", "mdmuon")
    ),
    Row("scion", {**PLAIN, "lr": 0.02, "radius": 5.0, "weight_decay": 0.5}, loops.scion, fewest=2),
    Row(hyperball_mine, {"lr": 0.1, "momentum": 0.5, "view": "channel"}, loops.hyperball_mine),
    Row("hyperball(adamw)", {"betas": (0.9, 0.95)}, loops.adamh),
    *(
        Row(
            hyperball_mine,
            {"tangent": True, "radius": "shape", "momentum": 0.5, "view": view},
            loops.hyperball_tangent,
            {"tangent": None, "radius": None},
        )
        for view in ("layer", "channel")
    ),
    Row("hyperball(muon)", {"momentum": 0.8}, loops.hyperball_muon, fewest=2),
    *(
        Row(
            rotational_mine,
            {"lr": 0.1, "memory": 0.5, "eps": 1e-3, "zero_mean": zero_mean, "view": "layer"},
            loops.rotational_mine,
            scaled=EPS,
        )
        for zero_mean in (False, True)
    ),
    Row(
        radial_brake_mine,
        {"outward": 0.2, "inward": 0.7, "floor": 2.0, "view": "channel", "momentum": 0.5},
        loops.radial_brake_mine,
        scaled=(*GRADIENT, ("floor", 1)),
    ),
]
"""Rows for what costs little: the settings that `ROWS` leave at their defaults."""

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
