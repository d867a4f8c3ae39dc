"""Clipping, unit by unit. What needs the whole model at once (a global norm) belongs to the training loop."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from spherenorm.numerics import cast_like
from spherenorm.rule import Rule, Scalar, State, hyper
from spherenorm.update import Update
from spherenorm.views import ViewLike, as_view

__all__ = ["UnitClip"]


@dataclass(frozen=True)
class UnitClip(Rule):
    """Shorten the direction of each unit to at most nu: d min(1, nu / |d|) (Cho and Lee 2017)."""

    nu: Scalar = hyper("(0, inf)")
    view: ViewLike = "channel"

    def __post_init__(self) -> None:
        super().__post_init__()
        as_view(self.view)

    def init(self, weight: Tensor) -> State:
        as_view(self.view).size(weight)  # which refuses a weight without such units
        return super().init(weight)

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        view = as_view(self.view)
        squared = view.inner(update.direction, update.direction)
        nu = cast_like(self.nu, squared)
        too_long = squared > nu**2
        # The inner `where` keeps the root away from 0, where it has no derivative.
        scale = torch.where(too_long, nu / torch.sqrt(torch.where(too_long, squared, 1)), 1)
        return replace(update, direction=scale * update.direction), {}
