"""The learning rate."""

from __future__ import annotations

from dataclasses import dataclass

from spherenorm.fields import hyper
from spherenorm.numerics import Scalar, cast_like
from spherenorm.rule import Rule, State, Update


@dataclass(frozen=True)
class StepSize(Rule):
    """Scale the direction by the learning rate: eta d.

    It is the last rule of most chains. Before `HeavyBall`, the momentum accumulates steps instead
    of gradients, as in SGDG, which differs under a learning-rate schedule.

    Args:
        lr: eta, in [0, inf).

    Example:
        >>> StepSize(0.1).step(torch.tensor([1.0]), torch.tensor([2.0]), {})[0]
        tensor([0.8000])
    """

    lr: Scalar = hyper("[0, inf)", zero_is_ordinary=True)

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        direction = cast_like(self.lr, update.direction) * update.direction
        rate = self.lr if update.rate is None else update.rate * self.lr
        return update.replace(direction=direction, rate=rate), {}
