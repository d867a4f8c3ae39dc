"""Numbers that all weights of a step share: rules measure them of each, and they are summed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from spherenorm._hooks import State
from spherenorm._rule import Rule
from spherenorm._step import Measured, begin, measure
from spherenorm._update import Place

Weights = Sequence[tuple[Tensor, Tensor, State]]
"""The weights that a rule steps: (weight, gradient, state) of each."""

Key = tuple[type, int, str]
"""The class of a rule, its number among the rules of that class, and the name of a number."""


def measures(rule: Rule) -> bool:
    """True if the rule, or one within it, measures what all weights share."""
    return any(each.defines("measure") for each in rule.tree())


def totals(groups: Sequence[tuple[Rule, Weights]]) -> list[Measured]:
    """The sums over all weights of all groups of what their rules measure, for each group.

    Rules of one class in the same place among their like share a sum, also across groups. Sums are
    in float64 (where the device has it). Parts of sharded weights take one collective.

    Args:
        groups: a rule and its weights, for each group.

    Raises:
        TypeError, ValueError: a rule measures what is no 0-dim tensor.
    """
    found: defaultdict[Key, list[Tensor]] = defaultdict(list)
    kinds: list[dict[Place, tuple[type, int]]] = []
    for rule, weights in groups:
        kinds.append({})
        for weight, grad, state in weights if measures(rule) else ():
            counts: defaultdict[type, int] = defaultdict(int)
            update = begin(rule, weight, grad, state, None)
            for place, each, numbers in measure(rule, update, state):
                counts[type(each)] += 1
                kinds[-1][place] = kind = type(each), counts[type(each)]
                for name, value in numbers.items():
                    key = *kind, name
                    found[key].append(value)
    # By kind: a group may have none of the weights of which its rule measures something.
    sums: defaultdict[tuple[type, int], dict[str, Tensor]] = defaultdict(dict)
    for (cls, number, name), total in _sums(found).items():
        sums[cls, number][name] = total
    return [{place: sums[kind] for place, kind in each.items()} for each in kinds]


def _sums(found: Mapping[Key, Sequence[Tensor]]) -> dict[Key, Tensor]:
    """The sum of each list of 0-dim tensors; a DTensor among them is summed over its processes."""
    sums: dict[Key, Tensor] = {}
    parts: defaultdict[Any, dict[Key, list[Tensor]]] = defaultdict(dict)
    for key, values in found.items():
        for value in values:
            mesh = getattr(value, "device_mesh", None)
            if mesh is None:
                sums[key] = sums[key] + value.to(sums[key].device) if key in sums else value
            else:
                cut: Any = value
                parts[mesh, cut.placements].setdefault(key, []).append(cut.to_local())
    for (mesh, placements), by_key in parts.items():
        from torch.distributed.tensor import DTensor

        local = torch.stack([torch.stack(values).sum() for values in by_key.values()])
        whole = DTensor.from_local(local, mesh, placements, run_check=False).full_tensor()
        for key, value in zip(by_key, whole, strict=True):
            sums[key] = sums[key] + value if key in sums else value
    return sums
