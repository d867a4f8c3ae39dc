"""Choose a path for each weight of an optimizer, and step all of them or none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from spherenorm._rule import State
from spherenorm.compile._backends import BackendError, Group, Work
from spherenorm.compile._compiled_rule import CompiledRule
from spherenorm.compile._guard import Guard, UnsupportedRuleError
from spherenorm.compile._kernels import run_kernel
from spherenorm.compile._memory import settled, take
from spherenorm.compile._numbers import Numbers
from spherenorm.compile._own_code import Identity, OwnSteps
from spherenorm.compile._paths import Blocks, Inductor, OwnCode, Path, Specialization

__all__ = ["Dispatcher"]

MOST_RULES = 32
"""Rules of different keys that an optimizer keeps records of, for each of its groups. A rule with a
field that changes at every step would otherwise be recorded anew at every step."""
HELD = 2**28
"""Bytes of results of rules' own code that wait until every weight has its result, so that an error
in one changes nothing."""


@dataclass(frozen=True)
class Assignment:
    """The path of each weight of a group, and the numbers of the group's rule."""

    group: Group
    numbers: Numbers
    paths: Sequence[Path]

    def __iter__(self) -> Iterator[tuple[Work, Path]]:
        return zip(self.group.works, self.paths, strict=True)

    def run(self) -> None:
        """Step the weights whose paths work in place."""
        batches: dict[Any, list[Any]] = {}
        for work, path in self:
            if isinstance(path, Specialization):
                key = path.kernel, work.weight.device
                batches.setdefault(key, []).append((path, work.weight, work.grad, work.state))
            elif isinstance(path, Blocks):
                path(work.weight, work.grad, work.state, self.numbers)
        for (kernel, device), batch in batches.items():
            run_kernel(kernel, batch, self.numbers.vector(device))


class Dispatcher:
    """Steps the weights of one optimizer, and keeps the records of its rules."""

    def __init__(self) -> None:
        self._rules: dict[Any, CompiledRule] = {}
        self._own = OwnSteps()

    def step(self, groups: Sequence[Group]) -> None:
        """Step all weights, or none: what may fail comes before the first one moves.

        Raises:
            BackendError: a group with `backend="compiled"` has a weight that it cannot take.
            ValueError: a rule writes into what it was given, or returns what does not fit.
        """
        groups = settled(groups)
        assigned = [self._assign(group, MOST_RULES * len(groups)) for group in groups]
        for results in self._results(assigned):
            for work, moved, new in results:
                take(work.weight, work.grad, work.state, moved, new)
        for each in assigned:
            each.run()

    def paths(self, groups: Sequence[Group]) -> Iterator[Path | BackendError]:
        """The path that each weight would take now, or the error that `step` would raise for it.

        Paths that are not made yet are made.
        """
        for group in settled(groups):
            for work in group.works:
                alone = replace(group, works=[work])
                try:
                    yield self._assign(alone, MOST_RULES * len(groups)).paths[0]
                except BackendError as error:
                    yield error

    def _assign(self, group: Group, most: int) -> Assignment:
        """The numbers of a group's rule, and the path of each of its weights.

        Args:
            group: the weights.
            most: the number of rules of which records are kept.
        """
        found = self._compiled_rule(group, most)
        if isinstance(found, OwnCode):
            return Assignment(group, Numbers(()), [found] * len(group.works))
        guard, compiled = found
        paths = [_path(guard, compiled, group.backend, work) for work in group.works]
        return Assignment(group, Numbers(guard.numbers), paths)

    def _compiled_rule(self, group: Group, most: int) -> tuple[Guard, CompiledRule] | OwnCode:
        """The guard of a group's rule and its records; its own code if it is not recorded."""
        if group.backend == "rule":
            return OwnCode('backend="rule"')
        try:
            guard = Guard.of(group.rule)
        except UnsupportedRuleError as error:
            if group.backend == "compiled":
                raise BackendError(f'backend="compiled" cannot record the rule: {error}') from error
            return OwnCode(str(error))
        if group.backend == "auto" and guard.foreign:
            return OwnCode(f"{guard.foreign[0]} is not the library's own")
        modes = [] if group.backend == "compiled" else _modes()
        if modes:
            return OwnCode(f"{modes[0]} is active")
        records = self._rules.pop(guard.key, None)
        if records is None:
            if len(self._rules) >= most:
                if group.backend != "compiled":
                    kept = f"{len(self._rules)} other rules were recorded"
                    return OwnCode(f"{kept}; a field keeps changing")
                del self._rules[next(iter(self._rules))]  # not used for the longest time
            records = CompiledRule()
        self._rules[guard.key] = records
        return guard, records

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
                if not isinstance(path, OwnCode | Inductor):
                    continue
                if size > HELD or work.overlaps:
                    yield results
                    results, size = [], 0
                if isinstance(path, OwnCode):
                    moved, new = self._own.step(rule, identity, work, each.group.measured)
                else:
                    moved, new = _by_inductor(path, work, each.numbers)
                results.append((work, moved, new))
                size += moved.nbytes + sum(value.nbytes for value in new.values())
        yield results


def _path(guard: Guard, compiled: CompiledRule, backend: str, work: Work) -> Path:
    """The path of one weight.

    Raises:
        BackendError: there is none under `backend="compiled"`.
    """
    choose = compiled.compiled if backend == "compiled" else compiled.blocks
    try:
        path = choose(guard, work)
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
        return OwnCode(str(error))


def _by_inductor(path: Inductor, work: Work, numbers: Numbers) -> tuple[Tensor, State]:
    try:
        return path.result(work.weight, work.grad, work.state, numbers)
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
