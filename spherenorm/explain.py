"""Explain the path of each weight of an optimizer, and compare it with the rule's own code.

`explain` says which path each weight takes at its next step, and why. `compare_paths` runs both
paths on copies of the real states.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spherenorm.compile import GroupStep, Path, WeightStep, compare_with_own_code
from spherenorm.numerics import can_never_be_stepped
from spherenorm.optim import RecipeOptimizer, unwrap
from spherenorm.optim.sharded import initial_state_for_check
from spherenorm.optim.states import with_global_sums
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
        path: "rule" (the rule's own code), "C++ kernel", "CUDA kernel", "batched", or "stack"
            (the rule's own code under vmap); "error" if the next step would raise.
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
        names: the names of the weights of each row, from the optimizer's named parameters; without
            names, their indices in the optimizer.
        n_records: how many steps the optimizer has had recorded, one for each structure of a rule
            at each shape and dtype. A number that grows from step to step shows a field that keeps
            changing.
        code: the generated code of each executor, if it was asked for; or one sentence, if none of
            the weights has an executor.
    """

    names: Mapping[PathRow, tuple[str, ...]]
    n_records: int
    code: tuple[str, ...] = ()

    @property
    def counts(self) -> Counter[PathRow]:
        """The number of weights of each row."""
        return Counter({row: len(names) for row, names in self.names.items()})

    @property
    def state_bytes(self) -> int:
        """Total bytes of the states of all weights."""
        return sum(count * row.state_bytes for row, count in self.counts.items())

    def __iter__(self) -> Iterator[PathRow]:
        return iter(self.names)

    def __str__(self) -> str:
        head = ("group", "recipe", "backend", "weights", "names", "dtype", "device", "bytes/entry")
        cells = [
            (
                str(row.group),
                row.recipe,
                row.backend,
                f"{len(names)} x {row.shape}",
                _shorten(names),
                row.dtype,
                row.device,
                f"{row.state_bytes / max(math.prod(row.shape), 1):.1f}",
                row.path,
                row.reason,
            )
            for row, names in self.names.items()
        ]
        table = columns([(*head, "path", "why"), *cells])
        return "\n\n".join([f"{table}\nrecorded steps: {self.n_records}", *self.code])

    __repr__ = __str__


MAX_PRINTED_NAMES = 2
"""Names of a row that are printed; `Explanation.names` has all."""


def _shorten(names: Sequence[str]) -> str:
    printed = ", ".join(names[:MAX_PRINTED_NAMES])
    n_others = len(names) - MAX_PRINTED_NAMES
    return f"{printed} + {n_others}" if n_others > 0 else printed


@torch.no_grad()
def explain(optimizer: Any, code: bool = False) -> Explanation:
    """Tell which path each weight of `optimizer` takes at its next step, and why.

    The paths are built as the step would build them, so that with `backend="compiled"` this takes
    seconds once. No weight, gradient or state changes. Frozen weights of integers, which no step
    can move, have no row.

    Args:
        optimizer: an optimizer of `torch_optimizer` or `spherenorm.optim`, or a wrapper that holds
            one as `.optimizer`, as Accelerate's and Lightning's do.
        code: add the generated code of each executor, in which each line has the rule's source as a
            comment, and values that the rule assigns to a variable have its name. (With
            `SPHERENORM_PRINT_CODE=1` in the environment each executor prints its code to stderr
            when it is made.)

    Returns:
        A table of groups, shapes, names, bytes of states for each entry of a weight, paths and
        reasons, to print or to iterate over; and the number of recorded steps.

    Raises:
        TypeError: another kind of optimizer.

    Example:
        >>> weights = [torch.ones(8, 4), torch.ones(8, 4), torch.ones(8)]
        >>> print(explain(sn.optim.AdamP(weights)))
        group  recipe  backend  weights     names  dtype    device  bytes/entry  path        why
        0      adamp   auto     2 x (8, 4)  0, 1   float32  cpu     8.2          C++ kernel  ...
        0      adamp   auto     1 x (8,)    2      float32  cpu     9.0          C++ kernel  ...
        recorded steps: 2
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
    weight_name = weight_names(unwrapped.param_groups)
    names: dict[PathRow, list[str]] = {}
    executors: dict[Any, str] = {}
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
        names.setdefault(row, []).append(weight_name[weight])
        executor = path.executor
        if code and executor is not None and executor.batch_key not in executors:
            executors[executor.batch_key] = (
                f"{executor.name} of {weight_name[weight]}:\n{executor.code}"
            )
    if code and not executors:
        executors[None] = (
            "no generated code: none of these weights is on a path that has any (see why)"
        )
    return Explanation(
        names={row: tuple(of_row) for row, of_row in names.items()},
        n_records=len(unwrapped._dispatcher.records),
        code=tuple(executors.values()),
    )


def _local_bytes(tensor: Tensor) -> int:
    """Return the bytes of a tensor that this process holds, which may be one shard of it."""
    is_sharded = hasattr(tensor, "device_mesh")
    return tensor.to_local().nbytes if is_sharded else tensor.nbytes  # type: ignore[attr-defined]


@dataclass(frozen=True)
class ComparedWeight:
    """The difference between a weight's path and its rule's own code, after one step of each.

    Attributes:
        group: the index of the param_group.
        name: the weight's name if the group has `param_names`, else its index in the optimizer.
        shape, dtype: shape and dtype of the weight.
        path: the path that steps it, as `explain` shows it.
        reason: why the weight takes this path.
        step: the largest change of an entry of the weight, by the rule's own code.
        differences: the largest difference of an entry, by tensor: "weight" and each state.
        float64_differences: the same after weight, gradient and state were converted to float64,
            where rounding hides nothing. Empty if float64 takes another path.
    """

    group: int
    name: str
    shape: tuple[int, ...]
    dtype: str
    path: str
    reason: str
    step: float
    differences: Mapping[str, float]
    float64_differences: Mapping[str, float]

    @property
    def difference(self) -> float:
        """The largest difference of weight and states; nan if the weight cannot step."""
        return max(self.differences.values(), default=math.nan)

    @property
    def float64_difference(self) -> float:
        """The largest difference in float64; nan if float64 takes another path."""
        return max(self.float64_differences.values(), default=math.nan)


@dataclass(frozen=True)
class PathComparison:
    """The compared weights of an optimizer; prints as a table.

    Attributes:
        weights: the compared weights, in the optimizer's order.
    """

    weights: tuple[ComparedWeight, ...]

    def __iter__(self) -> Iterator[ComparedWeight]:
        return iter(self.weights)

    def __len__(self) -> int:
        return len(self.weights)

    def __str__(self) -> str:
        head = ("group", "weight", "shape", "dtype", "path", "step", "difference", "in float64")
        cells = [
            (
                str(row.group),
                row.name,
                str(row.shape),
                row.dtype,
                row.path,
                f"{row.step:.1e}",
                f"{row.difference:.1e}",
                f"{row.float64_difference:.1e}",
            )
            for row in self.weights
        ]
        return columns([head, *cells])

    __repr__ = __str__


@torch.no_grad()
def compare_paths(optimizer: Any) -> PathComparison:
    """Step a copy of each weight on its path and by its rule's own code, and compare the results.

    Both start from the weight, the gradient and the state that the optimizer has now; nothing of
    it changes. A weight without a gradient is compared with its own value as the gradient. In the
    weight's dtype a difference of a few roundings is ordinary; a difference in float64 that is far
    above 1e-16 times the step is a fault of the kernel, or a rule that is not pure.

    Args:
        optimizer: an optimizer of `torch_optimizer` or `spherenorm.optim`, or a wrapper that holds
            one as `.optimizer`.

    Returns:
        A row for each weight, to print or to iterate over. Paths that run the rule's own code on
        one weight differ by 0. Sharded weights are not compared: their step needs all processes.

    Raises:
        TypeError: another kind of optimizer.

    Example:
        >>> weight = torch.nn.Parameter(torch.ones(8, 4))
        >>> weight.grad = torch.ones(8, 4)
        >>> (row,) = compare_paths(sn.optim.AdamP([weight]))
        >>> row.path, row.difference < 1e-6, row.float64_difference < 1e-14
        ('C++ kernel', True, True)
    """
    unwrapped = unwrap(optimizer)
    if not isinstance(unwrapped, RecipeOptimizer):
        raise TypeError(
            f"compare_paths takes an optimizer of spherenorm, got {type(optimizer).__name__}; "
            "of a wrapper, pass the optimizer within (its .optimizer)"
        )
    groups = with_global_sums(groups_at_next_step(unwrapped))
    paths = unwrapped._dispatcher.paths(groups)
    names = weight_names(unwrapped.param_groups)
    rows = []
    for index, group in enumerate(groups):
        for step in group.weights:
            path = next(paths)
            rows.append(_compare(index, names[step.weight], group, step, path))
    return PathComparison(tuple(rows))


def _compare(
    index: int, name: str, group: GroupStep, step: WeightStep, path: Path
) -> ComparedWeight:
    weight = step.weight
    comparison = compare_with_own_code(group, step, path)
    in_float64 = compare_with_own_code(group, _to_float64(step), path)
    return ComparedWeight(
        group=index,
        name=name,
        shape=tuple(weight.shape),
        dtype=str(weight.dtype).removeprefix("torch."),
        path=path.name,
        reason=path.reason,
        step=math.nan if comparison is None else comparison.step,
        differences={} if comparison is None else comparison.differences,
        float64_differences={} if in_float64 is None else in_float64.differences,
    )


def _to_float64(step: WeightStep) -> WeightStep:
    """Convert the tensors of a step; counters and whole numbers stay as they are."""

    def convert(x: Tensor) -> Tensor:
        return x.detach().double() if x.is_floating_point() else x

    state = {name: convert(value) for name, value in step.state.items()}
    return WeightStep(convert(step.weight), convert(step.grad), state)


def groups_at_next_step(optimizer: RecipeOptimizer) -> list[GroupStep]:
    """Return the param_groups as the next step has them, with a gradient and a state per weight.

    A weight without a gradient has its own value as the gradient, so that its path is known. Frozen
    weights of integers, which no step can move, are left out. No state of the optimizer changes.
    """
    return [_group_at_next_step(optimizer, group) for group in optimizer.param_groups]


def _group_at_next_step(optimizer: RecipeOptimizer, group: Mapping[str, Any]) -> GroupStep:
    rule = optimizer.rule_of(group)
    weights = []
    for weight in group["params"]:
        if can_never_be_stepped(weight):
            continue
        state = optimizer.state.get(weight, {})
        if state.keys() == set(rule.state_keys):
            state = dict(state)
        else:
            # Copies, as a step makes them: a rule may begin with the weight itself.
            state = {name: x.clone() for name, x in initial_state_for_check(weight, rule).items()}
        grad = weight.grad
        if grad is None:
            grad = weight.detach().clone()
        elif group["maximize"]:
            grad = -grad
        weights.append(WeightStep(weight, grad, state))
    return GroupStep(rule, group["backend"], weights)


def weight_names(param_groups: Sequence[Mapping[str, Any]]) -> dict[Tensor, str]:
    """Return the name of each weight: from the group's `param_names`, else its index."""
    names: dict[Tensor, str] = {}
    for group in param_groups:
        given_names = group.get("param_names") or [None] * len(group["params"])
        for name, weight in zip(given_names, group["params"], strict=True):
            names[weight] = name or str(len(names))
    return names
