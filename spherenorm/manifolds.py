"""Manifolds: the space in which a weight moves, and how tangent vectors move along with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from spherenorm.fields import FrozenDataclass, view
from spherenorm.numerics import derivatives_are_taken, safe_sqrt, to_compute_dtype
from spherenorm.views import View, ViewLike, replicate

SERIES_BELOW = 1e-3
"""The squared angle below which derivatives are those of a series. The closed form loses all
digits of its second derivative there."""
SERIES_TERMS = 6
"""The terms of that series, which give its derivatives to 1e-15."""


Tangents = Mapping[str, Tensor]


@runtime_checkable
class Manifold(Protocol):
    """A space in which a weight moves.

    Known manifolds: `Euclidean`, in which the weight moves straight; `Sphere`, on which each unit
    keeps its norm.

    Example:
        >>> class Positive:
        ...     def move(self, weight, direction, tangents):
        ...         return weight * torch.exp(-direction), tangents
        >>> rule = sn.chain(sn.rules.StepSize(0.1), manifold=Positive())
        >>> rule.step(torch.tensor([1.0]), torch.tensor([5.0]), {})[0]
        tensor([0.6065])
    """

    def move(
        self, weight: Tensor, direction: Tensor, tangents: Tangents
    ) -> tuple[Tensor, Tangents]:
        """Move a weight by minus the direction, and transport tangent vectors along.

        Args:
            weight: the weight before the step.
            direction: the step, in the weight's shape.
            tangents: tangent vectors at the weight, such as momenta, by name.

        Returns:
            The new weight, and the tangent vectors there.
        """


@runtime_checkable
class SelectiveManifold(Manifold, Protocol):
    """A manifold that does not suit every weight."""

    def check_shape(self, weight: Tensor) -> None:
        """Refuse a weight that cannot live on the manifold.

        Raises:
            ValueError: the weight has the wrong shape.
        """

    def weight_warnings(self, weight: Tensor) -> list[str]:
        """Return sentences on why the manifold suits a weight badly; see `Sphere`."""


@dataclass(frozen=True)
class Euclidean:
    """Flat space: w' = w - d, and vectors stay as they are.

    Example:
        >>> Euclidean().move(torch.tensor([1.0]), torch.tensor([0.25]), {})[0]
        tensor([0.7500])
    """

    def move(
        self, weight: Tensor, direction: Tensor, tangents: Tangents
    ) -> tuple[Tensor, Tangents]:
        return weight - direction, tangents


EUCLIDEAN = Euclidean()


@dataclass(frozen=True)
class Sphere(FrozenDataclass):
    r"""Each unit moves on the sphere of its own radius r = |w|.

    With r = 1 this is the Grassmann manifold G(1, n). With d the tangent part of the direction and
    theta = |d| / r the angle of the step,

        w' = exp_w(-d) = cos(theta) w - (sin(theta) / theta) d,

    and a tangent vector x moves along by parallel transport, which keeps its length and its angle
    to the path:

        x' = x + (<d, x> / r^2) ((sin(theta) / theta) w - (1 - cos(theta)) / theta^2 d).

    Cho and Lee put weights on the unit sphere first (see `normalize`), where their step sizes are
    angles in radians. On another radius the same direction turns the unit by |d| / r. A zero unit
    stays where it is, and so does every entry of a 1-d weight under the view "channel": keep
    biases and gains in a Euclidean param_group.

    Args:
        view: splits a weight into its units.

    Raises:
        ValueError: there is no such view.

    Example:
        >>> weight = torch.tensor([[1.0, 0.0]])
        >>> step, momentum = torch.tensor([[0.0, -torch.pi / 2]]), torch.tensor([[0.0, 2.0]])
        >>> new, tangents = Sphere().move(weight, step, {"momentum": momentum})  # a right angle
        >>> new.round(), tangents["momentum"].round()
        (tensor([[-0., 1.]]), tensor([[-2., -0.]]))

    Source: Cho and Lee 2017, *Riemannian approach to batch normalization*, arXiv:1709.09603.
    """

    view: ViewLike = view("channel")

    def move(
        self, weight: Tensor, direction: Tensor, tangents: Tangents
    ) -> tuple[Tensor, Tangents]:
        view: View = self.view
        inner, squared = view.inner, view.inner(weight, weight)
        exists = squared > 0
        safe = torch.where(exists, squared, 1)
        radial = self.view.radial_coefficient(weight, direction)
        tangent = torch.where(exists, torch.addcmul(direction, -radial, weight), 0)
        square = inner(tangent, tangent) / safe
        angle = safe_sqrt(square)
        cos, sinc = (
            _with_series_near_zero(torch.cos, angle, square, 0),
            _with_series_near_zero(_sinc, angle, square, 1),
        )
        new_weight = cos * weight - sinc * tangent
        if not tangents:
            return new_weight, tangents
        one_minus_cos = (
            0.5 * _with_series_near_zero(_sinc, angle / 2, square / 4, 1) ** 2
        )  # over theta^2

        def transport(vector: Tensor) -> Tensor:
            along = inner(tangent, vector) / safe
            return vector + along * (sinc * weight - one_minus_cos * tangent)

        return new_weight, {name: transport(vector) for name, vector in tangents.items()}

    def check_shape(self, weight: Tensor) -> None:
        """Refuse a weight that has no units of this view.

        Raises:
            ValueError: the weight has no such units.
        """
        self.view.size(weight)

    def weight_warnings(self, weight: Tensor) -> list[str]:
        """Return sentences on why this sphere suits a weight badly, and what to do.

        A unit of one entry cannot move; a unit of another norm than 1 (to 1e-3, or the dtype's
        precision) turns by other angles.

            print(sn.Sphere().weight_warnings(torch.ones(3)))  # ['cannot move, as ...']

        Args:
            weight: a weight of any shape; the norms of a meta tensor, which has no values, are not
                checked.

        Raises:
            ValueError: the weight has no such units.
        """
        if self.view.size(weight) == 1:
            return [
                "cannot move, as each of their units has one entry: give them a Euclidean "
                "param_group, as spherenorm.param_groups does"
            ]
        if not weight.numel() or weight.is_meta:
            return []
        # Replicated, since a process may hold no entry of a sharded weight, and max() needs one.
        norms = self.view.norm(to_compute_dtype(replicate(weight.detach())))
        if (norms - 1).abs().max() <= max(1e-3, torch.finfo(weight.dtype).eps):
            return []
        return [
            "have units of another norm than 1, so steps are other angles: start from "
            f"spherenorm.Sphere({str(self.view)!r}).normalize(weight)"
        ]

    def normalize(self, weight: Tensor) -> Tensor:
        """Return w / |w| of each unit, where training on the sphere starts; 0 for a zero unit."""
        norm = self.view.norm(weight)
        return weight / torch.where(norm > 0, norm, 1)


def sphere_of(rule: Any) -> Sphere | None:
    """Return the sphere that a rule keeps weights on; None if it has another manifold.

    Args:
        rule: a `Rule`; None counts as a rule without a manifold.

    Example:
        >>> sphere_of(sn.bind("sgdg").rule).view.name, sphere_of(sn.bind("sgd").rule)
        ('channel', None)
    """
    manifold = getattr(rule, "manifold", None)
    return manifold if isinstance(manifold, Sphere) else None


def check_shape(manifold: Manifold, weight: Tensor) -> None:
    """Refuse a weight that cannot live on `manifold`.

    Raises:
        ValueError: the weight has the wrong shape.
    """
    if isinstance(manifold, SelectiveManifold):
        manifold.check_shape(weight)


def weight_warnings(manifold: Manifold, weight: Tensor) -> list[str]:
    """Return sentences on why a manifold suits a weight badly; see `Sphere.weight_warnings`."""
    return manifold.weight_warnings(weight) if isinstance(manifold, SelectiveManifold) else []


def _sinc(angle: Tensor) -> Tensor:
    """Return sin(x) / x, and 1 at 0."""
    return torch.sinc(angle / math.pi)


def _with_series_near_zero(
    function: Callable[[Tensor], Tensor], x: Tensor, square: Tensor, odd: int
) -> Tensor:
    """Return `function(x)`, with the derivatives of sum_k (-x^2)^k / (2k + odd)! near 0.

    cos(x), and sin(x) / x with `odd` = 1, have derivatives by x^2 at 0, where x has none.
    """
    if not derivatives_are_taken(square):
        return function(x)
    is_small = square < SERIES_BELOW
    small_square = torch.where(is_small, square, 0)
    large_x = safe_sqrt(torch.where(is_small, 1, square))
    series = sum((-small_square) ** k / math.factorial(2 * k + odd) for k in range(SERIES_TERMS))
    return torch.where(is_small, series, function(large_x))
