"""The weights for which a law was held against its code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    """The weights for which a law gives the step of its code.

    Attributes:
        view: splits them into the units that the law is about.
        several: the law holds for each unit of a weight of several ones.
        note: what this assumes, in text.
        paths: of the shapes that were compared and agree; None if every shape is one.
        refused: the paths of those that differ.
    """

    view: View
    several: bool
    note: str
    paths: tuple[Path, ...] | None = None
    refused: tuple[Path, ...] = ()

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
        return (
            *(str(b) for b in single if b.opposite in differing or not b.settled),
            *numbers,
        )

    def refuse(self, path: Path, weight: Tensor) -> str:
        """The reason why the law says nothing about a weight; empty if it does.

        Args:
            path: of a step on the weight.
            weight: of any shape.
        """
        if not self.several and len(self.view.rows(weight)) > 1:
            return f"the law assumes that {self.note}"
        if self.paths is None or path in self.paths:
            return ""
        alike = [branches for count, branches in self.paths if count == path[0]]
        if not alike:
            known = sorted({count for count, _ in self.paths})
            return (
                f"the law was compared with its code for weights of {write_dimensions(known)}, "
                f"this one has {path[0]}"
            )
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
    """The branches on sizes in the first state and in one step of a rule."""
    with torch.no_grad(), Branches() as branches:
        rule.init(weight)
        rule.step(weight, grad, dict(state))
    return weight.ndim, tuple(branches.found)
