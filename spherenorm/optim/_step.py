"""The work of one step: the weights that have a gradient, with their states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from spherenorm._rule import Rule, State
from spherenorm.compile import Group, Work, require_backend
from spherenorm.optim._arguments import require_truth

__all__ = ["gather"]


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
    groups = []
    for rule, group in zip(rules, param_groups, strict=True):
        works, names = [], set(rule.state_names)
        maximize = require_truth(group["maximize"])
        for weight in group["params"]:
            if weight.grad is not None:
                state = states.get(weight)
                if state is None or state.keys() != names:
                    state = new[weight] = _completed(state or {}, rule.init(weight))
                grad = -weight.grad if maximize else weight.grad
                works.append(Work(weight, grad, state))
        groups.append(Group(rule, require_backend(group["backend"]), works))
    return groups, new


def _completed(old: State, fresh: State) -> State:
    """A state with all entries of `fresh`: the old ones, and copies of those that are new.

    It is used at a first step, and where a schedule has switched a rule on or off. The entries are
    copied since states are written to, and a rule may begin with the weight itself, or with one
    tensor for several.
    """
    return {name: old[name] if name in old else value.clone() for name, value in fresh.items()}
