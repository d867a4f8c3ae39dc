"""The spectral sphere: matrices whose largest singular value is held."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spherenorm._fields import hyper
from spherenorm._hooks import State
from spherenorm._numerics import Scalar, cast_like, ratio, root
from spherenorm._rule import Rule
from spherenorm._update import Update
from spherenorm._views import replicate

STEPS = 20
"""Of the power iteration. (SSO's release takes as many.)"""


@dataclass(frozen=True)
class SpectralPin(Rule):
    """Take a matrix of m x n to the spectral norm R before the step:

        d <- d + (1 - R / sigma) w,    R = radius sqrt(m / n),    sigma = |w|_2,

    so that the weight becomes (R / sigma) w - d. Put it last, behind the step size. sigma is that
    of 20 power iterations v <- N(w^T w v), which come to it from below: close singular values leave
    w too large, an identity of 6 x 6 by a tenth after 100 steps of `muonsphere`, other matrices by
    2 to 4 %. A convolution is out x rest; a weight of 0 stays as it is before its step. In float32
    a sigma of 1e7 R or more leaves no digits: scale such a weight first.

    Args:
        radius: in (0, inf).

    Raises:
        ValueError: on `init`, when a weight has fewer than two dimensions.

    Example:
        >>> weight = torch.tensor([[4.0, 0.0], [0.0, 2.0]])
        >>> SpectralPin().step(weight, torch.zeros(2, 2), {})[0]
        tensor([[1.0000, 0.0000],
                [0.0000, 0.5000]])

    Source: arXiv:2601.08393 (Spectral Sphere Optimizer).
    """

    radius: Scalar = hyper("(0, inf)", 1.0)

    state_names = ()

    def init(self, weight: Tensor) -> State:
        if weight.ndim < 2:
            other = "give biases and gains another recipe, as spherenorm.param_groups does"
            raise ValueError(
                f"SpectralPin needs a matrix, got shape {tuple(weight.shape)}; {other}"
            )
        return super().init(weight)

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        matrix = replicate(update.weight).flatten(1)
        m, n = (max(length, 1) for length in matrix.shape)
        sigma = _spectral_norm(matrix)
        radius = cast_like(self.radius, matrix) * (m / n) ** 0.5
        share = torch.where(sigma > 0, 1 - ratio(radius, sigma), 0)
        return update.changed(direction=update.direction + share * update.weight), {}


def _spectral_norm(matrix: Tensor) -> Tensor:
    """The largest singular value, as the power iteration has it after its last step."""
    length = root((matrix * matrix).sum())
    matrix = ratio(matrix, length)  # of which the squares of squares stay finite, and above 0
    # No singular vector is orthogonal to such a start, but by chance.
    v = torch.cos(torch.cumsum(torch.ones_like(matrix[:1]), 1)).mT  # (n, 1)
    for _ in range(STEPS):
        v = matrix.mT @ (matrix @ v)
        v = ratio(v, root((v * v).sum()))
    image = matrix @ v
    return length * root((image * image).sum())
