"""Explain which path each weight of an optimizer takes at its next step, and why."""

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
class PathRow:
    """Weights of one shape in one param_group that take one path.

    Attributes:
        group: the index of the param_group.
        recipe: the name of the group's recipe.
        backend: the backend that the group asks for.
        shape, dtype, device: the shape, dtype and device of the weights.
        state_bytes: bytes of the states of one weight; of a sharded one, those in this process.
        path: "rule" (the rule's own code), "C++ kernel", "batched", or "stack" (the rule's own
            code under vmap); "error" if the next step would raise.
        reason: why the weights take this path.
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
        counts: the number of weights of each row.
    """

    counts: Counter[PathRow]

    @property
    def state_bytes(self) -> int:
        """Total bytes of the states of all weights."""
        return sum(count * row.state_bytes for row, count in self.counts.items())

    def __iter__(self) -> Iterator[PathRow]:
        return iter(self.counts)

    def __str__(self) -> str:
        head = ("group", "recipe", "backend", "weights", "dtype", "device", "bytes/entry")
        cells = [
            (
                str(row.group),
                row.recipe,
                row.backend,
                f"{count} x {row.shape}",
                row.dtype,
                row.device,
                f"{row.state_bytes / max(math.prod(row.shape), 1):.1f}",
                row.path,
                row.reason,
            )
            for row, count in self.counts.items()
        ]
        return columns([(*head, "path", "why"), *cells])

    __repr__ = __str__


@torch.no_grad()
def explain(optimizer: Any) -> Explanation:
    """Tell which path each weight of `optimizer` takes at its next step, and why.

    The paths are built as the step would build them, so that with `backend="compiled"` this takes
    seconds once. No weight, gradient or state changes. Frozen weights of integers, which no step
    can move, have no row.

    Args:
        optimizer: an optimizer of `torch_optimizer` or `spherenorm.optim`, or a wrapper that holds
            one as `.optimizer`, as Accelerate's and Lightning's do.

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
    unwrapped = unwrap(optimizer)
    if not isinstance(unwrapped, RecipeOptimizer):
        raise TypeError(
            f"explain takes an optimizer of spherenorm, got {type(optimizer).__name__}; "
            "of a wrapper, pass the optimizer within (its .optimizer)"
        )
    groups = groups_at_next_step(unwrapped)
    steps = [(index, step) for index, group in enumerate(groups) for step in group.weights]
    paths = unwrapped._dispatcher.paths(groups)
    counts: Counter[PathRow] = Counter()
    for (index, step), path in zip(steps, paths, strict=True):
        group, weight = unwrapped.param_groups[index], step.weight
        row = PathRow(
            group=index,
            recipe=group["recipe"],
            backend=group["backend"],
            shape=tuple(weight.shape),
            dtype=str(weight.dtype).removeprefix("torch."),
            device=str(weight.device),
            state_bytes=sum(_local_bytes(value) for value in step.state.values()),
            path=path.name,
            reason=path.reason,
        )
        counts[row] += 1
    return Explanation(counts)


def _local_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor that this process holds, which may be one shard of it."""
    is_sharded = hasattr(tensor, "device_mesh")
    return tensor.to_local().nbytes if is_sharded else tensor.nbytes  # type: ignore[attr-defined]
