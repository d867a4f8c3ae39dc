"""Basic rules: the step size, signs and masks of entries, and bounds on the norm of a unit."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from spherenorm.fields import hyper, view
from spherenorm.numerics import Scalar, cast_like
from spherenorm.rule import Rule, State, Update
from spherenorm.views import ViewLike


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


@dataclass(frozen=True)
class UnitClip(Rule):
    """Shorten the direction of each unit to at most nu: d min(1, nu / |d|).

    Args:
        nu: the longest direction of a unit, in (0, inf).
        view: splits the weight into its units.

    Example:
        >>> rule = UnitClip(1.0)
        >>> rule.step(torch.zeros(1, 2), torch.tensor([[3.0, 4.0]]), {})[0]
        tensor([[-0.6000, -0.8000]])

    Source: Cho and Lee 2017.
    """

    nu: Scalar = hyper("(0, inf)")
    view: ViewLike = view("channel")

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        squared = self.view.inner(update.direction, update.direction)
        nu = cast_like(self.nu, squared)
        too_long = squared > nu**2
        # The inner `where` keeps the root away from 0, where it has no derivative.
        scale = torch.where(too_long, nu / torch.sqrt(torch.where(too_long, squared, 1)), 1)
        return update.replace(direction=scale * update.direction), {}


@dataclass(frozen=True)
class UpdateFloor(Rule):
    """Lengthen the direction of each unit to at least a share f of the weight's norm:

        d max(1, f |w| / |d|);    a direction of 0 stays 0.

    Args:
        share: f, in (0, inf).
        view: splits the weight into its units.

    Example:
        >>> rule = UpdateFloor(0.5)
        >>> rule.step(torch.tensor([4.0, 0.0]), torch.tensor([0.0, 1.0]), {})[0]
        tensor([ 4., -2.])

    Source: the radial brake of modded-nanogpt, track 3.
    """

    share: Scalar = hyper("(0, inf)")
    view: ViewLike = view("layer")

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        length = self.view.norm(update.direction)
        least = cast_like(self.share, length) * self.view.norm(update.weight)
        short = (length > 0) & (length < least)
        scale = torch.where(short, least / torch.where(short, length, 1), 1)
        return update.replace(direction=scale * update.direction), {}
