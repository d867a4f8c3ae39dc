"""The optimizers that are compared; those of other packages where they are installed."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spherenorm import optim

LR = 1e-8
"""So small that weights and gradients, which all contenders share, stay as they are."""


BACKENDS = ("auto", "rule", "compiled")


@dataclass(frozen=True)
class Contender:
    """An optimizer to time.

    Attributes:
        name: in the table.
        make: makes the optimizer of parameters; an ImportError says that its package is missing.
        bytes_per_weight: the least that a float32 weight's step has to move; for projected
            optimizers with the 8 bytes of the decision.
    """

    name: str
    make: Callable[[list[Tensor]], torch.optim.Optimizer]
    bytes_per_weight: int


def _of(module: str, name: str, **settings: Any) -> Callable[[list[Tensor]], torch.optim.Optimizer]:
    def make(params: list[Tensor]) -> torch.optim.Optimizer:
        optimizer: torch.optim.Optimizer = getattr(importlib.import_module(module), name)(
            params, lr=LR, **settings
        )
        return optimizer

    return make


def _ours(
    cls: type[optim.RecipeOptimizer], **settings: Any
) -> Callable[[list[Tensor]], torch.optim.Optimizer]:
    return lambda params: cls(params, lr=LR, **settings)


CONTENDERS = [
    Contender("AdamW, torch fused", _of("torch.optim", "AdamW", fused=True), 28),
    Contender("AdamW, torch foreach", _of("torch.optim", "AdamW", foreach=True), 28),
    Contender("AdamW, torch loop", _of("torch.optim", "AdamW", foreach=False), 28),
    *(
        Contender(f"AdamW, spherenorm {backend}", _ours(optim.AdamW, backend=backend), 28)
        for backend in BACKENDS
    ),
    *(
        Contender(
            f"AdamP, spherenorm {backend}",
            _ours(optim.AdamP, weight_decay=0.01, backend=backend),
            36,
        )
        for backend in BACKENDS
    ),
    Contender("AdamP, released", _of("adamp", "AdamP", weight_decay=0.01), 36),
    Contender("AdamP, timm", _of("timm.optim", "AdamP", weight_decay=0.01), 36),
    Contender("AdamP, pytorch_optimizer", _of("pytorch_optimizer", "AdamP", weight_decay=0.01), 36),
    Contender("AdamW, heavyball", _of("heavyball", "AdamW"), 28),
    Contender("SGD, torch fused", _of("torch.optim", "SGD", momentum=0.9, fused=True), 20),
    Contender("SGDP, spherenorm auto", _ours(optim.SGDP, momentum=0.9, weight_decay=0.01), 28),
    Contender("SGDP, released", _of("adamp", "SGDP", momentum=0.9, weight_decay=0.01), 28),
]


def parameters(shapes: Sequence[tuple[int, ...]], device: str) -> list[Tensor]:
    """Weights with gradients; as after BatchNorm, each row's gradient is orthogonal to the row."""
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
    """Each contender's optimizer of the shared weights, and a line for each that is not here."""
    made, missing = {}, []
    for contender in CONTENDERS:
        try:
            made[contender.name] = contender.make(weights)
        except Exception as error:  # another package's failure must not end the comparison
            missing.append(
                f"{contender.name}: {type(error).__name__}: {str(error).splitlines()[0][:100]}"
            )
    return made, missing
