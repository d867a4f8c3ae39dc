"""Small float64 problems on which the laws are checked, and the one simulation loop.

On three of `PROBLEMS` the assumptions of the laws hold; two others break one assumption each.
Beside them are random gradients, for the laws about many steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn import functional

from spherenorm import Rule, State, as_view
from spherenorm_theory.laws.evaluate import Inputs

Weights = dict[str, Tensor]
Loss = Callable[[Weights, Generator], Tensor]

TINY = 1e-30
"""The eps of normalization layers: torch asks for a positive one, and float64 loses this one.

Scale invariance is exact without eps.
"""


def _normal(*shape: int, generator: Generator) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


@dataclass(frozen=True)
class Problem:
    """A training problem, from random weights.

    Attributes:
        weights: for each weight, its shape and the view whose units are (meant to be)
            scale-invariant.
        loss: the loss of the weights, with noise from a generator.
    """

    weights: Mapping[str, tuple[tuple[int, ...], str]]
    loss: Loss

    def start(self, generator: Generator) -> Weights:
        """Gaussian weights."""
        return {name: _normal(*x, generator=generator) for name, (x, _) in self.weights.items()}

    def gradients(self, weights: Weights, generator: Generator) -> Weights:
        """The gradient of the loss with respect to each weight."""
        leaves = {name: w.clone().requires_grad_() for name, w in weights.items()}
        grads = torch.autograd.grad(self.loss(leaves, generator), [*leaves.values()])
        return dict(zip(leaves, grads, strict=True))


@dataclass(frozen=True)
class RandomGradients:
    """Random gradients, orthogonal to their units, of one weight "w".

    Their length is sqrt(d - 1) / |w| in the mean, as that of a scale-invariant loss is.

    Attributes:
        shape: of the weight.
        view: of its units.
        norm: of each unit at the start.
    """

    shape: tuple[int, ...]
    view: str = "channel"
    norm: float = 1.0

    def start(self, generator: Generator) -> Weights:
        """One random direction per unit."""
        weight = _normal(*self.shape, generator=generator)
        return {"w": self.norm * weight / as_view(self.view).norm(weight)}

    def gradients(self, weights: Weights, generator: Generator) -> Weights:
        """One random tangent vector per unit."""
        view, weight = as_view(self.view), weights["w"]
        grad = _normal(*weight.shape, generator=generator)
        grad = grad - view.radial_coefficient(weight, grad) * weight
        return {"w": grad / view.norm(weight)}


def _network(eps: float = TINY, decay: float = 0.0) -> Loss:
    """The cross-entropy of a normalized network on random clusters.

    Linear, BatchNorm, ReLU, linear, LayerNorm, ReLU, l2-normalized linear head.
    """

    def loss(weights: Weights, generator: Generator) -> Tensor:
        labels = torch.randint(0, 4, (16,), generator=generator)
        x = _normal(16, 6, generator=generator) + functional.one_hot(labels, 6)
        h = _batch_norm(x @ weights["bn"].T, eps)
        h = functional.layer_norm((h + 0.1).relu() @ weights["ln"].T, (10,), eps=eps)
        logits = 4 * h.relu() @ functional.normalize(weights["head"], dim=1, eps=TINY).T
        penalty = sum((w * w).sum() for w in weights.values())
        total: Tensor = functional.cross_entropy(logits, labels) + 0.5 * decay * penalty
        return total

    return loss


def _convolutions(weights: Weights, generator: Generator) -> Tensor:
    """Convolution, BatchNorm, convolution, GroupNorm, transposed convolution, BatchNorm, LayerNorm.

    Their units are the outputs of the first, two groups of outputs of the second, the outputs of
    the transposed one, which are on dim 1, and the whole last weight.
    """
    labels = torch.randint(0, 5, (6,), generator=generator)
    x = _normal(6, 3, 6, 6, generator=generator)
    h = _batch_norm(functional.conv2d(x, weights["bn"]))
    h = functional.group_norm(functional.conv2d((h + 0.1).relu(), weights["gn"]), 2, eps=TINY)
    h = _batch_norm(functional.conv_transpose2d((h + 0.1).relu(), weights["transposed"]))
    pooled = (h + 0.1).relu().mean((2, 3)) + 0.1 * _normal(6, 3, generator=generator)
    logits = functional.layer_norm(pooled @ weights["ln"].T, (5,), eps=TINY)
    return functional.cross_entropy(logits, labels)


def _batch_norm(h: Tensor, eps: float = TINY) -> Tensor:
    return functional.batch_norm(h, None, None, training=True, eps=eps)


def _quotient(weights: Weights, generator: Generator) -> Tensor:
    """The Rayleigh quotient sum_i i w_i^2 / |w|^2 of one unit."""
    square = weights["w"][0] ** 2
    return (torch.arange(len(square)) * square).sum() / square.sum()


NETWORK = {"bn": ((8, 6), "channel"), "ln": ((10, 8), "layer"), "head": ((4, 10), "channel")}
CONVOLUTIONS = {
    "bn": ((6, 3, 3, 3), "channel"),
    "gn": ((4, 6, 3, 3), "groups=2"),
    "transposed": ((4, 3, 2, 2), "dim=1"),
    "ln": ((5, 3), "layer"),
}

PROBLEMS: dict[str, Problem] = {
    "network": Problem(NETWORK, _network()),
    "convolutions": Problem(CONVOLUTIONS, _convolutions),
    "toy-3d": Problem({"w": ((1, 3), "channel")}, _quotient),
    "network-eps": Problem(NETWORK, _network(eps=1e-5)),
    "l2-in-loss": Problem(NETWORK, _network(decay=1e-2)),
}
"""Problems by name: three on which the assumptions hold, and two that break one on purpose.

Layers with an eps of 1e-5, and coupled decay in the loss, (0.01 / 2) |w|^2, give gradients a part
along the weight.
"""


def simulate(
    rules: Iterable[Rule], source: Problem | RandomGradients, seed: int
) -> Iterator[dict[str, tuple[Inputs, Tensor]]]:
    """Run a rule on a source of gradients: the inputs of each weight's step, and the new weight.

    Args:
        rules: the rule of each step, of one recipe, as under a schedule.
        source: gives the initial weights, and the gradients at each step.
        seed: of the generator that the source draws from.
    """
    generator = torch.Generator().manual_seed(seed)
    weights, states = source.start(generator), dict[str, State]()
    for rule in rules:
        grads, steps = source.gradients(weights, generator), {}
        for name, weight in weights.items():
            state = states.get(name) or rule.init(weight)
            with torch.no_grad():  # as optimizers take their steps
                new, states[name] = rule.step(weight, grads[name], state)
            steps[name] = Inputs(weight, grads[name], state, {}), new
        yield steps
        weights = {name: new for name, (_, new) in steps.items()}
