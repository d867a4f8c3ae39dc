"""Small float64 problems on which the laws are checked, with real gradients of their losses.

On four of `PROBLEMS` the assumptions of the laws hold; four others break one assumption each.
Beside them are problems of random gradients, for the laws about many steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Generator, Tensor
from torch.nn import functional

from spherenorm import as_view

Weights = dict[str, Tensor]
Loss = Callable[[Weights, Generator], Tensor]

TINY = 1e-30
"""The eps of normalization layers: torch asks for a positive one, and float64 loses this one.

Scale invariance is exact without eps.
"""


class Source(Protocol):
    """A source of gradients for a simulation."""

    def start(self, generator: Generator, /) -> Weights:
        """The initial weights."""

    def gradients(self, weights: Weights, generator: Generator) -> Weights:
        """The gradient of each weight."""


@dataclass(frozen=True)
class Problem:
    """A training problem.

    Attributes:
        start: the initial weights, from a generator.
        views: for each weight, the view whose units are (meant to be) scale-invariant.
        loss: the loss of the weights, with noise from a generator.
        broken: the assumption that it breaks on purpose; empty if it breaks none.
    """

    start: Callable[[Generator], Weights]
    views: Mapping[str, str]
    loss: Loss
    broken: str = ""

    def gradients(self, weights: Weights, generator: Generator) -> Weights:
        """The gradient of the loss with respect to each weight."""
        leaves = {name: w.clone().requires_grad_() for name, w in weights.items()}
        grads = torch.autograd.grad(self.loss(leaves, generator), [*leaves.values()])
        return dict(zip(leaves, grads, strict=True))


def _normal(*shape: int, generator: Generator) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def _start_network(generator: Generator) -> Weights:
    return {
        "bn": _normal(8, 6, generator=generator),
        "ln": _normal(10, 8, generator=generator),
        "head": _normal(4, 10, generator=generator),
    }


def _network(eps: float = TINY, decay: float = 0.0, batch: int = 16) -> Loss:
    """The cross-entropy of a normalized network on random clusters.

    Linear, BatchNorm, ReLU, linear, LayerNorm, ReLU, l2-normalized linear head.
    """

    def loss(weights: Weights, generator: Generator) -> Tensor:
        labels = torch.randint(0, 4, (batch,), generator=generator)
        x = _normal(batch, 6, generator=generator) + functional.one_hot(labels, 6)
        h = _batch_norm(x @ weights["bn"].T, eps)
        h = functional.layer_norm((h + 0.1).relu() @ weights["ln"].T, (10,), eps=eps)
        logits = 4 * h.relu() @ functional.normalize(weights["head"], dim=1, eps=TINY).T
        penalty = sum((w * w).sum() for w in weights.values())
        total: Tensor = functional.cross_entropy(logits, labels) + 0.5 * decay * penalty
        return total

    return loss


def _start_convolutions(generator: Generator) -> Weights:
    return {
        "bn": _normal(6, 3, 3, 3, generator=generator),
        "gn": _normal(4, 6, 3, 3, generator=generator),
        "transposed": _normal(4, 3, 2, 2, generator=generator),
        "ln": _normal(5, 3, generator=generator),
    }


def _convolutions(weights: Weights, generator: Generator) -> Tensor:
    """Convolution, BatchNorm, convolution, GroupNorm, transposed convolution, BatchNorm, LayerNorm.

    Their units are the outputs of the first, two groups of outputs of the second, the outputs of
    the transposed one, which are on dim 1, and the whole last weight.
    """
    labels = torch.randint(0, 5, (6,), generator=generator)
    x = _normal(6, 3, 6, 6, generator=generator)
    h = _batch_norm(functional.conv2d(x, weights["bn"]), TINY)
    h = functional.group_norm(functional.conv2d((h + 0.1).relu(), weights["gn"]), 2, eps=TINY)
    h = _batch_norm(functional.conv_transpose2d((h + 0.1).relu(), weights["transposed"]), TINY)
    pooled = (h + 0.1).relu().mean((2, 3)) + 0.1 * _normal(6, 3, generator=generator)
    logits = functional.layer_norm(pooled @ weights["ln"].T, (5,), eps=TINY)
    return functional.cross_entropy(logits, labels)


def _batch_norm(h: Tensor, eps: float) -> Tensor:
    if len(h) > 1:
        return functional.batch_norm(h, None, None, training=True, eps=eps)
    # torch refuses statistics over one sample; by the formula, the output is 0 whatever the weight
    return (h - h.mean(0)) / (h.var(0, unbiased=False) + 1e-5).sqrt()


def _quotient(weights: Weights, generator: Generator) -> Tensor:
    """The Rayleigh quotient sum_i i w_i^2 / |w|^2 of one unit."""
    square = weights["w"][0] ** 2
    return (torch.arange(len(square)) * square).sum() / square.sum()


def _regression(weights: Weights, generator: Generator) -> Tensor:
    return (_normal(16, 6, generator=generator) @ weights["w"].T - 1).square().mean()


def _start_at(*coordinates: float) -> Callable[[Generator], Weights]:
    return lambda generator: {"w": torch.tensor([coordinates], dtype=torch.float64)}


def _start_normal(units: int, dimension: int) -> Callable[[Generator], Weights]:
    return lambda generator: {"w": _normal(units, dimension, generator=generator)}


VIEWS = {"bn": "channel", "ln": "layer", "head": "channel"}
OF_CONVOLUTIONS = {"bn": "channel", "gn": "groups=2", "transposed": "dim=1", "ln": "layer"}
CHANNEL = {"w": "channel"}

PROBLEMS: dict[str, Problem] = {
    "network": Problem(_start_network, VIEWS, _network()),
    "convolutions": Problem(_start_convolutions, OF_CONVOLUTIONS, _convolutions),
    "toy-2d": Problem(_start_at(1.0, -0.1), CHANNEL, _quotient),
    "toy-3d": Problem(_start_at(0.3, 0.5, -0.7), CHANNEL, _quotient),
    "network-eps": Problem(
        _start_network, VIEWS, _network(eps=1e-5), "the normalization layers have eps = 1e-5"
    ),
    "l2-in-loss": Problem(
        _start_network,
        VIEWS,
        _network(decay=1e-2),
        "coupled decay: (0.01 / 2) |w|^2 is part of the loss",
    ),
    "one-sample": Problem(
        _start_network, VIEWS, _network(batch=1), "batch statistics over one sample"
    ),
    "regression": Problem(
        _start_normal(3, 6),
        CHANNEL,
        _regression,
        "a weight without normalization is not scale-invariant",
    ),
}
"""Problems by name: four on which the assumptions hold, and four that break one each."""


def noise(units: int, dimension: int) -> Problem:
    """The loss sum_i <a_i, w_i / |w_i|>, with fresh Gaussian a_i at each step."""

    def loss(weights: Weights, generator: Generator) -> Tensor:
        w = weights["w"]
        a = _normal(*w.shape, generator=generator)
        return (a * functional.normalize(w, dim=1, eps=TINY)).sum()

    return Problem(_start_normal(units, dimension), CHANNEL, loss)


def random_readout(units: int, dimension: int) -> Problem:
    """A linear layer, BatchNorm, ReLU, and a readout with fresh Gaussian weights at each step."""

    def loss(weights: Weights, generator: Generator) -> Tensor:
        x = _normal(32, dimension, generator=generator)
        hidden = _batch_norm(x @ weights["w"].T, TINY).relu()
        return (_normal(*hidden.shape, generator=generator) * hidden).sum()

    return Problem(_start_normal(units, dimension), CHANNEL, loss)


@dataclass(frozen=True)
class UnitGradients:
    """Random gradients of length 1, orthogonal to their weights, which start with length 1.

    Attributes:
        units, dimension: the shape of the weight, one unit per row.
    """

    units: int
    dimension: int

    def start(self, generator: Generator) -> Weights:
        """One random direction per unit."""
        weight = _normal(self.units, self.dimension, generator=generator)
        return {"w": weight / as_view("channel").norm(weight)}

    def gradients(self, weights: Weights, generator: Generator) -> Weights:
        """One random tangent direction per unit."""
        view, weight = as_view("channel"), weights["w"]
        grad = _normal(*weight.shape, generator=generator)
        grad = grad - view.radial_coefficient(weight, grad) * weight
        return {"w": grad / view.norm(grad)}
