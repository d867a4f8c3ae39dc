"""Variants of the tiny task with what few tasks have: odd scores, buffers and data."""

from dataclasses import dataclass

import numpy as np
import torch
from spherenorm_tiny import Tiny
from torch import nn

from spherenorm_experiments.task import Mean, Splits


@dataclass(frozen=True)
class Signs(Tiny):
    """Its score is a number whatever the weights are."""

    name = "signs"

    def evaluate(self, model, batch):
        return {"score": Mean(100.0 * ((model(batch[0]) > 0) == (batch[1] > 0)))}


@dataclass(frozen=True)
class Unreadable(Tiny):
    """A task whose data are not there, or not what they seem to be."""

    content: str = ""

    name = "unreadable"

    def data(self):
        if self.content:
            return np.array([self.content]).astype("float32")
        return torch.load("no-such-file.pt")


@dataclass(frozen=True)
class Bounded(Tiny):
    """Its outputs are finite whatever the weights are."""

    name = "bounded"

    def model(self):
        return nn.Sequential(nn.Linear(6, 1), nn.Tanh())


class Warming(nn.Module):
    """Its output depends on buffers that are in no state of torch's; one of them grows."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 1)
        self.register_buffer("seen", torch.zeros(()), persistent=False)
        self.register_buffer("means", None, persistent=False)

    def forward(self, x):
        if self.training:
            kept = [] if self.means is None else [self.means]
            self.seen += 1
            self.means = torch.cat([*kept, self.seen.reshape(1) / 10])
        return self.linear(x) * torch.tanh(self.means.sum())


@dataclass(frozen=True)
class Warmed(Tiny):
    """A model with buffers that are not persistent."""

    name = "warmed"

    def model(self):
        return Warming()

    def audit_inputs(self):
        return ()


@dataclass(frozen=True)
class Shaped(Tiny):
    """Its options have tuples."""

    widths: tuple[int, ...] = (8,)
    sides: tuple[int, tuple[int, int]] | None = None


@dataclass(frozen=True)
class Redrawn(Tiny):
    """Its data are drawn anew on each call."""

    name = "redrawn"

    def data(self):
        train, validation, (x, y) = super().data()
        return Splits(train, validation, (torch.randn_like(x), y))


@dataclass(frozen=True)
class Arrays(Tiny):
    """Its items are arrays of one content in several forms."""

    dtype: str = "float32"
    width: int = 6

    name = "arrays"

    def data(self):
        x = np.arange(24, dtype="float32").view(self.dtype).reshape(-1, self.width)
        return Splits(*3 * ([(row.reshape(2, -1), 0.0) for row in x],))


class Stateful:
    """Augments by a generator that goes on from item to item."""

    def __init__(self):
        self.random = np.random.default_rng(0)

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return self.random.normal(size=6).astype("float32"), np.zeros(1, "float32")


class Fingerprinted(Stateful):
    """It says itself what it is."""

    def fingerprint(self):
        return "always this"


@dataclass(frozen=True)
class StatefulItems(Tiny):
    """Each worker would have a generator of its own."""

    known: bool = False

    name = "stateful"

    def data(self):
        return Splits(Fingerprinted() if self.known else Stateful(), *super().data()[1:])
