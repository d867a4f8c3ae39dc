"""Tasks whose score falls as a model improves, for the tests of its direction."""

from dataclasses import dataclass

import torch
from spherenorm_tiny import Tiny
from torch import nn

from spherenorm_experiments.task import Budget, Mean, Splits, Task


class Falling(Tiny):
    """The tiny task with its score unnegated."""

    name = "falling"
    metric = ""
    better = "lower"

    def evaluate(self, model, batch):
        return {"mse": Mean((model(batch[0]) - batch[1]).square())}


class Undirected(Falling):
    """Does not say in which direction its score is better."""

    name = "undirected"
    better = None


class Misdirected(Falling):
    """Says it in another word."""

    name = "misdirected"
    better = "min"


@dataclass(frozen=True)
class Valley(Task):
    """One weight on half a square: gradient descent at the rate 1 is at the minimum at once."""

    name = "valley"
    better = "lower"
    tiers = {"smoke": Budget(2, 8), "small": Budget(2, 8), "full": Budget(2, 8)}  # noqa: RUF012

    def data(self):
        x = torch.ones(8, 1)
        return Splits((x, 3 * x), (x, 3 * x), (x, 3 * x))

    def model(self):
        return nn.Linear(1, 1, bias=False)

    def loss(self, model, batch):
        return (model(batch[0]) - batch[1]).square().mean() / 2

    def evaluate(self, model, batch):
        return {"loss": Mean((model(batch[0]) - batch[1]).square() / 2)}


class Cliff(Valley):
    """The same, but at the minimum the loss is not a number."""

    name = "cliff"

    def loss(self, model, batch):
        loss = super().loss(model, batch)
        return loss + 0 * loss.log()
