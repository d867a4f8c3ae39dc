"""The plan of a step: kernels, their tables, and the memory on which these rely."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from spherenorm.compile._backends import BackendError, Group, Work
from spherenorm.compile._guard import Guard
from spherenorm.compile._kernels import GRAD, Batch, Specialization, vector
from spherenorm.compile._memory import Memory, Tensors
from spherenorm.compile._paths import OwnCode, Path
from spherenorm.compile._shards import Share, by_rounds


@dataclass(frozen=True, eq=False)
class GroupPaths:
    """The path of each weight of a group.

    Attributes:
        guard: of the group's rule.
        own: the rule's own code, if all weights take it whatever they are; else None.
        paths: of the weights; none before they are known.
        totals: of each weight, the count of numbers that a kernel's first pass leaves and several
            processes add up; 0 if its step needs no other process.
    """

    group: Group
    guard: Guard
    own: OwnCode | None
    paths: Sequence[Path] = ()
    totals: Sequence[int] = ()

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
        self._taken = [(each.paths, each.totals) for each in assigned]
        works = [work for each in assigned for work in each.group.works]
        paths = [path for each in assigned for path in each.paths]
        totals = [count for each in assigned for count in each.totals]
        groups = [number for number, each in enumerate(assigned) for _ in each.paths]
        failed = any(isinstance(path, BackendError) for path in paths)
        places: dict[Any, dict[int, Specialization]] = {}
        self._shares: dict[Any, Share] = {}
        """By the processes that add up totals."""
        for place, (number, path) in enumerate(zip(groups, paths, strict=True)):
            work, count = works[place], totals[place]
            processes = work.processes if count else None
            if isinstance(path, Specialization):
                key = number, path.kernel, work.weight.device, processes
                places.setdefault(key, {})[place] = path
            if processes is not None:
                share = self._shares.setdefault(processes, Share(work.weight.device, failed))
                share.totals += count
                share.lacking |= not isinstance(path, Specialization)
        self.batches = [
            (number, device, group, [*own], Batch(kernel, [(p, works[i]) for i, p in own.items()]))
            for (number, kernel, device, group), own in places.items()
        ]
        """Each with its rule's number, and with the processes that add up its totals."""
        stepped = {place for own in places.values() for place in own}
        self._own = frozenset(range(len(works))) - stepped
        """The places of the weights that take their rule's own code, at each step."""
        self.whole = bool(stepped) and not self._own
        kept = all(
            isinstance(path, Specialization) or (isinstance(path, OwnCode) and not path.passing)
            for path in paths
        )
        self.lasting = bool(stepped) and kept and not any(work.overlaps for work in works)
        self._memory = Memory(Tensors(works, self._own)) if self.lasting else None

    def holds(self, asked: Sequence[GroupPaths]) -> bool:
        """True if the plan is that of the weights as they are now; it has their gradients then."""
        if self._memory is None or self._rules != [each.identity for each in asked]:
            return False
        works = [work for each in asked for work in each.group.works]
        grads = self._memory.gradients(Tensors(works, self._own))
        if grads is None:
            return False
        for *_, members, batch in self.batches:
            batch.table[:, GRAD] = [grads[i] for i in members]
        return True

    def assigned(self, asked: Sequence[GroupPaths]) -> list[GroupPaths]:
        """The weights as they are now, with the paths of the plan."""
        both = zip(asked, self._taken, strict=True)
        return [replace(each, paths=paths, totals=totals) for each, (paths, totals) in both]

    def run(self, asked: Sequence[GroupPaths]) -> Iterator[dict[Any, bool]]:
        """Step the weights by their kernels; the gradients are where the tables have them.

        Args:
            asked: the weights as they are now.

        Yields:
            Once, before the first weight is written to: see `by_rounds`. Weights of processes of
            which one is absent are not stepped.
        """
        works = [work for each in asked for work in each.group.works]
        alone = []
        shared = []
        for number, device, processes, members, batch in self.batches:
            stepped = [works[i] for i in members]
            numbers = vector(asked[number].guard.numbers, device)
            if processes is None:
                alone.append((batch, stepped, numbers))
            elif not self._shares[processes].absent:
                shared.append((processes, batch.by_passes(stepped, numbers)))
        rounds = by_rounds(shared, self._shares)
        absent = next(rounds)
        yield absent
        for batch, stepped, numbers in alone:
            batch.run(stepped, numbers)
        for _ in rounds:
            pass
        # Autograd has not seen the write; it must notice if a graph still needs the old weight.
        moved = [
            works[i]
            for _, _, processes, members, _ in self.batches
            if processes not in absent
            for i in members
        ]
        torch.autograd.graph.increment_version([(each.whole or each).weight for each in moved])
