"""Variants of the tiny task with what few tasks have: odd scores, buffers and data."""

import functools
import os
from dataclasses import dataclass

import numpy as np
import torch
from spherenorm_tiny import Tiny
from torch import nn

import spherenorm as sn
from spherenorm import rules as r
from spherenorm_experiments.core import Collected, Mean, Splits


@dataclass(frozen=True)
class Signs(Tiny):
    """Its score is a number whatever the weights are."""

    name = "signs"

    def evaluate(self, model, batch):
        return {"score": Mean(100.0 * ((model(batch[0]) > 0) == (batch[1] > 0)))}


@dataclass(frozen=True)
class OtherMetrics(Tiny):
    """Its last batches have no score, but another metric."""

    name = "other-metrics"
    evaluation_batch = 12

    def evaluate(self, model, batch):
        errors = (model(batch[0]) - batch[1]).square()
        return {"score": Mean(-errors)} if len(errors) > 4 else {"error": Mean(errors)}


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


@functools.cache
def _kept_model():
    return Tiny().model()


@dataclass(frozen=True)
class Faulty(Tiny):
    """A task with one of the faults that users make."""

    fault: str = ""

    name = "faulty"

    def data(self):
        train, validation, test = super().data()
        x, y = train
        faults = {
            "a list": lambda: Splits([x, y], validation, test),
            "arrays": lambda: Splits(train, (np.ones(3), np.ones(3)), test),
            "a dict": lambda: Splits({"x": x, "y": y}, validation, test),
            "lengths": lambda: Splits((x[:40], y[:60]), validation, test),
            "a scalar": lambda: Splits(train, validation, (x, torch.zeros(()))),
            "no items": lambda: Splits((x[:0], y[:0]), validation, test),
            "no validation": lambda: Splits(train, [], test),
            "a tuple": lambda: (train, validation, test),
        }
        return faults.get(self.fault, super().data)()

    def model(self):
        model = super().model().requires_grad_(self.fault not in ("frozen", "statistics"))
        if self.fault == "statistics":
            return nn.Sequential(_kept_model().requires_grad_(False), nn.Linear(1, 1))
        kept = {"one model": _kept_model, "no model": model.state_dict}
        return kept.get(self.fault, lambda: model)()

    def loss(self, model, batch):
        loss = super().loss(model, batch)
        faults = {
            "a vector": (model(batch[0]) - batch[1]).square,
            "a number": loss.item,
            "detached": loss.detach,
            "integer": loss.long,
        }
        return faults.get(self.fault, lambda: loss)()

    def evaluate(self, model, batch):
        right = model(batch[0]) > 0
        faults = {
            "a tensor": lambda: {"score": right.float().mean()},
            "a float": lambda: {"score": 0.5},
            "nan": lambda: {"score": Mean(0.0 / right.logical_and(~right))},
            "too few": lambda: {"score": Collected(_undefined, right)},
            "a typo": lambda: {"score": Mean(right, then=lambda x: x.mean)},
            "bare": lambda: Mean(right),
        }
        return faults.get(self.fault, lambda: super(Faulty, self).evaluate(model, batch))()


def _undefined(column):
    raise ValueError("only one class")


@dataclass(frozen=True)
class Leaves(r.StepSize):
    """Ends its process without a word."""

    def update(self, update, state):
        os._exit(3)


def leaving(lr=0.1):
    return sn.chain(Leaves(lr))


class Placed(nn.Module):
    """Its forward pass indexes the weight of a part, which it does not call."""

    def __init__(self):
        super().__init__()
        self.pos, self.linear = nn.Embedding(4, 6), nn.Linear(6, 1)

    def forward(self, x):
        return self.linear(x + self.pos.weight[torch.arange(len(x)) % 4])


@dataclass(frozen=True)
class Indexed(Tiny):
    """A task that FSDP2 cannot train before `shards` leaves out the part that is indexed."""

    whole: bool = False

    name = "indexed"

    def model(self):
        return Placed()

    def shards(self, model):
        return [model.linear] if self.whole else super().shards(model)
