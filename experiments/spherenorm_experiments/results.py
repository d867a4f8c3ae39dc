"""Arms, trials and results: stored summaries, picked by arm and turned into numbers.

Stores read as a whole: the results of several requests as one, or all runs as a pandas frame.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from spherenorm_experiments.errors import require_extra
from spherenorm_experiments.run import Run
from spherenorm_experiments.samples import Looks, Sample
from spherenorm_experiments.spec import Spec
from spherenorm_experiments.stats import deviation, mean
from spherenorm_experiments.store import BULKY, Row, Store
from spherenorm_experiments.tables import Cell

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Arm:
    """One line of a comparison: a recipe under some settings. The seeds of a study share it.

        Arm("SGDP (wd 1e-5)", "sgdp", {"weight_decay": 1e-3})

    Attributes:
        label: its name in tables and legends.
        recipe: a recipe's name, or `module:function`.
        settings: what tells this arm from the study's others, such as a momentum, a network or the
            stage of a search; JSON numbers and strings, by name.
    """

    label: str
    recipe: str
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        return self.label

    def has(self, **settings: Any) -> bool:
        """True if the arm has all of these settings."""
        return all(
            name in self.settings and self.settings[name] == value
            for name, value in settings.items()
        )


@dataclass(frozen=True)
class Trial:
    """One run in a study."""

    arm: Arm
    spec: Spec


class Planned(NamedTuple):
    """A trial that is resolved."""

    arm: Arm
    run: Run


@dataclass(frozen=True, kw_only=True)
class Result(Row):
    """A run that has ended, finished or diverged, in its arm.

    Attributes:
        arm: the line of a comparison that it is of.
        looks: the seeds of its arm that had ended, request by request, if a store has kept these.
    """

    arm: Arm
    looks: Looks = ()

    @classmethod
    def of(cls, arm: Arm, row: Row) -> Result:
        """A stored run in its arm."""
        return cls(**{each.name: getattr(row, each.name) for each in fields(row)}, arm=arm)

    @property
    def diverged(self) -> bool:
        return self.summary["diverged_at"] is not None

    @functools.cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """The measurements at each step, of a run that trained alone."""
        return self.records()

    def curve(self, key: str) -> dict[int, float]:
        """A metric by step; empty if the run has not kept it."""
        if key in self.arrays:
            every = int(self.summary["every"] or 1)
            return {place * every: float(x) for place, x in enumerate(self.arrays[key])}
        return {each["step"]: each[key] for each in self.metrics if each.get(key) is not None}


Key = str | Callable[[Result], float | None]
"""A number of a result: an entry of its summary, or a function of it.

A function gives None where the number was not measured, and nan where the point diverged.
"""

PERFORMANCE_KEYS = ("test", "validation")
"""Entries of a summary that are scores: claims about them need more seeds.

JSON has no infinite number, so that None is an infinite score, which no mean can hold.
"""


def metric_on_test(name: str) -> Callable[[Result], float | None]:
    """A metric on the test set, as a key; nan where it is infinite, which no mean can hold."""

    def read(item: Result) -> float | None:
        metrics: dict[str, float | None] = item.summary.get("test_metrics", {})
        value = metrics.get(name)
        return math.nan if name in metrics and value is None else value  # JSON has no such number

    return read


class Results:
    """Ended trials, in the study's order.

    `failed` has arms and errors of trials that failed, `lacking` the number of runs without a
    result, by arm.
    """

    def __init__(
        self,
        items: Sequence[Result],
        failed: Sequence[str] = (),
        lacking: Mapping[Arm, int] | None = None,
    ) -> None:
        self.items, self.failed = list(items), list(failed)
        self.lacking = dict(lacking or {})
        self._by_arm: dict[Arm, list[Result]] = {}
        for item in self.items:
            self._by_arm.setdefault(item.arm, []).append(item)

    @classmethod
    def load(cls, planned: Sequence[Planned], store: Store) -> Results:
        """The results of these runs as far as they have ended."""
        rows = store.find(run.name for _, run in planned)
        known = [(arm, rows[run.name]) for arm, run in planned if run.name in rows]
        return cls([Result.of(arm, row) for arm, row in known])

    @property
    def planned(self) -> int:
        """The number of runs that were asked for."""
        return len(self) + sum(self.lacking.values())

    def __iter__(self) -> Iterator[Result]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __bool__(self) -> bool:
        return bool(self.items)

    @property
    def arms(self) -> list[Arm]:
        return list(self._by_arm)

    def arm(self, arm: Arm | str) -> Results:
        """The results of one arm, given as a record or by its label."""
        own = [each for each in self._by_arm if arm in (each, each.label)]
        return Results([item for each in own for item in self._by_arm[each]])

    def having(self, **settings: Any) -> Results:
        """The results of the arms that have these settings."""
        return self.where(lambda item: item.arm.has(**settings))

    def where(self, condition: Callable[[Result], bool]) -> Results:
        """The results for which the condition is true."""
        return Results([item for item in self.items if condition(item)])

    @property
    def finished(self) -> Results:
        """The results that did not diverge."""
        return self.where(lambda item: not item.diverged)

    @property
    def diverged(self) -> Results:
        return self.where(lambda item: item.diverged)

    def values(self, key: Key, *, performance: bool | None = None) -> Sample:
        """The number by seed, without missing entries; seeds that diverged are kept apart.

        Args:
            performance: True for a score or a time; by default if the key is one of
                `PERFORMANCE_KEYS`.
        """
        read = key if callable(key) else (lambda item: item.summary.get(key))
        score = key in PERFORMANCE_KEYS
        diverged = {item.spec.seed for item in self.diverged}
        by_seed = {}
        for item in self.finished:
            value = read(item)
            if value is None and score and key in item.summary:
                value = math.nan
            if value is not None and math.isnan(value):
                diverged.add(item.spec.seed)
            elif value is not None:
                by_seed[item.spec.seed] = float(value)
        looks = next((item.looks for item in self), ())
        performance = score if performance is None else performance
        return Sample(by_seed, frozenset(diverged), performance, looks)

    def mean(self, key: Key) -> float:
        """The mean of the number over seeds; nan if no result has it."""
        return mean(self.values(key).values())

    def cell(self, key: Key, form: str, *, spread: bool = False) -> Cell:
        """The mean of a number over seeds, for a table.

        Args:
            form: a format specification.
            spread: also the standard deviation.
        """
        values = self.values(key).values()
        deviated = deviation(values) if spread else None
        return Cell(mean(values), form, spread=deviated, n=len(values))

    def curves(self, key: str) -> tuple[np.ndarray, np.ndarray]:
        """A metric of the finished runs that have it, at the steps at which all of them have it.

        Returns:
            The steps, and the values of shape (runs, steps).
        """
        rows = [row for row in (item.curve(key) for item in self.finished) if row]
        steps = sorted(set.intersection(*map(set, rows))) if rows else []
        values = [[row[step] for step in steps] for row in rows]
        return np.array(steps, dtype=int), np.array(values, dtype=float)


def metrics_of(results: Results) -> list[str]:
    """The names of the metrics on the test set, the score first; files have them by name."""
    scores = [item.summary.get("score") for item in results.finished]
    named = [name for item in results.finished for name in item.summary.get("test_metrics", {})]
    return list(dict.fromkeys([*filter(None, scores), *named]))


RENAMED = {"validation_metrics": "validation", "test_metrics": "test"}


def load(store: Path | str = "runs") -> pd.DataFrame:
    """The runs of a store that have ended, finished or diverged: one row each.

    Columns are `run`, its name; the fields of its spec (`task`, `recipe`, `seed`, ...); its
    hyper-parameters by their names; `option.<name>` and `regime.<name>`; and its numbers, such as
    `diverged_at`, `test` and `test.<metric>`. What a run does not have is missing there.

        frame = load("runs")
        frame[frame.task == "network"].pivot_table("test", ["recipe", "lr"], "seed")

    Args:
        store: the folder that `--out` names.

    Raises:
        FileNotFoundError: there is no store.
        MissingExtraError: pandas is missing.
    """
    require_extra("pandas", "load")
    if not any((Path(store) / kind).is_dir() for kind in ("runs", "batches")):
        raise FileNotFoundError(f"no runs in {store}")
    kept = Store(store)
    return frame_of({row.name: row for row in kept.rows()}.values())  # some are there twice


def frame_of(rows: Iterable[Row]) -> pd.DataFrame:
    """The columns of `load`, of these runs."""
    pandas = require_extra("pandas", "load")
    return pandas.DataFrame([_record(row) for row in rows])


def _record(row: Row) -> dict[str, Any]:
    spec: dict[str, Any] = asdict(row.spec) | {"regime": row.spec.regime.to_json()}
    record: dict[str, Any] = {"run": row.name}
    options, regime, point = (spec.pop(part) for part in ("options", "regime", "hyper_parameters"))
    record |= spec
    record |= {name if name not in record else f"hyper.{name}": x for name, x in point.items()}
    record |= {f"option.{name}": x for name, x in options.items()}
    record |= {f"regime.{name}": x for name, x in regime.items()}
    for name, value in row.summary.items():
        if isinstance(value, dict) and name in RENAMED:
            record |= {f"{RENAMED[name]}.{metric}": x for metric, x in value.items()}
        elif name not in BULKY:
            record[name if name not in record else f"result.{name}"] = value
    return record
