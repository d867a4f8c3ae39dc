"""The memory of weights, gradients and states, which a path steps in place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from spherenorm._rule import State

__all__ = ["laid_out_as", "memory", "misfit", "take"]


def misfit(weight: Tensor, grad: Tensor, state: State, recorded: Mapping[str, Any]) -> str | None:
    """Say why the tensors are not as they were recorded; None if they are.

    Memory must hold one index of dimension 0 after another without gaps (contiguous or
    channels_last), the states' alike.

    Args:
        weight, grad, state: to be stepped.
        recorded: the shape and dtype of each state.
    """
    if type(weight) not in (Tensor, torch.nn.Parameter):
        return f"the weight is a {type(weight).__name__}"
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
    return _state_misfit(weight, grad, state, recorded)


def _state_misfit(
    weight: Tensor, grad: Tensor, state: State, recorded: Mapping[str, Any]
) -> str | None:
    device, inference = weight.get_device(), torch.is_inference_mode_enabled()
    strides = None if weight.is_contiguous() else weight.stride()
    places = {weight.data_ptr(), grad.data_ptr()}
    for name, value in state.items():
        shape, dtype = recorded[name]
        if type(value) is not Tensor or value.shape != shape or value.dtype is not dtype:
            return f"the state {name!r} is not what init returns"
        frozen = value.is_inference() and not inference
        if value.get_device() != device or frozen or value.is_neg():
            return f"the state {name!r} is on another device, frozen, or kept as its negative"
        contiguous = value.is_contiguous()
        alike = contiguous if strides is None else value.stride() == strides
        per_unit = strides is not None and shape != weight.shape and contiguous
        if not (alike or per_unit):
            return f"the state {name!r} is laid out otherwise than the weight"
        if value.data_ptr() in places and value.numel():
            return f"the state {name!r} shares its memory"
        places.add(value.data_ptr())
    return None


def _is_channels_last(x: Tensor) -> bool:
    return x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last)


def laid_out_as(weight: Tensor, grad: Tensor) -> Tensor:
    """The gradient in the memory order of the weight; a copy if the two overlap in part.

    A gradient whose memory holds the negative values, which autograd gives behind a conjugation, is
    copied, too.
    """
    grad = grad.resolve_neg()
    overlaps = 0 < abs(grad.data_ptr() - weight.data_ptr()) < weight.nbytes
    if grad.stride() == weight.stride() and not overlaps:
        return grad
    return torch.empty_like(weight).copy_(grad)


def take(weight: Tensor, grad: Tensor, state: State, moved: Tensor, new: State) -> None:
    """Keep the results of a rule's own code: the state as it is, the weight's values in place.

    A rule may return the gradient, the weight or one tensor twice as its states. Each state gets
    memory of its own, since the weight is written to, and the gradient is the caller's.

    Args:
        weight, grad, state: of the step; weight and state are changed.
        moved, new: the weight and state after it.
    """
    taken = {memory(weight), memory(grad)}
    for name, value in new.items():
        value = _placed_as(state[name], value)  # noqa: PLW2901
        if memory(value) in taken:
            value = value.clone()  # noqa: PLW2901
        taken.add(memory(value))
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


def memory(x: Tensor) -> int:
    """A number that two tensors have in common if they share memory."""
    plain = type(x) in (Tensor, torch.nn.Parameter) and x.numel()
    return x.untyped_storage().data_ptr() if plain else id(x)
