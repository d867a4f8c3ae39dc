"""Common to all synthetic sounds: rate, random draws, time, and the division into splits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spherenorm_experiments.task import Splits

RATE = 8000
"""Samples a second."""


@dataclass(frozen=True)
class Draw:
    """Random columns of shape (count, 1)."""

    count: int
    random: torch.Generator

    def uniform(self, low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(self.count, 1, generator=self.random)

    def ratio(self, low: float, high: float) -> Tensor:
        """The logarithm is uniform."""
        return low * (high / low) ** self.uniform(0, 1)

    def flag(self, probability: float) -> Tensor:
        return (torch.rand(self.count, 1, generator=self.random) < probability).float()

    def noise(self, samples: int) -> Tensor:
        return torch.randn(self.count, samples, generator=self.random)


def seconds(samples: int) -> Tensor:
    """The time of each sample."""
    return torch.arange(samples) / RATE


def divided(inputs: Tensor, targets: Tensor, train: int, validation: int) -> Splits:
    """The first `train` items, the next `validation` ones, and the rest for the test."""
    sizes = [train, validation, len(inputs) - train - validation]
    parts = zip(torch.split(inputs, sizes), torch.split(targets, sizes), strict=True)
    return Splits(*parts)
