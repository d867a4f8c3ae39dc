"""Stage 6, run: step all weights of an optimizer, or none, each on its path."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from spherenorm.compile.interface import (
    MAX_CACHED_KINDS,
    BackendError,
    Batch,
    Executor,
    GroupStep,
    Path,
    WeightStep,
)
from spherenorm.compile.kernel import KernelBatch
from spherenorm.compile.memory import (
    MemoryLayout,
    PendingWrites,
    overlapping_groups,
    weights_overlap,
    why_not_steppable,
)
from spherenorm.compile.paths import choose_path, error_path, place_path, step_stack
from spherenorm.compile.rule_key import ZOO_RULES, RuleKey
from spherenorm.compile.sharded.agreement import Agreement, MeshStep
from spherenorm.compile.sharded.owners import (
    WEIGHT,
    Tensors,
    kind_of,
    owners_of,
    state_of,
    tensors_of,
)
from spherenorm.compile.sharded.shards import PLAIN_TENSORS, local_shard
from spherenorm.rule import InPlaceError, Rule, State
from spherenorm.rules import Orthogonalize
from spherenorm.torch_internals import DeviceContext, dispatch_modes, function_modes, write_count

MAX_RECORDED_RULES = 32
"""Rules of different structures that are recorded for each group of an optimizer. A rule with a
field that changes at every step would otherwise be recorded anew at every step."""
MAX_KNOWN_PURE = 1024
"""Kinds of weights of which an optimizer remembers that the rule's own code is pure."""
MAX_STACK_BYTES = 2**26
"""Bytes of weights that are stacked at once; a step of them takes some ten times as much."""
MAX_KEPT_BATCHES = 8
"""Batches on a device that an optimizer keeps for later steps. Which weights have gradients may
change from step to step, and a batch of ResNet-50 took half a second to make."""
OVERLAP = "the memory of a weight, a gradient or a state of the group overlaps another one's"


@dataclass(frozen=True, eq=False)
class _KeyedGroup:
    """A group, the key of its rule, and the paths of its weights.

    Attributes:
        group: to step.
        key: of the group's rule.
        own_code: the path of all weights if none is to be recorded; else None.
        paths: of the weights; empty before they are chosen.
    """

    group: GroupStep
    key: RuleKey
    own_code: Path | None
    paths: Sequence[Path] = ()
    _rules: dict[torch.device, Rule] = field(default_factory=dict)

    @property
    def identity(self) -> Any:
        """Equal for groups that take the same paths, if their tensors do."""
        reason = None if self.own_code is None else self.own_code.reason
        return self.group.backend, len(self.group.weights), self.key.structure, reason

    def with_sums(self, global_sums: Mapping[str, Tensor] | None) -> _KeyedGroup:
        """Return the group with its sums over all weights."""
        return replace(self, group=replace(self.group, global_sums=global_sums))

    def rule_on(self, device: torch.device) -> Rule:
        """Return the group's rule with its tensors on `device`, where they are moved once."""
        if device not in self._rules:
            self._rules[device] = self.key.rule_on(device)
        return self._rules[device]


class Dispatcher:
    """Steps the weights of one optimizer.

    Attributes:
        may_have_written: true once the latest step may have written to a weight.
        agreement: with the other processes that hold parts of the weights.
    """

    def __init__(self) -> None:
        self.may_have_written = False
        self.agreement = Agreement()
        self._plan: _Plan | None = None
        self._recorded_rules: set[Any] = set()
        """Structures of the rules that were recorded."""
        self.records: set[Any] = set()
        """Structures of rules, shapes and dtypes whose steps were recorded."""
        self._known_pure: set[Any] = set()
        """Kinds of weights that rules have stepped without a write into their arguments."""
        self._kept_batches: dict[Any, Batch] = {}
        """Batches that hold no tensors, by what they were made from; the latest is the last."""

    def step(
        self,
        groups: Sequence[GroupStep],
        add_sums: Callable[[Sequence[GroupStep]], Sequence[GroupStep]] | None = None,
    ) -> None:
        """Step all weights, or none: what may fail comes before the first one moves.

        (Weights that overlap are the exception, of which each sees how the one before moved.)

        Args:
            groups: of the optimizer.
            add_sums: gives the groups their sums over all weights, which takes other processes;
                None if no rule asks for them.

        Raises:
            BackendError: a group with `backend="compiled"` has a weight that it cannot take.
            ValueError: a rule writes into its arguments, or returns what does not fit; or processes
                that hold parts of the weights have other gradients, or have failed.
        """
        self.may_have_written = False
        agreement, sums_first = self.agreement, add_sums is not None
        try:
            keyed_groups = [_keyed_group(_local_group(group)) for group in groups]
            plan, self._plan = self._plan, None  # an error leaves no plan
            if plan is None or not plan.still_valid(keyed_groups):
                plan = self._make_plan(keyed_groups)
            mesh_steps = agreement.mesh_steps(plan.all_weights(keyed_groups), sums_first)
        except Exception as error:
            agreement.broadcast_and_raise(error)
        if add_sums is not None:
            agreement.exchange_inputs(mesh_steps)
        try:
            if add_sums is not None:
                keyed_groups = [
                    keyed.with_sums(group.global_sums)
                    for keyed, group in zip(keyed_groups, add_sums(groups), strict=True)
                ]
            uncompiled = [plan.own_code_weights(i, k.group) for i, k in enumerate(keyed_groups)]
            one_by_one = weights_overlap([w for weights in uncompiled for w, _ in weights])
            results = [
                self._compute_own_code(keyed, [] if one_by_one else weights, overlaps)
                for keyed, weights, overlaps in zip(
                    keyed_groups, uncompiled, plan.overlaps, strict=True
                )
            ]
        except Exception as error:
            agreement.broadcast_and_raise(error, after_header=sums_first)
        received = agreement.exchange_inputs(mesh_steps, after_header=sums_first)
        failure = self._run_distributed(keyed_groups, plan, results)
        step_owned = functools.partial(self._step_owned, keyed_groups)
        for mesh_step, new_values in zip(
            mesh_steps,
            agreement.exchange_results(received, mesh_steps, step_owned, failure),
            strict=True,
        ):
            for position, tensors in new_values.items():
                group, step, _ = mesh_step.sources[position]
                new_weight, new_state = tensors[WEIGHT], state_of(tensors)
                results[group].add(step, new_weight, new_state, replace_states=plan.overlaps[group])
        if failure is not None:
            raise failure
        self.may_have_written = True
        for i, keyed in enumerate(keyed_groups):
            if one_by_one:
                for weight in uncompiled[i]:
                    self._compute_own_code(keyed, [weight], overlaps=True).write_back()
            for indices, batch in plan.batches[i]:
                batch.run([keyed.group.weights[k] for k in indices], keyed.key.scalars)
            results[i].write_back()
        self._plan = plan

    def _run_distributed(
        self, keyed_groups: Sequence[_KeyedGroup], plan: _Plan, results: Sequence[PendingWrites]
    ) -> Exception | None:
        """Run own code on DTensors, whose operations are collectives; return the error if any."""
        try:
            for i, keyed in enumerate(keyed_groups):
                for step in plan.distributed_weights(i, keyed.group):
                    whole = step.sharded or step
                    new_weight, new_state = self._step_one_weight(keyed, whole)
                    results[i].add(whole, new_weight, new_state, replace_states=plan.overlaps[i])
        except Exception as error:
            return error
        return None

    def _step_owned(
        self,
        keyed_groups: Sequence[_KeyedGroup],
        mesh_step: MeshStep,
        whole: Mapping[int, WeightStep],
    ) -> dict[int, Tensors]:
        """Return the new weights and states of whole weights, by position."""
        new_values: dict[int, Tensors] = {}
        by_group: dict[int, list[int]] = {}
        for position in whole:
            by_group.setdefault(mesh_step.sources[position][0], []).append(position)
        for group, positions in by_group.items():
            weights = [(whole[p], mesh_step.sources[p][2]) for p in positions]
            position_of = {id(whole[p]): p for p in positions}
            for step, weight, state in self._own_code_results(keyed_groups[group], weights):
                new_values[position_of[id(step)]] = tensors_of(WeightStep(weight, weight, state))
        return new_values

    def paths(self, groups: Sequence[GroupStep]) -> Iterator[Path]:
        """Yield the path that each weight would take now; an "error" is one that `step` raises.

        Executors that are not made yet are made. No other process is asked.
        """
        groups = [_local_group(group) for group in groups]
        steps: list[WeightStep] = []
        paths: list[Path] = []
        for group, overlaps in zip(groups, overlapping_groups(groups), strict=True):
            for step in group.weights:
                steps.append(step)
                reason = why_not_steppable(step.weight, step.grad)
                if reason is not None:
                    paths.append(Path("error", f"the weight {reason}"))
                    continue
                try:
                    keyed = _keyed_group(replace(group, weights=[step]))
                    paths.append(self._choose_paths(keyed, overlaps, len(groups)).paths[0])
                except BackendError as error:
                    paths.append(Path("error", str(error)))
        yield from _add_owner_to_reason(steps, paths)

    def _make_plan(self, keyed_groups: Sequence[_KeyedGroup]) -> _Plan:
        """Choose the paths of all weights.

        Raises:
            BackendError: a weight has no path.
        """
        overlaps = overlapping_groups([keyed.group for keyed in keyed_groups])
        keyed_groups = [
            self._choose_paths(keyed, group_overlaps, len(keyed_groups))
            for keyed, group_overlaps in zip(keyed_groups, overlaps, strict=True)
        ]
        for keyed in keyed_groups:
            for path in keyed.paths:
                if path.name == "error":
                    raise BackendError(path.reason)
        return _Plan(keyed_groups, overlaps, self._kept_batches)

    def _choose_paths(self, keyed: _KeyedGroup, overlaps: bool, n_groups: int) -> _KeyedGroup:
        """Return the group with the paths of its weights."""
        group, key, own_code = keyed.group, keyed.key, keyed.own_code
        if own_code is None and group.backend == "auto":
            own_code = self._path_if_too_many_rules(key, n_groups)
        if own_code is None and overlaps:
            if group.backend == "compiled":
                errors = [error_path(key, step, OVERLAP) for step in group.weights]
                return replace(keyed, paths=errors)
            own_code = Path("rule", OVERLAP)
        if own_code is None and len(self.records) < MAX_CACHED_KINDS:  # a rule keeps changing
            weights = [step.unsharded_weight for step in group.weights]
            self.records |= {(key.structure, w.shape, w.dtype) for w in weights}
        paths = [
            place_path(key, step, own_code or choose_path(key, group.backend, step))
            for step in group.weights
        ]
        return replace(keyed, paths=paths)

    def _path_if_too_many_rules(self, key: RuleKey, n_groups: int) -> Path | None:
        """Count a rule that is to be recorded; return the path "rule" if there are too many."""
        if key.structure in self._recorded_rules:
            return None
        n_recorded = len(self._recorded_rules)
        self._recorded_rules.add(key.structure)
        if n_recorded < MAX_RECORDED_RULES * n_groups:
            return None
        return Path("rule", f"{n_recorded} other rules were recorded; a field keeps changing")

    def _compute_own_code(
        self, keyed: _KeyedGroup, weights: Sequence[tuple[WeightStep, Path]], overlaps: bool
    ) -> PendingWrites:
        """Step weights of a group by the rule's own code.

        Args:
            keyed: the group.
            weights: with their paths.
            overlaps: tensors of the group share memory with others.

        Raises:
            InPlaceError: the rule writes into its arguments.
            Exception: of any type, which the rule raises.
        """
        results = PendingWrites()
        for step, new_weight, new_state in self._own_code_results(keyed, weights):
            results.add(step, new_weight, new_state, replace_states=overlaps)
        return results

    def _own_code_results(
        self, keyed: _KeyedGroup, weights: Sequence[tuple[WeightStep, Path]]
    ) -> Iterator[tuple[WeightStep, Tensor, State]]:
        """Yield each weight with its new value and state by the rule's own code."""
        for stack in _stacks(keyed, weights):
            if len(stack) > 1:
                rule = keyed.rule_on(stack[0].weight.device)
                stepped = step_stack(rule, stack, keyed.group.global_sums)
            else:
                stepped = [self._step_one_weight(keyed, stack[0])]
            for step, (new_weight, new_state) in zip(stack, stepped, strict=True):
                yield step, new_weight, new_state

    def _step_one_weight(self, keyed: _KeyedGroup, step: WeightStep) -> tuple[Tensor, State]:
        """Return the new weight and state by the rule's own code.

        At the first weight of a kind, torch's counts of writes tell whether the rule is pure.
        """
        weight, grad, state = step.weight, step.grad, step.state
        rule = keyed.rule_on(weight.device)
        kind = keyed.key.structure, weight.shape, weight.dtype
        if kind in self._known_pure:
            return rule.step(weight, grad, state, keyed.group.global_sums)
        before = _write_counts(step)
        result = rule.step(weight, grad, state, keyed.group.global_sums)
        if before != _write_counts(step):
            raise InPlaceError(
                f"{type(rule).__name__} writes into what it is given; run "
                "spherenorm.testing.check on its recipe, which names the rule and argument"
            )
        if len(self._known_pure) >= MAX_KNOWN_PURE:  # a rule keeps changing
            self._known_pure.clear()
        self._known_pure.add(kind)
        return result


class _Plan:
    """The batches of all groups, which are valid as long as rules and memory are the same.

    Args:
        keyed_groups: with the paths of their weights.
        overlaps: for each group, whether a tensor of its step shares memory with another one.
            A plan with overlaps is_reusable one step, since tensors may be apart at the next.
        batch_cache: of earlier plans; those of this one are added.

    Attributes:
        batches: for each group, the indices of weights and their batch.
    """

    def __init__(
        self,
        keyed_groups: Sequence[_KeyedGroup],
        overlaps: Sequence[bool],
        batch_cache: dict[Any, Batch],
    ) -> None:
        self.overlaps = overlaps
        self._identities = [keyed.identity for keyed in keyed_groups]
        self._paths = [keyed.paths for keyed in keyed_groups]
        self.batches = [[*_make_batches(keyed, batch_cache)] for keyed in keyed_groups]
        weights = [step for keyed in keyed_groups for step in keyed.group.weights]
        targets = [x for step in weights for x in (step.weight, *step.state.values())]
        is_reusable = not any(overlaps) and all(type(x) in PLAIN_TENSORS for x in targets)
        self._layout = MemoryLayout(weights) if is_reusable else None

    def still_valid(self, keyed_groups: Sequence[_KeyedGroup]) -> bool:
        """Return whether the plan is that of the weights now; kernels get their gradients then."""
        if self._layout is None:
            return False
        if self._identities != [keyed.identity for keyed in keyed_groups]:
            return False
        weights = [step for keyed in keyed_groups for step in keyed.group.weights]
        if not self._layout.still_valid(weights):
            return False
        offset, addresses = 0, self._layout.grad_addresses
        for keyed, batches in zip(keyed_groups, self.batches, strict=True):
            for indices, batch in batches:
                if isinstance(batch, KernelBatch):
                    batch.set_grads([addresses[offset + i] for i in indices])
            offset += len(keyed.group.weights)
        return True

    def all_weights(
        self, keyed_groups: Sequence[_KeyedGroup]
    ) -> Iterator[tuple[int, WeightStep, Path]]:
        """Iterate over all weights, with the index of their group and their path."""
        for i, keyed in enumerate(keyed_groups):
            for step, path in zip(keyed.group.weights, self._paths[i], strict=True):
                yield i, step, path

    def own_code_weights(self, index: int, group: GroupStep) -> list[tuple[WeightStep, Path]]:
        """List the weights of a group that run own code in this process alone, with their paths."""
        return [
            (step, path)
            for step, path in self._uncompiled_weights(index, group)
            if path.takes_shard or not _is_dtensor(step)
        ]

    def distributed_weights(self, index: int, group: GroupStep) -> list[WeightStep]:
        """List the weights of a group that run own code on DTensors."""
        return [
            step
            for step, path in self._uncompiled_weights(index, group)
            if _is_dtensor(step) and not path.takes_shard
        ]

    def _uncompiled_weights(
        self, index: int, group: GroupStep
    ) -> Iterator[tuple[WeightStep, Path]]:
        for step, path in zip(group.weights, self._paths[index], strict=True):
            if path.executor is None and path.name != "owner":
                yield step, path


def _is_dtensor(step: WeightStep) -> bool:
    return step.sharded is not None or hasattr(step.weight, "device_mesh")


def _add_owner_to_reason(steps: Sequence[WeightStep], paths: Sequence[Path]) -> Iterator[Path]:
    """Yield the paths, with the owners of the weights that have one."""
    kinds: dict[Any, dict[int, Any]] = {}
    for i, (step, path) in enumerate(zip(steps, paths, strict=True)):
        if path.name == "owner":
            mesh: Any = step.unsharded_weight.device_mesh  # type: ignore[attr-defined]
            kinds.setdefault(mesh, {})[i] = kind_of(step)
    owners: dict[int, tuple[int, int]] = {}
    for mesh, kinds_of_mesh in kinds.items():
        ranks = sorted(mesh.mesh.flatten().tolist())
        for i, owner in owners_of(kinds_of_mesh, len(ranks)).items():
            owners[i] = ranks[owner], len(ranks)
    for i, path in enumerate(paths):
        if i not in owners:
            yield path
            continue
        rank, n = owners[i]
        yield Path("owner", f"process {rank} of {n} steps it whole: {path.reason}")


def _make_batches(
    keyed: _KeyedGroup, batch_cache: dict[Any, Batch]
) -> Iterator[tuple[list[int], Batch]]:
    """Yield the indices of weights that step together, and their batch."""
    weights = keyed.group.weights
    members: dict[Any, list[tuple[int, Executor]]] = {}
    n_entries: dict[Any, int] = {}
    for i, (step, path) in enumerate(zip(weights, keyed.paths, strict=True)):
        executor = path.executor
        if executor is None:
            continue
        weight = step.unsharded_weight  # so that all processes make the same batches
        key = executor.batch_key, weight.device, weight.dtype, step.process_group
        n_entries[key] = n_entries.get(key, 0) + weight.numel()
        limit = executor.max_batch_entries
        number = 0 if limit is None else n_entries[key] // limit
        members.setdefault((key, number), []).append((i, executor))
    for key, batch_members in members.items():
        indices = [i for i, _ in batch_members]
        executors = [executor for _, executor in batch_members]
        executor = executors[0]
        steps = [weights[i] for i in indices]
        if not executor.reuses_batches:
            yield indices, executor.bind(steps, executors)
            continue
        # (Steps of one rule have one executor for each shape.)
        content = key, tuple(step.weight.shape for step in steps), tuple(executors)
        batch = batch_cache.pop(content, None) or executor.bind(steps, executors)
        while len(batch_cache) >= MAX_KEPT_BATCHES:
            del batch_cache[next(iter(batch_cache))]
        batch_cache[content] = batch
        yield indices, batch


def _local_group(group: GroupStep) -> GroupStep:
    """Return a group with the shards of its weights that this process holds."""
    return replace(group, weights=[local_shard(step) for step in group.weights])


def _keyed_group(group: GroupStep) -> _KeyedGroup:
    """Return a group with the key of its rule, and with own code if none of it is recorded.

    Raises:
        BackendError: it cannot be recorded, under `backend="compiled"`.
    """
    key = RuleKey.of(group.rule)
    reason = None
    if group.backend == "rule":
        reason = 'backend="rule"'
    elif key.unsupported_because and group.backend == "compiled":
        raise BackendError(f'backend="compiled" cannot record the rule: {key.unsupported_because}')
    elif key.unsupported_because:
        reason = key.unsupported_because
    elif group.backend == "auto" and key.foreign:
        reason = (
            f"{key.foreign[0]} is not the library's own; "
            'backend="compiled" makes a kernel of it, if it is pure'
        )
    elif group.backend == "auto":
        modes = active_modes()
        if modes:
            reason = f"{modes[0]} is active"
    return _KeyedGroup(group, key, None if reason is None else Path("rule", reason))


def _stacks(
    keyed: _KeyedGroup, weights: Sequence[tuple[WeightStep, Path]]
) -> Iterator[list[WeightStep]]:
    """Yield the weights that run own code; those that step as one stack come in one list.

    These are the weights on the path "stack", and equal matrices of library rules that multiply: a
    product of a stack is one call, and on a GPU one launch, with the numbers of single ones to
    rounding. (Not in half precision, where a stack rounds a product and a sum apart; nor with rules
    of the zoo, whose norms round otherwise in a stack.)
    """
    stack_products = keyed.group.backend == "auto" and _multiplies_in_full_precision(keyed.key)
    stacks: dict[Any, list[WeightStep]] = {}
    for i, (step, path) in enumerate(weights):
        kind: Any = i
        is_plain = type(step.weight) in PLAIN_TENSORS and type(step.grad) is Tensor
        if is_plain and step.sharded is None and (stack_products or path.name == "stack"):
            kinds_of_tensors = ((x.shape, x.dtype, x.device) for x in step.tensors())
            kind = (*step.state, *kinds_of_tensors)
        stacks.setdefault(kind, []).append(step)
    for stack in stacks.values():
        max_length = max(1, MAX_STACK_BYTES // max(stack[0].weight.nbytes, 1))
        for start in range(0, len(stack), max_length):
            yield stack[start : start + max_length]


def _multiplies_in_full_precision(key: RuleKey) -> bool:
    """Return whether the library's own rules multiply matrices, none of them in half precision."""
    if key.foreign:
        return False
    rules = [*key.rule.walk()]
    products = [rule for rule in rules if isinstance(rule, Orthogonalize)]
    if not products or any(rule.precision == "bfloat16" for rule in products):
        return False
    return not any(type(rule) in ZOO_RULES for rule in rules)


@dataclass(frozen=True)
class StepComparison:
    """The difference between a step on a weight's path and one by the rule's own code.

    Attributes:
        step: the largest change of an entry of the weight, by the rule's own code.
        differences: the largest difference of an entry, by tensor: "weight" and each state.
    """

    step: float
    differences: dict[str, float]


def compare_with_own_code(group: GroupStep, step: WeightStep, path: Path) -> StepComparison | None:
    """Step copies of a weight on a path and by the rule's own code.

    Args:
        group: whose rule steps the weight.
        step: of the weight, whose tensors do not change; in any dtype.
        path: of the weight; one of another dtype takes the executor for this dtype.

    Returns:
        The comparison; None if no step on this path is possible in this dtype and this process.
    """
    key = RuleKey.of(group.rule)
    if path.name == "error" or type(step.weight) not in PLAIN_TENSORS:
        return None
    copy = WeightStep(
        step.weight.detach().clone(),
        step.grad.clone(),
        {name: value.clone() for name, value in step.state.items()},
    )
    rule = key.rule_on(step.weight.device)
    expected, expected_state = rule.step(
        step.weight.detach(), step.grad, step.state, group.global_sums
    )
    if path.executor is not None:
        twin = choose_path(key, group.backend, copy)
        if twin.executor is None or twin.name != path.name:
            return None
        batch = twin.executor.bind([copy], [twin.executor])
        batch.run([copy], key.scalars)
        weight, state = copy.weight, copy.state
    elif path.name == "stack":
        weight, state = step_stack(rule, [copy, copy], group.global_sums)[0]
    else:
        weight, state = rule.step(copy.weight, copy.grad, copy.state, group.global_sums)
    differences = {"weight": _largest_difference(weight, expected)}
    for name, value in expected_state.items():
        differences[name] = _largest_difference(state[name], value)
    return StepComparison(_largest_difference(expected, step.weight.detach()), differences)


def _largest_difference(a: Tensor, b: Tensor) -> float:
    """Return the largest difference of an entry; equal infinities and nans differ by 0."""
    a, b = a.cpu().double(), b.cpu().double()
    same = (a == b) | (a.isnan() & b.isnan())
    if not a.numel():
        return 0.0
    return float((a - b).abs().where(~same, 0.0).max())


def _write_counts(step: WeightStep) -> list[int]:
    """Return torch's counts of writes to the arguments of a step."""
    return [write_count(x) for x in step.tensors()]


def active_modes() -> list[str]:
    """List the modes that change what torch's functions do; a default device is none of these."""
    modes = [*function_modes()]  # type: ignore[no-untyped-call]
    modes += dispatch_modes()
    return [type(mode).__name__ for mode in modes if not isinstance(mode, DeviceContext)]
