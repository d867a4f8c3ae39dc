"""Rules: pure functions of one weight tensor, written as frozen dataclasses whose fields are hyper-parameters."""

from __future__ import annotations

import re
from dataclasses import MISSING, dataclass, field, fields
from numbers import Real
from typing import Any, ClassVar

import torch
from torch import Tensor

from spherenorm.geometry import EUCLIDEAN, Move
from spherenorm.update import Scalar, Update

__all__ = ["Rule", "Scalar", "State", "averaged", "hyper", "is_zero", "plus_scaled", "refuse_unless_real", "scalar_state"]

State = dict[str, Tensor]

_INTERVAL = re.compile(r"([\[(])(\S+), (\S+)([\])])")


def hyper(interval: str, default: Any = MISSING) -> Any:
    """A dataclass field for a number in `interval`, such as "[0, 1)"; checked on construction unless it is a tensor."""
    return field(default=default, metadata={"interval": interval})


def _contains(interval: str, value: float) -> bool:
    match = _INTERVAL.fullmatch(interval)
    assert match is not None, interval
    low, high = float(match[2]), float(match[3])
    above = low <= value if match[1] == "[" else low < value
    below = value <= high if match[4] == "]" else value < high
    return above and below


def is_zero(value: Scalar) -> bool:
    """Whether `value` is the Python number 0, so that its term can be left out; a tensor never is."""
    return not isinstance(value, Tensor) and value == 0


def averaged(past: Tensor, entering: Tensor, beta: Scalar) -> Tensor:
    """beta past + (1 - beta) entering."""
    if isinstance(beta, Tensor):
        return beta * past + (1 - beta) * entering
    return torch.lerp(past, entering, 1 - beta)  # the same in one walk through memory


def plus_scaled(x: Tensor, scale: Scalar, y: Tensor) -> Tensor:
    """x + scale y, in one walk through memory."""
    return torch.addcmul(x, scale, y) if isinstance(scale, Tensor) else torch.add(x, y, alpha=scale)


def scalar_state(weight: Tensor) -> Tensor:
    """A zero counter for the state: 0-dim, float64 (where the device has it) so that powers such as beta^t keep double precision."""
    return torch.zeros((), dtype=torch.float32 if weight.device.type == "mps" else torch.float64, device=weight.device)


def refuse_unless_real(weight: Tensor, what: str) -> None:
    """Raise TypeError, calling the weight `what`, if it is complex or integer (whose steps would be truncated)."""
    if not weight.is_floating_point():
        kind = "complex" if weight.is_complex() else "integer"
        raise TypeError(f"{what} is {kind} ({weight.dtype}); only real floating-point weights can be optimized")


def _working(x: Tensor) -> Tensor:
    """Half precision is computed with in float32: in fp16 an eps of 1e-8 is 0 and (1 - beta2) g^2 underflows."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


@dataclass(frozen=True)
class Rule:
    """A pure update rule for one weight tensor.

    A rule reads `update` and its own entries of `state`, and returns a new `Update` and its entries anew; nothing is
    mutated, and no Python branch depends on a tensor's values, so that every rule compiles, vmaps, differentiates and
    traces. Subclasses implement `update`, name their state in `state_names`, and list in `tangent_names` those of them
    that are tangent vectors (momentum), which a curved geometry transports along with the weight.

    Raises:
        ValueError: on construction, when a number lies outside its field's interval; TypeError when it is no number.
    """

    tangent_names: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        for f in fields(self):
            interval, value = f.metadata.get("interval"), getattr(self, f.name)
            if f.type == "bool" and not isinstance(value, bool):
                raise TypeError(f"{type(self).__name__}: {f.name} must be True or False, got {value!r}")
            if interval is not None and isinstance(value, Tensor) and value.ndim:
                raise ValueError(f"{type(self).__name__}: {f.name} must be a number or a 0-dim tensor, got shape {tuple(value.shape)}")
            if interval is None or isinstance(value, Tensor):
                continue
            if isinstance(value, bool) or not isinstance(value, Real):
                raise TypeError(f"{type(self).__name__}: {f.name} must be a number or a tensor, got {value!r}")
            if not _contains(interval, float(value)):
                raise ValueError(f"{type(self).__name__}: {f.name} must be in {interval.replace('inf', '∞')}, got {value!r}")

    @property
    def state_names(self) -> tuple[str, ...]:
        """The keys of the state that this rule owns."""
        return ()

    def init(self, weight: Tensor) -> State:
        """The state before the first step: zeros shaped as the weight unless a rule says otherwise.

        Raises:
            ValueError: the rule cannot step a weight of this shape (its view has no such units).
        """
        working = _working(weight)
        return {name: torch.zeros_like(working, memory_format=torch.preserve_format) for name in self.state_names}

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        """The update after this rule, and the new values of this rule's entries of the state."""
        raise TypeError(f"{type(self).__name__} does not define update(update, state)")

    def move(self, weight: Tensor, direction: Tensor) -> Move:
        """The move of the weight by minus `direction`: a straight one, unless a chain says where the weight lives."""
        return EUCLIDEAN.move(weight, direction)

    def transport(self, state: State, move: Move) -> State:
        """The entries of the state that change because the weight moved: tangent vectors, carried along."""
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
            ValueError: the gradient has another shape; a rule does not return the state that it names.
            TypeError: the weight is complex or integer.
        """
        refuse_unless_real(weight, "weight")
        if grad.shape != weight.shape:
            raise ValueError(f"grad must be shaped as the weight, {tuple(weight.shape)}, got {tuple(grad.shape)}")
        working, grad = _working(weight), _working(grad)
        update, new = self.update(Update(working, grad, direction=grad), state)
        if new.keys() != set(self.state_names):
            raise ValueError(f"{type(self).__name__}: update returns the state {sorted(new)}, state_names says {sorted(self.state_names)}")
        move = self.move(working, update.direction)
        new = {**new, **self.transport(new, move)}
        # A 0-d weight would otherwise be promoted by the float64 counter.
        return move.weight.to(weight.dtype), {name: value.to(state[name].dtype) for name, value in new.items()}
