r"""The orthogonal factor O of a matrix, in numbers: its length, and how two of them correlate.

With q the mean square of the singular values that `Orthogonalize` leaves, over c^2,

    |O|^2 = c^2 q rank,

where c is the rule's scale. An exact factor has q = 1. An iteration of few steps has not, and q
depends on the matrix: with five of Muon's steps 0.73 to 0.77 on Gaussian matrices of 48 x 64, and
0.78, 0.89, 0.49 on matrices of rank 16, 4, 1. So an interval is the truth of one step, and the mean
over Gaussian matrices that of many.

Of two Gaussian matrices whose entries have the correlation rho, the factors have one that depends
on rho and on the shape; it has no closed form, and is measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from spherenorm import Rule, Update
from spherenorm import rules as r

SHAPE = (48, 64)
"""Of the matrices on which the interval of q is measured."""
RANKS = (None, 16, 4, 1)
"""Of these; None is the full one."""
TRIES = 10
PAIRS = 12
"""Of matrices for each correlation; each stands with its mirror image, so that 0 stays 0."""
ENTRIES = 64 * 64
"""Of a matrix whose overlap stands for that of larger ones."""
GRID = 17
"""Correlations that are measured; between them the curve is interpolated."""


def factor(rule: r.Orthogonalize, matrix: Tensor) -> Tensor:
    """The direction that the rule gives for a matrix."""
    zero = torch.zeros_like(matrix)
    return rule.update(Update(zero, zero, matrix), {})[0].direction


def scale_of(rule: r.Orthogonalize, shape: Sequence[int]) -> float:
    """c, the factor by which the rule scales the result for matrices of a shape."""
    matrix = torch.eye(*_matrix(shape), dtype=torch.float64)
    plain = replace(rule, scale="none", view="layer")
    scaled = replace(rule, view="layer")
    return float(factor(scaled, matrix).norm() / factor(plain, matrix).norm())


def _matrix(shape: Sequence[int]) -> tuple[int, int]:
    return shape[0], math.prod(shape[1:])


def alike(shape: Sequence[int]) -> tuple[int, int]:
    """A shape of at most `ENTRIES` with the same ratio of sides, and so about the same overlap."""
    sides = _matrix(shape)
    shrink = min(1.0, math.sqrt(ENTRIES / math.prod(sides)))
    return max(1, round(sides[0] * shrink)), max(1, round(sides[1] * shrink))


@lru_cache(maxsize=64)
def share_of(rule: r.Orthogonalize) -> tuple[float, float]:
    """The least and the greatest q on Gaussian matrices of full and of low rank.

    Example:
        >>> low, high = share_of(rules.Orthogonalize("plain", steps=30))
        >>> round(low, 3), round(high, 3)
        (1.0, 1.0)
    """
    plain, found = replace(rule, scale="none", view="layer"), []
    generator = torch.Generator().manual_seed(0)
    for rank in RANKS:
        for _ in range(TRIES):
            matrix = _normal(SHAPE, generator)
            if rank is not None:
                left, right = (
                    _normal((SHAPE[0], rank), generator),
                    _normal((rank, SHAPE[1]), generator),
                )
                matrix = left @ right
            squared = float(factor(plain, matrix).square().sum())
            found.append(squared / (rank or min(SHAPE)))
    return min(found), max(found)


def _normal(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


class Overlap:
    """The correlation of orthogonal factors of Gaussian matrices, measured once for a shape.

    Attributes:
        square: the mean of |O|^2.

    Example:
        >>> overlap = Overlap.of(rules.Orthogonalize(), (24, 40))
        >>> overlap(0.0), overlap(1.0), 0.4 < overlap(0.5) < 0.5
        (0.0, 1.0, True)
    """

    def __init__(self, rule: Rule, shape: tuple[int, ...]) -> None:
        assert isinstance(rule, r.Orthogonalize)
        generator = torch.Generator().manual_seed(0)
        self._grid = 1 - np.linspace(1, 0, GRID) ** 2
        lengths, table = [], []
        for rho in self._grid:
            shares = []
            for _ in range(PAIRS):
                a, b = _normal(shape, generator), _normal(shape, generator)
                first = factor(rule, a)
                lengths.append(float(first.square().sum()))
                for sign in (1, -1):
                    second = factor(rule, float(rho) * a + sign * math.sqrt(1 - rho**2) * b)
                    cosine = (first * second).sum() / first.norm() / second.norm()
                    shares.append(float(cosine))
            table.append(float(np.mean(shares)))
        self._table, self.square = np.array(table), float(np.mean(lengths))
        self._table[0], self._table[-1] = 0.0, 1.0

    @staticmethod
    @lru_cache(maxsize=64)
    def of(rule: Rule, shape: tuple[int, ...]) -> Overlap:
        """The overlap for a rule and a shape, measured at the first call."""
        return Overlap(rule, shape)

    def __call__(self, rho: float | np.ndarray) -> float | np.ndarray:
        size = np.interp(np.abs(rho), self._grid, self._table)
        return np.sign(rho) * size if np.ndim(rho) else float(np.sign(rho) * size)
