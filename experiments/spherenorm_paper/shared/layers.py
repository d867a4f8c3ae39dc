"""Pieces that the convolutional networks share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor, nn

Activation = Callable[[], nn.Module]


def convolution(
    inputs: int,
    outputs: int,
    kernel: int = 1,
    stride: int = 1,
    groups: int = 1,
    activation: Activation | None = None,
) -> nn.Sequential:
    """A convolution without bias, BatchNorm, and the activation if there is one.

    BatchNorm follows directly, so each of the convolution's channels is scale-invariant.
    """
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    layers: list[nn.Module] = [conv, nn.BatchNorm2d(outputs)]
    return nn.Sequential(*layers, *([] if activation is None else [activation()]))


def rising(last: float, count: int) -> list[float]:
    """`count` rates of stochastic depth, rising linearly from 0 to `last`."""
    return [last * index / max(1, count - 1) for index in range(count)]


class StochasticDepth(nn.Module):
    """In training, b x / (1 - rate) for each item, with b ~ Bernoulli(1 - rate).

    On the residual branch of a block it drops the block (Huang et al. 2016).
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.rate:
            return x
        is_kept = torch.rand(len(x), *(1 for _ in x.shape[1:]), device=x.device) >= self.rate
        return x * is_kept / (1 - self.rate)


def head(features: int, classes: int, dropout: float = 0.0) -> nn.Sequential:
    """The means over the image, dropout, and a linear classifier."""
    pool = nn.AdaptiveAvgPool2d(1), nn.Flatten()
    return nn.Sequential(*pool, nn.Dropout(dropout), nn.Linear(features, classes))


def initialize(network: nn.Module) -> None:
    """Convolutions with He's variance by fan-out, linear layers N(0, 0.01), biases 0.

    Source: K. He et al., *Delving Deep into Rectifiers*, 2015.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, 0.0, 0.01)
        if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)


def load_published(modules: Iterable[nn.Module], file: Path) -> None:
    """Copy the weights and BatchNorm's statistics of a file into modules, one after the other.

    Our networks name their layers otherwise than torchvision, and have them in the same order.

    Args:
        modules: of the trunk, in order.
        file: a state that `torch.save` wrote, such as those of torchvision's `resnet18` and
            `vgg16_bn`; it is read without running any code in it. Its classifier is left out.

    Raises:
        ValueError: there is no such file, or it has other tensors.
    """
    if not file.is_file():
        raise ValueError(f"published weights: there is no file {file}")
    state = torch.load(file, map_location="cpu", weights_only=True)
    trunk, counter = nn.ModuleList(modules), "num_batches_tracked"  # which old files lack
    file_names = [name for name in state
              if not name.startswith(("fc.", "classifier.")) and counter not in name]  # fmt: skip
    trunk_names = [name for name in trunk.state_dict() if counter not in name]
    for name, trunk_name in zip(
        file_names, trunk_names, strict=False
    ):  # a file may be in another order
        if name.rpartition(".")[2] != trunk_name.rpartition(".")[2]:
            wrong = f"has other tensors: {name} in the place of {trunk_name}"
            raise ValueError(f"published weights: {file} {wrong}")
    try:
        trunk.load_state_dict(
            {
                trunk_name: state[name]
                for name, trunk_name in zip(file_names, trunk_names, strict=True)
            }
        )
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"published weights: {file} has other tensors: {error}") from error
