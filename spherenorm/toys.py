"""Scale-invariant losses of one vector, on which a path can be drawn.

They depend on the direction w / |w| alone, as the loss of a normalized network does on a weight.

Source: Heo et al., "AdamP", ICLR 2021, Figures 1 and 3 and Appendix B.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

__all__ = ["SCALE", "cosine", "rosenbrock", "scaled_angles", "sphere_point", "valley"]

SCALE = 1.5
"""The angles of the sphere are multiplied by this before they enter the valley.

Example:
    >>> psi, phi = scaled_angles(torch.tensor([1.0, 0.0, 0.0]))  # psi = pi / 2
    >>> psi / SCALE
    tensor(1.5708)
"""


def cosine(w: Tensor) -> Tensor:
    """The loss -cos(w, w*) of a vector in the plane, with w* = (0, -1).

    The paper prints the opposite sign, by which its starting point (0.001, 1) were the optimum.

    Args:
        w: of shape (2,).

    Example:
        >>> cosine(torch.tensor([0.0, -3.0]))
        tensor(-1.)
    """
    loss: Tensor = w[1] / torch.linalg.vector_norm(w)
    return loss


def rosenbrock(w: Tensor) -> Tensor:
    """The Rosenbrock function of the two angles of a vector in space.

        h(c psi, c phi),  psi = atan2(x, z),  phi = asin(y / |w|),  c = 1.5

    The paper prints psi = arccos(x / z), which is no angle.

    Args:
        w: of shape (3,).

    Example:
        >>> start = torch.tensor(sphere_point(-2.0, 2.0))
        >>> rosenbrock(5 * start).round(decimals=2)
        tensor(1209.)
    """
    loss: Tensor = valley(*scaled_angles(w))
    return loss


def valley(a: Any, b: Any) -> Any:
    """The Rosenbrock function h(a, b) = (1 - a)^2 + 300 (b - a^2)^2, which is 0 at (1, 1).

    Args:
        a, b: numbers, arrays or tensors.

    Example:
        >>> valley(1.0, 1.0), valley(-2.0, 2.0)
        (0.0, 1209.0)
    """
    return (1 - a) ** 2 + 300 * (b - a**2) ** 2


def scaled_angles(w: Tensor) -> tuple[Tensor, Tensor]:
    """The scaled angles (c psi, c phi) of vectors in space; see `rosenbrock`.

    Args:
        w: of shape (..., 3).

    Example:
        >>> scaled_angles(torch.tensor(sphere_point(-2.0, 2.0)))
        (tensor(-2.0000), tensor(2.0000))
    """
    x, y, z = w.unbind(-1)
    latitude = torch.asin(y / torch.linalg.vector_norm(w, dim=-1))
    return SCALE * torch.atan2(x, z), SCALE * latitude


def sphere_point(a: float, b: float) -> list[float]:
    """The point of the unit sphere with the scaled angles (a, b); see `rosenbrock`.

    Args:
        a, b: c psi and c phi, in radians times c.

    Example:
        >>> sphere_point(0.0, 0.0)
        [0.0, 0.0, 1.0]
    """
    psi, phi = a / SCALE, b / SCALE
    return [math.cos(phi) * math.sin(psi), math.sin(phi), math.cos(phi) * math.cos(psi)]
