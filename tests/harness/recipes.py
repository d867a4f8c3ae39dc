"""Every recipe at its defaults, and wrapped ones: for what holds whatever the settings."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import spherenorm as sn
from spherenorm.optim import RecipeOptimizer

WRAPPED = (
    "hyperball(adamw)",
    "hyperball(muon)",
    "hyperball(normuon)",
    "rotational(adamw)",
    "averaged(adamp)",
    "radial_brake(adamw)",
    "blocks(adamw)",
    "low_precision(adamw)",
)
EVERY_RECIPE = (*sn.recipe_names(), *WRAPPED)
"""Names of the library's recipes and of wrapped ones."""
SHAPES = ((6, 5), (6, 5), (4, 3, 3, 3), (12,))


@functools.cache
def accepted_shapes(recipe: str) -> list[tuple[int, ...]]:
    """Return those of `SHAPES` that the recipe takes."""
    rule = sn.find_recipe(recipe)()
    shapes = []
    for shape in SHAPES:
        try:
            rule.init(torch.ones(shape))
        except ValueError:
            continue
        shapes.append(shape)
    return shapes


def make_optimizer(
    recipe: str,
    devices: Sequence[str] = ("cpu",),
    dtype: torch.dtype = torch.float32,
    n_groups: int = 1,
    **options: Any,
) -> tuple[list[Tensor], RecipeOptimizer]:
    """Make weights, in turn on `devices` and in `n_groups`, and the recipe's optimizer of them."""
    generator = torch.Generator().manual_seed(0)
    weights = [
        torch.randn(shape, generator=generator).to(dtype).to(devices[i % len(devices)])
        for i, shape in enumerate(accepted_shapes(recipe))
    ]
    weights = [w.requires_grad_() for w in weights]
    with warnings.catch_warnings():  # of weights that do not suit a sphere
        warnings.simplefilter("ignore", UserWarning)
        return weights, optimizer_of(recipe, weights, n_groups, **options)


def optimizer_of(
    recipe: str, weights: Sequence[Tensor], n_groups: int = 1, **options: Any
) -> RecipeOptimizer:
    """Make the recipe's optimizer of weights, in turn in `n_groups`."""
    groups = [{"params": weights[i::n_groups]} for i in range(min(n_groups, len(weights)))]
    return sn.torch_optimizer(recipe)(groups, **{"lr": 0.01, **options})


def draw_gradients(weights: Sequence[Tensor], step: int) -> None:
    """Give each weight the gradient of a step, in the memory of the last one if there is one."""
    generator = torch.Generator().manual_seed(1000 + step)
    for weight in weights:
        drawn = torch.randn(weight.shape, generator=generator).to(weight.dtype).to(weight.device)
        if weight.grad is None:
            weight.grad = drawn
        else:
            weight.grad.copy_(drawn)


def snapshot(weights: Sequence[Tensor], optimizer: RecipeOptimizer) -> dict[str, Tensor]:
    """Return copies of all weights and states, by name."""
    tensors = {}
    for i, weight in enumerate(weights):
        tensors[f"weight {i}"] = weight.detach().clone()
        for name, value in optimizer.state[weight].items():
            tensors[f"state {name!r} of weight {i}"] = value.clone()
    return tensors
