"""`Compared`: a comparison as far as it has run, for its tables, pictures and caveats."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from spherenorm_experiments.analysis import Arm, Cell, Results, metrics_of
from spherenorm_experiments.core import load_recipe
from spherenorm_experiments.study._condition import Condition, Contender, arm_of, tuning_of
from spherenorm_experiments.study._search import EDGE, OUTERMOST, Point, Search, Tuned, tuned

__all__ = ["Compared", "caveats_of", "differing", "metric_of", "metrics_on", "unit_of"]

K = TypeVar("K")


@dataclass(frozen=True)
class Compared:
    """A comparison and its results.

    Attributes:
        on: its conditions.
        contenders: its optimizers, the baseline first; a command may have added others.
        against: the names that each of them is compared with, by name.
        searches: of each of them, by name.
        seeds: those of the tuning.
        results: of all runs.
    """

    on: Sequence[Condition]
    contenders: Sequence[Contender]
    against: Mapping[str, Sequence[str]]
    searches: Mapping[str, Search]
    seeds: Sequence[int]
    results: Results

    @property
    def final(self) -> Results:
        """The results of the final runs."""
        return self.results.having(stage="final")

    @property
    def tuned_names(self) -> list[str]:
        """The hyper-parameters that some contender is tuned in."""
        every = (name for arm in self.every_arm for name in self._search(arm).names)
        return list(dict.fromkeys(every))

    @property
    def every_arm(self) -> list[Arm]:
        """The final arms of all conditions that have a run, in the search or after it."""
        return [arm for condition in self.on for arm in self.arms(condition, searched=True)]

    def arms(self, condition: Condition, *, searched: bool = False) -> list[Arm]:
        """The final arms of a condition that have a result, those that were added last.

        Args:
            searched: also those whose search alone has one.
        """
        own = [arm_of(condition, contender) for contender in self.contenders]
        stages = ("final", "tuning") if searched else ("final",)
        known = [
            arm for arm in self.results.arms
            if arm.has(condition=condition.label) and arm.settings["stage"] in stages
        ]  # fmt: skip
        ended = {_contender_of(arm) for arm in known}
        names = {arm.settings["contender"] for arm in own}
        added = {
            _contender_of(arm): _final_of(arm)
            for arm in known if arm.settings["contender"] not in names
        }  # fmt: skip
        return [*(arm for arm in own if _contender_of(arm) in ended), *added.values()]

    def is_own(self, arm: Arm) -> bool:
        """False for an arm that a command added."""
        return arm.settings["contender"] in self.against

    def baseline(self, condition: Condition, arm: Arm) -> Arm | None:
        """The arm that another is compared with; of two the first."""
        name = arm.settings["contender"]
        names = self.against[name] if name in self.against else arm.settings["against"]
        known = {contender.name: contender for contender in self.contenders}
        return arm_of(condition, known[names[0]]) if names and names[0] in known else None

    def tuned(self, arm: Arm) -> Tuned:
        """The ended search of a final arm."""
        runs = self.results.arm(tuning_of(arm))
        return tuned(runs, self._search(arm).names, self.seeds)

    def in_ranges(self, arm: Arm) -> bool:
        """True if the trials of an arm are points in ranges."""
        return bool(self._search(arm).ranges)

    def _search(self, arm: Arm) -> Search:
        """The search of a final arm; of one that was added only the names are known."""
        name = arm.settings["contender"]
        if name in self.searches:
            return self.searches[name]
        return Search({key: [math.nan] for key in arm.settings["tuned"]})

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
        names, marks = self._search(arm).names, self.marks(arm, point)
        return [
            Cell(point.get(name), ".3g", unit=f"({marks[name]})" if name in marks else "")
            if name in names
            else Cell(None, missing="not tuned")
            for name in self.tuned_names
        ]

    def marks(self, arm: Arm, point: Mapping[str, Any]) -> dict[str, str]:
        """The values with no trial beyond them on one side, each with its mark."""
        search, ended = self._search(arm), self.tuned(arm)
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


def _contender_of(arm: Arm) -> tuple[str, str]:
    return arm.settings["condition"], arm.settings["contender"]


def _final_of(arm: Arm) -> Arm:
    """The final arm after a search, or the arm itself."""
    label = arm.label.removesuffix(", tuning")
    return Arm(label, arm.recipe, {**arm.settings, "stage": "final"})


def _defaults(recipe: str) -> dict[str, Any]:
    with suppress(Exception):  # a user's module may be gone, or raise anything
        return dict(load_recipe(recipe).defaults)
    return {}
