"""First states of sharded weights, which a rule may make from the whole weight only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from spherenorm.compile import is_distributed, needs_whole_states, shard_state
from spherenorm.rule import Rule, State, initial_state, initial_state_keeping_rng


def initial_state_for_check(weight: Tensor, rule: Rule) -> State:
    """Return the state before the first step, for a check; no other process is asked.

    Of a sharded weight that the rule needs whole, only shapes, dtypes and placements are those of
    the first state.
    """
    if not needs_whole_states(rule, weight):
        return initial_state_keeping_rng(rule, weight.detach())
    try:
        state = initial_state_keeping_rng(
            rule, torch.empty(weight.shape, dtype=weight.dtype, device="meta")
        )
    except (NotImplementedError, RuntimeError):  # `init` reads values
        with torch.random.fork_rng([weight.device] if weight.is_cuda else []):
            whole = torch.randn(weight.shape, dtype=weight.dtype, device=weight.device)
        state = initial_state_keeping_rng(rule, whole)
    return shard_state(state, weight)


def initial_state_of(weight: Tensor, rule: Rule) -> State:
    """Return the state before the first step, for which all processes of the mesh are asked."""
    if not needs_whole_states(rule, weight):
        return initial_state(rule, weight)
    whole = weight.detach().full_tensor()  # type: ignore[attr-defined]
    return shard_state(initial_state(rule, whole), weight)


def has_newcomers(
    param_groups: Sequence[Mapping[str, Any]], rules: Sequence[Rule], states: Mapping[Tensor, State]
) -> bool:
    """Return whether a sharded weight is to get new states, which takes all its processes."""
    for param_group, rule in zip(param_groups, rules, strict=True):
        keys = set(rule.state_keys)
        for weight in param_group["params"]:
            if not is_distributed(weight) or weight.grad is None:
                continue
            state = states.get(weight)
            if state is None or state.keys() != keys:
                return True
    return False
