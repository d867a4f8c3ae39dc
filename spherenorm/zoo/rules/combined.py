"""Several rules on one direction: side by side, or in turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spherenorm.numerics import Scalar, cast_like
from spherenorm.rule import STEP_KEY, Rule, State, Update


@dataclass(frozen=True)
class WeightedSum(Rule):
    """The directions that several rules make of one, added: sum_i c_i rule_i(d).

    Args:
        rules: applied side by side.
        weights: c, a number for each.

    Raises:
        ValueError: there are not as many weights as rules.

    Example:
        >>> rule = WeightedSum((sn.rules.StepSize(1.0), sn.rules.Sign()), (1.0, 5.0))
        >>> rule.step(torch.tensor([0.0]), torch.tensor([3.0]), {})[0]
        tensor([-8.])

    Source: Lucas et al. 2019 (AggMo); Pagliardini et al. 2025 (AdEMAMix).
    """

    rules: tuple[Rule, ...]
    weights: Sequence[Scalar]

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "weights", tuple(self.weights))
        if len(self.rules) != len(self.weights):
            counts = f"{len(self.rules)} rules and {len(self.weights)} weights"
            raise ValueError(f"WeightedSum: each rule needs a weight, got {counts}")

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        total, new = torch.zeros_like(update.direction), dict[str, Tensor]()
        for index, weight in enumerate(self.weights):
            after, changes = self.update_child(index, update, state)
            total = total + cast_like(weight, total) * after.direction
            new |= changes
        return update.replace(direction=total), new


@dataclass(frozen=True)
class Alternate(Rule):
    """One of several rules at each step, beginning with the first.

    Args:
        rules: without states, which would miss the other steps.

    Raises:
        ValueError: a rule has a state.

    Example:
        >>> rule = Alternate((sn.rules.StepSize(1.0), sn.rules.StepSize(0.0)))
        >>> weight, state = torch.tensor([0.0]), rule.init(torch.tensor([0.0]))
        >>> for _ in range(3):
        ...     weight, state = rule.step(weight, torch.tensor([-1.0]), state)
        >>> weight
        tensor([2.])

    Source: Gu and Xie 2026 (Mano).
    """

    rules: tuple[Rule, ...]

    state_names = (STEP_KEY,)

    def __post_init__(self) -> None:
        super().__post_init__()
        for rule in self.rules:
            if rule.state_keys:
                raise ValueError(f"Alternate: {rule!r} has a state ({', '.join(rule.state_keys)})")

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        direction, turn = update.direction, (state[STEP_KEY] - 1) % len(self.rules)
        for index in range(len(self.rules)):
            after, _ = self.update_child(index, update, state)
            direction = torch.where(turn == index, after.direction, direction)
        return update.replace(direction=direction), {}
