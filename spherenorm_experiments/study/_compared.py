"""`Compared`: a comparison as far as it has run, for its tables, pictures and caveats."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from spherenorm_experiments.analysis import Arm, Cell, Results, metrics_of
from spherenorm_experiments.core import load_recipe
from spherenorm_experiments.study._condition import Condition, Contender, arm_of, tuning_of
from spherenorm_experiments.study._design import Design
from spherenorm_experiments.study._search import EDGE, OUTERMOST, Point, Search, Tuned, tuned

__all__ = ["Compared", "caveats_of", "differing", "metric_of", "metrics_on", "unit_of"]

K = TypeVar("K")


@dataclass(frozen=True)
class Compared:
    """A comparison and the results of all of its runs."""

    design: Design
    results: Results

    @functools.cached_property
    def contenders(self) -> dict[str, Contender]:
        """The optimizers by name, the baseline first; those that a command has added come last."""
        added = {
            arm.settings["contender"]: Contender(
                arm.settings["contender"],
                {name: [math.nan] for name in arm.settings["tuned"]},  # values are not known here
                against=arm.settings["against"],
                recipe=arm.recipe,
                added=True,
            )
            for arm in self.results.arms
            if "against" in arm.settings
        }
        return {each.name: each for each in self.design.contenders} | added

    @property
    def final(self) -> Results:
        """The results of the final runs."""
        return self.results.having(stage="final")

    @functools.cached_property
    def every_arm(self) -> list[Arm]:
        """The final arms of all conditions that have a run, in the search or after it."""
        return [arm for condition in self.design.on for arm in self.arms(condition, searched=True)]

    @functools.cached_property
    def tuned_names(self) -> list[str]:
        """The hyper-parameters that some contender is tuned in."""
        return list(dict.fromkeys(n for arm in self.every_arm for n in self.search(arm).names))

    def arms(self, condition: Condition, *, searched: bool = False) -> list[Arm]:
        """The final arms of a condition that have a result.

        Args:
            searched: also those whose search alone has one.
        """
        ended = set(self.results.arms)
        return [
            arm
            for arm in (arm_of(condition, each) for each in self.contenders.values())
            if arm in ended or (searched and tuning_of(arm) in ended)
        ]

    def is_own(self, arm: Arm) -> bool:
        """False for an arm that a command added."""
        return not self._of(arm).added

    def baseline(self, condition: Condition, arm: Arm) -> Arm | None:
        """The arm that another is compared with; of two the first."""
        names = self.design.against(self._of(arm))
        return arm_of(condition, self.contenders[names[0]]) if names else None

    def search(self, arm: Arm) -> Search:
        """The search of a final arm."""
        return self.design.search(self._of(arm))

    def tuned(self, arm: Arm) -> Tuned:
        """The ended search of a final arm."""
        seeds = self.design.tuning_seeds()
        return tuned(self.results.arm(tuning_of(arm)), self.search(arm).names, seeds)

    def _of(self, arm: Arm) -> Contender:
        return self.contenders[arm.settings["contender"]]

    def taken(self, arm: Arm) -> Mapping[str, Any]:
        """The hyper-parameters of an arm's final runs, as they have them: tuning may be lost."""
        for item in self.results.arm(arm):
            return item.spec.hyper_parameters
        return self.best(arm)

    def best(self, arm: Arm) -> Point:
        """The best point of an arm's search, as far as it is in the store."""
        search = self.tuned(arm)
        return {} if search.best is None else search.points[search.best]

    def cells(self, arm: Arm, point: Mapping[str, Any]) -> list[Cell]:
        """The tuned hyper-parameters of an arm, marked at the edges of its search."""
        names, marks = self.search(arm).names, self.marks(arm, point)
        return [
            Cell(point.get(name), ".3g", unit=f"({marks[name]})" if name in marks else "")
            if name in names
            else Cell(None, missing="not tuned")
            for name in self.tuned_names
        ]

    def marks(self, arm: Arm, point: Mapping[str, Any]) -> dict[str, str]:
        """The values with no trial beyond them on one side, each with its mark."""
        search, ended = self.search(arm), self.tuned(arm)
        places = {n: search.place(n, point[n], ended) for n in search.names if n in point}
        return {name: mark for name, mark in places.items() if mark}

    def differing(self) -> dict[str, dict[Arm, Any]]:
        """The values of every hyper-parameter that is not tuned and in which arms differ, by name.

        A recipe of which a run fixes no value has its default; one that is not here has only what
        its runs were given.
        """
        values = {arm: {**_defaults(arm.recipe), **self.taken(arm)} for arm in self.every_arm}
        tuned_names = self.tuned_names
        return {n: of for n, of in differing(values).items() if n not in tuned_names}


def caveats_of(seen: Compared, arm: Arm) -> list[str]:
    """The facts about the search and the runs of an arm that a reader of its claim needs."""
    search, ended = seen.tuned(arm), len(seen.results.arm(arm))
    if search.points and search.best is None:
        return [f"no trial of {arm.label} has a score"]
    tuning = tuning_of(arm)
    done, lost = len(seen.results.arm(tuning)), seen.results.lacking.get(tuning, 0)
    away = seen.results.lacking.get(arm, 0)
    lack = f"the tuning of {arm.label} is incomplete: {done} of {done + lost} runs have ended"
    places = {EDGE: "at an edge of its range",
              OUTERMOST: "the outermost of its trials, within its range"}  # fmt: skip
    return [
        *([lack] if ended and lost else []),
        *([f"{ended} of {ended + away} runs of {arm.label} have ended"] if away else []),
        *(
            f"the best {name} of {arm.label} is {places[mark]}"
            for name, mark in seen.marks(arm, seen.taken(arm)).items()
        ),
    ]


def metrics_on(results: Results, condition: Condition) -> list[str]:
    """The metrics of a condition; those that the paper has come first, and then the score."""
    named = metrics_of(results.having(condition=condition.label, stage="final"))
    return list(dict.fromkeys([*(name for name in condition.paper if name in named), *named]))


def metric_of(results: Results, condition: Condition) -> str:
    """The quantity of the score, as the runs have noted it: the task may not be here."""
    runs = results.having(condition=condition.label)
    return next(filter(None, (item.summary.get("metric") for item in runs)), "score")


def unit_of(results: Results, condition: Condition) -> str:
    """The unit of a difference of scores: its own, percentage points, or none."""
    if condition.unit is not None:
        return condition.unit
    return "pp" if "%" in metric_of(results, condition) else ""


def differing(values: Mapping[K, Mapping[str, Any]]) -> dict[str, dict[K, Any]]:
    """The hyper-parameters in which some differ, by name; one that only some have has no value.

    >>> differing({"sgd": {"lr": 1, "momentum": 0}, "sgdp": {"lr": 1, "momentum": 0.9}})
    {'momentum': {'sgd': 0, 'sgdp': 0.9}}
    """
    by_name: dict[str, dict[K, Any]] = {}
    for each, given in values.items():
        for name, value in given.items():
            by_name.setdefault(name, {})[each] = value
    return {name: of for name, of in by_name.items() if len(set(map(repr, of.values()))) > 1}


def _defaults(recipe: str) -> dict[str, Any]:
    with suppress(Exception):  # a user's module may be gone, or raise anything
        return dict(load_recipe(recipe).defaults)
    return {}
