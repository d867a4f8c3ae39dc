"""Rules: pure functions of one weight tensor, written as frozen dataclasses of hyper-parameters."""

from __future__ import annotations

import functools
import re
import typing
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, field, fields, replace
from numbers import Real
from typing import Any, ClassVar

import torch
from torch import Tensor

from spherenorm.geometry import EUCLIDEAN, Move
from spherenorm.numerics import Scalar, working
from spherenorm.update import Update

__all__ = [
    "Rule",
    "Scalar",
    "State",
    "apply",
    "hyper",
    "init_apart",
    "refuse_unless_real",
    "scalar_state",
]

State = dict[str, Tensor]

_INTERVAL = re.compile(r"([\[(])(\S+), (\S+)([\])])")


def hyper(interval: str, default: Any = MISSING, *, through_zero: bool = False) -> Any:
    """A dataclass field for a number in `interval`, checked on construction unless it is a tensor.

    Args:
        interval: such as "[0, 1)".
        default: of the field.
        through_zero: the rule computes with 0 as with any other number. Otherwise a rule may leave
            the term of a Python 0 out, so a recorded step with 0 is another one than without.
    """
    return field(default=default, metadata={"interval": interval, "through_zero": through_zero})


def _contains(interval: str, value: float) -> bool:
    match = _INTERVAL.fullmatch(interval)
    assert match is not None, interval
    low, high = float(match[2]), float(match[3])
    above = low <= value if match[1] == "[" else low < value
    below = value <= high if match[4] == "]" else value < high
    return above and below


def scalar_state(weight: Tensor) -> Tensor:
    """A zero counter for the state: 0-dim, in float64 (where the device has it).

    Powers such as beta^t then keep double precision.
    """
    dtype = torch.float32 if weight.device.type == "mps" else torch.float64
    return torch.zeros((), dtype=dtype, device=weight.device)


def refuse_unless_real(weight: Tensor, what: str) -> None:
    """Raise TypeError, calling the weight `what`, if it is complex or integer.

    Steps of an integer weight would be truncated.
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
    Subclasses implement `update`, name their state in `state_names`, and list in `tangent_names`
    those of them that are tangent vectors (momentum), which a curved geometry transports along
    with the weight.

    Raises:
        ValueError: on construction, when a number lies outside its field's interval.
        TypeError: on construction, when it is no number.
    """

    tangent_names: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        cls: Any = type(self)
        flags = _flags(cls)
        for f in fields(self):
            interval, value = f.metadata.get("interval"), getattr(self, f.name)
            what = f"{type(self).__name__}: {f.name} must be"
            if f.name in flags and not isinstance(value, bool):
                raise TypeError(f"{what} True or False, got {value!r}")
            if interval is not None and isinstance(value, Tensor) and value.ndim:
                shape = tuple(value.shape)
                raise ValueError(f"{what} a number or a 0-dim tensor, got shape {shape}")
            if interval is None or isinstance(value, Tensor):
                continue
            if isinstance(value, bool) or not isinstance(value, Real):
                raise TypeError(f"{what} a number or a tensor, got {value!r}")
            if not _contains(interval, float(value)):
                raise ValueError(f"{what} in {interval.replace('inf', '∞')}, got {value!r}")

    @property
    def state_names(self) -> tuple[str, ...]:
        """The keys of the state that this rule owns."""
        return ()

    def children(self) -> Iterator[Rule]:
        """The rules among the fields, in order."""
        names = dict.fromkeys([*(f.name for f in fields(self)), *getattr(self, "__dict__", ())])
        for name in names:
            value = getattr(self, name)
            value = tuple(value.values()) if isinstance(value, dict) else value
            parts = value if isinstance(value, tuple | list) else (value,)
            yield from (part for part in parts if isinstance(part, Rule))

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
        """The update after this rule, and the new values of this rule's part of the state."""
        raise TypeError(f"{type(self).__name__} does not define update(update, state)")

    def move(self, weight: Tensor, direction: Tensor) -> Move:
        """Move the weight by minus `direction`: straight, unless a chain has a geometry."""
        return EUCLIDEAN.move(weight, direction)

    def transport(self, state: State, move: Move) -> State:
        """The entries of the state that change because the weight moved: its tangent vectors."""
        return {name: move.transport(state[name]) for name in self.tangent_names}

    def step(self, weight: Tensor, grad: Tensor, state: State) -> tuple[Tensor, State]:
        """One whole step.

        Args:
            weight: the weight, of any shape; half precision is computed with in float32.
            grad: the raw gradient, shaped as the weight.
            state: as returned by `init` or by the last step.

        Returns:
            The new weight, in the old one's dtype, and the new state. The arguments are left alone.

        Raises:
            ValueError: the gradient has another shape; a rule does not return the state that it
                names; a direction or a state has another shape than before.
            TypeError: the weight is complex or integer.
        """
        refuse_unless_real(weight, "weight")
        if grad.shape != weight.shape:
            raise ValueError(
                f"grad must be shaped as the weight, {tuple(weight.shape)}, got {tuple(grad.shape)}"
            )
        start = working(weight)
        grad = grad.to(start.dtype)
        update, new = apply(self, Update(start, grad, direction=grad), state)
        move = self.move(start, update.direction)
        moved = _fitted(move.weight, start, f"{type(self).__name__}: the moved weight")
        for name, value in self.transport(new, move).items():
            new[name] = _fitted(value, state[name], f"{type(self).__name__}: the moved {name!r}")
        return moved.to(weight.dtype), new


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
        ValueError: naming the rule and what it returned.
    """
    name = type(rule).__name__
    names = rule.state_names
    missing = [each for each in names if each not in state]
    if missing:
        raise ValueError(f"{name}: the state has no {missing[0]!r}, it has {sorted(state)}")
    own = {each: state[each] for each in names}
    result = rule.update(update, own)
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)):
        raise TypeError(f"{name}: update must return (update, state), it returned {result!r}")
    after, new = result
    if new.keys() != own.keys():
        raise ValueError(
            f"{name}: update returns the state {sorted(new)}, state_names says {sorted(names)}"
        )
    if after.weight is not update.weight or after.grad is not update.grad:
        raise ValueError(
            f"{name}: update returns another weight or gradient; a rule may only change the direction"
        )
    direction = _fitted(after.direction, update.weight, f"{name}: the direction")
    if direction is not after.direction:
        after = replace(after, direction=direction)
    return after, {each: _fitted(new[each], own[each], f"{name}: {each!r}") for each in names}


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


@functools.cache
def _flags(cls: Any) -> frozenset[str]:
    """The fields of `cls` that are declared as truth values."""
    try:
        declared = typing.get_type_hints(cls)
    except Exception:  # an annotation need not be resolvable; then its own words count
        declared = {f.name: f.type for f in fields(cls)}
    return frozenset(f.name for f in fields(cls) if declared.get(f.name) in (bool, "bool"))
