"""The learning rate."""

from __future__ import annotations

from dataclasses import dataclass, replace

from spherenorm.numerics import cast_like
from spherenorm.rule import Rule, Scalar, State, hyper
from spherenorm.update import Update

__all__ = ["StepSize"]


@dataclass(frozen=True)
class StepSize(Rule):
    """Scale the direction by the learning rate: eta d.

    Last in most chains. Before `HeavyBall`, the momentum accumulates steps instead of gradients, as in SGDG, which
    differs under a learning-rate schedule.
    """

    lr: Scalar = hyper("[0, inf)", through_zero=True)

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        direction = cast_like(self.lr, update.direction) * update.direction
        return replace(update, direction=direction), {}
