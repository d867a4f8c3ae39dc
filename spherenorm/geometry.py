"""Geometries: the space in which a weight moves, and how tangent vectors move along with it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from spherenorm.numerics import root
from spherenorm.views import ViewLike, as_view, uncut

__all__ = ["EUCLIDEAN", "Euclidean", "Geometry", "Move", "Sphere", "check_shape"]


class Move(Protocol):
    """A finished move of a weight."""

    @property
    def weight(self) -> Tensor:
        """The weight after the move."""

    def transport(self, vector: Tensor) -> Tensor:
        """The parallel transport of a tangent vector at the old weight to the new one."""


@runtime_checkable
class Geometry(Protocol):
    """Where a weight lives."""

    def move(self, weight: Tensor, direction: Tensor) -> Move:
        """Move `weight` by minus `direction`, both of the same shape."""


@dataclass(frozen=True)
class Translation:
    """w' = w - d; vectors stay what they are."""

    weight: Tensor

    def transport(self, vector: Tensor) -> Tensor:
        return vector


@dataclass(frozen=True)
class Euclidean:
    """Flat space: w' = w - d, transport is the identity."""

    def move(self, weight: Tensor, direction: Tensor) -> Translation:
        return Translation(weight - direction)


EUCLIDEAN = Euclidean()


@dataclass(frozen=True)
class Geodesic:
    """The arc from w along -d, |d| long, on the sphere of radius |w|, for each unit (see `Sphere`)."""

    start: Tensor
    direction: Tensor
    squared_radius: Tensor
    angle: Tensor
    view: ViewLike

    @property
    def weight(self) -> Tensor:
        return torch.cos(self.angle) * self.start - _sinc(self.angle) * self.direction

    def transport(self, vector: Tensor) -> Tensor:
        along = as_view(self.view).inner(self.direction, vector) / self.squared_radius
        return vector + along * (
            _sinc(self.angle) * self.start - 0.5 * _sinc(self.angle / 2) ** 2 * self.direction
        )


@dataclass(frozen=True)
class Sphere:
    r"""Each unit moves on the sphere of its own radius r = |w|; with r = 1 this is the Grassmann manifold G(1, n).

    With d the tangent part of the direction and theta = |d| / r the angle of the move,

        w' = exp_w(-d) = cos(theta) w - (sin(theta) / theta) d,

    and a tangent vector x is carried along by parallel transport, which keeps its length and its angle to the path:

        x' = x + (<d, x> / r^2) ((sin(theta) / theta) w - (1 - cos(theta)) / theta^2 d).

    Cho and Lee put weights on the unit sphere first (`Sphere.normalize`), where their step sizes are meant: an angle in
    radians. On another radius the same direction turns the unit by |d| / r. A zero unit stays where it is, and so does
    every entry of a 1-d weight under the view "channel": keep biases and gains in a Euclidean param_group.

    Source: Cho and Lee 2017, *Riemannian approach to batch normalization*, arXiv:1709.09603.
    """

    view: ViewLike = "channel"

    def __post_init__(self) -> None:
        as_view(self.view)

    def move(self, weight: Tensor, direction: Tensor) -> Geodesic:
        view = as_view(self.view)
        squared = view.inner(weight, weight)
        exists = squared > 0
        safe = torch.where(exists, squared, 1)
        radial = view.radial_coefficient(weight, direction)
        tangent = torch.addcmul(direction, -radial, weight)
        tangent = torch.where(exists, tangent, 0)
        angle = root(view.inner(tangent, tangent) / safe)
        return Geodesic(weight, tangent, safe, angle, self.view)

    def complaints(self, weight: Tensor) -> list[str]:
        """Reasons why steps on this sphere are not what is wanted for `weight`, and what to do.

        A unit of one entry cannot move; a unit of another norm than 1 (to 1e-3, or the dtype's
        precision) turns by other angles.

            print(sn.Sphere().complaints(torch.ones(3)))  # ['cannot move, as ...']

        Args:
            weight: of any shape; a meta tensor, which has no values, gives no reason.

        Raises:
            ValueError: the weight has no such units.
        """
        view = as_view(self.view)
        if view.size(weight) == 1:
            why = "each of their units has one entry"
            return [f"cannot move, as {why}: give them a Euclidean param_group"]
        if not weight.numel() or weight.is_meta:
            return []
        # Whole, since a process may hold nothing of a sharded weight, of which there is no maximum.
        working = uncut(weight.detach()).to(torch.promote_types(weight.dtype, torch.float32))
        off = (view.norm(working) - 1).abs().max()
        if off <= max(1e-3, torch.finfo(weight.dtype).eps):
            return []
        start = f"spherenorm.Sphere({str(view)!r}).normalize(weight)"
        return [f"have units of another norm than 1, so steps are other angles: start from {start}"]

    def normalize(self, weight: Tensor) -> Tensor:
        """w / |w| for each unit: where training on the sphere starts. A zero unit stays zero."""
        norm = as_view(self.view).norm(weight)
        return weight / torch.where(norm > 0, norm, 1)


def check_shape(geometry: Geometry, weight: Tensor) -> None:
    """Refuse a weight that a geometry of the library has no units for.

    Raises:
        ValueError: the geometry's view does not fit the weight's shape.
    """
    if isinstance(geometry, Sphere):
        as_view(geometry.view).size(weight)


def _sinc(angle: Tensor) -> Tensor:
    """sin(x) / x, 1 at 0."""
    return torch.sinc(angle / math.pi)
