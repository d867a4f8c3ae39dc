"""Small float64 training problems with real autograd gradients, on which the laws are checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["TASKS", "Task"]

Weights = dict[str, Tensor]

TINY = 1e-30
"""The eps of the normalization layers: torch asks for a positive one; this one is lost in float64, as scale invariance needs."""


@dataclass(frozen=True)
class Task:
    """A training problem.

    Attributes:
        start: the initial weights, from a generator.
        views: for each weight, the view whose units are (meant to be) scale-invariant.
        loss: the loss of the weights at step t, from a generator of noise.
        spoiled: what is wrong with it: the assumption that it breaks; empty if it breaks none.
    """

    start: Callable[[torch.Generator], Weights]
    views: Mapping[str, str]
    loss: Callable[[Weights, torch.Generator], Tensor]
    spoiled: str = ""


def _normal(*shape: int, generator: torch.Generator) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def _network_start(generator: torch.Generator) -> Weights:
    return {
        "bn": _normal(8, 6, generator=generator),
        "ln": _normal(10, 8, generator=generator),
        "head": _normal(4, 10, generator=generator),
    }


def _network(
    eps: float = TINY, decay: float = 0.0, batch: int = 16
) -> Callable[[Weights, torch.Generator], Tensor]:
    """Linear, BatchNorm, ReLU, linear, LayerNorm, ReLU, l2-normalized linear head; cross-entropy on random clusters."""

    def loss(weights: Weights, generator: torch.Generator) -> Tensor:
        labels = torch.randint(0, 4, (batch,), generator=generator)
        x = _normal(batch, 6, generator=generator) + functional.one_hot(labels, 6)
        h = x @ weights["bn"].T
        if batch > 1:
            h = functional.batch_norm(h, None, None, training=True, eps=eps)
        else:  # torch refuses statistics over one sample; by the formula, the output is 0 whatever the weight
            h = (h - h.mean(0)) / (h.var(0, unbiased=False) + 1e-5).sqrt()
        h = functional.layer_norm((h + 0.1).relu() @ weights["ln"].T, (10,), eps=eps)
        logits = 4 * h.relu() @ functional.normalize(weights["head"], dim=1, eps=TINY).T
        penalty = sum((w * w).sum() for w in weights.values())
        total: Tensor = functional.cross_entropy(logits, labels) + 0.5 * decay * penalty
        return total

    return loss


def _cosine(weights: Weights, generator: torch.Generator) -> Tensor:
    """The paper's 2-D toy: -cos(w, w*), w* = (0, 1)."""
    w = weights["w"]
    cosine: Tensor = w[0, 1] / w.norm()
    return -cosine


def _rosenbrock(weights: Weights, generator: torch.Generator) -> Tensor:
    """The paper's 3-D toy: h(c psi, c phi), c = 1.5, h(a, b) = (1 - a)^2 + 300 (b - a^2)^2, scaled by 1e-4."""
    x, y, z = weights["w"][0] / weights["w"].norm()
    a, b = 1.5 * torch.atan2(x, z), 1.5 * torch.asin(y)
    return 1e-4 * ((1 - a) ** 2 + 300 * (b - a**2) ** 2)


def _regression(weights: Weights, generator: torch.Generator) -> Tensor:
    return (_normal(16, 6, generator=generator) @ weights["w"].T - 1).square().mean()


def _at(*coordinates: float) -> Callable[[torch.Generator], Weights]:
    return lambda generator: {"w": torch.tensor([coordinates], dtype=torch.float64)}


NETWORK_VIEWS = {"bn": "channel", "ln": "layer", "head": "channel"}

TASKS: dict[str, Task] = {
    "network": Task(_network_start, NETWORK_VIEWS, _network()),
    "toy-2d": Task(_at(1.0, 0.1), {"w": "channel"}, _cosine),
    "toy-3d": Task(_at(0.3, 0.5, -0.7), {"w": "channel"}, _rosenbrock),
    "network-eps": Task(
        _network_start,
        NETWORK_VIEWS,
        _network(eps=1e-5),
        "the normalization layers have eps = 1e-5",
    ),
    "l2-in-loss": Task(
        _network_start,
        NETWORK_VIEWS,
        _network(decay=1e-2),
        "coupled decay: (0.01 / 2) |w|^2 is part of the loss",
    ),
    "one-sample": Task(
        _network_start, NETWORK_VIEWS, _network(batch=1), "batch statistics over one sample"
    ),
    "regression": Task(
        lambda generator: {"w": _normal(3, 6, generator=generator)},
        {"w": "channel"},
        _regression,
        "a weight without normalization is not scale-invariant",
    ),
}
"""Problems by name: three on which the assumptions hold, and four that break one each."""
