"""Bounds on the length of a unit's direction; a global norm needs the whole model."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from spherenorm.fields import hyper, view
from spherenorm.numerics import Scalar, cast_like
from spherenorm.rule import Rule, State, Update
from spherenorm.views import ViewLike


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
