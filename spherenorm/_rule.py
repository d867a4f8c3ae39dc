"""Rules: pure functions of one weight tensor, written as classes of hyper-parameters."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self, dataclass_transform

from spherenorm._fields import check_numbers
from spherenorm._hooks import State
from spherenorm._numerics import wide_dtype
from spherenorm._step import Measured, step
from spherenorm._tree import Node


def scalar_state(weight: Tensor) -> Tensor:
    """A zero counter for the state: 0-dim, in float64 (where the device has it).

    Powers such as beta^t then keep double precision.

    Args:
        weight: of any shape; the counter lies on its device.

    Example:
        >>> scalar_state(torch.ones(3, 2, dtype=torch.float16))
        tensor(0., dtype=torch.float64)
    """
    return torch.zeros((), dtype=wide_dtype(weight.device), device=weight.device)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
@dataclass(frozen=True)
class Rule(Node):
    """A pure update rule for one weight tensor.

    A rule reads `update` and its own part of `state`, and returns a new `Update` and its part
    anew. It writes into nothing that it is given, reads nothing else that changes, and takes no
    Python branch on a tensor's values, so that it compiles, vmaps, differentiates and traces.

    A subclass is a frozen dataclass (the decorator may be left out) whose fields are its
    hyper-parameters. It implements `update`, and whichever of these it needs:

    - `init(weight)` returns its states before the first step. States that are zeros shaped as the
      weight need only their names, in `state_names`.
    - `tangent_names` lists the states that are tangent vectors (momentum), which a curved manifold
      transports along with the weight.
    - `needs_step = True` has the chain count the steps: `update.step` is t, from 1.
    - `measure(update, state)` returns numbers of one weight, which are summed over all weights
      before the rules run: `update.shared`.
    - `evaluate_at(update, state)` returns where the gradient is to be computed once more.
    - `after(before, weight, state)` changes the weight that has moved.

    Names may be properties or plain tuples.

    Args:
        name: put before the names of this rule's states, to tell them from another rule's. Rules
            without a name get a number instead: `exp_avg`, `exp_avg_2`.

    Raises:
        TypeError, ValueError: a field declared by `hyper` has no number of its interval.

    Example:
        >>> class SignDescent(Rule):
        ...     def update(self, update, state):
        ...         return replace(update, direction=update.direction.sign()), {}
        >>> SignDescent().step(torch.tensor([1.0]), torch.tensor([0.3]), {})
        (tensor([0.]), {})
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" in inspect.get_annotations(cls):
            taken = "every rule has a field `name`, which tells its states apart"
            raise TypeError(f"{cls.__name__}: {taken}; call yours otherwise")
        if "__repr__" not in cls.__dict__:
            cls.__repr__ = Rule.__repr__  # type: ignore[method-assign]  # dataclass keeps it then

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        if "__dataclass_fields__" not in cls.__dict__:
            _make_dataclasses(cls)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        check_numbers(self)

    def __repr__(self) -> str:
        shown = [each.name for each in fields(self) if each.repr]
        shown += ["name"] if self.name else []
        return f"{type(self).__qualname__}({', '.join(f'{n}={getattr(self, n)!r}' for n in shown)})"

    def step(
        self, weight: Tensor, grad: Tensor, state: State, measured: Measured | None = None
    ) -> tuple[Tensor, State]:
        """One whole step.

        Args:
            weight: of any shape; half precision is computed with in float32.
            grad: the raw gradient, shaped as the weight. One of another real dtype is converted to
                the one that is computed in, first of all.
            state: as `init` or the last step returned it.
            measured: the sums over all weights of what rules measure; None: this is all of them.

        Returns:
            The new weight, in the old one's dtype, and the new state. The arguments are left alone.

        Raises:
            ValueError: the gradient has another shape; a rule does not return the state that it
                was given; a direction or a state has another shape than before.
            TypeError: the weight is complex or integer, or the gradient is complex.
        """
        return step(self, weight, grad, state, measured)


def _make_dataclasses(cls: type) -> None:
    """Apply `@dataclass(frozen=True)` to a class and its bases, where it was left out."""
    for each in reversed(cls.__mro__):
        if issubclass(each, Rule) and "__dataclass_fields__" not in each.__dict__:
            written = getattr(each.__init__, "__code__", None)
            made = written is not None and written.co_filename == "<string>"  # by dataclass
            dataclass(frozen=True, init=made)(each)
