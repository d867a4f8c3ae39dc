"""`Entry`: an optimizer on a condition as far as it has run, for tables, pictures and caveats."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from spherenorm_experiments.analysis import Arm, Cell, Point, Results, Tuned, metrics_of, tuned
from spherenorm_experiments.core import load_recipe
from spherenorm_experiments.study._condition import (
    EDGE,
    OUTERMOST,
    Condition,
    Contender,
    Search,
    arm_of,
    tuning_of,
)
from spherenorm_experiments.study._design import Design

K = TypeVar("K")


@dataclass(frozen=True)
class Entry:
    """An optimizer on a condition, with what has ended of its search and of its final runs.

    Attributes:
        arm: of the final runs.
        runs: their results.
        search: the points to try.
        tuned: those of them that have ended.
        base: the arm that it is compared with; of several the first.
    """

    condition: Condition
    contender: Contender
    arm: Arm
    runs: Results
    search: Search
    tuned: Tuned
    base: Arm | None

    @property
    def own(self) -> bool:
        """False for one that a command has added."""
        return not self.contender.added

    @property
    def best(self) -> Point:
        """The best point of the search, as far as it is in the store."""
        return {} if self.tuned.best is None else self.tuned.points[self.tuned.best]

    @property
    def taken(self) -> Mapping[str, Any]:
        """The hyper-parameters of the final runs, as these have them: the search may be lost."""
        return next((item.spec.hyper_parameters for item in self.runs), self.best)

    @functools.cached_property
    def every_value(self) -> Mapping[str, Any]:
        """The same with the defaults of the recipe; if that is not here, only what was given."""
        defaults: Mapping[str, Any] = {}
        with suppress(Exception):  # a user's module may be gone, or raise anything
            defaults = load_recipe(self.arm.recipe).defaults
        return {**defaults, **self.taken}

    def marks(self, point: Mapping[str, Any]) -> dict[str, str]:
        """The values of a point with no trial beyond them on one side, each with its mark."""
        names = [name for name in self.search.names if name in point]
        places = {name: self.search.mark(name, point[name], self.tuned) for name in names}
        return {name: mark for name, mark in places.items() if mark}

    def cells(self, names: Sequence[str], point: Mapping[str, Any]) -> list[Cell]:
        """The hyper-parameters that some entry tunes, at a point of this one, with their marks."""
        marks = self.marks(point)
        return [
            Cell(point.get(name), ".3g", unit=f"({marks[name]})" if name in marks else "")
            if name in self.search.names
            else Cell(None, missing="not tuned")
            for name in names
        ]

    def caveats(self, results: Results) -> list[str]:
        """The facts about the search and the final runs that a reader of a claim needs."""
        if self.tuned.points and self.tuned.best is None:
            return [f"no trial of {self.arm.label} has a score"]
        tuning, ended = tuning_of(self.arm), len(self.runs)
        done, lost = len(results.arm(tuning)), results.lacking.get(tuning, 0)
        away = results.lacking.get(self.arm, 0)
        facts = []
        if ended and lost:
            lack = f"{done} of {done + lost} runs have ended"
            facts.append(f"the tuning of {self.arm.label} is incomplete: {lack}")
        if away:
            facts.append(f"{ended} of {ended + away} runs of {self.arm.label} have ended")
        places = {EDGE: "at an edge of its range",
                  OUTERMOST: "the outermost of its trials, within its range"}  # fmt: skip
        return facts + [
            f"the best {name} of {self.arm.label} is {places[mark]}"
            for name, mark in self.marks(self.taken).items()
        ]


def entry_of(design: Design, results: Results, condition: Condition, contender: Contender) -> Entry:
    """A contender on a condition."""
    arm, search = arm_of(condition, contender), design.search(contender)
    ended = tuned(results.arm(tuning_of(arm)), search.names, design.search_seeds)
    known, names = {each.name: each for each in design.contenders}, design.against(contender)
    base = arm_of(condition, known[names[0]]) if names else None
    return Entry(condition, contender, arm, results.arm(arm), search, ended, base)


def entries_of(design: Design, results: Results) -> list[Entry]:
    """The contenders with a run, in the search or after it, by condition; added ones come last."""
    added = {
        arm.settings["contender"]: Contender(
            arm.settings["contender"],
            {name: [math.nan] for name in arm.settings["tuned"]},  # values are not known here
            against=arm.settings["against"],
            recipe=arm.recipe,
            added=True,
        )
        for arm in results.arms
        if "against" in arm.settings
    }
    contenders = {**{each.name: each for each in design.contenders}, **added}
    ended = set(results.arms)
    return [
        entry_of(design, results, condition, contender)
        for condition in design.on
        for contender in contenders.values()
        if (arm := arm_of(condition, contender)) in ended or tuning_of(arm) in ended
    ]


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


def metrics_on(results: Results, condition: Condition) -> list[str]:
    """The metrics of a condition; those that the paper has come first, and then the score."""
    named = metrics_of(results.having(condition=condition.label, stage="final"))
    return list(dict.fromkeys([*(name for name in condition.paper if name in named), *named]))


def metric_of(results: Results, condition: Condition) -> str:
    """The quantity of the score, as the runs have noted it: the task may not be here."""
    runs = results.having(condition=condition.label)
    return next(filter(None, (item.summary.get("metric") for item in runs)), "score")
