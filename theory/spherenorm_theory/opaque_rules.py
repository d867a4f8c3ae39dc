"""Rules that are one letter of a law: they are not looked into, and their length is known.

Before a step is recorded, `marked` exchanges such a rule in the recipe's tree for a `Letter`, whose
update calls one marker operation. Recorder, rules and kernels stay as they are; the record of Muon
has 5 operations in place of 135, and scale, view and precision are inside of the letter.

| letter | rule | known |
|---|---|---|
| O | `Orthogonalize` | degree 0; \\|O\\|^2 = c^2 q rank, c the rule's scale, q measured |
| N | `Graft`, in a recipe with O | degree 0; the length of its argument |
| T | `StiefelProjection` | nothing |
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import sympy as sp
import torch
from torch import Tensor

from spherenorm import Rule, State, Update
from spherenorm import rules as r

SCALE, SHARE, RANK = (sp.Symbol(name, positive=True) for name in ("c", "q", "rank"))
"""Of an orthogonal factor: c, the rule's scale; q, the mean square of its singular values over c^2,
1 of an exact factor; and the rank of the matrix."""

MARK = "spherenorm_letter.mark.default"
"""The name of the marker operation: of a direction, the weight, and the place of the rule."""

_LIBRARY: Any = torch.library.Library("spherenorm_letter", "DEF")  # type: ignore[no-untyped-call]
_LIBRARY.define("mark(Tensor x, Tensor weight, int place) -> Tensor")
_LIBRARY.impl("mark", lambda x, weight, place: x.clone(), "CompositeExplicitAutograd")


class OpaqueRule(Rule):
    """Stands where `rule` stood, with its states; `place` is its place among the letters."""

    rule: Rule
    rule_index: int = 0

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        mark = torch.ops.spherenorm_letter.mark
        direction: Tensor = mark(update.direction, update.weight, self.rule_index)
        return update.replace(direction=direction), dict(state)


def replace_opaque_rules(rule: Rule) -> tuple[Rule, tuple[Rule, ...]]:
    """A rule with a letter for each rule that is one, at any depth, and the rules they stand for.

    Example:
        >>> import spherenorm as sn
        >>> marked(sn.recipes.muon())[1]
        (Orthogonalize(...),)
    """
    kinds: tuple[type[Rule], ...] = (r.Orthogonalize, r.StiefelProjection)
    if any(isinstance(each, r.Orthogonalize) for each in rule.walk()):
        kinds = (*kinds, r.Graft)
    found: list[Rule] = []

    def exchanged(x: Any) -> Any:
        if isinstance(x, tuple):
            new = tuple(map(exchanged, x))
            return x if all(a is b for a, b in zip(x, new, strict=True)) else new
        if isinstance(x, kinds):
            found.append(x)
            return OpaqueRule(x, len(found) - 1)
        if not isinstance(x, Rule):
            return x
        fields = [f.name for f in dataclasses.fields(x) if f.init]
        changed = {n: new for n in fields if (new := exchanged(old := getattr(x, n))) is not old}
        return dataclasses.replace(x, **changed) if changed else x

    return exchanged(rule), tuple(found)


def states_of_opaque_rules(rule: Rule) -> dict[int, dict[str, str]]:
    """For each letter, by its place, its rule's states by their names in the state of `rule`."""
    if isinstance(rule, OpaqueRule):
        return {rule.rule_index: dict(rule.child_keys[0])}
    found: dict[int, dict[str, str]] = {}
    for child, outer in zip(rule.children, rule.child_keys, strict=True):
        for place, keys in states_of_opaque_rules(child).items():
            found[place] = {own: outer[key] for own, key in keys.items()}
    return found


# The orthogonal factor O of a matrix, in numbers: its length, and how two of them correlate.


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


def similar_shape(shape: Sequence[int]) -> tuple[int, int]:
    """A shape of at most `ENTRIES` with the same ratio of sides, and so about the same overlap."""
    sides = _matrix(shape)
    shrink = min(1.0, math.sqrt(ENTRIES / math.prod(sides)))
    return max(1, round(sides[0] * shrink)), max(1, round(sides[1] * shrink))


@lru_cache(maxsize=64)
def squared_singular_range(rule: r.Orthogonalize) -> tuple[float, float]:
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
