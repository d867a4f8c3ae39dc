"""Basic rules: the step size, signs and masks of entries, and bounds on the norm of a unit.

Clipping by the norm of all gradients needs the whole model, and belongs to the training loop.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from spherenorm.fields import hyper, view
from spherenorm.numerics import Scalar, cast_like, mean
from spherenorm.rule import Rule, State, Update
from spherenorm.views import ViewLike


@dataclass(frozen=True)
class StepSize(Rule):
    """Scale the direction by the learning rate: eta d.

    It is the last rule of most chains. Before `HeavyBall`, the momentum accumulates steps instead
    of gradients, as in SGDG; the two differ under a learning-rate schedule.

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
    """Replace each entry of the direction by its sign.

    Example:
        >>> Sign().step(torch.zeros(3), torch.tensor([2.0, 0.0, -0.1]), {})[0]
        tensor([-1.,  0.,  1.])

    Source: Bernstein et al. 2018 (signSGD); Chen et al. 2023 (Lion), Algorithm 2.
    """

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        return update.replace(direction=torch.sign(update.direction)), {}


@dataclass(frozen=True)
class CautiousMask(Rule):
    """Set entries of the direction that disagree with the gradient to 0, and enlarge the others:

        d m / max(mean(m), min_share),    m = 1 where d g > 0, else 0.

    Args:
        min_share: the minimum of the denominator, in (0, 1].

    Example:
        >>> update = Update(torch.zeros(2), torch.ones(2), torch.tensor([1.0, -1.0]))
        >>> CautiousMask().update(update, {})[0].direction
        tensor([2., 0.])

    Source: Liang et al. 2024 (cautious optimizers), Algorithm 1.
    """

    min_share: Scalar = hyper("(0, 1]", 1e-3)

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        direction = update.direction
        agrees = direction * update.grad > 0
        share = mean(torch.where(agrees, torch.ones_like(direction), 0))
        min_share = cast_like(self.min_share, share) * torch.ones_like(share)
        scale = 1 / torch.maximum(share, min_share)
        return update.replace(direction=torch.where(agrees, scale * direction, 0)), {}


@dataclass(frozen=True)
class UnitClip(Rule):
    """Clip the norm of the direction of each unit at nu: d min(1, nu / |d|).

    Args:
        nu: the largest norm of a unit's direction, in (0, inf).
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
        squared_norm = self.view.inner(update.direction, update.direction)
        nu = cast_like(self.nu, squared_norm)
        too_long = squared_norm > nu**2
        # The inner `where` keeps the root away from 0, where it has no derivative.
        norm = torch.sqrt(torch.where(too_long, squared_norm, 1))
        scale = torch.where(too_long, nu / norm, 1)
        return update.replace(direction=scale * update.direction), {}


@dataclass(frozen=True)
class UpdateFloor(Rule):
    """Raise the norm of the direction of each unit to at least f times the weight's norm:

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
        norm = self.view.norm(update.direction)
        min_norm = cast_like(self.share, norm) * self.view.norm(update.weight)
        too_short = (norm > 0) & (norm < min_norm)
        scale = torch.where(too_short, min_norm / torch.where(too_short, norm, 1), 1)
        return update.replace(direction=scale * update.direction), {}
