"""The surroundings of a step: the state that it begins with, and sums over all weights."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from spherenorm._numerics import shares_memory, to_wide, without_autocast, working


class InPlaceError(ValueError):
    """A rule writes into its arguments."""


def init_apart(rule: Any, weight: Tensor) -> dict[str, Tensor]:
    """`rule.init(weight)`, which leaves the states of the random generators as they were."""
    devices = [weight.device] if weight.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        return first_state(rule, weight)


def first_state(rule: Any, weight: Tensor) -> dict[str, Tensor]:
    """`rule.init(weight)` in the precision that rules compute in, in memory of its own."""
    with without_autocast(weight.device):
        state: dict[str, Tensor] = rule.init(working(weight))
    return {key: x.clone() if shares_memory(x, weight) else x for key, x in state.items()}


def sums_over(weights: Iterable[tuple[Any, Any, dict[str, Tensor]]]) -> dict[str, Tensor]:
    """The sums over all weights of what their rules measure, by name.

    Sums are in float64 (where the device has it). Parts of sharded weights take one collective.

    Args:
        weights: the rule of each, its update before the first rule, and its state.

    Raises:
        TypeError, ValueError: a rule measures what is no 0-dim tensor.
    """
    sums: dict[str, Tensor] = {}
    parts: defaultdict[Any, defaultdict[str, list[Tensor]]] = defaultdict(lambda: defaultdict(list))
    for rule, update, state in weights:
        if not rule.measures:
            continue
        with without_autocast(update.weight.device):
            terms = rule.measure(update, state)
        for name, value in terms.items():
            number: Any = summand(value, rule, name)
            if mesh := getattr(number, "device_mesh", None):
                parts[mesh, number.placements][name].append(number.to_local())
            else:
                if name in sums:
                    number = sums[name] + to_wide(number, sums[name].device)
                sums[name] = number
    for (mesh, placements), by_name in parts.items():
        from torch.distributed.tensor import DTensor

        local = torch.stack([torch.stack(values).sum() for values in by_name.values()])
        whole = DTensor.from_local(local, mesh, placements, run_check=False).full_tensor()
        for name, value in zip(by_name, whole, strict=True):
            sums[name] = sums[name] + value if name in sums else value
    return sums


def shared_over(rule: Any, states: Mapping[str, dict[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
    """The states of weights, by name, with those that all weights share from the furthest on.

    A weight that has joined late has a fresh one, in which the shared numbers have not grown yet.
    """
    if len(states) < 2 or not rule.shared_keys:
        return {**states}
    shared: dict[str, Tensor] = {}
    for keys in rule.shared_keys.values():
        device = next(iter(states.values()))[keys[0]].device
        copies = {k: torch.stack([s[k].to(device) for s in states.values()]) for k in keys}
        furthest = copies[keys[0]].argmax(0, keepdim=True)
        shared |= {key: x.gather(0, furthest).squeeze(0) for key, x in copies.items()}
    return {
        name: {**state, **{key: x.to(state[key].device) for key, x in shared.items()}}
        for name, state in states.items()
    }


def summand(value: Any, rule: Any, name: str) -> Tensor:
    """A number that a rule measures, in float64 (where the device has it).

    Raises:
        TypeError, ValueError: it is no 0-dim tensor.
    """
    what = f"{type(rule).__name__}: measure()[{name!r}] must be"
    if not isinstance(value, Tensor):
        raise TypeError(f"{what} a tensor, got {value!r}")
    if value.ndim:
        raise ValueError(f"{what} 0-dim, got shape {tuple(value.shape)}")
    return to_wide(value, value.device)
