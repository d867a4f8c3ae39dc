"""The work of one step: the weights that have a gradient, with their states."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from spherenorm._hooks import State
from spherenorm._rule import Rule
from spherenorm._shared import measures, totals
from spherenorm._step import begin, second_point
from spherenorm._tree import Part, refuse_renamed
from spherenorm._watch import called
from spherenorm.compile import Group, Work, require_backend
from spherenorm.optim._arguments import require_truth
from spherenorm.optim._weights import check_gradients


def gather(
    rules: Sequence[Rule],
    param_groups: Sequence[Mapping[str, Any]],
    states: Mapping[Tensor, State],
) -> tuple[list[Group], dict[Tensor, State]]:
    """The weights to step, group by group.

    Args:
        rules: one for each group.
        param_groups: the groups of an optimizer.
        states: of the weights, as far as they have any.

    Returns:
        The work, and the states that were made for it; they are to be kept if the step succeeds.

    Raises:
        TypeError, ValueError: a group's `maximize` is no truth value, or its backend is unknown.
    """
    new: dict[Tensor, State] = {}
    groups: list[Group] = []
    for rule, group in zip(rules, param_groups, strict=True):
        keys = _keys_of(rule)
        works: list[Work] = []
        maximize = require_truth(group["maximize"])
        for weight in group["params"]:
            grad = weight.grad
            if grad is not None:
                state = states.get(weight)
                if state is None or state.keys() != keys(weight):
                    state = new[weight] = _completed(
                        state or {}, called(Part(rule, {}), rule.init, weight)
                    )
                works.append(Work(weight, -grad if maximize else grad, state))
        groups.append(Group(rule, require_backend(group["backend"]), works))
    if any(map(measures, rules)):
        sums = totals([(g.rule, [(w.weight, w.grad, w.state) for w in g.works]) for g in groups])
        groups = [replace(each, measured=found) for each, found in zip(groups, sums, strict=True)]
    return groups, new


def gather_at_points(
    rules: Sequence[Rule],
    param_groups: Sequence[Mapping[str, Any]],
    states: Mapping[Tensor, State],
    closure: Callable[[], Any] | None,
) -> tuple[list[Group], dict[Tensor, State]]:
    """As `gather`, with the gradients at the points where rules ask for them.

    Args:
        rules, param_groups, states: as for `gather`.
        closure: computes the loss and its gradients; it has been called once.

    Raises:
        ValueError: a rule asks for a second gradient, and there is no closure.
    """
    groups, new = gather(rules, param_groups, states)
    asking = [each for rule in rules for each in rule.tree() if each.defines("evaluate_at")]
    if not asking:
        return groups, new
    if closure is None:
        why = "computes the gradient at another point than the weight"
        raise ValueError(f"{type(asking[0]).__name__} {why}; call step(closure)")
    _evaluate_elsewhere(groups, closure)
    check_gradients(param_groups)
    groups, again = gather(rules, param_groups, {**states, **new})
    return groups, {**new, **again}


def _evaluate_elsewhere(groups: Sequence[Group], closure: Callable[[], Any]) -> None:
    """Compute the gradients once more at the points that rules ask for, and put the weights back.

    Args:
        groups: the weights, with their first gradients.
        closure: computes the loss and its gradients.

    Raises:
        Exception: of any type, which a rule or the closure raises; the weights are put back then.
    """
    points = []
    for group in groups:
        for work in group.works:
            update = begin(group.rule, work.weight, work.grad, work.state, group.measured)
            point = second_point(group.rule, update, work.state)
            if point is not None:
                points.append((work.weight, work.weight.clone(), point))
    try:
        for weight, _, point in points:
            weight.copy_(point)
        with torch.enable_grad():
            closure()
    finally:
        for weight, before, _ in points:
            weight.copy_(before)


def _keys_of(rule: Rule) -> Callable[[Tensor], set[str]]:
    """The keys of a weight's state, asked once, or for each shape if they depend on it."""
    try:
        every = set(rule.keys(None))
        return lambda weight: every
    except (ValueError, AttributeError):
        known: dict[torch.Size, set[str]] = {}

    def keys(weight: Tensor) -> set[str]:
        if weight.shape not in known:
            known[weight.shape] = set(rule.keys(weight))
        return known[weight.shape]

    return keys


def _completed(old: State, fresh: State) -> State:
    """A state with all entries of `fresh`: the old ones, and copies of those that are new.

    For a first step, and where a schedule has switched a rule on or off. New entries are copied: a
    rule's `init` may return the weight itself, or one tensor twice, and steps write into states.

    Raises:
        ValueError: see `refuse_renamed`.
    """
    if old:
        refuse_renamed(old, fresh)
    return {name: old[name] if name in old else value.clone() for name, value in fresh.items()}
