"""Sums over all weights of an optimizer, such as the squared norm of all gradients.

Every rule may return the terms of one weight (`Rule.global_sum_terms`). An optimizer adds them up
here, once per step, and passes the sums to each `Rule.step`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from spherenorm.numerics import to_accumulation_dtype, without_autocast

if TYPE_CHECKING:
    from spherenorm.rule import Rule, State, Update


def sum_over_weights(weights: Iterable[tuple[Rule, Update, State]]) -> dict[str, Tensor]:
    """Return the sums of `Rule.global_sum_terms` over all weights, by name.

    Sums are float64 where the device has it. Sharded weights of one placement take one collective.

    Args:
        weights: the rule of each weight, the update before the first rule, and the state.

    Raises:
        TypeError, ValueError: a term is not a 0-dim tensor.
    """
    sums: dict[str, Tensor] = {}
    local_terms: defaultdict[Any, defaultdict[str, list[Tensor]]]  # by placement and name
    local_terms = defaultdict(lambda: defaultdict(list))
    for rule, update, state in weights:
        if not rule.needs_global_sums:
            continue
        with without_autocast(update.weight.device):
            terms_of_weight = rule.global_sum_terms(update, state)
        for name, value in terms_of_weight.items():
            term: Any = check_term(rule, name, value)
            mesh = getattr(term, "device_mesh", None)
            if mesh is not None:
                local_terms[mesh, term.placements][name].append(term.to_local())
            elif name in sums:
                sums[name] = sums[name] + to_accumulation_dtype(term, sums[name].device)
            else:
                sums[name] = term
    for (mesh, placements), terms in local_terms.items():
        from torch.distributed.tensor import DTensor

        local = torch.stack([torch.stack(values).sum() for values in terms.values()])
        totals = DTensor.from_local(local, mesh, placements, run_check=False).full_tensor()
        for name, total in zip(terms, totals, strict=True):
            sums[name] = sums[name] + total if name in sums else total
    return sums


def copy_shared_states_from_furthest(
    rules: Mapping[str, Rule], states: Mapping[str, State]
) -> dict[str, State]:
    """Return the states of weights, with the shared ones copied from the weight furthest ahead.

    In a weight that joined late, the states that all weights share are still at their start. The
    result does not depend on the order of the names.

    Args:
        rules: the rule of each weight, by name.
        states: the state of each weight, by name.
    """
    new_states = {name: dict(state) for name, state in states.items()}
    keys_by_class: defaultdict[str, dict[str, tuple[str, ...]]] = defaultdict(dict)
    for name in states:
        for rule_class, keys in rules[name].shared_keys.items():
            keys_by_class[rule_class][name] = keys
    for keys_by_name in keys_by_class.values():
        if len(keys_by_name) < 2:
            continue
        names = list(keys_by_name)
        device = states[names[0]][keys_by_name[names[0]][0]].device
        copies = [
            torch.stack([states[n][key].to(device) for n, key in zip(names, keys, strict=True)])
            for keys in zip(*keys_by_name.values(), strict=True)
        ]
        furthest = index_of_furthest(copies)
        shared = [values.gather(0, furthest).squeeze(0) for values in copies]
        for name, keys in keys_by_name.items():
            for key, value in zip(keys, shared, strict=True):
                new_states[name][key] = value.to(states[name][key].device)
    return new_states


def index_of_furthest(shared_values: Sequence[Tensor]) -> Tensor:
    """Return the index of the weight that is furthest ahead, of shape (1,).

    The first shared state decides, since it never decreases. While it is at its start, a late
    weight ties with the others; its other shared states are 0, so the largest magnitude wins.

    Args:
        shared_values: for each shared state, in the order of `Rule.shared_names`, its values in all
            weights, of shape (n_weights,).
    """
    first, *others = shared_values
    is_candidate = first == first.amax(0)
    for values in others:
        magnitude = torch.where(is_candidate, values.abs(), -1)
        is_candidate = is_candidate & (magnitude == magnitude.amax(0))
    return is_candidate.to(torch.uint8).argmax(0, keepdim=True)


def check_term(rule: Rule, name: str, term: Any) -> Tensor:
    """Return a term in float64 (where the device has it).

    Raises:
        TypeError, ValueError: the term is not a 0-dim tensor.
    """
    if not isinstance(term, Tensor):
        raise TypeError(
            f"{type(rule).__name__}: global_sum_terms()[{name!r}] must be a tensor, got {term!r}"
        )
    if term.ndim:
        raise ValueError(
            f"{type(rule).__name__}: global_sum_terms()[{name!r}] must be 0-dim, got shape "
            f"{tuple(term.shape)}"
        )
    return to_accumulation_dtype(term, term.device)
