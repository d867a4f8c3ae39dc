"""The hooks of a rule: the methods that its author may define, each with what it does by itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from spherenorm._manifold import EUCLIDEAN, Retraction
from spherenorm._numerics import working
from spherenorm._update import Update

State = dict[str, Tensor]
"""The state of one weight tensor, by name.

Example:
    >>> sn.recipes.sgdp(momentum=0.9).init(torch.ones(2))
    {'momentum': tensor([0., 0.])}
"""


def zeros(names: Iterable[str], weight: Tensor) -> State:
    """States of zeros shaped as the weight, in the precision that rules compute in."""
    like = working(weight)
    return {n: torch.zeros_like(like, memory_format=torch.preserve_format) for n in names}


class Hooks:
    """The methods and names that an author of a `Rule` may define."""

    @property
    def needs_step(self) -> bool:
        """True if the rule reads `update.step`, the number of the step, so that a chain counts."""
        return False

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

        Args:
            update: the step so far.
            state: this rule's part of the state.

        Raises:
            TypeError: the rule defines neither this nor a hook before or after it.
        """
        if self.defines("evaluate_at") or self.defines("after"):
            return update, state
        raise TypeError(f"{type(self).__name__} does not define update(update, state)")

    def measure(self, update: Update, state: State) -> Mapping[str, Tensor]:
        """0-dim tensors of one weight, by name; `update.shared` holds their sums over all weights.

        They are measured once a step, before the first rule runs.

        Args:
            update: before the first rule: its direction is the gradient.
            state: this rule's part of the state, before the step.
        """
        return {}

    def evaluate_at(self, update: Update, state: State) -> Tensor:
        """The weight at which the gradient of the step is computed, once there is a first one.

        An optimizer calls its closure a second time there. In the pure form, the gradient that is
        given to `step` is the second one; see `functional.evaluation_point`.

        Args:
            update: before the first rule: its direction is the first gradient.
            state: this rule's part of the state, before the step.
        """
        return update.weight

    def after(self, before: Update, weight: Tensor, state: State) -> tuple[Tensor, State]:
        """The weight, and this rule's part of the state, after the weight has moved.

        Args:
            before: the update after the last rule; `before.weight` is the weight before the step.
            weight: after the move, in the precision that rules compute in.
            state: this rule's part of the state, as `update` returned it.
        """
        return weight, state

    def check_weight(self, weight: Tensor) -> None:
        """Refuse a weight by its values, when an optimizer is made.

        Args:
            weight: in the user's own type; a meta tensor has no values.

        Raises:
            ValueError: no step of it can be right, as where a radius is 0; see `rules.RadiusPin`.
        """

    def retract(self, weight: Tensor, direction: Tensor) -> Retraction:
        """Move the weight by minus `direction`: straight, unless a chain has a manifold."""
        return EUCLIDEAN.retract(weight, direction)

    def weight_warnings(self, weight: Tensor) -> list[str]:
        """Sentences on why this rule does not suit `weight`; see `Sphere.weight_warnings`."""
        return []

    def defines(self, hook: str) -> bool:
        """True if this rule's class defines the hook, such as "measure"."""
        return getattr(type(self), hook) is not getattr(Hooks, hook)
