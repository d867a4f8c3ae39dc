"""Schedules of the learning rate: factors of it, by the share of the run that is over."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import cos, pi
from typing import Any

from spherenorm import Recipe, Rule, bind
from spherenorm.support import did_you_mean

__all__ = ["SCHEDULES", "Numbers", "Schedule", "resolve_schedule"]

Schedule = Callable[[float], float]
"""From the share of the run that is over, in [0, 1), to a factor of the learning rate."""

SCHEDULES: dict[str, Schedule] = {
    "constant": lambda share: 1.0,
    "warm-up": lambda share: min(1.0, 0.01 + 4 * share),
    "cosine": lambda share: 0.5 * (1 + cos(pi * share)),
}
"""Schedules by name: a linear warm-up over the first quarter, half a cosine down to 0."""


def resolve_schedule(schedule: str | Schedule) -> Schedule:
    """A schedule by its name, or itself.

    Raises:
        ValueError: no schedule has the name.
    """
    if not isinstance(schedule, str):
        return schedule
    if schedule not in SCHEDULES:
        near = did_you_mean(schedule, SCHEDULES, f"known: {', '.join(SCHEDULES)}")
        raise ValueError(f"no schedule is named {schedule!r}; {near}")
    return SCHEDULES[schedule]


@dataclass(frozen=True)
class Numbers:
    """A recipe's hyper-parameters at each step of a run.

    Attributes:
        recipe: of the run.
        base: all hyper-parameters, before the schedule.
        schedule: multiplies the learning rate `lr`.
        steps: how many.
    """

    recipe: Recipe
    base: Mapping[str, Any]
    schedule: Schedule
    steps: int

    def at(self, time: int) -> dict[str, Any]:
        """The hyper-parameters of one step.

        Raises:
            ValueError: there is no learning rate to schedule.
        """
        factor = self.schedule(time / self.steps)
        if factor == 1:
            return dict(self.base)
        if "lr" not in self.base:
            raise ValueError(f"{bind(self.recipe).name} has no hyper-parameter lr to schedule")
        return {**self.base, "lr": factor * self.base["lr"]}

    def rules(self) -> Iterator[Rule]:
        """The rule of each step."""
        return (self.recipe(**self.at(time)) for time in range(self.steps))
