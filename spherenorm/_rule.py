"""Rules: pure functions of one weight tensor, written as frozen dataclasses of hyper-parameters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from spherenorm._fields import check_numbers
from spherenorm._manifold import EUCLIDEAN, Retraction
from spherenorm._numerics import wide_dtype, working
from spherenorm._update import Update

__all__ = ["Rule", "State", "apply", "counted", "init_apart", "refuse_unless_real", "scalar_state"]

State = dict[str, Tensor]
"""The state of one weight tensor, by name."""


def scalar_state(weight: Tensor) -> Tensor:
    """A zero counter for the state: 0-dim, in float64 (where the device has it).

    Powers such as beta^t then keep double precision.
    """
    return torch.zeros((), dtype=wide_dtype(weight.device), device=weight.device)


def counted(state: State) -> Tensor:
    """The number of the present step, which follows the counter `state["step"]`.

    Raises:
        ValueError: the counter is not 0-dim; one of several entries would count column by column.
    """
    step = state["step"]
    if step.ndim:
        raise ValueError(f"the state 'step' must be 0-dim, got shape {tuple(step.shape)}")
    return step + 1


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


@dataclass(frozen=True)
class Rule:
    """A pure update rule for one weight tensor.

    A rule reads `update` and its own part of `state`, and returns a new `Update` and its part
    anew. It writes into nothing that it is given, reads nothing else that changes, and takes no
    Python branch on a tensor's values, so that it compiles, vmaps, differentiates and traces.

    A subclass is a frozen dataclass whose fields are its hyper-parameters. It implements `update`,
    names its state in `state_names`, and lists in `tangent_names` those of its states that are
    tangent vectors (momentum), which a curved manifold transports along with the weight. Both may
    be properties or plain tuples.

    Raises:
        TypeError, ValueError: a field declared by `hyper` has no number of its interval.

    Example:
        >>> @dataclass(frozen=True)
        ... class SignDescent(Rule):
        ...     def update(self, update, state):
        ...         return replace(update, direction=update.direction.sign()), {}
        >>> SignDescent().step(torch.tensor([1.0]), torch.tensor([0.3]), {})
        (tensor([0.]), {})
    """

    def __post_init__(self) -> None:
        check_numbers(self)

    @property
    def state_names(self) -> tuple[str, ...]:
        """The keys of the state that this rule owns, those of the rules within it included."""
        return ()

    @property
    def tangent_names(self) -> tuple[str, ...]:
        """The keys of this rule's own tangent vectors, among `state_names`."""
        return ()

    def children(self) -> Iterator[Rule]:
        """The rules among the fields and attributes, in order."""
        for name in dict.fromkeys([*(f.name for f in fields(self)), *vars(self)]):
            value = getattr(self, name)
            value = tuple(value.values()) if isinstance(value, dict) else value
            parts = value if isinstance(value, tuple | list) else (value,)
            yield from (part for part in parts if isinstance(part, Rule))

    def tree(self) -> Iterator[Rule]:
        """This rule and all rules within it, the outer ones first."""
        yield self
        for child in self.children():
            yield from child.tree()

    def init(self, weight: Tensor) -> State:
        """The state before the first step: zeros shaped as the weight unless a rule says otherwise.

        Raises:
            ValueError: the rule cannot step a weight of this shape (its view has no such units).
        """
        like = working(weight)
        return {
            name: torch.zeros_like(like, memory_format=torch.preserve_format)
            for name in self.state_names
        }

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        """The update after this rule, and the new values of this rule's part of the state.

        Args:
            update: the step so far.
            state: this rule's part of the state.
        """
        raise TypeError(f"{type(self).__name__} does not define update(update, state)")

    def retract(self, weight: Tensor, direction: Tensor) -> Retraction:
        """Move the weight by minus `direction`: straight, unless a chain has a manifold."""
        return EUCLIDEAN.retract(weight, direction)

    def transport(self, state: State, retraction: Retraction) -> State:
        """The entries of the state that change because the weight moved: its tangent vectors.

        They are those of this rule and of the rules within it whose state it holds.
        """
        moved: State = {}
        for child in self.children():
            if state.keys() >= (names := set(child.state_names)):
                moved |= child.transport({name: state[name] for name in names}, retraction)
        own = {name: retraction.transport(state[name]) for name in self.tangent_names}
        return {**moved, **own}

    def complaints(self, weight: Tensor) -> list[str]:
        """Reasons why this rule's steps are not what is wanted for `weight`; see `Sphere`."""
        return []

    def step(self, weight: Tensor, grad: Tensor, state: State) -> tuple[Tensor, State]:
        """One whole step.

        Args:
            weight: of any shape; half precision is computed with in float32.
            grad: the raw gradient, shaped as the weight.
            state: as `init` or the last step returned it.

        Returns:
            The new weight, in the old one's dtype, and the new state. The arguments are left alone.

        Raises:
            ValueError: the gradient has another shape; a rule does not return the state that it
                names; a direction or a state has another shape than before.
            TypeError: the weight is complex or integer, or the gradient is complex.
        """
        refuse_unless_real(weight, "weight")
        _refuse_unlike(grad, weight)
        start = working(weight)
        grad = grad.to(start.dtype)
        update, new = apply(self, Update(start, grad, direction=grad), state)
        retraction = self.retract(start, update.direction)
        moved = _fitted(retraction.weight, start, f"{type(self).__name__}: the moved weight")
        for name, value in self.transport(new, retraction).items():
            new[name] = _fitted(value, state[name], f"{type(self).__name__}: the moved {name!r}")
        return moved.to(weight.dtype), new


def _refuse_unlike(grad: Tensor, weight: Tensor) -> None:
    if grad.is_complex():
        raise TypeError(f"grad is complex ({grad.dtype}), and the weight is real")
    if grad.shape != weight.shape:
        shapes = f"{tuple(weight.shape)}, got {tuple(grad.shape)}"
        raise ValueError(f"grad must be shaped as the weight, {shapes}")


def init_apart(rule: Rule, weight: Tensor) -> State:
    """`rule.init(weight)`, drawn apart: the caller's random numbers stay as they were."""
    devices = [weight.device] if weight.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        return rule.init(weight)


def apply(rule: Rule, update: Update, state: State) -> tuple[Update, State]:
    """`rule.update` on the rule's own part of `state`, with the result checked.

    A direction and a state keep their dtype: a 0-dim float32 weight would otherwise be promoted
    by a float64 counter.

    Raises:
        ValueError: naming the rule and what it returned, or into which of its arguments it wrote.
    """
    name = type(rule).__name__
    names = rule.state_names
    missing = [each for each in names if each not in state]
    if missing:
        raise ValueError(f"{name}: the state has no {missing[0]!r}, it has {sorted(state)}")
    own = {each: state[each] for each in names}
    given = (update.weight, update.grad, update.direction, *own.values())
    before = [_version(x) for x in given]
    try:
        result = rule.update(update, own)
    except RuntimeError as error:
        if any(word in str(error) for word in _IN_PLACE):  # torch refuses some writes itself
            raise ValueError(f"{name}: the rule writes in place; {_INSTEAD}: {error}") from error
        raise
    for place, (x, version) in enumerate(zip(given, before, strict=True)):
        if _version(x) != version:
            what = (
                "the weight",
                "the gradient",
                "the direction",
                *(f"the state {n!r}" for n in own),
            )
            raise ValueError(f"{name}: the rule writes into {what[place]}; {_INSTEAD}")
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)):
        raise TypeError(f"{name}: update must return (update, state), it returned {result!r}")
    after, new = result
    if new.keys() != own.keys():
        both = f"{sorted(new)}, state_names says {sorted(names)}"
        raise ValueError(f"{name}: update returns the state {both}")
    if after.weight is not update.weight or after.grad is not update.grad:
        only = "a rule may only change the direction"
        raise ValueError(f"{name}: update returns another weight or gradient; {only}")
    direction = _fitted(after.direction, update.weight, f"{name}: the direction")
    if direction is not after.direction:
        after = replace(after, direction=direction)
    new = {each: _fitted(new[each], own[each], f"{name}: {each!r}") for each in names}
    # Momentum at 0 is the gradient itself, into which a training loop writes.
    given = (update.weight, update.grad)
    shared = [each for each in names if any(new[each] is x for x in given)]
    return after, {**new, **{each: new[each].clone() for each in shared}}


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


def _fitted(value: Any, like: Tensor, what: str) -> Tensor:
    """`value` in the dtype of `like`.

    Raises:
        ValueError: it has another shape, or a dtype that would lose more than precision.
    """
    if not isinstance(value, Tensor):
        raise TypeError(f"{what} must be a tensor, got {value!r}")
    if value.shape != like.shape:
        raise ValueError(f"{what} must have shape {tuple(like.shape)}, got {tuple(value.shape)}")
    if value.dtype == like.dtype:
        return value
    if value.is_complex() or (value.is_floating_point() and not like.is_floating_point()):
        raise ValueError(f"{what} must be {like.dtype}, got {value.dtype}")
    return value.to(like.dtype)
