r"""Rules that are one letter of a law: their code is not recorded, and their length is known.

Before a step is recorded, `replace_opaque_rules` puts an `OpaqueRule` in the place of such a rule,
whose update calls one marker operation. The record of Muon has 5 operations instead of 135, and
scale, view and precision are hidden in the letter.

| letter | rule | known |
|---|---|---|
| O | `Orthogonalize` | degree 0; \|O\|^2 = c^2 q rank, c the rule's scale, q measured |
| N | `KeepNorm`, in a recipe with O | degree 0; the length of its argument |
| T | `StiefelProjection` | nothing |

In |O|^2 = c^2 q rank, q is the mean square of the singular values that `Orthogonalize` leaves, over
c^2. An exact factor has q = 1. An iteration of few steps has not, and q depends on the matrix: with
five of Muon's steps 0.73 to 0.77 on Gaussian matrices of 48 x 64, and 0.78, 0.89, 0.49 on matrices
of rank 16, 4, 1. So an interval is true of one step, and the mean over Gaussian matrices of many.

The factors of two Gaussian matrices whose entries have the correlation rho have a correlation that
depends on rho and on the shape. It has no closed form, and `Overlap` measures it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import sympy as sp
import torch
from torch import Tensor

from spherenorm import Rule, Scalar, State, Update
from spherenorm import rules as r
from spherenorm.rules.watch import without_watches
from spherenorm.schedule import Schedule

SCALE, SHARE, RANK = (sp.Symbol(name, positive=True) for name in ("c", "q", "rank"))
"""Numbers of an orthogonal factor: c, the rule's scale; q, the mean square of its singular values
over c^2; the rank of the matrix."""

MARKERS = "spherenorm_letter."
"""Namespace of the marker operations.

`mark` is a function of the direction, the weight and the rule's index, and `schedule` one of the
value and the name of a hyper-parameter.
"""

MEASURED_SHAPE = (48, 64)
"""Shape of the matrices on which the interval of q is measured."""
MEASURED_RANKS = (None, 16, 4, 1)
"""Ranks of these matrices; None is full rank."""
MATRICES_PER_RANK = 10
PAIRS_PER_CORRELATION = 12
"""Pairs of matrices for each correlation; each pair has its mirror image, so that 0 stays 0."""
MAX_OVERLAP_ENTRIES = 64 * 64
"""Entries of a matrix whose overlap stands for that of larger ones."""
N_CORRELATIONS = 17
"""Number of measured correlations; between them the curve is interpolated."""

_LIBRARY: Any = torch.library.Library("spherenorm_letter", "DEF")  # type: ignore[no-untyped-call]
_LIBRARY.define("mark(Tensor x, Tensor weight, int rule_index) -> Tensor")
_LIBRARY.impl("mark", lambda x, weight, rule_index: x.clone(), "CompositeExplicitAutograd")
_LIBRARY.define("schedule(Tensor value, str name) -> Tensor")
_LIBRARY.impl("schedule", lambda value, name: value.clone(), "CompositeExplicitAutograd")


def mark_schedule(value: Tensor, name: str) -> Tensor:
    """Mark the value of a schedule, so that laws print it as lr_t, by its hyper-parameter's name.

    Args:
        value: the value at a step, a 0-dim tensor.
        name: name of the hyper-parameter.
    """
    marked: Tensor = torch.ops.spherenorm_letter.schedule(value, name)
    return marked


@dataclass(frozen=True)
class MarkedSchedule(Schedule):
    """A schedule whose value is marked with the name of its hyper-parameter."""

    schedule: Schedule
    name: str

    def evaluate(self, t: Scalar) -> Scalar:
        value = self.schedule.evaluate(t)
        return mark_schedule(value, self.name) if isinstance(value, Tensor) else value

    def extreme_times(self) -> list[float] | None:
        return self.schedule.extreme_times()


def mark_schedules(name: str, value: Any) -> Any:
    """Return a hyper-parameter with its schedules marked; of betas, as beta1 and beta2."""
    if isinstance(value, tuple | list):
        stem = name.removesuffix("s")
        return type(value)(mark_schedules(f"{stem}{i}", x) for i, x in enumerate(value, 1))
    return MarkedSchedule(value, name) if isinstance(value, Schedule) else value


class OpaqueRule(Rule):
    """Takes the place of `rule`, with its states; `rule_index` is its position among these."""

    rule: Rule
    rule_index: int = 0

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        mark = torch.ops.spherenorm_letter.mark
        direction: Tensor = mark(update.direction, update.weight, self.rule_index)
        return update.replace(direction=direction), dict(state)


def replace_opaque_rules(rule: Rule) -> tuple[Rule, tuple[Rule, ...]]:
    """Return a rule with an `OpaqueRule` for each opaque one in it, and the replaced rules.

    Watches, of which a law says nothing, are left out.

    Example:
        >>> import spherenorm as sn
        >>> replace_opaque_rules(sn.recipes.muon())[1]
        (Orthogonalize(...),)
    """
    types: tuple[type[Rule], ...] = (r.Orthogonalize, r.StiefelProjection)
    if any(isinstance(part, r.Orthogonalize) for part in rule.walk()):
        types = (*types, r.KeepNorm)
    replaced: list[Rule] = []

    def exchange(x: Any) -> Any:
        """Return a field of a rule, or a rule, with opaque rules in the place of theirs."""
        if isinstance(x, tuple):
            new = tuple(map(exchange, x))
            return x if all(a is b for a, b in zip(x, new, strict=True)) else new
        if type(x) in types:  # a subclass may do something else
            replaced.append(x)
            return OpaqueRule(x, len(replaced) - 1)
        if not isinstance(x, Rule):
            return x
        changes = {}
        for field in dataclasses.fields(x):
            if field.init:
                old = getattr(x, field.name)
                new = exchange(old)
                if new is not old:
                    changes[field.name] = new
        return replace(x, **changes) if changes else x

    return exchange(without_watches(rule)), tuple(replaced)


def states_of_opaque_rules(rule: Rule) -> dict[int, dict[str, str]]:
    """Return, for each opaque rule, the names of its states by its own names.

    Example:
        >>> import spherenorm as sn
        >>> states_of_opaque_rules(replace_opaque_rules(sn.recipes.muon())[0])
        {0: {}}
    """
    if isinstance(rule, OpaqueRule):
        return {rule.rule_index: dict(rule.child_keys[0])}
    names: dict[int, dict[str, str]] = {}
    for child, child_keys in zip(rule.children, rule.child_keys, strict=True):
        for index, keys in states_of_opaque_rules(child).items():
            names[index] = {name: child_keys[key] for name, key in keys.items()}
    return names


# Orthogonal factors in numbers


def factor(rule: r.Orthogonalize, matrix: Tensor) -> Tensor:
    """Return the direction that the rule gives for a matrix."""
    zero = torch.zeros_like(matrix)
    return rule.update(Update(zero, zero, matrix), {})[0].direction


def scale_of(rule: r.Orthogonalize, shape: Sequence[int]) -> float:
    """Return c, the factor by which the rule scales the result for matrices of a shape."""
    matrix = torch.eye(*_sides(shape), dtype=torch.float64)
    unscaled, scaled = replace(rule, scale="none", view="layer"), replace(rule, view="layer")
    return float(factor(scaled, matrix).norm() / factor(unscaled, matrix).norm())


def _sides(shape: Sequence[int]) -> tuple[int, int]:
    return shape[0], math.prod(shape[1:])


def similar_shape(shape: Sequence[int]) -> tuple[int, int]:
    """Return a shape of at most `MAX_OVERLAP_ENTRIES` with the same ratio of sides.

    Its overlap is about that of the shape.
    """
    rows, columns = _sides(shape)
    shrink = min(1.0, math.sqrt(MAX_OVERLAP_ENTRIES / (rows * columns)))
    return max(1, round(rows * shrink)), max(1, round(columns * shrink))


@lru_cache(maxsize=64)
def squared_singular_range(rule: r.Orthogonalize) -> tuple[float, float]:
    """Return the smallest and the largest q on Gaussian matrices of full and of low rank.

    Example:
        >>> low, high = squared_singular_range(rules.Orthogonalize("plain", steps=30))
        >>> round(low, 3), round(high, 3)
        (1.0, 1.0)
    """
    unscaled, mean_squares = replace(rule, scale="none", view="layer"), list[float]()
    generator = torch.Generator().manual_seed(0)
    for rank in MEASURED_RANKS:
        for _ in range(MATRICES_PER_RANK):
            matrix = _normal(MEASURED_SHAPE, generator)
            if rank is not None:
                columns = _normal((MEASURED_SHAPE[0], rank), generator)
                matrix = columns @ _normal((rank, MEASURED_SHAPE[1]), generator)
            squared = float(factor(unscaled, matrix).square().sum())
            mean_squares.append(squared / (rank or min(MEASURED_SHAPE)))
    return min(mean_squares), max(mean_squares)


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
        self._grid = 1 - np.linspace(1, 0, N_CORRELATIONS) ** 2
        squares, table = [], []
        for rho in self._grid:
            cosines = []
            for _ in range(PAIRS_PER_CORRELATION):
                a, b = _normal(shape, generator), _normal(shape, generator)
                factor_a = factor(rule, a)
                squares.append(float(factor_a.square().sum()))
                for sign in (1, -1):
                    correlated = float(rho) * a + sign * math.sqrt(1 - rho**2) * b
                    factor_b = factor(rule, correlated)
                    cosine = (factor_a * factor_b).sum() / factor_a.norm() / factor_b.norm()
                    cosines.append(float(cosine))
            table.append(float(np.mean(cosines)))
        self._table, self.square = np.array(table), float(np.mean(squares))
        self._table[0], self._table[-1] = 0.0, 1.0

    @staticmethod
    @lru_cache(maxsize=64)
    def of(rule: Rule, shape: tuple[int, ...]) -> Overlap:
        """Return the overlap for a rule and a shape, measured at the first call."""
        return Overlap(rule, shape)

    def __call__(self, rho: float | np.ndarray) -> float | np.ndarray:
        size = np.interp(np.abs(rho), self._grid, self._table)
        return np.sign(rho) * size if np.ndim(rho) else float(np.sign(rho) * size)
