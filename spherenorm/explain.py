"""`explain`: the path that each weight of an optimizer takes, and why."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from spherenorm.compare_paths import groups_at_next_step
from spherenorm.optim import RecipeOptimizer, unwrap
from spherenorm.support import columns


@dataclass(frozen=True)
class Line:
    """Weights of one kind in one param_group, which take one path.

    Attributes:
        group: the index of the param_group.
        recipe: its recipe's name.
        backend: what the group asks for.
        shape, dtype, device: of the weights.
        state_bytes: of the states of one of the weights, as far as this process holds them.
        path: "rule" (its own code), "C++ kernel", "batched", or "stack" (own code under vmap);
            "error" if the next step would raise.
        reason: for the path.
    """

    group: int
    recipe: str
    backend: str
    shape: tuple[int, ...]
    dtype: str
    device: str
    state_bytes: int
    path: str
    reason: str


@dataclass(frozen=True)
class Explanation:
    """The paths of an optimizer's weights; prints as a table.

    Attributes:
        counts: how many weights each line stands for.
    """

    counts: Counter[Line]

    @property
    def state_bytes(self) -> int:
        """Of the states of all weights."""
        return sum(count * line.state_bytes for line, count in self.counts.items())

    def __iter__(self) -> Iterator[Line]:
        return iter(self.counts)

    def __str__(self) -> str:
        head = ("group", "recipe", "backend", "weights", "dtype", "device", "bytes/entry")
        rows = [
            (
                str(line.group),
                line.recipe,
                line.backend,
                f"{count} x {line.shape}",
                line.dtype,
                line.device,
                f"{line.state_bytes / max(math.prod(line.shape), 1):.1f}",
                line.path,
                line.reason,
            )
            for line, count in self.counts.items()
        ]
        return columns([(*head, "path", "why"), *rows])

    __repr__ = __str__


@torch.no_grad()
def explain(optimizer: Any) -> Explanation:
    """Tell which path each weight of `optimizer` takes at its next step, and why.

    The paths are made, as the step would make them, so that with `backend="compiled"` this takes
    seconds once. No weight, gradient or state changes. Frozen weights of integers, which no step
    can move, have no line.

    Args:
        optimizer: made by `torch_optimizer`, or one of `spherenorm.optim`; or a wrapper that holds
            such a one as `.optimizer`, as Accelerate's and Lightning's do.

    Returns:
        A table of groups, shapes, bytes of states for each entry of a weight, paths and reasons, to
        print or to iterate over.

    Raises:
        TypeError: another kind of optimizer.

    Example:
        >>> weights = [torch.ones(8, 4), torch.ones(8, 4), torch.ones(8)]
        >>> print(explain(sn.optim.AdamP(weights)))
        group  recipe  backend  weights     dtype    device  bytes/entry  path        why
        0      adamp   auto     2 x (8, 4)  float32  cpu     8.2          C++ kernel  recorded; ...
        0      adamp   auto     1 x (8,)    float32  cpu     9.0          C++ kernel  recorded; ...
    """
    found = unwrap(optimizer)
    if not isinstance(found, RecipeOptimizer):
        raise TypeError(
            f"explain takes an optimizer of spherenorm, got {type(optimizer).__name__}; "
            "of a wrapper, pass the optimizer within (its .optimizer)"
        )
    optimizer = found
    groups = groups_at_next_step(optimizer)
    works = [(index, work) for index, group in enumerate(groups) for work in group.weights]
    counts: Counter[Line] = Counter()
    for (index, work), path in zip(works, optimizer._dispatcher.paths(groups), strict=True):
        weight, group = work.weight, optimizer.param_groups[index]
        dtype = str(weight.dtype).removeprefix("torch.")
        held = sum(_here(value).nbytes for value in work.state.values())
        kind = (tuple(weight.shape), dtype, str(weight.device), held)
        counts[Line(index, group["recipe"], group["backend"], *kind, path.name, path.reason)] += 1
    return Explanation(counts)


def _here(value: torch.Tensor) -> torch.Tensor:
    """The part of a tensor, which may be sharded, that this process holds."""
    sharded = hasattr(value, "device_mesh")
    return value.to_local() if sharded else value  # type: ignore[attr-defined]
