"""A step: the hooks of a rule and of those within it, in order, each result checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from spherenorm._hooks import State
from spherenorm._numerics import working
from spherenorm._tree import COUNTER, Node, Part, keys_within
from spherenorm._update import Update

__all__ = [
    "InPlaceError",
    "Measured",
    "apply",
    "begin",
    "measure",
    "refuse_unless_real",
    "second_point",
    "step",
]

Measured = Mapping[int, Mapping[str, Tensor]]
"""The numbers that rules have measured of all weights, by `id(rule)`."""


class InPlaceError(ValueError):
    """A rule writes into its arguments; the message says into which."""


def step(
    rule: Node, weight: Tensor, grad: Tensor, state: State, measured: Measured | None
) -> tuple[Tensor, State]:
    """The new weight and state; see `Rule.step`."""
    update, rules = begin(rule, weight, grad, state, measured), list(rule.tree())
    if measured is None and any(each.defines("measure") for each in rules):
        found = {id(each): numbers for each, numbers in measure(rule, update, state)}
        update = replace(update, measured=found)
    start, whole = update.weight, Part(rule, {key: key for key in keys_within(rule, weight)})
    update, new = apply(whole, update, state)
    retraction = rule.retract(start, update.direction)
    moved = fitted(retraction.weight, start, whole, "the moved weight")
    for key, value in rule.transport(new, retraction).items():
        new[key] = fitted(value, state[key], whole, f"the moved {key!r}")
    if any(each.defines("after") for each in rules):
        moved, new = move_on(rule, update, moved, new, whole)
    if update.count is not None:
        new = {COUNTER: update.count, **new}
    return moved.to(weight.dtype), new


def begin(
    rule: Node, weight: Tensor, grad: Tensor, state: State, measured: Measured | None
) -> Update:
    """The update before the first rule.

    Args:
        rule, weight, grad, state, measured: as for `Rule.step`.

    Raises:
        ValueError, TypeError: as `Rule.step`.
    """
    refuse_unless_real(weight, "weight")
    if grad.is_complex():
        raise TypeError(f"grad is complex ({grad.dtype}), and the weight is real")
    if grad.shape != weight.shape:
        shapes = f"{tuple(weight.shape)}, got {tuple(grad.shape)}"
        raise ValueError(f"grad must be shaped as the weight, {shapes}")
    if rule.needs_step and not rule.counts:
        name = type(rule).__name__
        raise ValueError(f"{name}: a chain counts the steps that it needs: chain({name}(...))")
    start = working(weight)
    grad = grad.to(start.dtype)
    count = _counted(rule, state) if rule.counts else None
    return Update(start, grad, direction=grad, count=count, measured=measured or {})


def _counted(rule: Node, state: State) -> Tensor:
    """The number of the present step, which follows the counter.

    Raises:
        ValueError: the counter is not 0-dim; one of several entries would count column by column.
    """
    count = Part(rule, {COUNTER: COUNTER}).own(state)[COUNTER]
    if count.ndim:
        raise ValueError(f"the state {COUNTER!r} must be 0-dim, got shape {tuple(count.shape)}")
    return count + 1


def apply(part: Part, update: Update, state: State) -> tuple[Update, State]:
    """`update` of a rule on its own part of an outer rule's state, with the result checked.

    A direction and a state keep their dtype: a 0-dim float32 weight would otherwise be promoted
    by a float64 counter.

    Returns:
        The update, and the new entries of the outer rule's state.

    Raises:
        ValueError, TypeError: naming the rule, its place, and what it returned, or into which of
            its arguments it wrote.
    """
    rule, own = part.rule, part.own(state)
    if update.measured:
        update = replace(update, shared=update.measured.get(id(rule), {}))
    arguments = (update.weight, update.grad, update.direction, *own.values())
    before = [_version(x) for x in arguments]
    try:
        result = rule.update(update, own)
    except RuntimeError as error:
        if any(word in str(error) for word in _IN_PLACE):  # torch refuses some writes itself
            raise InPlaceError(f"{part}: the rule writes in place; {_INSTEAD}: {error}") from error
        raise
    for number, (x, version) in enumerate(zip(arguments, before, strict=True)):
        if _version(x) != version:
            states = (f"the state {key!r}" for key in own)
            what = ("the weight", "the gradient", "the direction", *states)[number]
            raise InPlaceError(f"{part}: the rule writes into {what}; {_INSTEAD}")
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)):
        raise TypeError(f"{part}: update must return (update, state), it returned {result!r}")
    after, new = result
    if not isinstance(after, Update):
        raise TypeError(f"{part}: update must return (update, state), it returned {result!r}")
    if new.keys() != own.keys():
        both = f"{sorted(new)}, its states are {sorted(own)}"
        raise ValueError(f"{part}: update returns the state {both}")
    if after.weight is not update.weight or after.grad is not update.grad:
        only = "a rule may only change the direction"
        raise ValueError(f"{part}: update returns another weight or gradient; {only}")
    direction = fitted(after.direction, update.weight, part, "the direction")
    if direction is not after.direction:
        after = replace(after, direction=direction)
    for key, value in own.items():
        kept = fitted(new[key], value, part, repr(key))
        # Momentum at 0 is the gradient itself, into which a training loop writes.
        given = kept is update.weight or kept is update.grad
        new[key] = kept.clone() if given else kept
    return after, part.renamed(new)


_INSTEAD = "return new tensors instead"
_IN_PLACE = ("in-place", "inplace", "written-to tensor")
"""Words of torch's messages about writes that it refuses, most of them under its transforms."""


def _version(x: Tensor) -> int:
    """A count of the writes into the memory of `x`, as far as it is known."""
    if torch.compiler.is_compiling():
        return 0
    while torch._C._functorch.is_functorch_wrapped_tensor(x):  # which has a count of its own
        x = torch._C._functorch.get_unwrapped(x)
    return 0 if x.is_inference() else x._version


def measure(
    rule: Node, update: Update, state: State
) -> Iterator[tuple[Node, Mapping[str, Tensor]]]:
    """The numbers that a rule and those within it measure of one weight, before the first rule."""
    if rule.defines("measure"):
        yield rule, rule.measure(update, state)
    for part in rule.held(update.weight):
        yield from measure(part.rule, update, part.own(state))


def second_point(rule: Node, update: Update, state: State) -> Tensor | None:
    """The weight at which a rule, or one within it, wants the gradient once more."""
    points: list[Tensor | None] = []
    if rule.defines("evaluate_at"):
        if update.measured:
            update = replace(update, shared=update.measured.get(id(rule), {}))
        points.append(rule.evaluate_at(update, state))
    for part in rule.held(update.weight):
        points.append(second_point(part.rule, update, part.own(state)))
    found = [point for point in points if point is not None]
    if len(found) > 1:
        raise ValueError(f"{type(rule).__name__}: two rules evaluate the gradient elsewhere")
    return fitted(found[0], update.weight, Part(rule, {}), "evaluate_at") if found else None


def move_on(
    rule: Node, before: Update, weight: Tensor, state: State, part: Part
) -> tuple[Tensor, State]:
    """The weight and a rule's state after the hooks behind the move, in the order of the rules."""
    new = dict(state)
    for inner in rule.held(before.weight):
        weight, own = move_on(inner.rule, before, weight, inner.own(new), inner)
        new |= inner.renamed(own)
    if not rule.defines("after"):
        return weight, new
    if before.measured:
        before = replace(before, shared=before.measured.get(id(rule), {}))
    moved, after = rule.after(before, weight, dict(new))
    if after.keys() != new.keys():
        both = f"{sorted(after)}, its states are {sorted(new)}"
        raise ValueError(f"{part}: after returns the state {both}")
    moved = fitted(moved, weight, part, "the weight of after")
    return moved, {key: fitted(after[key], value, part, repr(key)) for key, value in new.items()}


def fitted(value: Any, like: Tensor, part: Part, what: str) -> Tensor:
    """`value` in the dtype of `like`.

    Raises:
        ValueError: it has another shape, or a dtype that would lose more than precision.
    """
    if not isinstance(value, Tensor):
        raise TypeError(f"{part}: {what} must be a tensor, got {value!r}")
    if value.shape != like.shape:
        shapes = f"{tuple(like.shape)}, got {tuple(value.shape)}"
        raise ValueError(f"{part}: {what} must have shape {shapes}")
    if value.dtype == like.dtype:
        return value
    if value.is_complex() or (value.is_floating_point() and not like.is_floating_point()):
        raise ValueError(f"{part}: {what} must be {like.dtype}, got {value.dtype}")
    return value.to(like.dtype)


def refuse_unless_real(weight: Tensor, what: str) -> None:
    """Refuse a complex or integer weight: steps of an integer weight would be truncated.

    Args:
        weight: of any type.
        what: the weight is called in the message.

    Raises:
        TypeError: the weight is complex or integer.
    """
    if not weight.is_floating_point():
        kind = "complex" if weight.is_complex() else "integer"
        raise TypeError(
            f"{what} is {kind} ({weight.dtype}); only real floating-point weights can be optimized"
        )
