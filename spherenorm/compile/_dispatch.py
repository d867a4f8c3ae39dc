"""Choose a path for each weight of an optimizer, and step all of them or none."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from spherenorm._rule import State
from spherenorm.compile._backends import BackendError, Group, Work
from spherenorm.compile._guard import Guard, UnsupportedRuleError
from spherenorm.compile._kernels import GRAD, Batch, vector
from spherenorm.compile._memory import Memory, Tensors, settled, take
from spherenorm.compile._own_code import Identity, OwnSteps
from spherenorm.compile._paths import (
    Inductor,
    OwnCode,
    Path,
    Paths,
    Specialization,
    could_be_built,
)

__all__ = ["Dispatcher"]

MOST_RULES = 32
"""Rules of different keys that an optimizer keeps records of, for each of its groups. A rule with a
field that changes at every step would otherwise be recorded anew at every step."""
HELD = 2**28
"""Bytes of results of rules' own code that wait until every weight has its result, so that an error
in one changes nothing."""


@dataclass(frozen=True, eq=False)
class Assignment:
    """The path of each weight of a group.

    Attributes:
        guard: of the group's rule; None if it is not recorded.
    """

    group: Group
    guard: Guard | None
    paths: Sequence[Path]

    def __iter__(self) -> Iterator[tuple[Work, Path]]:
        return zip(self.group.works, self.paths, strict=True)


class Plan:
    """The kernels that step all weights, which hold as long as rules and memory are the same.

    Args:
        assigned: the weights, and their paths.
    """

    def __init__(self, assigned: Sequence[Assignment]) -> None:
        self._rules = [_identity(each.group, each.guard) for each in assigned]
        works = [work for each in assigned for work in each.group.works]
        paths = [path for each in assigned for path in each.paths]
        places: dict[Any, list[int]] = {}
        groups = [number for number, each in enumerate(assigned) for _ in each.paths]
        for place, (number, path) in enumerate(zip(groups, paths, strict=True)):
            if isinstance(path, Specialization):
                key = number, path.kernel, works[place].weight.device
                places.setdefault(key, []).append(place)
        self.batches = [
            (number, device, members, Batch(kernel, [(paths[i], works[i]) for i in members]))
            for (number, kernel, device), members in places.items()
        ]
        self.whole = sum(map(len, places.values())) == len(works)
        self._memory = Memory(Tensors(works)) if self.whole else None

    def step(self, groups: Sequence[Group], guards: Sequence[Guard | OwnCode]) -> bool:
        """Step the weights, unless the plan does not hold any more.

        Args:
            groups: the weights as they are now.
            guards: of the groups' rules.

        Returns:
            True if they were stepped.
        """
        if self._memory is None or self._rules != list(map(_identity, groups, guards)):
            return False
        works = [work for group in groups for work in group.works]
        grads = self._memory.gradients(Tensors(works))
        if grads is None:
            return False
        for _, _, members, batch in self.batches:
            batch.table[:, GRAD] = [grads[i] for i in members]
        self.run(works, guards)
        return True

    def run(self, works: Sequence[Work], guards: Sequence[Any]) -> None:
        """Step the weights; the gradients are where the tables have them."""
        for number, device, members, batch in self.batches:
            own = [works[i] for i in members]
            batch.run(own, vector(guards[number].numbers, device))
            # Autograd has not seen the write; it must notice if a graph still needs the old weight.
            torch.autograd.graph.increment_version([work.weight for work in own])


def _identity(group: Group, guard: Guard | OwnCode | None) -> Any:
    """Equal for groups that take the same paths, if their tensors do."""
    return group.backend, len(group.works), guard.key if isinstance(guard, Guard) else None


class Dispatcher:
    """Steps the weights of one optimizer, and keeps the records of its rules."""

    def __init__(self) -> None:
        self._rules: dict[Any, Paths] = {}
        self._own = OwnSteps()
        self._plan: Plan | None = None

    def step(self, groups: Sequence[Group]) -> None:
        """Step all weights, or none: what may fail comes before the first one moves.

        Raises:
            BackendError: a group with `backend="compiled"` has a weight that it cannot take.
            ValueError: a rule writes into what it was given, or returns what does not fit.
        """
        guards = [_guard(group) for group in groups]
        if self._plan is not None and self._plan.step(groups, guards):
            return
        self._plan = None
        most = MOST_RULES * len(groups)
        both = zip(settled(groups), guards, strict=True)
        assigned = [self._assign(group, guard, most) for group, guard in both]
        for results in self._results(assigned):
            for work, moved, new in results:
                take(work.weight, work.grad, work.state, moved, new)
        plan = Plan(assigned)
        plan.run([work for each in assigned for work in each.group.works], guards)
        self._plan = plan if plan.whole else None

    def paths(self, groups: Sequence[Group]) -> Iterator[Path | BackendError]:
        """The path that each weight would take now, or the error that `step` would raise for it.

        Paths that are not made yet are made.
        """
        for group in settled(groups):
            guard: Guard | OwnCode | BackendError
            try:
                guard = _guard(group)
            except BackendError as error:
                guard = error
            for work in group.works:
                alone = Group(group.rule, group.backend, [work])
                try:
                    yield (
                        guard
                        if isinstance(guard, BackendError)
                        else self._assign(alone, guard, MOST_RULES * len(groups)).paths[0]
                    )
                except BackendError as error:
                    yield error

    def _assign(self, group: Group, guard: Guard | OwnCode, most: int) -> Assignment:
        """The path of each weight of a group.

        Args:
            group: the weights.
            guard: of their rule.
            most: the number of rules of which records are kept.
        """
        known = guard if isinstance(guard, OwnCode) else self._paths(guard, group.backend, most)
        if isinstance(known, OwnCode):
            return Assignment(group, None, [known] * len(group.works))
        assert isinstance(guard, Guard)
        paths = [_path(guard, known, group.backend, work) for work in group.works]
        return Assignment(group, guard, paths)

    def _paths(self, guard: Guard, backend: str, most: int) -> Paths | OwnCode:
        """The records of a rule; its own code if too many were recorded."""
        records = self._rules.pop(guard.key, None)
        if records is None:
            if len(self._rules) >= most:
                if backend != "compiled":
                    kept = f"{len(self._rules)} other rules were recorded"
                    return OwnCode(f"{kept}; a field keeps changing")
                del self._rules[next(iter(self._rules))]  # not used for the longest time
            records = Paths()
        self._rules[guard.key] = records
        return records

    def _results(
        self, assigned: Sequence[Assignment]
    ) -> Iterator[list[tuple[Work, Tensor, State]]]:
        """The results of rules' own code and of Inductor's, in order.

        They come at once, unless they take much memory, or a weight overlaps another one, whose new
        value it has to see.
        """
        results: list[tuple[Work, Tensor, State]] = []
        size = 0
        for each in assigned:
            rule, own = each.group.rule, any(isinstance(path, OwnCode) for path in each.paths)
            identity = Identity(rule) if own else None
            for work, path in each:
                if isinstance(path, Specialization):
                    continue
                if size > HELD or work.overlaps:
                    yield results
                    results, size = [], 0
                if isinstance(path, OwnCode):
                    moved, new = self._own.step(rule, identity, work, each.group.measured)
                else:
                    moved, new = _by_inductor(path, work, each.guard)
                results.append((work, moved, new))
                size += moved.nbytes + sum(value.nbytes for value in new.values())
        yield results


def _guard(group: Group) -> Guard | OwnCode:
    """The guard of a group's rule; its own code if it is not recorded.

    Raises:
        BackendError: it cannot be recorded, under `backend="compiled"`.
    """
    if group.backend == "rule":
        return OwnCode('backend="rule"')
    try:
        guard = Guard.of(group.rule)
    except UnsupportedRuleError as error:
        if group.backend == "compiled":
            raise BackendError(f'backend="compiled" cannot record the rule: {error}') from error
        return OwnCode(str(error))
    if group.backend == "auto":
        if guard.foreign:
            return OwnCode(f"{guard.foreign[0]} is not the library's own")
        if modes := _modes():
            return OwnCode(f"{modes[0]} is active")
    return guard


def _path(guard: Guard, records: Paths, backend: str, work: Work) -> Path:
    """The path of one weight.

    Raises:
        BackendError: there is none under `backend="compiled"`.
    """
    try:
        path = (records.compiled if backend == "compiled" else records.kernel)(guard, work)
        if work.overlaps and not isinstance(path, Inductor):  # whose results come in order
            raise UnsupportedRuleError("its memory overlaps another weight's")
        return path
    except UnsupportedRuleError as error:
        if backend == "compiled":
            weight = work.weight
            what = f"shape {tuple(weight.shape)}, {weight.dtype}, on {weight.device}"
            raise BackendError(
                f'backend="compiled" cannot take the step of {guard.names} for a weight of '
                f"{what}: {error}"
            ) from error
        if could_be_built(error):
            _warn(str(error))
        return OwnCode(str(error))


def _warn(reason: str) -> None:
    """Say once in a process why steps are slow."""
    if not _warned:
        _warned.append(reason)
        warnings.warn(
            f"optimizers step by their rules' own code, which is slow on small weights: {reason}",
            stacklevel=2,
        )


_warned: list[str] = []


def _by_inductor(path: Inductor, work: Work, guard: Guard | None) -> tuple[Tensor, State]:
    assert guard is not None
    try:
        return path.result(work.weight, work.grad, work.state, guard.numbers)
    except Exception as error:
        # A shape that Dynamo compiles anew may show it what it cannot take.
        first = str(error).strip().partition("\n")[0]
        shape = tuple(work.weight.shape)
        raise BackendError(
            f'backend="compiled" cannot take the step for a weight of shape {shape}: {first}'
        ) from error


def _modes() -> list[str]:
    """The modes that change what torch's functions do; a default device is none of these."""
    modes = [*_get_current_function_mode_stack()]  # type: ignore[no-untyped-call]
    modes += _get_current_dispatch_mode_stack()
    return [type(mode).__name__ for mode in modes if not isinstance(mode, DeviceContext)]
