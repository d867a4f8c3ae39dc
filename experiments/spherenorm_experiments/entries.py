"""`Entry`: an optimizer on a condition as far as it has run, for tables, pictures and caveats."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from spherenorm_experiments.condition import EDGE, OUTERMOST, Condition, Contender, Search, arm_of
from spherenorm_experiments.design import Design
from spherenorm_experiments.recipes import load_recipe
from spherenorm_experiments.results import Arm, Results, metrics_of
from spherenorm_experiments.tables import Cell
from spherenorm_experiments.tuning import GRID, TUNED, Tried

K = TypeVar("K")


@dataclass(frozen=True)
class Entry:
    """An optimizer on a condition, as far as it has run.

    Attributes:
        arm: of the runs that its seeds choose.
        runs: their results.
        search: the points to try, before the grid grows.
        grid: the arm of all runs; None without any.
        tried: the points that have ended.
        base: the arm that it is compared with; of several the first.
    """

    condition: Condition
    contender: Contender
    arm: Arm
    runs: Results
    search: Search
    grid: Arm | None
    tried: Tried
    base: Arm | None

    @property
    def own(self) -> bool:
        """False for one that a command has added."""
        return not self.contender.added

    @property
    def best(self) -> Mapping[str, Any]:
        """The hyper-parameters of the runs at the point with the best mean validation score."""
        runs = self.tried.runs[self.tried.best or 0] if self.tried.runs else {}
        return next((item.spec.hyper_parameters for item in runs.values()), {})

    @functools.cached_property
    def every_value(self) -> Mapping[str, Any]:
        """The same with the defaults of the recipe; if that is not here, only what was given."""
        defaults: Mapping[str, Any] = {}
        with suppress(Exception):  # a user's module may be gone, or raise anything
            defaults = load_recipe(self.arm.recipe).defaults
        return {**defaults, **self.best}

    @property
    def marks(self) -> dict[str, str]:
        """The best values with no trial beyond them on one side, each with its mark."""
        names = self.tried.points[0] if self.tried.points else ()
        places = {name: self.search.mark(name, self.best[name], self.tried) for name in names}
        return {name: mark for name, mark in places.items() if mark}

    def cells(self, names: Sequence[str]) -> list[Cell]:
        """The hyper-parameters that some entry tunes, at the best point, with their marks."""
        marks = self.marks
        return [
            Cell(self.best.get(name), ".3g", unit=f"({marks[name]})" if name in marks else "")
            if name in self.search.names
            else Cell(None, missing="not tuned")
            for name in names
        ]

    def caveats(self, results: Results) -> list[str]:
        """The facts about the runs that a reader of a claim needs."""
        tried = self.tried
        if tried.points and tried.unscored == tried.seeds:
            return [f"no trial of {self.arm.label} has a score"]
        done, away = (0, 0) if self.grid is None else (
            len(results.arm(self.grid)), results.lacking.get(self.grid, 0)
        )  # fmt: skip
        facts = [f"{done} of {done + away} runs of {self.arm.label} have ended"] if away else []
        if left := tried.left_out:
            facts.append(f"points of {self.arm.label} that lack seeds and are left out: {left}")
        if lost := tried.unscored:
            seeds = ", ".join(map(str, lost))
            facts.append(f"{self.arm.label} has no validation score at any point on seed {seeds}")
        places = {EDGE: "at an edge of its range",
                  OUTERMOST: "the outermost of its trials, within its range"}  # fmt: skip
        return facts + [
            f"the best {name} of {self.arm.label} is {places[mark]}"
            for name, mark in self.marks.items()
        ]


def entry_of(design: Design, results: Results, condition: Condition, contender: Contender) -> Entry:
    """A contender on a condition."""
    arm, search = arm_of(condition, contender), design.search(contender)
    own = {"condition": condition.label, "contender": contender.name}
    grid = next((each for each in results.arms if each.has(stage=GRID, **own)), None)
    tried = Tried([], []) if grid is None else Tried.of(results, grid)
    known, names = {each.name: each for each in design.contenders}, design.against(contender)
    base = arm_of(condition, known[names[0]]) if names else None
    return Entry(condition, contender, arm, results.arm(arm), search, grid, tried, base)


def entries_of(design: Design, results: Results) -> list[Entry]:
    """The contenders with a run, by condition; added ones come last."""
    added = {
        arm.settings["contender"]: Contender(
            arm.settings["contender"],
            Search(**arm.settings["search"]),
            against=arm.settings["against"],
            recipe=arm.recipe,
            added=True,
        )
        for arm in results.arms
        if arm.settings.get("stage") == GRID and "against" in arm.settings
    }
    contenders = {**{each.name: each for each in design.contenders}, **added}
    entries = (
        entry_of(design, results, condition, contender)
        for condition in design.on
        for contender in contenders.values()
    )
    return [entry for entry in entries if entry.grid is not None]


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
    named = metrics_of(results.having(condition=condition.label, stage=TUNED))
    return list(dict.fromkeys([*(name for name in condition.paper if name in named), *named]))


def metric_of(results: Results, condition: Condition) -> str:
    """The quantity of the score, as the runs have noted it: the task may not be here."""
    runs = results.having(condition=condition.label)
    return next(filter(None, (item.summary.get("metric") for item in runs)), "score")
