"""Rules that decide entry by entry."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from spherenorm.fields import hyper
from spherenorm.numerics import Scalar, cast_like
from spherenorm.rule import Rule, State, Update


@dataclass(frozen=True)
class Sign(Rule):
    """The sign of each entry of the direction.

    Example:
        >>> Sign().step(torch.zeros(3), torch.tensor([2.0, 0.0, -0.1]), {})[0]
        tensor([-1.,  0.,  1.])

    Source: Bernstein et al. 2018 (signSGD); Chen et al. 2023 (Lion), Algorithm 2.
    """

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        return update.replace(direction=torch.sign(update.direction)), {}


@dataclass(frozen=True)
class CautiousMask(Rule):
    """Keep the entries of the direction that agree with the gradient, and make up for the others:

        d m / max(mean(m), least),    m = 1 where d g > 0, else 0.

    Args:
        least: the smallest share of agreeing entries that is divided by, in (0, 1].

    Example:
        >>> update = Update(torch.zeros(2), torch.ones(2), torch.tensor([1.0, -1.0]))
        >>> CautiousMask().update(update, {})[0].direction
        tensor([2., 0.])

    Source: Liang et al. 2024 (cautious optimizers), Algorithm 1.
    """

    least: Scalar = hyper("(0, 1]", 1e-3)

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        direction = update.direction
        agrees = direction * update.grad > 0
        share = torch.where(agrees, torch.ones_like(direction), 0).mean()
        scale = 1 / torch.maximum(share, cast_like(self.least, share) * torch.ones_like(share))
        return update.replace(direction=torch.where(agrees, scale * direction, 0)), {}
