"""The work of one step: the weights that have a gradient, with their states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from spherenorm._steps import sums_over
from spherenorm.compile import Group, Work, require_backend
from spherenorm.core import Rule, State
from spherenorm.optim._arguments import require_truth


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
        keys = set(rule.keys)
        works: list[Work] = []
        maximize = require_truth(group["maximize"])
        for weight in group["params"]:
            grad = weight.grad
            if grad is not None:
                state = states.get(weight)
                if state is None or state.keys() != keys:
                    state = new[weight] = _completed(state or {}, rule.init(weight))
                works.append(Work(weight, -grad if maximize else grad, state))
        groups.append(Group(rule, require_backend(group["backend"]), works))
    if any(rule.measures for rule in rules):
        sums = sums_over((g.rule, w.weight, w.grad, w.state) for g in groups for w in g.works)
        groups = [replace(each, sums=sums) for each in groups]
    return groups, new


def _completed(old: State, fresh: State) -> State:
    """A state with all entries of `fresh`: the old ones, and copies of those that are new.

    For a first step, and where a schedule has switched a rule on or off. New entries are copied: a
    rule's `init` may return the weight itself, or one tensor twice, and steps write into states.
    """
    return {name: old[name] if name in old else value.clone() for name, value in fresh.items()}
