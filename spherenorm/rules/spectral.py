"""The spectral sphere: matrices whose largest singular value is held."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spherenorm.fields import hyper
from spherenorm.numerics import Scalar, cast_like, safe_divide, safe_sqrt
from spherenorm.rule import Rule, State, Update
from spherenorm.views import replicate

DOUBLINGS = 12
"""Squarings of a Gram matrix: 2^13 steps of a power iteration, from all starts at once."""


@dataclass(frozen=True)
class FixedSpectralNorm(Rule):
    """Take a matrix of m x n to the spectral norm R before the step:

        d <- d + (1 - R / sigma) w,    R = radius sqrt(m / n),    sigma = |w|_2,

    so that the weight becomes (R / sigma) w - d. Put it last, behind the step size. sigma is too
    small by at most ln(min(m, n)) / 2^14 of itself, however close the singular values are. A
    convolution is out x rest; a weight of 0 stays as it is before its step. A weight far outside
    comes down by a factor of sqrt(eps) a step, 3e-4 in float32, so that it keeps half its digits.
    A step size of 0 moves nothing.

    Args:
        radius: in (0, inf).

    Raises:
        ValueError: on `init`, when a weight has fewer than two dimensions.

    Example:
        >>> weight = torch.tensor([[4.0, 0.0], [0.0, 2.0]])
        >>> FixedSpectralNorm().step(weight, torch.zeros(2, 2), {})[0]
        tensor([[1.0000, 0.0000],
                [0.0000, 0.5000]])

    Source: arXiv:2601.08393 (Spectral Sphere Optimizer).
    """

    radius: Scalar = hyper("(0, inf)", 1.0)

    vectors = "refuse"

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        matrix = replicate(update.weight).flatten(1)
        m, n = (max(length, 1) for length in matrix.shape)
        sigma = _spectral_norm(matrix)
        radius = cast_like(self.radius, matrix) * (m / n) ** 0.5
        # The step takes w away up to the rounding of w, which a lower rest would not survive.
        kept = safe_divide(radius, sigma).clamp(min=torch.finfo(matrix.dtype).eps ** 0.5)
        share = torch.where(sigma > 0, 1 - kept, 0)
        direction = update.unless_at_rest(update.direction + share * update.weight)
        return update.replace(direction=direction, rate=update.rate), {}


def _spectral_norm(matrix: Tensor) -> Tensor:
    """The largest singular value: with G the Gram matrix and Q = G^(2^k) / |G^(2^k)|,

        sigma^2 = <Q, G Q>,

    the mean of the squared singular values, weighted by their powers of 2^(k + 1).
    """
    length = safe_sqrt((matrix * matrix).sum())
    matrix = safe_divide(matrix, length)  # of which the squares of squares stay finite, and above 0
    tall = matrix.shape[0] > matrix.shape[1]
    gram = matrix.mT @ matrix if tall else matrix @ matrix.mT
    power = _unit(gram)
    for _ in range(DOUBLINGS):
        power = _unit(power @ power)
    return length * safe_sqrt((power * (gram @ power)).sum())


def _unit(matrix: Tensor) -> Tensor:
    return safe_divide(matrix, safe_sqrt((matrix * matrix).sum()))
