"""Choose an executor for each weight of an optimizer, and step all of them or none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.nn import Parameter

from spherenorm.compile.backends import BackendError, Group, Work
from spherenorm.compile.key import ZOO_RULES, RuleKey
from spherenorm.compile.memory import Writes, one_by_one, overlapping, refusal
from spherenorm.compile.paths import OwnCode, Path, Stack, path_of, refusal_of, stacked
from spherenorm.compile.plan import GroupPaths, Plan
from spherenorm.compile.shards import compare, part_of
from spherenorm.rule import InPlaceError, State
from spherenorm.rules import Orthogonalize
from spherenorm.torch_internals import DeviceContext, dispatch_modes, function_modes, write_count

MOST_RULES = 32
"""Rules of different keys that are recorded for each group of an optimizer. A rule with a field
that changes at every step would otherwise be recorded anew at every step."""
STACKED = 2**26
"""Bytes of weights that are stacked at once; a step of them takes some ten times as much."""
OVERLAP = "the memory of a weight, a gradient or a state of the group overlaps another one's"


class Dispatcher:
    """Steps the weights of one optimizer."""

    def __init__(self) -> None:
        self.moving = False
        """True once the step that was begun last may have written to a weight."""
        self._plan: Plan | None = None
        self._rules: set[Any] = set()
        """The keys that were recorded."""
        self._proven: set[Any] = set()
        """The kinds of weights that rules have stepped without a write into what they are given."""
        self._compared: set[Any] = set()
        """The kinds of sharded weights that all processes have in common."""

    def step(self, groups: Sequence[Group]) -> None:
        """Step all weights, or none: what may fail comes before the first one moves.

        (Weights that overlap are the exception, of which each sees what the one before became.)

        Raises:
            BackendError: a group with `backend="compiled"` has a weight that it cannot take.
            ValueError: a rule writes into what it was given, or returns what does not fit.
        """
        self.moving = False
        groups = [_in_parts(group) for group in groups]
        asked = [_asked(group) for group in groups]
        plan, self._plan = self._plan, None  # which an error forgets
        if plan is None or not plan.holds(asked):
            plan = self._planned(asked)
        own = [plan.own_of(number, each.group) for number, each in enumerate(asked)]
        alone = one_by_one([work for pairs in own for work, _ in pairs])
        writes = [
            self._writes(each, [] if alone else pairs, not overlap)
            for each, pairs, overlap in zip(asked, own, plan.overlaps, strict=True)
        ]
        self.moving = True
        for number, each in enumerate(asked):
            for pair in own[number] if alone else ():
                self._writes(each, [pair], apart=False).run()
            for places, batch in plan.batches[number]:
                batch.run([each.group.works[i] for i in places], each.key.numbers)
            writes[number].run()
        self._plan = plan

    def paths(self, groups: Sequence[Group]) -> Iterator[Path]:
        """The path that each weight would take now, or the error that `step` would raise for it.

        Paths that are not made yet are made. No other process is asked.
        """
        groups = [_in_parts(group) for group in groups]
        for group, overlaps in zip(groups, overlapping(groups), strict=True):
            for work in group.works:
                if said := refusal(work.weight, work.grad):
                    yield BackendError(f"the weight {said}")
                    continue
                try:
                    asked = _asked(replace(group, works=[work]))
                    yield self._assigned(asked, overlaps, len(groups)).paths[0]
                except BackendError as error:
                    yield error

    def _planned(self, asked: Sequence[GroupPaths]) -> Plan:
        """A new plan.

        Raises:
            BackendError: a weight has no path.
        """
        overlaps = overlapping([each.group for each in asked])
        both = zip(asked, overlaps, strict=True)
        assigned = [self._assigned(each, shared, len(asked)) for each, shared in both]
        for each in assigned:
            for path in each.paths:
                if isinstance(path, BackendError):
                    raise path
        self._compare(assigned)
        return Plan(assigned, overlaps)

    def _assigned(self, asked: GroupPaths, overlaps: bool, groups: int) -> GroupPaths:
        """The paths of a group's weights."""
        group, key, own = asked.group, asked.key, asked.own
        if own is None and key.rest not in self._rules and group.backend == "auto":
            if len(self._rules) >= MOST_RULES * groups:
                own = OwnCode(
                    f"{len(self._rules)} other rules were recorded; a field keeps changing"
                )
            self._rules.add(key.rest)
        if own is None and overlaps:
            own = OwnCode(OVERLAP)
            if group.backend == "compiled":
                return replace(asked, paths=[refusal_of(key, w, OVERLAP) for w in group.works])
        if own is not None:
            return replace(asked, paths=[own] * len(group.works))
        return replace(asked, paths=[path_of(key, group.backend, work) for work in group.works])

    def _compare(self, assigned: Sequence[GroupPaths]) -> None:
        """Ask all processes whether they step the same sharded weights, once for each set of them.

        Raises:
            ValueError: they do not.
        """
        kinds: dict[Any, list[Any]] = {}
        device = None
        for each in assigned:
            for work, path in each:
                if work.whole is not None and work.processes is not None:
                    whole, device = work.whole.weight, work.weight.device
                    own = tuple(whole.shape), str(whole.dtype), path.name  # type: ignore[union-attr]
                    kinds.setdefault(work.processes, []).append(own)
        if device is not None and repr([*kinds.values()]) not in self._compared:
            compare(kinds, device)
            self._compared.add(repr([*kinds.values()]))

    def _writes(self, each: GroupPaths, own: Sequence[tuple[Work, Path]], apart: bool) -> Writes:
        """Step weights of a group by own code; `apart`: no tensors of the group share memory.

        Raises:
            InPlaceError: the rule has written into its arguments.
            Exception: of any type, which the rule raises.
        """
        writes = Writes()
        for works in _stacks(each, own):
            if len(works) > 1:
                rule = each.rule_on(works[0].weight.device)
                results = stacked(rule, works, each.group.sums)
            else:
                results = [self._result(each, works[0])]
            for work, (moved, new) in zip(works, results, strict=True):
                writes.add(work, moved, new, apart)
        return writes

    def _result(self, each: GroupPaths, work: Work) -> tuple[Tensor, State]:
        """The new weight and state by the rule's own code.

        At the first weight of a kind, torch's counts of writes say if the rule is pure.
        """
        weight, grad, state, *_ = work
        rule = each.rule_on(weight.device)
        kind = each.key.rest, weight.shape, weight.dtype
        given = () if kind in self._proven else (weight, grad, *state.values())
        before = [*map(write_count, given)]
        result = rule.step(weight, grad, state, each.group.sums)
        if before != [*map(write_count, given)]:
            tell = "run spherenorm.testing.check on its recipe, which names the rule and argument"
            raise InPlaceError(f"{type(rule).__name__} writes into what it is given; {tell}")
        if len(self._proven) >= MOST_RULES**2:  # a rule keeps changing
            self._proven.clear()
        self._proven.add(kind)
        return result


def _in_parts(group: Group) -> Group:
    """A group with the parts of its sharded weights that this process holds."""
    return replace(group, works=[part_of(work) for work in group.works])


def _asked(group: Group) -> GroupPaths:
    """A group with the key of its rule; with its own code, if that is not to be recorded.

    Raises:
        BackendError: it cannot be recorded, under `backend="compiled"`.
    """
    key = RuleKey.of(group.rule)
    reason = None
    if group.backend == "rule":
        reason = 'backend="rule"'
    elif key.refusal and group.backend == "compiled":
        raise BackendError(f'backend="compiled" cannot record the rule: {key.refusal}')
    elif key.refusal:
        reason = key.refusal
    elif group.backend == "auto" and key.foreign:
        reason = f"{key.foreign[0]} is not the library's own"
    elif group.backend == "auto" and (modes := _modes()):
        reason = f"{modes[0]} is active"
    return GroupPaths(group, key, None if reason is None else OwnCode(reason))


def _stacks(each: GroupPaths, own: Sequence[tuple[Work, Path]]) -> Iterator[list[Work]]:
    """The weights of a group that no batch steps; those of one kind come as one stack.

    So do all under `Stack`, and equal matrices of the library's rules that multiply: a product of a
    stack is one call, and on a GPU one launch, with the numbers of single ones to rounding. (Not in
    half precision, where a stack rounds a product and a sum apart; nor with rules of the zoo, whose
    norms round otherwise in a stack.)
    """
    products = [rule for rule in each.group.rule.walk() if isinstance(rule, Orthogonalize)]
    multiplies = bool(products) and all(rule.precision != "bfloat16" for rule in products)
    multiplies &= each.group.backend == "auto" and not each.key.foreign
    multiplies &= not any(type(rule) in ZOO_RULES for rule in each.group.rule.walk())
    stacks: dict[Any, list[Work]] = {}
    for i, (work, path) in enumerate(own):
        kind: Any = i
        plain = type(work.weight) in (Tensor, Parameter) and type(work.grad) is Tensor
        if plain and work.whole is None and (multiplies or isinstance(path, Stack)):
            tensors = [work.weight, work.grad, *work.state.values()]
            kind = *work.state, *((x.shape, x.dtype, x.device) for x in tensors)
        stacks.setdefault(kind, []).append(work.whole or work)
    for works in stacks.values():
        most = max(1, STACKED // max(works[0].weight.nbytes, 1))
        for first in range(0, len(works), most):
            yield works[first : first + most]


def _modes() -> list[str]:
    """The modes that change what torch's functions do; a default device is none of these."""
    modes = [*function_modes()]  # type: ignore[no-untyped-call]
    modes += dispatch_modes()
    return [type(mode).__name__ for mode in modes if not isinstance(mode, DeviceContext)]
