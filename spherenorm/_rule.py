"""Rules: pure functions of one weight tensor, written as classes of hyper-parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self, dataclass_transform

from spherenorm._fields import check_numbers, choice, hyper, view, views
from spherenorm._manifold import EUCLIDEAN, Retraction
from spherenorm._numerics import wide_dtype, working
from spherenorm._parts import (
    COUNTER,
    Measured,
    Part,
    State,
    apply,
    defines,
    fitted,
    keys_of_init,
    keys_within,
    measure,
    move_on,
    optional,
    transported,
    zeros,
)
from spherenorm._update import Update

__all__ = ["Rule", "State", "refuse_unless_real", "scalar_state"]


def scalar_state(weight: Tensor) -> Tensor:
    """A zero counter for the state: 0-dim, in float64 (where the device has it).

    Powers such as beta^t then keep double precision.
    """
    return torch.zeros((), dtype=wide_dtype(weight.device), device=weight.device)


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


@dataclass_transform(frozen_default=True, field_specifiers=(field, hyper, view, views, choice))
@dataclass(frozen=True)
class Rule:
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

    name: str | None = field(default=None, kw_only=True, repr=False)

    needs_step = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" in cls.__dict__.get("__annotations__", {}):
            taken = "every rule has a field `name`, which tells its states apart"
            raise TypeError(f"{cls.__name__}: {taken}; call yours otherwise")

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        if "__dataclass_fields__" not in cls.__dict__:
            _make_dataclasses(cls)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        check_numbers(self)

    @property
    def state_names(self) -> tuple[str, ...]:
        """The keys of this rule's state, those of the rules within it included."""
        return ()

    @property
    def tangent_names(self) -> tuple[str, ...]:
        """The keys of this rule's own tangent vectors, among its states."""
        return ()

    def init(self, weight: Tensor) -> State:
        """The state before the first step: zeros shaped as the weight unless a rule says otherwise.

        Its keys and shapes may depend on the weight's shape.

        Raises:
            ValueError: the rule cannot step a weight of this shape (its view has no such units).
        """
        return zeros(self.state_names, weight)

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        """The update after this rule, and the new values of this rule's part of the state.

        A rule that defines `evaluate_at` or `after` may leave it out: nothing changes then.

        Args:
            update: the step so far.
            state: this rule's part of the state.
        """
        if defines(self, "evaluate_at") or defines(self, "after"):
            return update, state
        raise TypeError(f"{type(self).__name__} does not define update(update, state)")

    @optional
    def measure(self, update: Update, state: State) -> Mapping[str, Tensor]:
        """0-dim tensors of one weight, by name; `update.shared` holds their sums over all weights.

        They are measured once a step, before the first rule runs.

        Args:
            update: before the first rule: its direction is the gradient.
            state: this rule's part of the state, before the step.
        """
        return {}

    @optional
    def evaluate_at(self, update: Update, state: State) -> Tensor:
        """The weight at which the gradient of the step is computed, once there is a first one.

        An optimizer calls its closure a second time there. In the pure form, the gradient that is
        given to `step` is the second one; see `functional.evaluation_point`.

        Args:
            update: before the first rule: its direction is the first gradient.
            state: this rule's part of the state, before the step.
        """
        return update.weight

    @optional
    def after(self, before: Update, weight: Tensor, state: State) -> tuple[Tensor, State]:
        """The weight, and this rule's part of the state, after the weight has moved.

        Args:
            before: the update after the last rule; `before.weight` is the weight before the step.
            weight: after the move, in the precision that rules compute in.
            state: this rule's part of the state, as `update` returned it.
        """
        return weight, state

    def retract(self, weight: Tensor, direction: Tensor) -> Retraction:
        """Move the weight by minus `direction`: straight, unless a chain has a manifold."""
        return EUCLIDEAN.retract(weight, direction)

    def complaints(self, weight: Tensor) -> list[str]:
        """Reasons why this rule's steps are not what is wanted for `weight`; see `Sphere`."""
        return []

    @property
    def counts(self) -> bool:
        """True if this rule keeps a counter of the steps among its states: a chain may."""
        return False

    def children(self) -> Iterator[Rule]:
        """The rules among the fields and attributes, in order."""
        slots = () if not hasattr(self, "__slots__") else (f.name for f in fields(self))
        for value in [*vars(self).values(), *(getattr(self, name) for name in slots)]:
            value = tuple(value.values()) if isinstance(value, dict) else value
            parts = value if isinstance(value, tuple | list) else (value,)
            yield from (part for part in parts if isinstance(part, Rule))

    def tree(self) -> Iterator[Rule]:
        """This rule and all rules within it, the outer ones first."""
        yield self
        for child in self.children():
            yield from child.tree()

    def keys(self, weight: Tensor | None) -> tuple[str, ...]:
        """The keys of the state of a weight.

        Args:
            weight: of the shape that matters; None where no rule's keys depend on it.
        """
        cls = type(self)
        if cls.state_names is Rule.state_names and cls.init is not Rule.init:
            return keys_of_init(self, weight)
        return tuple(self.state_names)

    def held(self, weight: Tensor | None) -> list[Part]:
        """The rules within this one whose states are among its own."""
        children = list(self.children())
        own = set(self.keys(weight)) if children else set()
        keys = [child.keys(weight) for child in children]
        both = zip(children, keys, strict=True)
        return [
            Part(child, {k: k for k in names}) for child, names in both if own.issuperset(names)
        ]

    def transport(self, state: State, retraction: Retraction) -> State:
        """The entries of the state that change because the weight moved: its tangent vectors.

        They are those of this rule and of the rules within it whose state it holds.
        """
        own = {name: retraction.transport(state[name]) for name in self.tangent_names}
        return transported(self, state, retraction) | own

    def begin(
        self, weight: Tensor, grad: Tensor, state: State, measured: Measured | None = None
    ) -> Update:
        """The update before the first rule.

        Args:
            weight, grad, state, measured: as for `step`.

        Raises:
            ValueError, TypeError: as `step`.
        """
        refuse_unless_real(weight, "weight")
        if grad.shape != weight.shape:
            shapes = f"{tuple(weight.shape)}, got {tuple(grad.shape)}"
            raise ValueError(f"grad must be shaped as the weight, {shapes}")
        start = working(weight)
        grad = grad.to(start.dtype)
        count = Part(self, {COUNTER: COUNTER}).own(state)[COUNTER] + 1 if self.counts else None
        return Update(start, grad, direction=grad, count=count, measured=measured or {})

    def step(
        self, weight: Tensor, grad: Tensor, state: State, measured: Measured | None = None
    ) -> tuple[Tensor, State]:
        """One whole step.

        Args:
            weight: of any shape; half precision is computed with in float32.
            grad: the raw gradient, shaped as the weight.
            state: as `init` or the last step returned it.
            measured: the sums over all weights of what rules measure; None: this is all of them.

        Returns:
            The new weight, in the old one's dtype, and the new state. The arguments are left alone.

        Raises:
            ValueError: the gradient has another shape; a rule does not return the state that it
                names; a direction or a state has another shape than before.
            TypeError: the weight is complex or integer.
        """
        update, rules = self.begin(weight, grad, state, measured), list(self.tree())
        if measured is None and any(defines(rule, "measure") for rule in rules):
            found = {id(rule): numbers for rule, numbers in measure(self, update, state)}
            update = replace(update, measured=found)
        start, whole = update.weight, Part(self, {key: key for key in keys_within(self, weight)})
        update, new = apply(whole, update, state)
        retraction = self.retract(start, update.direction)
        moved = fitted(retraction.weight, start, whole, "the moved weight")
        for key, value in self.transport(new, retraction).items():
            new[key] = fitted(value, state[key], whole, f"the moved {key!r}")
        if any(defines(rule, "after") for rule in rules):
            moved, new = move_on(self, update, moved, new, whole)
        if update.count is not None:
            new = {COUNTER: update.count, **new}
        return moved.to(weight.dtype), new


def _make_dataclasses(cls: type) -> None:
    """Do what `@dataclass(frozen=True)` does, for a class and those it inherits, where it lacks."""
    for each in reversed(cls.__mro__):
        if issubclass(each, Rule) and "__dataclass_fields__" not in each.__dict__:
            written = getattr(each.__init__, "__code__", None)
            made = written is not None and written.co_filename == "<string>"  # by dataclass
            dataclass(frozen=True, init=made)(each)
