"""The memory of weights, gradients and states, which a path steps in place."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from operator import methodcaller
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._C._dynamo.guards import TensorGuards

from spherenorm.compile._backends import Group, Work
from spherenorm.compile._shards import PLAIN, held
from spherenorm.core import State

Span = tuple[int, int]
"""The beginning and the end of a tensor in memory."""


def settled(groups: Sequence[Group]) -> Sequence[Group]:
    """The groups, with every gradient and state in memory of its own.

    A step writes into weights and states. So a gradient that lies in one of them is copied, and so
    is a state that lies in a weight or another state, and a gradient or state whose memory holds
    its negative. Weights are the caller's: those that overlap are marked.
    """
    works = [work for group in groups for work in group.works]
    given = [x for work in works for x in (work.grad, *work.state.values())]
    spans = sorted(filter(None, map(_span, [*(work.weight for work in works), *given])))
    apart = all(one[1] <= other[0] for one, other in pairwise(spans))
    if apart and not any(x.is_neg() for x in given):
        return groups
    return _settled(groups)


def _settled(groups: Sequence[Group]) -> Sequence[Group]:
    works = [work for group in groups for work in group.works]
    written, overlapping = _clusters([work.weight for work in works])
    for work in works:
        for name, value in work.state.items():
            if value.is_neg() or _meets(value, written):
                kept = (work.whole or work).state
                kept[name] = kept[name].clone()
                work.state[name] = value = held(kept[name])  # noqa: PLW2901
            span = _span(value)
            if span is not None:
                insort(written, span)

    def settle(work: Work) -> Work:
        copied = work.grad.is_neg() or _meets(work.grad, written)
        grad = work.grad.clone() if copied else work.grad
        return work._replace(grad=grad, overlaps=id(work.weight) in overlapping)

    return [replace(group, works=[settle(work) for work in group.works]) for group in groups]


def _clusters(weights: Sequence[Tensor]) -> tuple[list[Span], set[int]]:
    """The memory of all weights as disjoint spans, in order, and the ids of those that overlap."""
    clusters: list[Span] = []
    overlapping: set[int] = set()
    last = 0
    for (start, end), weight in sorted((span, id(w)) for w in weights if (span := _span(w))):
        if clusters and start < clusters[-1][1]:
            overlapping |= {last, weight}
            clusters[-1] = clusters[-1][0], max(end, clusters[-1][1])
        else:
            clusters.append((start, end))
        last = weight
    return clusters, overlapping


def _meets(x: Tensor, spans: Sequence[Span]) -> bool:
    """True if `x` overlaps one of `spans`, which are disjoint and in order."""
    span = _span(x)
    before = bisect_left(spans, (span[1],)) if span else 0
    return before > 0 and span is not None and spans[before - 1][1] > span[0]


def _span(x: Tensor) -> Span | None:
    """The memory of `x`; None if torch does not tell, or if it has no entries."""
    start = x.data_ptr() if type(x) in PLAIN else 0
    if not start:
        return None
    if x.is_contiguous():
        return start, start + x.nbytes
    last = sum((length - 1) * s for length, s in zip(x.shape, x.stride(), strict=True))
    return start, start + (1 + last) * x.itemsize


class Tensors:
    """The tensors of a step, in order.

    Args:
        works: of the step.
        own: the places of those that take their rule's own code: their states, which are other
            tensors after each step, are no part of it.

    Attributes:
        written: the weights, then states, whose keys are `keys`.
        grads: the gradients.
    """

    def __init__(self, works: Sequence[Work], own: Collection[int] = ()) -> None:
        weights, grads, states, *_ = zip(*works, strict=True) if works else ((),) * 3
        if own:
            states = tuple({} if i in own else state for i, state in enumerate(states))
        self.keys = list(chain.from_iterable(states))
        self.written = [*weights, *chain.from_iterable(map(methodcaller("values"), states))]
        self.grads = grads


class Memory:
    """The memory of a step's tensors: types, layouts and places, which tables of kernels rely on.

    It holds no tensor, so that it keeps none alive: what lies in the same place in the same way is
    as good as what lay there.
    """

    def __init__(self, tensors: Tensors) -> None:
        self._keys = tensors.keys
        # One call for all tensors reads the type, dtype, device, dispatch keys and strides of each.
        self._kinds: Any = TensorGuards(
            *tensors.written, *tensors.grads, dynamic_dims_sizes=None, dynamic_dims_strides=None
        )
        self._places = _places(tensors.written)
        self._grads = _places(tensors.grads)
        sizes = [span[1] - span[0] if (span := _span(grad)) else 0 for grad in tensors.grads]
        self._sizes = np.array(sizes, dtype=np.int64)
        spans = np.array(sorted(filter(None, map(_span, tensors.written))), dtype=np.int64)
        self._starts, self._ends = spans.reshape(-1, 2).T

    def gradients(self, tensors: Tensors) -> Sequence[int] | None:
        """The places of the gradients; None if anything else has changed, or if one lies in what
        the step writes to, or nowhere."""
        if tensors.keys != self._keys or not self._kinds.check(*tensors.written, *tensors.grads):
            return None
        if _places(tensors.written) != self._places:
            return None
        grads = _places(tensors.grads)
        if grads != self._grads:
            first = np.array(grads, dtype=np.int64)
            behind = np.searchsorted(self._ends, first, side="right")
            starts = np.append(self._starts, np.iinfo(np.int64).max)[behind]
            lacking = (first == 0) & (self._sizes > 0)
            if (starts < first + self._sizes).any() or lacking.any():
                return None
            self._grads = grads
        return grads


def _places(tensors: Sequence[Tensor]) -> list[int]:
    return list(map(Tensor.data_ptr, tensors))


def refusal(weight: Tensor, grad: Tensor) -> str | None:
    """Say why no path can write to the weight, or read the gradient; None if one can."""
    if grad.is_sparse:
        return "has a sparse gradient; pass sparse=False to its embedding"
    if weight.is_inference() and not torch.is_inference_mode_enabled():
        return "is an inference tensor, which cannot be changed"
    if grad.shape != weight.shape:
        shapes = f"{tuple(weight.shape)}, got {tuple(grad.shape)}"
        return f"cannot be stepped: grad must be shaped as the weight, {shapes}"
    strides = zip(weight.stride(), weight.shape, strict=True) if weight.numel() else ()
    if any(stride == 0 and length > 1 for stride, length in strides):
        return "is expanded: several entries share one place"
    return None


def misfit(work: Work, recorded: Mapping[str, Any]) -> str | None:
    """Say why the tensors are not as they were recorded; None if they are.

    Memory must hold one index of dimension 0 after another without gaps (contiguous or
    channels_last), the states' alike.

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
    if weight.is_neg():
        return "the weight's memory holds its negative"
    if grad.device != weight.device:
        return f"the gradient is on {grad.device}, the weight on {weight.device}"
    if not (weight.is_contiguous() or _is_channels_last(weight)):
        return "the weight's rows do not lie one after another in memory"
    if weight.numel() and not all(x.data_ptr() for x in (weight, grad, *state.values())):
        return "the weight, the gradient or a state has no memory"
    return _state_misfit(work, recorded)


def _state_misfit(work: Work, recorded: Mapping[str, Any]) -> str | None:
    weight, whole = work.weight, work.whole or work
    device, inference = weight.get_device(), torch.is_inference_mode_enabled()
    strides = None if weight.is_contiguous() else weight.stride()
    for name, value in work.state.items():
        shape, dtype = recorded[name]
        unlike = whole.state[name].shape != shape or value.dtype is not dtype
        if type(value) is not Tensor or unlike:
            return f"the state {name!r} is not what init returns"
        frozen = value.is_inference() and not inference
        if value.get_device() != device or frozen:
            return f"the state {name!r} is on another device, or frozen"
        contiguous = value.is_contiguous()
        alike = contiguous if strides is None else value.stride() == strides
        per_unit = strides is not None and shape != whole.weight.shape and contiguous
        if not (alike or per_unit):
            return f"the state {name!r} is laid out otherwise than the weight"
    return None


def _is_channels_last(x: Tensor) -> bool:
    return x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last)


def commit(weight: Tensor, grad: Tensor, state: State, moved: Tensor, new: State) -> None:
    """Keep the results of a rule's own code: the state as it is, the weight's values in place.

    A rule may return the gradient, the weight or one tensor twice as its states. Each state gets
    memory of its own, since the weight is written to, and the gradient is the caller's.

    Args:
        weight, grad, state: of the step; weight and state are changed.
        moved, new: the weight and state after it.
    """
    taken = {_memory(weight), _memory(grad)}
    for name, value in new.items():
        value = _placed_as(state[name], value)  # noqa: PLW2901
        if _memory(value) in taken:
            value = value.clone()  # noqa: PLW2901
        taken.add(_memory(value))
        state[name] = value
    weight.copy_(_placed_as(weight, moved))


def _placed_as(before: Tensor, after: Tensor) -> Tensor:
    """`after` in the shards of `before`, if that is a DTensor.

    An operation may gather a dimension of fewer entries than processes, which `copy_` does not
    cut again.
    """
    placements = getattr(before, "placements", None)
    if placements is None or placements == getattr(after, "placements", None):
        return after
    placed: Tensor = after.redistribute(placements=placements)  # type: ignore[attr-defined]
    return placed


def _memory(x: Tensor) -> int:
    """A number that two tensors have in common if they share memory."""
    plain = type(x) in PLAIN and x.data_ptr()
    return x.untyped_storage().data_ptr() if plain else id(x)
