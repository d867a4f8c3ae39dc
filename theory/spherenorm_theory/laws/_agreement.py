"""The weights for which a law holds, by the branches on sizes that its code takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spherenorm import Rule, View
from spherenorm_theory.algebra import Branch, Branches

Path = tuple[int, tuple[Branch, ...]]
"""The number of dimensions of a weight, and what the code asks of its sizes."""


@dataclass(frozen=True)
class Agreement:
    """The weights for which a law was compared with its code, and agrees.

    Attributes:
        view: splits them into the units that the law is about.
        several: the law holds for each unit of a weight of several ones.
        note: what this assumes, in text.
        paths: of the shapes that were compared and agree; None if every shape is one.
        refused: the paths of those that differ.
        choosy: the numbers of dimensions at which the code raises for some shape.
    """

    view: View
    several: bool
    note: str
    paths: tuple[Path, ...] | None = None
    refused: tuple[Path, ...] = ()
    choosy: frozenset[int] = frozenset()

    @property
    def dimensions(self) -> set[int]:
        """The numbers of dimensions of weights at which law and code agree."""
        return {count for count, _ in self.paths or ()}

    @property
    def everywhere(self) -> bool:
        """True if law and code agree at every number of dimensions that was compared."""
        seen = {count for count, _ in self.refused}
        return bool(self.dimensions - {1}) and self.dimensions >= seen

    def _is_alike_at(self, count: int) -> bool:
        """True if the code takes all weights of a number of dimensions, and asks for no size."""
        paths = (*(self.paths or ()), *self.refused)
        return count not in self.choosy and not any(asked for n, asked in paths if n == count)

    @property
    def conditions(self) -> tuple[str, ...]:
        """The branches on sizes that the law depends on, in text."""
        met, differing = (
            dict.fromkeys(branch for _, branches in paths for branch in branches)
            for paths in (self.paths or (), self.refused)
        )
        plain: dict[str, list[Any]] = {}
        for branch in met:
            if not branch.question:
                plain.setdefault(branch.line, []).append(branch.answer)
        numbers = (
            f"a size becomes a plain number in {line}, one of {', '.join(map(str, values))}"
            for line, values in plain.items()
        )
        single = (b for b in met if b.question and b.opposite not in met)
        return (*(str(b) for b in single if b.opposite in differing or not b.settled), *numbers)

    def refuse(self, weight: Tensor, find_path: Callable[[], Path]) -> str:
        """The reason why the law says nothing about a weight; empty if it does.

        Args:
            weight: of any shape.
            find_path: runs a step on the weight, where the code asks for sizes.
        """
        if self.paths is None:
            return ""
        if not self.several and len(self.view.rows(weight)) > 1:
            return f"the law assumes that {self.note}"
        alike = [branches for count, branches in self.paths if count == weight.ndim]
        if not alike:
            known = write_dimensions(sorted(self.dimensions))
            return (
                f"the law was compared with its code for weights of {known}, "
                f"this one has {weight.ndim}"
            )
        if self._is_alike_at(weight.ndim):
            return ""
        path = find_path()
        if path in self.paths:
            return ""
        at = max(_count_alike(path[1], branches) for branches in alike)
        asked = path[1][min(at, len(path[1]) - 1)]
        if path in self.refused:
            return f"the law is not the step of its code for weights for which {asked}"
        return f"the law was compared with its code for no weight for which {asked}"


def _count_alike(a: Sequence[Branch], b: Sequence[Branch]) -> int:
    """The length of the common start of two paths."""
    pairs = zip(a, b, strict=False)
    return next((n for n, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))


def write_dimensions(counts: Sequence[int]) -> str:
    """Numbers of dimensions in text: "1, 2 or 4 dimensions"."""
    *most, last = map(str, counts)
    return f"{', '.join(most)}{' or ' if most else ''}{last} dimension{'s' * (last != '1')}"


def read_path(rule: Rule, weight: Tensor, grad: Tensor, state: Mapping[str, Tensor]) -> Path:
    """The branches on sizes that a rule takes in its first state and in one step.

    Without those that the library takes for every weight, whose answers it remembers.
    """
    with torch.no_grad(), Branches() as branches:
        rule.init(weight)
        rule.step(weight, grad, dict(state))
    asked = (each for each in branches.found if not (each.own and each.settled))
    return weight.ndim, tuple(asked)
