"""What the paper measures on a weight, for each unit of a view; every function returns shape (units,)."""

from __future__ import annotations

import torch
from torch import Tensor

from spherenorm.geometry import Sphere
from spherenorm.views import ViewLike, as_view

__all__ = ["angular_update", "cosine", "effective_step", "norm"]


def norm(weight: Tensor, view: ViewLike = "channel") -> Tensor:
    """|w|_2 of each unit."""
    return as_view(view).units(as_view(view).norm(weight))


def effective_step(before: Tensor, after: Tensor, view: ViewLike = "channel") -> Tensor:
    """The effective step size |w'/|w'| - w/|w||_2 of each unit, in [0, 2] (paper, Eq. 5)."""
    sphere = Sphere(view)
    return norm(sphere.normalize(after) - sphere.normalize(before), view)


def angular_update(before: Tensor, after: Tensor, view: ViewLike = "channel") -> Tensor:
    """The angle between w and w' of each unit, in radians: 2 arcsin(effective step / 2), exact for small angles too."""
    return 2 * torch.asin((effective_step(before, after, view) / 2).clamp(max=1))


def cosine(weight: Tensor, grad: Tensor, view: ViewLike = "channel") -> Tensor:
    """cos(w, g) = <w, g> / (|w| |g|) of each unit, in [-1, 1]; nan where either is 0. The scale-invariance test looks at |cos|."""
    v = as_view(view)
    return v.units(v.inner(weight, grad) / (v.norm(weight) * v.norm(grad)))
