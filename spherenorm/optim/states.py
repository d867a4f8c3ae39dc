"""The states of an optimizer's weights at a step: those that are there stay, late ones join."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from spherenorm.compile import Group, RuleKey, Work
from spherenorm.global_sums import index_of_furthest, sum_over_weights
from spherenorm.registry import Bound
from spherenorm.rule import Rule, State, first_update, initial_state

States = Mapping[Tensor, State]


def rule_keeping_states(bound: Bound, states: Iterable[State]) -> Rule:
    """Return the rule of `bound`, with the states that are there already.

    A recipe may leave a rule, or a rule a state, out at the Python number 0 (SGD without momentum
    has no buffer). Where a weight has that state from earlier steps, the 0 becomes a 0-dim tensor,
    which leaves nothing out: the state goes on as at any other small number.
    """
    rule = bound.rule
    known = set(rule.state_keys)
    richer = {frozenset(state) for state in states if state.keys() - known}
    if not richer:
        return rule
    zeros = [place for place in _zeros(bound.hyper_parameters) if _adds_states(bound, [place])]
    best = rule
    for count in range(1, len(zeros) + 1):
        for places in itertools.combinations(zeros, count):
            other = _with_tensor_zeros(bound, places).rule
            fits = any(keys >= set(other.state_keys) for keys in richer)
            if fits and len(other.state_keys) > len(best.state_keys):
                best = other
    return best


Place = tuple[str, int | None]
"""A number among hyper-parameters: its name, and its index in a tuple."""


def _zeros(hyper_parameters: Mapping[str, Any]) -> Iterator[Place]:
    """The Python numbers 0 among hyper-parameters."""
    for name, value in hyper_parameters.items():
        if type(value) in (tuple, list):
            yield from ((name, i) for i, number in enumerate(value) if _is_zero_number(number))
        elif _is_zero_number(value):
            yield name, None


def _is_zero_number(value: Any) -> bool:
    return type(value) in (int, float) and value == 0


def _with_tensor_zeros(bound: Bound, places: Iterable[Place]) -> Bound:
    values = dict(bound.hyper_parameters)
    zero = torch.zeros((), dtype=torch.float64, device="cpu")
    for name, index in places:
        if index is None:
            values[name] = zero
        else:
            numbers = [*values[name]]
            numbers[index] = zero
            values[name] = type(values[name])(numbers)
    return bound.replace(**values)


def _adds_states(bound: Bound, places: Iterable[Place]) -> bool:
    """Tell if the rule has more states with tensors in the place of these zeros."""
    try:
        other = _with_tensor_zeros(bound, places).rule
    except (TypeError, ValueError):  # the recipe takes no tensor there
        return False
    return len(other.state_keys) > len(bound.rule.state_keys)


def gather(
    param_groups: Sequence[Mapping[str, Any]], rules: Sequence[Rule], states: States
) -> tuple[list[Group], dict[Tensor, State]]:
    """Return the weights to step, and new states for some, which are kept if the step succeeds.

    A weight that joins late has the states that all weights share from the others.
    """
    groups, new = [], {}
    for group, rule in zip(param_groups, rules, strict=True):
        keys = set(rule.state_keys)
        works = []
        for weight in group["params"]:
            if weight.grad is None:
                continue
            state = states.get(weight)  # a first step keeps an empty one, too, as checkpoints ask
            if state is None or state.keys() != keys:  # or a schedule has switched a rule
                # Fresh values are copied, since a user's `init` may return the weight itself.
                old, fresh = state or {}, initial_state(rule, weight)
                state = {key: old[key] if key in old else x.clone() for key, x in fresh.items()}
                new[weight] = state
            works.append(Work(weight, -weight.grad if group["maximize"] else weight.grad, state))
        groups.append(Group(rule, group["backend"], works))
    if new and any(rule.needs_global_sums for rule in rules):
        _join(param_groups, groups, states, new)
    return groups, new


def with_sums(groups: Sequence[Group]) -> list[Group]:
    """Return the groups with the sums over all weights of what their rules measure."""
    if not any(group.rule.needs_global_sums for group in groups):
        return [*groups]
    sums = sum_over_weights(
        (key.rule_on(w.weight.device), first_update(key.rule, w.weight, w.grad, w.state), w.state)
        for key, g in ((RuleKey.of(g.rule), g) for g in _participants(groups))
        for w in g.works
    )
    return [replace(group, sums=sums) for group in groups]


def check_shared_fields(rules: Iterable[Rule]) -> None:
    """Refuse groups that differ in a number on which a shared state depends, but for 0.

    Raises:
        ValueError: they do.
    """
    first: dict[tuple[type, str], Any] = {}
    for rule in rules:
        for owner in rule.walk() if rule.needs_global_sums else ():
            for name in owner.shared_fields:
                value = getattr(owner, name)
                other = first.setdefault((type(owner), name), value)
                if value is other or _is_zero(value):
                    continue
                if _is_zero(other):
                    first[type(owner), name] = value
                elif value != other:
                    raise ValueError(
                        f"{type(owner).__name__}: {name} is {_shown(other)} in one param_group "
                        f"and {_shown(value)} in another, and all weights share one estimate; "
                        f"give all groups the same {name}, or 0 to those that are to stand still"
                    )


def spread_shared(
    param_groups: Sequence[Mapping[str, Any]], groups: Sequence[Group], states: States
) -> None:
    """After a step, copy shared states to the weights that took no part in it."""
    for owner in _owners(groups):
        source = next(
            (g for g in _participants(groups) if owner in g.rule.shared_keys and g.works), None
        )
        if source is None:
            continue
        stepped = {id(work.state) for work in source.works}
        values = [source.works[0].state[key] for key in source.rule.shared_keys[owner]]
        for params, group in zip(param_groups, groups, strict=True):
            keys = group.rule.shared_keys.get(owner, ())
            for weight in params["params"] if keys else ():
                state = states.get(weight)
                if not state or id(state) in stepped:
                    continue
                for key, value in zip(keys, values, strict=True):
                    if key in state:
                        state[key].copy_(value)


def reconcile_shared(rules_and_states: Sequence[tuple[Rule, State]]) -> None:
    """Let all weights of a checkpoint have the shared states of the weight that is furthest on."""
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


def _join(
    param_groups: Sequence[Mapping[str, Any]],
    groups: Sequence[Group],
    states: States,
    new: Mapping[Tensor, State],
) -> None:
    """Give new states the shared values of the others; at a first step, those of the first."""
    for owner in _owners(groups):
        held = [
            [state[key] for key in keys]
            for params, group in zip(param_groups, groups, strict=True)
            if (keys := group.rule.shared_keys.get(owner))
            for state in map(states.get, params["params"])
            if state and state.keys() >= {*keys}
        ]
        fresh = [
            [work.state[key] for key in group.rule.shared_keys[owner]]
            for group in _participants(groups)
            if owner in group.rule.shared_keys
            for work in group.works
        ]
        values = next(iter(held or fresh), [])
        for group in groups if values else ():
            for work in group.works if owner in group.rule.shared_keys else ():
                if work.weight in new:
                    for key, value in zip(group.rule.shared_keys[owner], values, strict=True):
                        work.state[key] = value.to(work.state[key], copy=True)


def _owners(groups: Sequence[Group]) -> set[str]:
    """The classes of rules with states that all weights share."""
    return {owner for g in groups if g.rule.needs_global_sums for owner in g.rule.shared_keys}


def _participants(groups: Sequence[Group]) -> list[Group]:
    """The groups that shared states depend on: those that step, unless none does."""
    groups = [group for group in groups if group.works]
    if len(groups) < 2:
        return groups
    return [group for group in groups if _takes_part(group.rule)] or groups


def _takes_part(rule: Rule) -> bool:
    return not any(
        _is_zero(getattr(owner, name)) for owner in rule.walk() for name in owner.shared_fields
    )


def _is_zero(value: Any) -> bool:
    return bool(value == 0)


def _shown(value: Any) -> str:
    return f"{value.item():g}" if isinstance(value, Tensor) else f"{value:g}"
