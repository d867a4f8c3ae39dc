"""The weights and states that an optimizer steps: what is refused, what joins, what is shared."""

from __future__ import annotations

import itertools
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from spherenorm.compile import GroupStep, RuleKey, WeightStep, why_not_steppable
from spherenorm.global_sums import index_of_furthest, sum_over_weights
from spherenorm.numerics import can_never_be_stepped, refuse_unless_real
from spherenorm.optim.param_groups import NamedWeights, named_weights
from spherenorm.registry import Bound
from spherenorm.rule import Rule, State, first_update, initial_state, trial_state
from spherenorm.torch_internals import is_flattened_by_fsdp

States = Mapping[Tensor, State]
"""The state of each weight that has been stepped: `optimizer.state`."""


# Checks of weights and gradients


def check_weights(optimizer: str, weights: NamedWeights, rule: Rule) -> None:
    """Refuse weights that a rule cannot step, and warn of weights that it does not suit.

    Args:
        optimizer: the name of the class, for the warning.
        weights: the weights of a param_group.
        rule: the rule that is to step them.

    Raises:
        TypeError: a weight is complex, integer or of 8 bits, and not frozen.
        ValueError: a weight was flattened by FullyShardedDataParallel, or the rule has no units
            in its shape, or refuses its values.

    Warns:
        UserWarning: the rule or its manifold suits some weights badly.
    """
    names_by_warning: defaultdict[str, list[str]] = defaultdict(list)
    for name, weight in weights:
        if can_never_be_stepped(weight):
            continue
        refuse_unless_real(weight, name)
        _refuse_flattened(name, weight)
        named_trial_state(name, weight, rule)
        for warning in rule.weight_warnings(weight):
            names_by_warning[warning].append(name)
    sentences = []
    for warning, names in names_by_warning.items():
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        sentences.append(f"{', '.join(names[:5])}{more} {warning}")
    if sentences:
        # Show the line that calls the class: three calls of __init__ and add_param_group are
        # between it and this function.
        warnings.warn(f"{optimizer}: {'. '.join(sentences)}", stacklevel=6)


def named_trial_state(name: str, weight: Tensor, rule: Rule) -> State:
    """Return the state of a weight before its first step, without advancing random generators.

    Raises:
        ValueError: the rule refuses the weight; the message starts with the weight's name.
    """
    try:
        return trial_state(rule, weight.detach())
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def check_gradients(param_groups: Sequence[Mapping[str, Any]]) -> None:
    """Refuse weights and gradients that cannot be stepped now.

    Raises:
        TypeError: a gradient is sparse.
        ValueError: a weight is expanded, an inference tensor, or was flattened meanwhile.
    """
    # Making the names of weights takes longer than this check of all of them.
    if all(_is_ordinary(weight) for group in param_groups for weight in group["params"]):
        return
    for name, weight in itertools.chain.from_iterable(named_weights(param_groups)):
        _refuse_flattened(name, weight)
        if weight.grad is None:
            continue
        reason = why_not_steppable(weight, weight.grad)
        if reason is not None:
            error_type = TypeError if weight.grad.is_sparse else ValueError
            raise error_type(f"{name} {reason}")


def _is_ordinary(weight: Tensor) -> bool:
    """Return True for nearly all weights that can be stepped; `why_not_steppable` decides."""
    grad = weight.grad
    if grad is not None and (grad.is_sparse or grad.shape != weight.shape):
        return False
    return not (weight.is_inference() or 0 in weight.stride() or is_flattened_by_fsdp(weight))


def refuse_changed_weights(
    param_groups: Sequence[Mapping[str, Any]],
    rules: Sequence[Rule],
    states: States,
    error: Exception,
) -> None:
    """After an error in a step, refuse a weight that has changed since its state was made.

    Raises:
        ValueError: the state of a weight has another dtype or shape than the weight needs.
    """
    for weights, rule in zip(named_weights(param_groups), rules, strict=True):
        for name, weight in weights:
            state = states.get(weight)
            if weight.grad is None or not state:
                continue
            for key, needed in named_trial_state(name, weight, rule).items():
                old_text = dtype_and_shape(state.get(key, needed))
                needed_text = dtype_and_shape(needed)
                if old_text != needed_text:
                    raise ValueError(
                        f"{name}: its state {key!r} is {old_text}, and the weight needs "
                        f"{needed_text}. If it has changed, delete its state or make a new "
                        f"optimizer ({error})"
                    ) from error


def dtype_and_shape(x: Tensor) -> str:
    """Describe a tensor for a message."""
    return f"{x.dtype} of shape {tuple(x.shape)}"


def _refuse_flattened(name: str, weight: Tensor) -> None:
    """Refuse a parameter flattened by FullyShardedDataParallel, which has no rows."""
    if is_flattened_by_fsdp(weight):
        raise ValueError(
            f"{name} was flattened by FullyShardedDataParallel and has no rows any more; use "
            "torch.distributed.fsdp.fully_shard"
        )


# States that stay when a hyper-parameter becomes 0


def rule_keeping_states(bound: Bound, states: Iterable[State], t: int = 1) -> Rule:
    """Return the rule of `bound` at step t, with the states that the weights have already.

    A recipe may leave a rule, or a rule a state, out at the Python number 0 (SGD without momentum
    has no buffer). Where a weight has that state from earlier steps, the 0 becomes a 0-dim tensor,
    which leaves nothing out: the state goes on as at any other small number.
    """
    rule = bound.rule.at(t)
    rule_keys = set(rule.state_keys)
    key_sets = {frozenset(state) for state in states if not rule_keys.issuperset(state)}
    if not key_sets:
        return rule
    zeros = [zero for zero in _zeros(bound.hyper_parameters) if _adds_states(bound, [zero])]
    best = rule
    for count in range(1, len(zeros) + 1):
        for some_zeros in itertools.combinations(zeros, count):
            candidate = _with_tensor_zeros(bound, some_zeros).rule.at(t)
            fits = any(keys >= set(candidate.state_keys) for keys in key_sets)
            if fits and len(candidate.state_keys) > len(best.state_keys):
                best = candidate
    return best


_Zero = tuple[str, int | None]
"""A Python number 0 among hyper-parameters: the name, and the index if the value is a tuple."""


def _zeros(hyper_parameters: Mapping[str, Any]) -> Iterator[_Zero]:
    """Iterate over the Python numbers 0 among hyper-parameters."""
    for name, value in hyper_parameters.items():
        if type(value) in (tuple, list):
            yield from ((name, i) for i, number in enumerate(value) if _is_python_zero(number))
        elif _is_python_zero(value):
            yield name, None


def _is_python_zero(value: Any) -> bool:
    return type(value) in (int, float) and value == 0


def _with_tensor_zeros(bound: Bound, zeros: Iterable[_Zero]) -> Bound:
    """Return the recipe with 0-dim tensors in the place of these zeros."""
    values = dict(bound.hyper_parameters)
    tensor_zero = torch.zeros((), dtype=torch.float64, device="cpu")
    for name, index in zeros:
        if index is None:
            values[name] = tensor_zero
        else:
            numbers = [*values[name]]
            numbers[index] = tensor_zero
            values[name] = type(values[name])(numbers)
    return bound.replace(**values)


def _adds_states(bound: Bound, zeros: Iterable[_Zero]) -> bool:
    """Return whether the rule has more states with tensors in the place of these zeros."""
    try:
        rule = _with_tensor_zeros(bound, zeros).rule
    except (TypeError, ValueError):  # the recipe takes no tensor there
        return False
    return len(rule.state_keys) > len(bound.rule.state_keys)


# The groups of a step


def collect_groups(
    param_groups: Sequence[Mapping[str, Any]], rules: Sequence[Rule], states: States
) -> tuple[list[GroupStep], dict[Tensor, State]]:
    """Return the weights to step, and new states for some, which are kept if the step succeeds.

    A weight that joins late has the states that all weights share from the others.
    """
    groups = []
    new_states: dict[Tensor, State] = {}
    for param_group, rule in zip(param_groups, rules, strict=True):
        keys = set(rule.state_keys)
        steps = []
        for weight in param_group["params"]:
            grad = weight.grad
            if grad is None:
                continue
            state = states.get(weight)
            # The keys differ if a schedule has switched a rule on or off. A rule without states
            # gets an empty dict of its own at the first step, too: checkpoints ask for it.
            if state is None or state.keys() != keys:
                state = new_states[weight] = extended_state(rule, weight, state or {})
            steps.append(WeightStep(weight, -grad if param_group["maximize"] else grad, state))
        groups.append(GroupStep(rule, param_group["backend"], steps))
    if new_states and any(rule.needs_global_sums for rule in rules):
        _share_with_new_states(param_groups, groups, states, new_states)
    return groups, new_states


def extended_state(rule: Rule, weight: Tensor, old: State) -> State:
    """Return the state of a rule: values of the old state where it has them, else initial ones.

    Raises:
        ValueError: several rules without a name of their own have states of one name, and not as
            many as before, so that it is unknown whose the old values are.
    """
    changed_keys = _numbered_keys(old) ^ _numbered_keys(rule.state_keys)
    if old and changed_keys:
        raise ValueError(
            f"{type(rule).__name__}: several rules have a state of one name "
            f"({', '.join(sorted(changed_keys))}), and a number that was 0, or is 0 now, changes "
            "how many of them have one; give the rules a name each, as in "
            'NormalizedUpdate(..., name="first"), so that each keeps its own state'
        )
    # Initial values are copied, since a user's `init` may return the weight itself.
    return {
        key: old[key] if key in old else value.clone()
        for key, value in initial_state(rule, weight).items()
    }


def _numbered_keys(keys: Iterable[str]) -> set[str]:
    """Return the keys with a number behind another key, such as exp_avg_2 beside exp_avg."""
    names = set(keys)
    parts = ((key, key.rpartition("_")) for key in names)
    return {key for key, (base, _, number) in parts if number.isdigit() and base in names}


def with_global_sums(groups: Sequence[GroupStep]) -> list[GroupStep]:
    """Return the groups with the global sums of their rules, taken over all weights."""
    if not any(group.rule.needs_global_sums for group in groups):
        return [*groups]
    weights = []
    for group in _participants(groups):
        key = RuleKey.of(group.rule)
        for step in group.weights:
            update = first_update(key.rule, step.weight, step.grad, step.state)
            weights.append((key.rule_on(step.weight.device), update, step.state))
    sums = sum_over_weights(weights)
    return [replace(group, global_sums=sums) for group in groups]


# States that all weights share, such as Prodigy's estimate of the distance


def check_shared_fields(rules: Iterable[Rule]) -> None:
    """Refuse groups that differ in a number on which a shared state depends, except for 0.

    Raises:
        ValueError: they do.
    """
    first_values: dict[tuple[type, str], Any] = {}
    for rule in rules:
        if not rule.needs_global_sums:
            continue
        for owner in rule.walk():
            for name in owner.shared_fields:
                value = getattr(owner, name)
                first_value = first_values.setdefault((type(owner), name), value)
                if value is first_value or _is_zero(value):
                    continue
                if _is_zero(first_value):
                    first_values[type(owner), name] = value
                elif value != first_value:
                    raise ValueError(
                        f"{type(owner).__name__}: {name} is {_format_number(first_value)} in one "
                        f"param_group and {_format_number(value)} in another, and all weights "
                        f"share one estimate; give all groups the same {name}, or 0 to those that "
                        "are to stand still"
                    )


def copy_shared_states(
    param_groups: Sequence[Mapping[str, Any]], groups: Sequence[GroupStep], states: States
) -> None:
    """After a step, copy shared states to the weights that took no part in it."""
    for owner in _owners(groups):
        source = _first_group_with(owner, groups)
        if source is None:
            continue
        stepped = {id(step.state) for step in source.weights}
        values = [source.weights[0].state[key] for key in source.rule.shared_keys[owner]]
        for param_group, group in zip(param_groups, groups, strict=True):
            keys = group.rule.shared_keys.get(owner, ())
            for weight in param_group["params"] if keys else ():
                state = states.get(weight)
                if not state or id(state) in stepped:
                    continue
                for key, value in zip(keys, values, strict=True):
                    if key in state:
                        state[key].copy_(value)


def _first_group_with(owner: str, groups: Sequence[GroupStep]) -> GroupStep | None:
    """Return the first group that steps and has the shared states of this class of rules."""
    for group in _participants(groups):
        if owner in group.rule.shared_keys and group.weights:
            return group
    return None


def reconcile_shared_states(rules_and_states: Sequence[tuple[Rule, State]]) -> None:
    """Give all weights of a checkpoint the shared states of the weight that is furthest ahead."""
    furthest: dict[str, list[Tensor]] = {}
    for rule, state in rules_and_states:
        for owner, keys in rule.shared_keys.items() if state else ():
            values = [state[key] for key in keys]
            past = furthest.setdefault(owner, values)
            pairs = [torch.stack([x, y.to(x.device)]) for x, y in zip(past, values, strict=True)]
            if index_of_furthest(pairs) == 1:
                furthest[owner] = values
    for rule, state in rules_and_states:
        for owner, keys in rule.shared_keys.items() if state else ():
            for key, value in zip(keys, furthest[owner], strict=True):
                if state[key] is not value:
                    state[key].copy_(value)


def _share_with_new_states(
    param_groups: Sequence[Mapping[str, Any]],
    groups: Sequence[GroupStep],
    states: States,
    new_states: Mapping[Tensor, State],
) -> None:
    """Copy the shared values of the other weights to new states.

    At the very first step all states are new, and share the values of the first.
    """
    for owner in _owners(groups):
        values = _shared_values(owner, param_groups, groups, states)
        if values is None:
            continue
        for group in groups:
            keys = group.rule.shared_keys.get(owner, ())
            for step in group.weights if keys else ():
                if step.weight in new_states:
                    for key, value in zip(keys, values, strict=True):
                        step.state[key] = value.to(step.state[key], copy=True)


def _shared_values(
    owner: str,
    param_groups: Sequence[Mapping[str, Any]],
    groups: Sequence[GroupStep],
    states: States,
) -> list[Tensor] | None:
    """Return the shared values of the first weight that has any, else those of a new state."""
    for param_group, group in zip(param_groups, groups, strict=True):
        keys = group.rule.shared_keys.get(owner, ())
        for weight in param_group["params"] if keys else ():
            state = states.get(weight)
            if state and state.keys() >= set(keys):
                return [state[key] for key in keys]
    source = _first_group_with(owner, groups)
    if source is None:
        return None
    return [source.weights[0].state[key] for key in source.rule.shared_keys[owner]]


def _owners(groups: Sequence[GroupStep]) -> set[str]:
    """Return the classes of rules with states that all weights share."""
    owners: set[str] = set()
    for group in groups:
        if group.rule.needs_global_sums:
            owners.update(group.rule.shared_keys)
    return owners


def _participants(groups: Sequence[GroupStep]) -> list[GroupStep]:
    """Return the groups that shared states depend on: those that step, unless none does."""
    groups = [group for group in groups if group.weights]
    if len(groups) < 2:
        return groups
    return [group for group in groups if _takes_part(group.rule)] or groups


def _takes_part(rule: Rule) -> bool:
    for owner in rule.walk():
        if any(_is_zero(getattr(owner, name)) for name in owner.shared_fields):
            return False
    return True


def _is_zero(value: Any) -> bool:
    return bool(value == 0)


def _format_number(value: Any) -> str:
    return f"{value.item():g}" if isinstance(value, Tensor) else f"{value:g}"
