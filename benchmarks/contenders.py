"""The optimizers that are compared, of this package and of others that are installed."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spherenorm import optim

LR = 1e-8
"""A learning rate so small that the weights, which all contenders share, do not change."""

BACKENDS = ("auto", "rule", "compiled")


@dataclass(frozen=True)
class Contender:
    """An optimizer to time.

    Attributes:
        name: the name of its row.
        make: a function from parameters to an optimizer, which raises ImportError if the package of
            the optimizer is missing.
        bytes_per_weight: the least number of bytes that a step has to read and write for a float32
            weight; for projected optimizers it includes the 8 bytes of the invariance test.
    """

    name: str
    make: Callable[[list[Tensor]], torch.optim.Optimizer]
    bytes_per_weight: int


def _imported(
    module: str, name: str, **settings: Any
) -> Callable[[list[Tensor]], torch.optim.Optimizer]:
    def make(params: list[Tensor]) -> torch.optim.Optimizer:
        optimizer: torch.optim.Optimizer = getattr(importlib.import_module(module), name)(
            params, lr=LR, **settings
        )
        return optimizer

    return make


def _recipe_optimizer(
    cls: type[optim.RecipeOptimizer], **settings: Any
) -> Callable[[list[Tensor]], torch.optim.Optimizer]:
    return lambda params: cls(params, lr=LR, **settings)


CONTENDERS = [
    Contender("AdamW, torch fused", _imported("torch.optim", "AdamW", fused=True), 28),
    Contender("AdamW, torch foreach", _imported("torch.optim", "AdamW", foreach=True), 28),
    Contender("AdamW, torch loop", _imported("torch.optim", "AdamW", foreach=False), 28),
    *(
        Contender(
            f"AdamW, spherenorm {backend}", _recipe_optimizer(optim.AdamW, backend=backend), 28
        )
        for backend in BACKENDS
    ),
    *(
        Contender(
            f"AdamP, spherenorm {backend}",
            _recipe_optimizer(optim.AdamP, weight_decay=0.01, backend=backend),
            36,
        )
        for backend in BACKENDS
    ),
    Contender("AdamP, released", _imported("adamp", "AdamP", weight_decay=0.01), 36),
    Contender("AdamP, timm", _imported("timm.optim", "AdamP", weight_decay=0.01), 36),
    Contender(
        "AdamP, pytorch_optimizer", _imported("pytorch_optimizer", "AdamP", weight_decay=0.01), 36
    ),
    Contender("AdamW, heavyball", _imported("heavyball", "AdamW"), 28),
    Contender("SGD, torch fused", _imported("torch.optim", "SGD", momentum=0.9, fused=True), 20),
    Contender(
        "SGDP, spherenorm auto", _recipe_optimizer(optim.SGDP, momentum=0.9, weight_decay=0.01), 28
    ),
    Contender("SGDP, released", _imported("adamp", "SGDP", momentum=0.9, weight_decay=0.01), 28),
]


def parameters(shapes: Sequence[tuple[int, ...]], device: str) -> list[Tensor]:
    """Return weights with gradients, each row's orthogonal to it, as under BatchNorm."""
    generator = torch.Generator().manual_seed(0)
    weights = []
    for shape in shapes:
        weight, grad = (0.05 * torch.randn(shape, generator=generator) for _ in range(2))
        if weight.ndim > 1:
            dims = tuple(range(1, weight.ndim))
            grad = grad - weight * (weight * grad).sum(dims, keepdim=True) / (weight * weight).sum(
                dims, keepdim=True
            )
        weight = weight.to(device).requires_grad_()
        weight.grad = grad.to(device)
        weights.append(weight)
    return weights


def available(
    weights: list[Tensor], device: str
) -> tuple[dict[str, torch.optim.Optimizer], list[str]]:
    """Return the optimizers of the shared weights by name, and a line for each that is missing."""
    optimizers: dict[str, torch.optim.Optimizer] = {}
    missing = []
    for contender in CONTENDERS:
        try:
            optimizers[contender.name] = contender.make(weights)
        except Exception as error:  # another package's failure must not end the comparison
            missing.append(
                f"{contender.name}: {type(error).__name__}: {str(error).splitlines()[0][:100]}"
            )
    return optimizers, missing
