"""Results: what the store holds of a study's trials, picked by arm and turned into arrays."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from experiments.spec import Spec, load_recipe
from experiments.store import RunFolder, Store
from spherenorm.registry import defaults

__all__ = ["AS", "Key", "Result", "Results", "Trial", "place", "standing_in"]


@dataclass(frozen=True)
class Trial:
    """One run in a study: the arm is the study's name for what differs, such as "SGDP, wd 1e-5"; seeds share an arm."""

    arm: str
    spec: Spec


AS = " as "
"""In an arm's name between a recipe of the user's and the arm that it stands in for."""


def place(item: Trial | Result) -> str | None:
    """The arm that this one stands in for; None for an arm of the study's own."""
    mark = item.spec.recipe + AS
    return item.arm.removeprefix(mark) if item.arm.startswith(mark) else None


def standing_in(trial: Trial, recipe: str) -> Trial:
    """The trial with another recipe in the place, and with those of the settings that it knows."""
    known = defaults(load_recipe(recipe))
    kept = {name: value for name, value in trial.spec.hyper_parameters.items() if name in known}
    return Trial(
        f"{recipe}{AS}{trial.arm}", replace(trial.spec, recipe=recipe, hyper_parameters=kept)
    )


@dataclass(frozen=True)
class Result:
    """A trial that has ended, finished or diverged."""

    arm: str
    spec: Spec
    summary: dict[str, Any]
    folder: RunFolder

    @property
    def run(self) -> str:
        """The name of its folder."""
        return self.folder.path.name

    @property
    def diverged(self) -> bool:
        return self.summary["diverged_at"] is not None

    @property
    def points_diverged(self) -> list[bool]:
        """Of a sweep, for each point whether it diverged (the sweep did if every point did); empty for another run."""
        return [step is not None for step in self.summary.get("points_diverged_at", ())]

    @functools.cached_property
    def metrics(self) -> list[dict[str, Any]]:
        return self.folder.metrics()

    @functools.cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        return self.folder.arrays()

    @property
    def status(self) -> dict[str, Any]:
        return self.folder.status()


Key = str | Callable[[Result], float | None]
"""A number of a result: an entry of its summary, or a function of it."""


class Results:
    """Ended trials, in the study's order."""

    def __init__(self, items: Sequence[Result], planned: int | None = None) -> None:
        self.items = list(items)
        self.planned = len(self.items) if planned is None else planned

    @classmethod
    def load(cls, store: Store, trials: Sequence[Trial]) -> Results:
        """What the store knows of these trials; corrupt files are set aside, their trials count as not run."""
        items = []
        for trial in trials:
            folder = store.folder(trial.spec)
            summary = folder.summary()
            if summary is not None:
                items.append(Result(trial.arm, trial.spec, summary, folder))
        return cls(items, planned=len(trials))

    @classmethod
    def gather(cls, store: Store, requests: Iterable[Sequence[tuple[str, str]]]) -> Results:
        """What the store holds of all these requests, each a list of arms and runs, as one.

        Seeds and arms add up. Where a later request has an arm with other runs than an earlier one (another learning rate was
        best, or the recipe was edited since), its own stand alone: an arm is never a mixture.
        """
        arms: dict[str, dict[str, Result | None]] = {}
        for request in requests:
            asked: dict[str, dict[str, Result | None]] = {}
            for arm, run in request:
                asked.setdefault(arm, {})[run] = _recorded(store, arm, run)
            for arm, runs in asked.items():
                known = arms.get(arm, {})
                before, now = _but_for_the_seed(known), _but_for_the_seed(runs)
                arms[arm] = {**known, **runs} if before <= now or now <= before else runs
        return cls(
            [item for runs in arms.values() for item in runs.values() if item is not None],
            sum(map(len, arms.values())),
        )

    def __iter__(self) -> Iterator[Result]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __bool__(self) -> bool:
        return bool(self.items)

    @property
    def arms(self) -> list[str]:
        return list(dict.fromkeys(item.arm for item in self.items))

    def arm(self, name: str) -> Results:
        return self.where(lambda item: item.arm == name)

    def where(self, condition: Callable[[Result], bool]) -> Results:
        return Results([item for item in self.items if condition(item)])

    @property
    def finished(self) -> Results:
        """Without the diverged."""
        return self.where(lambda item: not item.diverged)

    @property
    def diverged(self) -> Results:
        return self.where(lambda item: item.diverged)

    def values(self, key: Key) -> dict[int, float]:
        """The number by seed. Diverged runs and missing entries are left out."""
        read = key if callable(key) else (lambda item: item.summary.get(key))
        found = {item.spec.seed: read(item) for item in self.finished}
        return {seed: float(value) for seed, value in found.items() if value is not None}

    def mean(self, key: Key) -> float:
        values = list(self.values(key).values())
        return float(np.mean(values)) if values else float("nan")

    def curves(self, key: str) -> tuple[np.ndarray, np.ndarray]:
        """A metric of the finished runs that have it, at every step or at some (validation, once an epoch): the steps, and the
        values of shape (runs, steps)."""
        rows = [
            [(r["step"], r[key]) for r in item.metrics if r.get(key) is not None]
            for item in self.finished
        ]
        rows = [row for row in rows if row]
        shortest = min((len(row) for row in rows), default=0)
        steps = np.array([step for step, _ in rows[0][:shortest]] if rows else [], dtype=int)
        return steps, np.array(
            [[value for _, value in row[:shortest]] for row in rows], dtype=float
        )


def _recorded(store: Store, arm: str, run: str) -> Result | None:
    folder = store.run(run)
    summary, config = folder.summary(), folder.config()
    return (
        None
        if summary is None or config is None
        else Result(arm, Spec.from_json(config), summary, folder)
    )


def _but_for_the_seed(runs: Mapping[str, Result | None]) -> set[str]:
    """The different configurations, sources included, of an arm's results."""
    configs = [item.folder.config() or {} for item in runs.values() if item is not None]
    return {json.dumps({**config, "seed": None}, sort_keys=True) for config in configs}
