"""Norms and angles of the units of a weight, in the tensors' own arithmetic.

For users, `spherenorm.metrics` checks and widens first. Probes, which have the inner products of
many weights already, call this module directly.
"""

from __future__ import annotations

import torch
from torch import Tensor

from spherenorm.numerics import safe_divide
from spherenorm.views import View


def angle_of(view: View, before: Tensor, after: Tensor) -> Tensor:
    """The angle between w and w' of each unit, in radians; 0 where either is 0.

    With d = w' - w, of which a is the radial share <w, d> / <w, w>, and t = d - a w the tangent
    part, it is atan2(|t|, (1 + a) |w|). A small d is exact, and so is a small angle.
    """
    squared_norm, step = view.inner(before, before), after - before
    along = safe_divide(view.inner(before, step), squared_norm)
    tangent = torch.addcmul(step, -along, before)
    return torch.atan2(*_tangential_and_radial(squared_norm, along, view.inner(tangent, tangent)))


def norm_and_angle(
    squared_norm: Tensor, product: Tensor, squared_step: Tensor
) -> tuple[Tensor, Tensor]:
    """|w'| and the angle, of <w, w>, <w, d> and <d, d>: |t|^2 = <d, d> - <w, d>^2 / <w, w>.

    |t| is exact up to a share of |d| that is the root of the rounding: 1e-8 in float64.
    """
    along = safe_divide(product, squared_norm)
    squared_tangent = (squared_step - along * product).clamp(min=0)
    across, ahead = _tangential_and_radial(squared_norm, along, squared_tangent)
    norm = torch.where(squared_norm > 0, torch.hypot(ahead, across), squared_step.sqrt())
    return norm, torch.atan2(across, ahead)


def _tangential_and_radial(
    squared_norm: Tensor, along: Tensor, squared_tangent: Tensor
) -> tuple[Tensor, Tensor]:
    """The parts of w' across w and along it."""
    # (a zero weight has no tangent; of it, all of d would be one)
    across = torch.where(squared_norm > 0, squared_tangent, 0).sqrt()
    return across, (1 + along) * squared_norm.sqrt()


def chord(angle: Tensor) -> Tensor:
    """The effective step |w'/|w'| - w/|w|| of a turn by `angle`: 2 sin(angle / 2)."""
    return 2 * torch.sin(angle / 2)


def cosine_of(product: Tensor, squared_norm: Tensor, squared_grad: Tensor) -> Tensor:
    """cos(w, g) of <w, g>, <w, w> and <g, g>, in [-1, 1]; nan where w or g is 0."""
    # Of the roots: a product of squared norms would underflow much earlier.
    return (product / (squared_norm.sqrt() * squared_grad.sqrt())).clamp(-1, 1)
