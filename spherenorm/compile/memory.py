"""The memory of weights, gradients and states, on which a step in place relies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spherenorm.compile.interface import GroupStep, WeightStep
from spherenorm.compile.sharded.shards import PLAIN_TENSORS, place_result
from spherenorm.rule import State
from spherenorm.torch_internals import copy_tensors


class MemoryLayout:
    """The addresses, strides, shapes and types of a step's tensors. It holds none of the tensors.

    Args:
        weights: of the step.

    Attributes:
        grad_addresses: of the gradients, as `still_valid` has seen them last.
    """

    def __init__(self, weights: Sequence[WeightStep]) -> None:
        self._names, targets, grads = _names_targets_grads(weights)
        self._addresses, self._layouts = _addresses(targets), _layouts(weights, [*targets, *grads])
        self.grad_addresses = _addresses(grads)

    def still_valid(self, weights: Sequence[WeightStep]) -> bool:
        """Return whether nothing has changed but the addresses of gradients, which are updated."""
        names, targets, grads = _names_targets_grads(weights)
        if names != self._names or _addresses(targets) != self._addresses:
            return False
        if _layouts(weights, [*targets, *grads]) != self._layouts:
            return False
        addresses = _addresses(grads)
        grads_moved, self.grad_addresses = addresses != self.grad_addresses, addresses
        return not (grads_moved and _overlaps([*targets, *grads]).any())


def _names_targets_grads(
    weights: Sequence[WeightStep],
) -> tuple[list[str], list[Tensor], list[Tensor]]:
    """Return the names of all states, the tensors that a step writes, and the gradients."""
    states = [step.state for step in weights]
    values = chain.from_iterable(state.values() for state in states)
    targets = [*(step.weight for step in weights), *values]
    return [*chain.from_iterable(states)], targets, [step.grad for step in weights]


def _addresses(tensors: Sequence[Tensor]) -> list[int]:
    return list(map(Tensor.data_ptr, tensors))


def _layouts(weights: Sequence[WeightStep], tensors: Sequence[Tensor]) -> list[Any]:
    """Return types, dtypes and strides of tensors, and shapes of weights (those of gradients)."""
    weight_tensors, grads = [step.weight for step in weights], [step.grad for step in weights]
    is_negative = [*map(Tensor.is_neg, weight_tensors), *map(Tensor.is_neg, grads)]
    dtypes = map(Tensor.dtype.__get__, tensors)  # type: ignore[attr-defined]
    kinds = [*map(type, tensors), *dtypes, *map(Tensor.stride, tensors)]
    return [*kinds, *map(Tensor.size, weight_tensors), *is_negative]


def overlapping_groups(groups: Sequence[GroupStep]) -> list[bool]:
    """Return for each group whether a tensor of its step shares memory with another tensor.

    That may be a tensor of any group, or of the same weight: a state may lie in the gradient.
    """
    owners = [i for i, group in enumerate(groups) for w in group.weights for _ in w.tensors()]
    tensors = [x for group in groups for w in group.weights for x in w.tensors()]
    overlapping = {owner for owner, yes in zip(owners, _overlaps(tensors), strict=True) if yes}
    return [i in overlapping for i in range(len(groups))]


def weights_overlap(weights: Sequence[WeightStep]) -> bool:
    """Return whether weights share memory, of which each must see how the one before moved."""
    return len(weights) > 1 and bool(_overlaps([step.weight for step in weights]).any())


def _overlaps(tensors: Sequence[Tensor]) -> Any:
    """Return for each tensor whether its memory overlaps another one's."""
    spans = np.array([_byte_range(x) for x in tensors], dtype=np.int64).reshape(-1, 2)
    order = np.argsort(spans[:, 0], kind="stable")
    order = order[spans[order, 0] < spans[order, 1]]  # tensors with entries
    starts, ends = spans[order].T
    overlapping = np.zeros(len(tensors), dtype=bool)
    if len(order) > 1:
        # In the order of starts: the next tensor begins in this one, or this one in an earlier one.
        overlapping[order[:-1]] |= starts[1:] < ends[:-1]
        overlapping[order[1:]] |= starts[1:] < np.maximum.accumulate(ends)[:-1]
    return overlapping


def _byte_range(x: Tensor) -> tuple[int, int]:
    """Return the addresses of the first byte of `x` and of the byte behind it; (0, 0) if none."""
    start = x.data_ptr() if type(x) in PLAIN_TENSORS else 0
    if not start:
        return 0, 0
    if x.is_contiguous():
        return start, start + x.nbytes
    last = sum((length - 1) * s for length, s in zip(x.shape, x.stride(), strict=True))
    return start, start + (1 + last) * x.itemsize


def why_not_steppable(weight: Tensor, grad: Tensor) -> str | None:
    """Say why no path can write to the weight or read the gradient; None if one can."""
    if grad.is_sparse:
        return "has a sparse gradient; pass sparse=False to its embedding"
    if is_readonly(weight):
        return "is an inference tensor, which cannot be changed"
    if grad.shape != weight.shape:
        return (
            "cannot be stepped: grad must be shaped as the weight, "
            f"{tuple(weight.shape)}, got {tuple(grad.shape)}"
        )
    if is_expanded(weight):
        return "is expanded: several entries share one place"
    return None


def why_not_recordable(step: WeightStep, states: Mapping[str, Any]) -> str | None:
    """Say why the tensors are not those of the recorded step; None if they are.

    Args:
        step: of the weight.
        states: the shape and dtype of each state in the record.
    """
    weight, grad = step.weight, step.grad
    if type(weight) not in PLAIN_TENSORS:
        return f"the weight is a {type(weight).__name__}"
    if not step.rows_are_whole:
        return "the weight is a DTensor, and its rows or states are not whole in one process"
    if type(grad) is not Tensor:
        return f"the gradient is a {type(grad).__name__}"
    if grad.dtype is not weight.dtype:
        return f"the gradient is {grad.dtype}, the weight {weight.dtype}"
    if any(x.is_neg() for x in step.tensors()):
        return "the weight, the gradient or a state has torch's negative bit; call resolve_neg()"
    if grad.device != weight.device:
        return f"the gradient is on {grad.device}, the weight on {weight.device}"
    full_states = step.state if step.sharded is None else step.sharded.state
    for name, value in step.state.items():
        shape, dtype = states[name]
        full_shape = full_states[name].shape
        if type(value) is not Tensor or full_shape != shape or value.dtype is not dtype:
            return f"the state {name!r} is not what init returns"
        if value.device != weight.device or is_readonly(value):
            return f"the state {name!r} is on another device, or an inference tensor"
    return None


def why_not_contiguous(step: WeightStep) -> str | None:
    """Say why a kernel cannot walk over the memory; None if it can.

    The memory must hold one index of dimension 0 after another without gaps (contiguous or
    channels_last), and that of states alike.
    """
    weight = step.weight
    channels_last = weight.ndim == 4 and weight.is_contiguous(memory_format=torch.channels_last)
    if not (weight.is_contiguous() or channels_last):
        return "the weight's rows do not lie one after another in memory"
    if weight.numel() and not all(x.data_ptr() for x in step.tensors()):
        return "the weight, the gradient or a state has no memory"
    for name, value in step.state.items():
        if not weight.is_contiguous() and value.shape == weight.shape:
            same_layout = value.stride() == weight.stride()
        else:
            same_layout = value.is_contiguous()
        if not same_layout:
            return f"the state {name!r} is laid out otherwise than the weight"
    return None


class PendingWrites:
    """Results of steps by rules' own code; until `write_back`, nothing is changed.

    States are written in place, as torch.optim does, so that a captured CUDA graph, whose memory
    is fixed, reads at each replay what the replay before has written.
    """

    def __init__(self) -> None:
        self._targets: list[Tensor] = []
        self._values: list[Tensor] = []
        self._replaced_states: list[tuple[State, str, Tensor]] = []

    def add(
        self, step: WeightStep, new_weight: Tensor, new_state: State, replace_states: bool
    ) -> None:
        """Add the result of one weight.

        Args:
            step: of the weight.
            new_weight: its new value.
            new_state: the new states. A rule may return the gradient, the weight, another state, or
                one tensor for two states.
            replace_states: put each state in new memory, since the old one overlaps other tensors.
        """
        if step.sharded is not None:
            states_fit = all(_can_write(step.state[name], x) for name, x in new_state.items())
            if replace_states or not states_fit:
                new_weight, new_state = place_result(step.sharded, new_weight, new_state)
                step = step.sharded
        weight, state = step.weight, step.state
        target_ids = [_storage_id(x) for x in (weight, *state.values())]
        for name, result in new_state.items():
            old = state[name]
            value = _redistribute_like(old, result)
            if replace_states or not _can_write(old, value):
                self._replaced_states.append((state, name, value.clone()))
            elif value is not old:
                self._add_write(old, value, target_ids)
        self._add_write(weight, _redistribute_like(weight, new_weight), target_ids)

    def _add_write(self, target: Tensor, value: Tensor, target_ids: Sequence[int]) -> None:
        """Add a write; a value that lies in memory that is written to is copied first."""
        self._targets.append(target)
        self._values.append(value.clone() if _storage_id(value) in target_ids else value)

    def write_back(self) -> None:
        """Write everything, tensors of equal devices and dtypes by one operation."""
        batches: dict[Any, tuple[list[Tensor], list[Tensor]]] = {}
        for target, value in zip(self._targets, self._values, strict=True):
            are_plain = type(target) in PLAIN_TENSORS and type(value) in PLAIN_TENSORS
            if are_plain and not target.is_neg():  # which torch does not take in lists
                key = target.device, target.dtype, value.device, value.dtype
                targets, values = batches.setdefault(key, ([], []))
                targets.append(target)
                values.append(value)
            else:
                target.copy_(value)
        for targets, values in batches.values():
            copy_tensors(targets, values)
        for state, name, value in self._replaced_states:
            state[name] = value


def _can_write(target: Tensor, value: Tensor) -> bool:
    """Return whether `value` can be written to `target` in place."""
    memory = _local_part(target)
    if is_expanded(memory) or is_readonly(memory):
        return False
    if type(target) in PLAIN_TENSORS and type(value) in PLAIN_TENSORS:
        return True  # before `hasattr`, which costs as much as an operation
    return hasattr(target, "device_mesh") == hasattr(value, "device_mesh")


def is_readonly(x: Tensor) -> bool:
    """Return whether `x` is an inference tensor, which only inference mode can change."""
    return x.is_inference() and not torch.is_inference_mode_enabled()


def is_expanded(x: Tensor) -> bool:
    """Return whether several entries of `x` share one place in memory."""
    if x.is_contiguous() or not x.numel():
        return False
    strides = zip(x.stride(), x.shape, strict=True)
    return any(stride == 0 and length > 1 for stride, length in strides)


def _redistribute_like(old: Tensor, new: Tensor) -> Tensor:
    """Return `new` with the placements of `old`, if that is a DTensor.

    An operation may gather a dimension of fewer entries than processes, which `copy_` does not
    shard again.
    """
    if type(old) in PLAIN_TENSORS:
        return new
    placements = getattr(old, "placements", None)
    if placements is None or placements == getattr(new, "placements", None):
        return new
    redistributed: Tensor = new.redistribute(placements=placements)  # type: ignore[attr-defined]
    return redistributed


def _local_part(x: Tensor) -> Tensor:
    """Return what this process holds of a DTensor, and another tensor as it is."""
    if type(x) not in PLAIN_TENSORS and hasattr(x, "to_local"):
        local: Tensor = x.to_local()
        return local
    return x


def _storage_id(x: Tensor) -> int:
    """Return a number that two tensors have in common if they share memory."""
    x = _local_part(x)
    if type(x) not in PLAIN_TENSORS:
        return id(x)
    return x.untyped_storage().data_ptr() or id(x)
