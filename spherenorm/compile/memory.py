"""The memory of weights, gradients and states, on which a step in place relies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spherenorm.compile.backends import Group, Work
from spherenorm.compile.shards import PLAIN
from spherenorm.rule import State
from spherenorm.torch_internals import copy_tensors


class Layout:
    """The places, strides, shapes and types of a step's tensors. It holds none of them.

    Args:
        works: of the step.
    """

    def __init__(self, works: Sequence[Work]) -> None:
        self._names, written, grads = self._tensors(works)
        self._places, self._kinds = _places(written), _kinds(works, [*written, *grads])
        self.grads = _places(grads)
        """The place of each gradient."""

    def _tensors(self, works: Sequence[Work]) -> tuple[list[str], list[Tensor], list[Tensor]]:
        states = [work.state for work in works]
        values = chain.from_iterable(state.values() for state in states)
        written = [*(work.weight for work in works), *values]
        return [*chain.from_iterable(states)], written, [work.grad for work in works]

    def holds(self, works: Sequence[Work]) -> bool:
        """True if nothing but the places of gradients has changed; `grads` has those then."""
        names, written, grads = self._tensors(works)
        same = names == self._names and _places(written) == self._places
        if not same or _kinds(works, [*written, *grads]) != self._kinds:
            return False
        places = _places(grads)
        moved, self.grads = places != self.grads, places
        return not (moved and _overlaps([*written, *grads]).any())


def _places(tensors: Sequence[Tensor]) -> list[int]:
    return list(map(Tensor.data_ptr, tensors))


def _kinds(works: Sequence[Work], tensors: Sequence[Tensor]) -> list[Any]:
    """Types, dtypes and strides of tensors; shapes of weights, which are those of gradients."""
    weights, grads = [work.weight for work in works], [work.grad for work in works]
    negative = [*map(Tensor.is_neg, weights), *map(Tensor.is_neg, grads)]
    dtypes = map(Tensor.dtype.__get__, tensors)  # type: ignore[attr-defined]
    kinds = [*map(type, tensors), *dtypes, *map(Tensor.stride, tensors)]
    return [*kinds, *map(Tensor.size, weights), *negative]


def overlapping(groups: Sequence[Group]) -> list[bool]:
    """Of each group, whether a tensor of its step shares memory with one of another weight's.

    Of one weight, too: a state may lie in the gradient.
    """
    works = [(number, work) for number, group in enumerate(groups) for work in group.works]
    tensors = [(n, x) for n, (w, g, s, *_) in works for x in (w, g, *s.values())]
    shared = _overlaps([x for _, x in tensors])
    found = {number for (number, _), each in zip(tensors, shared, strict=True) if each}
    return [number in found for number in range(len(groups))]


def one_by_one(works: Sequence[Work]) -> bool:
    """True if weights overlap, of which each has to see what the one before has become."""
    return len(works) > 1 and bool(_overlaps([work.weight for work in works]).any())


def _overlaps(tensors: Sequence[Tensor]) -> Any:
    """Of each tensor, whether another one begins in its memory, or it begins in another's."""
    spans = np.array([_span(x) for x in tensors], dtype=np.int64).reshape(-1, 2)
    order = np.argsort(spans[:, 0], kind="stable")
    order = order[spans[order, 0] < spans[order, 1]]  # those with entries
    starts, ends = spans[order].T
    found = np.zeros(len(tensors), dtype=bool)
    if len(order) and (np.maximum.accumulate(ends)[:-1] > starts[1:]).any():
        last = 0
        for i in range(1, len(order)):
            if starts[i] < ends[last]:
                found[order[[last, i]]] = True
            last = i if ends[i] > ends[last] else last
    return found


def _span(x: Tensor) -> tuple[int, int]:
    """The memory of `x`, from its first byte to behind its last one; (0, 0) if it has none."""
    start = x.data_ptr() if type(x) in PLAIN else 0
    if not start:
        return 0, 0
    if x.is_contiguous():
        return start, start + x.nbytes
    last = sum((length - 1) * s for length, s in zip(x.shape, x.stride(), strict=True))
    return start, start + (1 + last) * x.itemsize


def refusal(weight: Tensor, grad: Tensor) -> str | None:
    """Say why nothing can write to the weight, or read the gradient; None if something can."""
    if grad.is_sparse:
        return "has a sparse gradient; pass sparse=False to its embedding"
    if is_frozen(weight):
        return "is an inference tensor, which cannot be changed"
    if grad.shape != weight.shape:
        shapes = f"{tuple(weight.shape)}, got {tuple(grad.shape)}"
        return f"cannot be stepped: grad must be shaped as the weight, {shapes}"
    if is_expanded(weight):
        return "is expanded: several entries share one place"
    return None


def misfit(work: Work, recorded: Mapping[str, Any]) -> str | None:
    """Say why the tensors are of other kinds than recorded; None if they are not.

    Args:
        work: to be stepped.
        recorded: the shape and dtype of each state.
    """
    weight, grad, state, *_ = work
    if type(weight) not in PLAIN:
        sharded = ", and its rows or states are not whole in one process"
        cut = sharded if hasattr(weight, "device_mesh") else ""
        return f"the weight is a {type(weight).__name__}{cut}"
    if type(grad) is not Tensor:
        return f"the gradient is a {type(grad).__name__}"
    if grad.dtype is not weight.dtype:
        return f"the gradient is {grad.dtype}, the weight {weight.dtype}"
    if any(x.is_neg() for x in (weight, grad, *state.values())):
        return "the memory of the weight, the gradient or a state holds its negative"
    if grad.device != weight.device:
        return f"the gradient is on {grad.device}, the weight on {weight.device}"
    whole = (work.whole or work).state
    for name, value in state.items():
        shape, dtype = recorded[name]
        if type(value) is not Tensor or whole[name].shape != shape or value.dtype is not dtype:
            return f"the state {name!r} is not what init returns"
        if value.device != weight.device or is_frozen(value):
            return f"the state {name!r} is on another device, or frozen"
    return None


def scattered(work: Work) -> str | None:
    """Say why a kernel cannot walk over the memory; None if it can.

    It must hold one index of dimension 0 after another without gaps (contiguous or channels_last),
    the states' alike.
    """
    weight, grad, state, *_ = work
    last = weight.ndim == 4 and weight.is_contiguous(memory_format=torch.channels_last)
    if not (weight.is_contiguous() or last):
        return "the weight's rows do not lie one after another in memory"
    if weight.numel() and not all(x.data_ptr() for x in (weight, grad, *state.values())):
        return "the weight, the gradient or a state has no memory"
    for name, value in state.items():
        alike = value.is_contiguous()
        if not weight.is_contiguous() and value.shape == weight.shape:
            alike = value.stride() == weight.stride()
        if not alike:
            return f"the state {name!r} is laid out otherwise than the weight"
    return None


class Writes:
    """The writes that a step by rules' own code ends with; until `run`, nothing is changed.

    States are written in place, as torch.optim does, so that a captured CUDA graph, whose memory
    is fixed, reads at each replay what the replay before has written.
    """

    def __init__(self) -> None:
        self._targets: list[Tensor] = []
        self._values: list[Tensor] = []
        self._replaced: list[tuple[State, str, Tensor]] = []

    def add(self, work: Work, moved: Tensor, new: State, apart: bool) -> None:
        """Add the results of one weight.

        Args:
            work: the weight, gradient and state of the step.
            moved: the new weight.
            new: the new state. A rule may return the gradient, the weight, another state or one
                tensor twice as its states.
            apart: no state shares memory with another tensor of the step. Else each state becomes
                a tensor in memory of its own.
        """
        weight, _, state, *_ = work
        pairs = [(state[name], _placed_as(state[name], value)) for name, value in new.items()]
        written = [_memory(x) for x in (weight, *state.values())]
        for name, (old, value) in zip(new, pairs, strict=True):
            if not (apart and _can_write(old, value)):
                self._replaced.append((state, name, value.clone()))
            elif value is not old:
                self._write(old, value, written)
        self._write(weight, _placed_as(weight, moved), written)

    def _write(self, target: Tensor, value: Tensor, written: Sequence[int]) -> None:
        """Write `value` to `target`; a copy of it, if it lies in memory that is written to."""
        self._targets.append(target)
        self._values.append(value.clone() if _memory(value) in written else value)

    def run(self) -> None:
        """Write everything, equal kinds of tensors by one operation."""
        kinds: dict[Any, tuple[list[Tensor], list[Tensor]]] = {}
        for target, value in zip(self._targets, self._values, strict=True):
            plain = type(target) in PLAIN and type(value) in PLAIN
            if plain and not target.is_neg():  # which torch does not take in lists
                kind = target.device, target.dtype, value.device, value.dtype
                targets, values = kinds.setdefault(kind, ([], []))
                targets.append(target)
                values.append(value)
            else:
                target.copy_(value)
        for targets, values in kinds.values():
            copy_tensors(targets, values)
        for state, name, value in self._replaced:
            state[name] = value


def _can_write(target: Tensor, value: Tensor) -> bool:
    """Return whether `value` can be written to `target` in place."""
    if is_expanded(target) or is_frozen(target):
        return False
    if type(target) in PLAIN and type(value) in PLAIN:  # (`hasattr` costs as much as an operation)
        return True
    return hasattr(target, "device_mesh") == hasattr(value, "device_mesh")


def is_frozen(x: Tensor) -> bool:
    """Return whether `x` is an inference tensor, which only inference mode can change."""
    return x.is_inference() and not torch.is_inference_mode_enabled()


def is_expanded(x: Tensor) -> bool:
    """Return whether several entries of `x` share one place in memory."""
    if x.is_contiguous():
        return False
    strides = zip(x.stride(), x.shape, strict=True) if x.numel() else ()
    return any(stride == 0 and length > 1 for stride, length in strides)


def _placed_as(before: Tensor, after: Tensor) -> Tensor:
    """`after` in the shards of `before`, if that is a DTensor.

    An operation may gather a dimension of fewer entries than processes, which `copy_` does not
    cut again.
    """
    if type(before) in PLAIN:
        return after
    placements = getattr(before, "placements", None)
    if placements is None or placements == getattr(after, "placements", None):
        return after
    placed: Tensor = after.redistribute(placements=placements)  # type: ignore[attr-defined]
    return placed


def _memory(x: Tensor) -> int:
    """A number that two tensors have in common if they share memory."""
    if type(x) not in PLAIN and hasattr(x, "to_local"):
        x = x.to_local()
    if type(x) not in PLAIN:
        return id(x)
    return x.untyped_storage().data_ptr() or id(x)
