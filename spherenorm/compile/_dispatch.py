"""Choose a path for each weight of an optimizer, and step all of them or none."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from enum import IntEnum
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from spherenorm._steps import InPlaceError
from spherenorm.compile._backends import BackendError, Group, Work
from spherenorm.compile._guard import Guard, UnsupportedRuleError
from spherenorm.compile._inductor import Inductor
from spherenorm.compile._kernels import Specialization
from spherenorm.compile._memory import commit, refusal, settled
from spherenorm.compile._paths import (
    MisfitError,
    OwnCode,
    Path,
    Paths,
    could_be_built,
)
from spherenorm.compile._plan import GroupPaths, Plan
from spherenorm.compile._shards import largest_of_all, part_of
from spherenorm.core import State
from spherenorm.rules import Orthogonalize

T = TypeVar("T")
MOST_RULES = 32
"""Rules of different keys that an optimizer keeps records of, for each of its groups. A rule with a
field that changes at every step would otherwise be recorded anew at every step."""
MOST_VERDICTS = 2**14
"""Kinds of sharded weights of which an optimizer remembers that all processes have a kernel."""
STACKED = 2**26
"""Bytes of weights that are stacked at once; a step of them takes some ten times as much."""
HELD = 2**28
"""Bytes of results of rules' own code that wait until every weight has its result, so that an error
in one changes nothing."""


class Dispatcher:
    """Steps the weights of one optimizer, and keeps the records of its rules."""

    def __init__(self) -> None:
        self._rules: dict[Any, Paths] = {}
        self._plan: Plan | None = None
        self._proven: dict[Any, set[Any]] = {}
        """By the key of a rule, the shapes and dtypes of weights that it has stepped."""
        self._verdicts: dict[Any, int | None] = {}
        """By the kind of a sharded weight, its count of totals; None if a process has no kernel."""

    def step(self, groups: Sequence[Group]) -> None:
        """Step all weights, or none: what may fail comes before the first one moves.

        Raises:
            BackendError: a group with `backend="compiled"` has a weight that it cannot take.
            ValueError: a rule writes into what it was given, or returns what does not fit.
        """
        groups = [_in_parts(group) for group in groups]
        asked = [_asked(group) for group in groups]
        most = MOST_RULES * len(groups)
        plan, self._plan = self._plan, None
        if plan is None or not plan.holds(asked):
            both = zip(asked, settled(groups), strict=True)
            asked = [self._assigned(replace(each, group=group), most) for each, group in both]
            asked = _agreed(asked, self._verdicts)
            plan = Plan(asked)
        running = plan.run(asked)
        absent = next(running)
        if absent or not plan.whole:
            assigned = _present(plan.assigned(asked), absent)
            for results in self._results(assigned, most):
                for work, moved, new in results:
                    commit(work.weight, work.grad, work.state, moved, new)
        for _ in running:
            pass
        self._plan = plan if plan.lasting else None

    def paths(self, groups: Sequence[Group]) -> Iterator[Path]:
        """The path that each weight would take now, or the error that `step` would raise for it.

        Paths that are not made yet are made. No other process is asked.
        """
        most = MOST_RULES * len(groups)
        for group in settled([_in_parts(group) for group in groups]):
            for work in group.works:
                if said := refusal(work.weight, work.grad):
                    yield BackendError(f"the weight {said}")
                    continue
                try:
                    alone = self._assigned(_asked(replace(group, works=[work])), most)
                    refused = self._verdicts.get(_kind(alone, work), 0) is None
                    yield _lacking(alone, [refused]).paths[0]
                except BackendError as error:
                    yield error

    def _assigned(self, asked: GroupPaths, most: int) -> GroupPaths:
        """The path of each weight of a group.

        Args:
            asked: the weights.
            most: the number of rules of which records are kept.
        """
        group, guard = asked.group, asked.guard
        known = asked.own or self._paths(guard, group.backend, most)
        if isinstance(known, OwnCode):
            return replace(asked, paths=[known] * len(group.works))
        return replace(
            asked, paths=[_path(guard, known, group.backend, work) for work in group.works]
        )

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
        self, assigned: Sequence[GroupPaths], most: int
    ) -> Iterator[list[tuple[Work, Tensor, State]]]:
        """The results of rules' own code and of Inductor's, in order.

        They come at once, unless they take much memory, or a weight overlaps another one, whose new
        value it has to see.
        """
        results: list[tuple[Work, Tensor, State]] = []
        size = 0
        for each in assigned:
            proven = self._proven_of(each, most)
            for works, path in _stacks(each):
                if size > HELD or works[0].overlaps:
                    yield results
                    results, size = [], 0
                wholes = [work.whole or work for work in works]
                if len(wholes) > 1:
                    found = _stacked(each, wholes)
                else:
                    found = [_result(each, path, wholes[0], proven)]
                for whole, (moved, new) in zip(wholes, found, strict=True):
                    results.append((whole, moved, new))
                    size += moved.nbytes + sum(value.nbytes for value in new.values())
        yield results

    def _proven_of(self, each: GroupPaths, most: int) -> set[Any]:
        """The kinds of weights that a group's rule has stepped out of place."""
        if not any(isinstance(path, OwnCode | Inductor) for path in each.paths):
            return set()
        key = each.guard.key
        if key not in self._proven and len(self._proven) >= most:  # a rule keeps changing
            self._proven.clear()
        return self._proven.setdefault(key, set())


def _in_parts(group: Group) -> Group:
    """A group with the parts of its sharded weights that this process holds."""
    return replace(group, works=[part_of(work) for work in group.works])


def _agreed(assigned: Sequence[GroupPaths], verdicts: dict[Any, int | None]) -> list[GroupPaths]:
    """The paths that all processes take: where one has no kernel, none takes any.

    They are asked once for each kind of weight, or until reasons have passed. From then on a
    process that takes no kernel says so in the first totals (`by_rounds`): it may have to plan anew
    alone, say when an unsharded weight has a gradient in another process only.

    Args:
        verdicts: of the kinds that were asked for; new ones are added.
    """
    kinds = [[_kind(each, work) for work in each.group.works] for each in assigned]
    new = {kind for own in kinds for kind in own} - verdicts.keys() - {None}
    if new and len(verdicts) >= MOST_VERDICTS:  # a rule keeps changing, in all processes alike
        verdicts.clear()
    asked: dict[Any, tuple[Work, int]] = {}
    totals: dict[Any, int] = {}
    for each, own in zip(assigned, kinds, strict=True):
        for kind, (work, path) in zip(own, each, strict=True):
            if kind is None or kind in verdicts:
                continue
            asked[kind] = work, max(_lack(path), asked.get(kind, (work, Lack.NONE))[1])
            if isinstance(path, Specialization):
                totals[kind] = path.kernel.totals
    for kind, lack in zip(asked, largest_of_all([*asked.values()]), strict=True):
        if lack != Lack.PASSING:
            verdicts[kind] = totals[kind] if lack == Lack.NONE else None

    def agreed(each: GroupPaths, own: Sequence[Any]) -> GroupPaths:
        refused = [kind is not None and verdicts.get(kind) is None for kind in own]
        totals = [verdicts.get(kind) or 0 for kind in own]
        return replace(_lacking(each, refused), totals=totals)

    return [agreed(each, own) for each, own in zip(assigned, kinds, strict=True)]


class Lack(IntEnum):
    """The lack of a kernel in one process; of several the largest counts."""

    NONE = 0
    LASTING = 1
    PASSING = 2


def _lack(path: Path) -> Lack:
    if isinstance(path, Specialization):
        return Lack.NONE
    return Lack.LASTING if isinstance(path, OwnCode) and not path.passing else Lack.PASSING


def _kind(each: GroupPaths, work: Work) -> Any:
    """The kind of a weight that may take kernels in several processes, equal in all; else None."""
    if work.whole is None or work.processes is None or not (each.own is None or each.own.passing):
        return None
    weight = work.whole.weight
    known = each.guard.key, each.group.backend, work.processes
    return *known, weight.shape, weight.dtype, weight.device


def _present(assigned: Sequence[GroupPaths], absent: Mapping[Any, bool]) -> list[GroupPaths]:
    """The paths where processes may be absent, which take no kernel in this step.

    Args:
        absent: the processes that share weights, if one of them is absent; True if it has failed.

    Raises:
        BackendError: this step fails, or that of another process does.
    """

    def left(each: GroupPaths) -> GroupPaths:
        pairs = zip(each.group.works, each.totals, strict=True)
        return _lacking(each, [count > 0 and work.processes in absent for work, count in pairs])

    found = [left(each) for each in assigned]
    paths = [path for each in (*assigned, *found) for path in each.paths]
    for path in paths:
        if isinstance(path, BackendError):
            raise path
    if any(absent.values()):
        what = "the step of another process, whose error says why"
        raise BackendError(f'backend="compiled" cannot take {what}')
    return found


def _lacking(each: GroupPaths, flags: Sequence[bool]) -> GroupPaths:
    """The paths of a group if some of its weights, by their flags, can take no kernel."""
    compiled, own = each.group.backend == "compiled", OwnCode(ELSEWHERE)
    paths = [
        (_refusal(each.guard, work, ELSEWHERE) if compiled else own)
        if flag and isinstance(path, Specialization)
        else path
        for flag, (work, path) in zip(flags, each, strict=True)
    ]
    return replace(each, paths=paths)


ELSEWHERE = "a process that shares the weight takes no kernels"
"""The reason of paths that follow those of another process."""


def _asked(group: Group) -> GroupPaths:
    """A group with the guard of its rule; with its own code, if that is not to be recorded.

    Raises:
        BackendError: it cannot be recorded, under `backend="compiled"`.
    """
    guard = Guard.of(group.rule)
    reason, passing = None, False
    if group.backend == "rule":
        reason = 'backend="rule"'
    elif guard.refusal and group.backend == "compiled":
        raise BackendError(f'backend="compiled" cannot record the rule: {guard.refusal}')
    elif guard.refusal:
        reason = guard.refusal
    elif group.backend == "auto" and guard.foreign:
        reason = f"{guard.foreign[0]} is not the library's own"
    elif group.backend == "auto" and (modes := _modes()):
        reason, passing = f"{modes[0]} is active", True
    return GroupPaths(group, guard, None if reason is None else OwnCode(reason, passing))


def _stacks(each: GroupPaths) -> Iterator[tuple[list[Work], OwnCode | Inductor]]:
    """The weights of a group that take no kernel; matrices of one kind come as one stack.

    A product of a stack is one call, and on a GPU one launch, with the numbers of single ones to
    rounding. (Not in half precision, where a stack rounds a product and a sum apart.)
    """
    products = [rule for rule in each.group.rule.tree() if isinstance(rule, Orthogonalize)]
    multiplies = bool(products) and all(rule.precision != "bfloat16" for rule in products)
    stacks: dict[Any, tuple[list[Work], OwnCode | Inductor]] = {}
    for i, (work, path) in enumerate(each):
        if isinstance(path, Specialization | BackendError):
            continue
        tensors = [work.weight, work.grad, *work.state.values()]
        plain = type(work.weight) in (Tensor, Parameter) and type(work.grad) is Tensor
        stackable = multiplies and plain and not (work.overlaps or each.guard.foreign)
        kind: Any = i
        if stackable and work.whole is None and each.group.backend == "auto":
            kind = *work.state, *((x.shape, x.dtype, x.device) for x in tensors)
        stacks.setdefault(kind, ([], path))[0].append(work)
    for works, path in stacks.values():
        most = max(1, STACKED // max(works[0].weight.nbytes, 1))
        for first in range(0, len(works), most):
            yield works[first : first + most], path


def _stacked(each: GroupPaths, works: Sequence[Work]) -> list[tuple[Tensor, State]]:
    """The new weights and states of equal matrices: one step of their stack under vmap."""
    weights, grads, states, *_ = zip(*works, strict=True)
    state = {name: torch.stack([own[name] for own in states]) for name in states[0]}

    def step(weight: Tensor, grad: Tensor, state: State) -> tuple[Tensor, State]:
        return each.group.rule.step(weight, grad, state, each.group.sums)

    moved, new = torch.vmap(step)(torch.stack(weights), torch.stack(grads), state)
    # Each state in memory of its own: a checkpoint of a part would hold the whole stack.
    return [(moved[i], {n: x[i].clone() for n, x in new.items()}) for i in range(len(works))]


def _result(
    each: GroupPaths, path: OwnCode | Inductor, work: Work, proven: set[Any]
) -> tuple[Tensor, State]:
    """The new weight and state by the rule's own code, or by Inductor's.

    At the first weight of a kind, torch's counts of writes say if the rule is pure.

    Args:
        proven: the kinds of weights that the rule has stepped; this one is added.

    Raises:
        InPlaceError: the rule has written into its arguments.
        BackendError: torch.compile cannot take the step.
        Exception: of any type, which the rule raises.
    """
    weight, grad, state, *_ = work
    rule, kind = each.group.rule, (path.name, weight.shape, weight.dtype)
    given = () if kind in proven else (weight, grad, *state.values())
    before = [0 if x.is_inference() else x._version for x in given]
    if isinstance(path, OwnCode):
        result = rule.step(weight, grad, state, each.group.sums)
    else:
        result = _by_inductor(path, work, each.guard)
    if before != [0 if x.is_inference() else x._version for x in given]:
        tell = "run spherenorm.testing.check on its recipe, which names the rule and the argument"
        raise InPlaceError(f"{type(rule).__name__} writes into what it is given; {tell}")
    proven.add(kind)
    return result


def _path(guard: Guard, records: Paths, backend: str, work: Work) -> Path:
    """The path of one weight; an error if there is none under `backend="compiled"`."""
    try:
        path = (records.compiled if backend == "compiled" else records.kernel)(guard, work)
        if work.overlaps and not isinstance(path, Inductor):  # whose results come in order
            raise MisfitError("its memory overlaps another weight's")
        return path
    except UnsupportedRuleError as error:
        if backend == "compiled":
            refused = _refusal(guard, work, str(error))
            refused.__cause__ = error
            return refused
        if could_be_built(error):
            _warn(str(error))
        return OwnCode(str(error), isinstance(error, MisfitError))


def _refusal(guard: Guard, work: Work, reason: str) -> BackendError:
    weight = (work.whole or work).weight
    what = f"shape {tuple(weight.shape)}, {weight.dtype}, on {weight.device}"
    return BackendError(
        f'backend="compiled" cannot take the step of {guard.names} for a weight of {what}: '
        f'{reason}; backend="auto" steps it by the rule\'s own code'
    )


def _warn(reason: str) -> None:
    """Say once in a process why steps are slow."""
    if not _warned:
        _warned.append(reason)
        warnings.warn(
            f"optimizers step by their rules' own code, which is slow on small weights: {reason}",
            stacklevel=2,
        )


_warned: list[str] = []


def _by_inductor(path: Inductor, work: Work, guard: Guard) -> tuple[Tensor, State]:
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
