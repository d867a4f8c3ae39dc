"""The plan of a step: kernels, their tables, and the memory on which these rely."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from spherenorm.compile._backends import Group, Work
from spherenorm.compile._guard import Guard
from spherenorm.compile._kernels import GRAD, Batch, Specialization, vector
from spherenorm.compile._memory import Memory, Tensors
from spherenorm.compile._paths import OwnCode, Path
from spherenorm.compile._shards import run_together


@dataclass(frozen=True, eq=False)
class GroupPaths:
    """The path of each weight of a group.

    Attributes:
        guard: of the group's rule.
        own: the rule's own code, if all weights take it whatever they are; else None.
        paths: of the weights; none before they are known.
    """

    group: Group
    guard: Guard
    own: OwnCode | None
    paths: Sequence[Path] = ()

    @property
    def identity(self) -> Any:
        """Equal for groups that take the same paths, if their tensors do."""
        return self.group.backend, len(self.group.works), self.guard.key, self.own

    def __iter__(self) -> Iterator[tuple[Work, Path]]:
        return zip(self.group.works, self.paths, strict=True)


class Plan:
    """The kernels that step all weights, which hold as long as rules and memory are the same.

    Args:
        assigned: the weights, and their paths.
    """

    def __init__(self, assigned: Sequence[GroupPaths]) -> None:
        self._rules = [each.identity for each in assigned]
        works = [work for each in assigned for work in each.group.works]
        paths = [path for each in assigned for path in each.paths]
        groups = [number for number, each in enumerate(assigned) for _ in each.paths]
        places: dict[Any, dict[int, Specialization]] = {}
        for place, (number, path) in enumerate(zip(groups, paths, strict=True)):
            if isinstance(path, Specialization):
                key = number, path.kernel, works[place].weight.device, works[place].processes
                places.setdefault(key, {})[place] = path
        self.batches = [
            (number, device, group, [*own], Batch(kernel, [(p, works[i]) for i, p in own.items()]))
            for (number, kernel, device, group), own in places.items()
        ]
        """Each with its rule's number, and with the processes that hold parts of its weights."""
        self.whole = 0 < sum(map(len, places.values())) == len(works)
        self._memory = Memory(Tensors(works)) if self.whole else None

    def step(self, asked: Sequence[GroupPaths]) -> bool:
        """Step the weights, unless the plan does not hold any more.

        Args:
            asked: the weights as they are now; their paths are those of the plan.

        Returns:
            True if they were stepped.
        """
        if self._memory is None or self._rules != [each.identity for each in asked]:
            return False
        works = [work for each in asked for work in each.group.works]
        grads = self._memory.gradients(Tensors(works))
        if grads is None:
            return False
        for *_, members, batch in self.batches:
            batch.table[:, GRAD] = [grads[i] for i in members]
        self.run(asked)
        return True

    def run(self, asked: Sequence[GroupPaths]) -> None:
        """Step the weights; the gradients are where the tables have them."""
        works = [work for each in asked for work in each.group.works]
        numbers = [
            vector(asked[number].guard.numbers, device) for number, device, *_ in self.batches
        ]
        in_parts = []
        for (*_, processes, members, batch), own in zip(self.batches, numbers, strict=True):
            stepped = [works[i] for i in members]
            if processes is None:
                batch.run(stepped, own)
            else:
                in_parts.append((processes, batch.by_passes(stepped, own)))
        run_together(in_parts)
        # Autograd has not seen the write; it must notice if a graph still needs the old weight.
        moved = [works[i] for *_, members, _ in self.batches for i in members]
        torch.autograd.graph.increment_version([(each.whole or each).weight for each in moved])
