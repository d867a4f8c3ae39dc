"""The plan of a step: batches, and the memory on which their tables rely."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from spherenorm.compile.backends import Group, Work
from spherenorm.compile.batches import GRAD, KernelBatch, Recorded, batch_of
from spherenorm.compile.horizontal import CHUNK, Horizontal
from spherenorm.compile.key import RuleKey
from spherenorm.compile.memory import Layout
from spherenorm.compile.paths import OwnCode, Path
from spherenorm.compile.shards import PLAIN
from spherenorm.rule import Rule


@dataclass(frozen=True, eq=False)
class GroupPaths:
    """A group and the paths of its weights.

    Attributes:
        key: of the group's rule.
        own: the rule's own code, if all weights take it whatever they are; else None.
        paths: of the weights; none before they are known.
    """

    group: Group
    key: RuleKey
    own: OwnCode | None
    paths: Sequence[Path] = ()
    _rules: dict[torch.device, Rule] = field(default_factory=dict)

    def rule_on(self, device: torch.device) -> Rule:
        """Return the group's rule with its tensors on `device`, where they are moved once."""
        if device not in self._rules:
            self._rules[device] = self.key.rule_on(device)
        return self._rules[device]

    @property
    def identity(self) -> Any:
        """Equal for groups that take the same paths, if their tensors do."""
        return self.group.backend, len(self.group.works), self.key.rest, self.own

    def __iter__(self) -> Iterator[tuple[Work, Path]]:
        return zip(self.group.works, self.paths, strict=True)


class Plan:
    """The batches of all groups, which hold as long as rules and memory are the same.

    Args:
        assigned: the groups, and the paths of their weights.
        overlaps: for each group, whether a tensor of its step shares memory with another one.
            Such a plan holds for one step, since tensors may be apart at the next.
    """

    def __init__(self, assigned: Sequence[GroupPaths], overlaps: Sequence[bool]) -> None:
        self.overlaps = overlaps
        self._identities = [each.identity for each in assigned]
        self._paths = [each.paths for each in assigned]
        self.batches = [[*_batches(each)] for each in assigned]
        """Of each group: the places of weights, and their batch."""
        works = [work for each in assigned for work in each.group.works]
        tensors = [x for work in works for x in (work.weight, *work.state.values())]
        lasting = not any(overlaps) and all(type(x) in PLAIN for x in tensors)
        self._layout = Layout(works) if lasting else None

    def holds(self, asked: Sequence[GroupPaths]) -> bool:
        """True if the plan is that of the weights as they are now; it has their gradients then."""
        if self._layout is None or self._identities != [each.identity for each in asked]:
            return False
        works = [work for each in asked for work in each.group.works]
        if not self._layout.holds(works):
            return False
        first = 0
        for each, batches in zip(asked, self.batches, strict=True):
            for places, batch in batches:
                if isinstance(batch, KernelBatch):
                    batch.table[:, GRAD] = [self._layout.grads[first + i] for i in places]
            first += len(each.group.works)
        return True

    def own_of(self, number: int, group: Group) -> list[tuple[Work, Path]]:
        """The weights of a group that no batch steps, and their paths."""
        pairs = zip(group.works, self._paths[number], strict=True)
        return [(work, path) for work, path in pairs if not isinstance(path, Recorded)]


def _batches(each: GroupPaths) -> Iterator[tuple[list[int], Any]]:
    """Weights that step together; horizontal ones in chunks of so many entries at most."""
    found: dict[Any, list[int]] = {}
    sizes: dict[Any, int] = {}
    for place, (work, path) in enumerate(each):
        if not isinstance(path, Recorded):
            continue
        whole = (work.whole or work).weight  # all processes make the same chunks
        key = path.identity, whole.device, whole.dtype, work.processes
        sizes[key] = sizes.get(key, 0) + whole.numel()
        chunk = sizes[key] // CHUNK if path.executor is Horizontal else 0
        found.setdefault((key, chunk), []).append(place)
    works, paths = each.group.works, each.paths
    for places in found.values():
        own = [path for path in map(paths.__getitem__, places) if isinstance(path, Recorded)]
        yield places, batch_of(own[0], [works[i] for i in places], own)
