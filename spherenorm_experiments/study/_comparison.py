"""`Comparison`: the study that `compare` makes of its arguments."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from spherenorm_experiments.analysis import MARGIN, Arm, Claim, Results, Table, Trial, paired
from spherenorm_experiments.core import points
from spherenorm_experiments.report.pictures import Picture
from spherenorm_experiments.study._comparing import Comparing
from spherenorm_experiments.study._comparison_shown import (
    Compared,
    comparison_pictures,
    comparison_tables,
)
from spherenorm_experiments.study._plan import Plan
from spherenorm_experiments.study._study import Study, final_seeds, tuning_seeds
from spherenorm_experiments.study._tuning import Tuned, tuned

__all__ = ["Comparison"]

ROUND = 4
"""Trials that a sampler that learns gives at a time."""


class Comparison(Study):
    """Comparison: optimizers, tuned alike

    Every optimizer is tuned in the same number of trials, over the same ranges if it is given none
    of its own, by its mean validation score on seeds that no final run uses. The final runs take
    the best point of each; their test scores are compared seed by seed. Means in one column are
    over the same seeds.
    """

    compared = {}  # noqa: RUF012  (every arm has a row)

    def __init__(self, request: Comparing) -> None:
        self.request = request
        self.name = re.sub(r"[^\w.-]+", "-", f"compare-{request.task}")
        labels = dict(zip(request.optimizers, _labels(request.optimizers), strict=True))
        names = dict.fromkeys((request.reference, *request.optimizers))
        self.arms = [Arm(labels[name], name, {"stage": "final"}) for name in names]
        """The baseline's is the first."""

    def title(self) -> str:
        """The task, with its module, and the optimizers."""
        return f"{self.request.task}: {', '.join(arm.label for arm in self.arms)}, tuned alike"

    def about(self) -> str:
        """The general text, and the command that repeats the comparison."""
        return f"{super().about()}\n\n`spherenorm {self.request}`"

    def trials(self, plan: Plan, results: Results) -> list[Trial]:
        tuning, final = [], []
        for arm, found in self._found(results).items():
            tuning += self._tuning_trials(plan, arm, found)
            if len(found.points) >= self.request.count and found.best is not None:
                final += self._trials_at(
                    plan, arm, found.points[found.best], final_seeds(self, plan)
                )
        return tuning + final

    def tables(self, results: Results) -> list[Table]:
        return comparison_tables(self._compared(results))

    def pictures(self, results: Results) -> list[Picture]:
        return comparison_pictures(self._compared(results))

    def claims(self, results: Results) -> list[Claim]:
        shown, (base, *others) = self._compared(results), self.arms
        margin = self.request.margin
        if margin is None and shown.unit:
            margin = MARGIN
        within = "" if margin is None else f"equivalent means within ±{margin:g} {shown.unit}"
        return [
            paired(
                f"{arm.label} has a higher test score than {base.label}, both tuned in "
                f"{self.request.count} trials on {self.request.task}",
                results.arm(arm).values("test"),
                results.arm(base).values("test"),
                ">",
                source="a comparison of your own",
                equivalence=margin,
                unit=shown.unit,
                detail="; ".join(filter(None, [within, *shown.caveats(arm), *shown.caveats(base)])),
                performance=True,
            )
            for arm in others
        ]

    def _tuning_trials(self, plan: Plan, arm: Arm, found: Tuned) -> list[Trial]:
        """The trials of an optimizer as far as they are known, on each seed of the tuning."""
        request, ranges = self.request, self.request.ranges_of(arm.recipe)
        chosen = list(found.points)[: request.count]
        if request.method != "optuna":
            chosen = list(points(ranges, request.count, request.method))
        elif len(chosen) < request.count:
            count = min(ROUND, request.count - len(chosen))
            chosen += points(ranges, count, "optuna", found.told)
        searched = _tuning_of(arm)
        return [
            trial
            for point in chosen
            for trial in self._trials_at(plan, searched, point, tuning_seeds(self))
        ]

    def _trials_at(
        self, plan: Plan, arm: Arm, point: Mapping[str, float], seeds: Sequence[int]
    ) -> list[Trial]:
        """The trials of an arm at a point, one for each seed, with the task's budget."""
        return self.seeded(replace(plan, seeds=tuple(seeds)), arm, self.request.task, point)

    def _found(self, results: Results) -> dict[Arm, Tuned]:
        """The ended trials of each optimizer's tuning."""
        seeds, found = tuning_seeds(self), {}
        for arm in self.arms:
            names = list(self.request.ranges_of(arm.recipe))
            found[arm] = tuned(results.arm(_tuning_of(arm)), names, seeds)
        return found

    def _compared(self, results: Results) -> Compared:
        return Compared(self.request, self._found(results), results, tuning_seeds(self))


def _tuning_of(arm: Arm) -> Arm:
    return Arm(f"{arm.label}, tuning", arm.recipe, {"stage": "tuning"})


def _labels(recipes: Sequence[str]) -> list[str]:
    """The names without their modules, unless two would then be alike."""
    short = [recipe.rpartition(":")[2] for recipe in recipes]
    counts = Counter(short)
    return [a if counts[a] == 1 else b for a, b in zip(short, recipes, strict=True)]
