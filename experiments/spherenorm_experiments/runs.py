"""`Runs`: the runs of a study that have ended, as a pandas frame whose views are frames by seed.

    runs.selected("digits", "SGDP").test - runs.selected("digits", "SGD").test

is a Series: for each seed a difference of test scores, each at the learning rate that the seed's
own validation set chooses. A score that diverged is minus infinity, a norm infinity, so that a
difference has a sign where it has no size; nan is no pair.

Every point of a search trains on every seed, and each run is scored on validation and on test. A
seed is one repetition of the whole procedure, search included; scores of seeds are independent, and
Student's interval holds the choice. Where seeds share a choice, it does not: of studies without a
difference two halves that choose for each other find up to 9 %, leave-one-out up to 16 %
(`python -m tests.experiments.study.null_searches`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd

from spherenorm_experiments.lookup import find_task_class
from spherenorm_experiments.run import Run
from spherenorm_experiments.spec import Spec, is_number
from spherenorm_experiments.store import BULKY, Row, Store
from spherenorm_experiments.task import Better

SCORES = ("test", "validation")

WORST = {
    **dict.fromkeys(SCORES, -math.inf),
    **dict.fromkeys(("norm_last", "growth", "max_norm"), math.inf),
    **dict.fromkeys(("final_gap", "last_norm", "growth_over_moves"), math.inf),
    **dict.fromkeys(("path", "total_effective_step"), 0.0),
}
"""Numbers of a run that diverged, and of one whose score is infinite; nan for others.

A score of which less is better is plus infinity there.
"""

NUMBERS = ("norm_start", "norm_first_epoch", *WORST)
"""Names that are no hyper-parameter's in a frame, whether or not a run has the number."""

COLUMNS = ("condition", "arm", "seed", "lr", "hyper.lr", "point", "better", "goodness", *NUMBERS)
"""Columns that a frame always has; nan where a run lacks the number.

`goodness` is what runs are chosen by: the validation score, negated where less is better, so that
more is better in any task and a run that diverged has minus infinity.
"""

T = TypeVar("T")

Key = str | Callable[["Result"], float | None]
"""A column of the frame, or a function of a run; None where it was not measured."""


class Place(NamedTuple):
    """An arm on a condition: one line of a comparison. The seeds of a study share it."""

    condition: str
    arm: str

    def __str__(self) -> str:
        return ": ".join(filter(None, self))


@dataclass(frozen=True)
class Trial:
    """A run that a study asks for."""

    place: Place
    spec: Spec


class ResolvedTrial(NamedTuple):
    """A trial that is resolved."""

    place: Place
    run: Run


@dataclass(frozen=True, kw_only=True)
class Result(Row):
    """A run that has ended, finished or diverged, at its place.

    Attributes:
        recorded_numbers: the value of each `RecordedNumber` that has been asked for, by its name.
    """

    place: Place
    recorded_numbers: dict[str, Any] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, place: Place, row: Row) -> Result:
        """Return a stored run at its place."""
        return cls(
            **{row_field.name: getattr(row, row_field.name) for row_field in fields(row)},
            place=place,
        )

    @property
    def diverged(self) -> bool:
        return self.summary["diverged_at"] is not None

    @property
    def better(self) -> Better:
        """The direction in which its score is better.

        The task says it; if that is not here, or says nothing, the run has noted it.
        """
        return _declared_better(self.spec.task) or self.summary.get("better", "higher")

    @functools.cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """The measurements at each step, of a run that trained alone."""
        return self.records()

    def curve(self, key: str) -> dict[int, float]:
        """Return a metric by step; empty if the run has not kept it."""
        if key in self.arrays:
            interval = int(self.summary["every"] or 1)
            return {place * interval: float(x) for place, x in enumerate(self.arrays[key])}
        return {
            record["step"]: record[key] for record in self.metrics if record.get(key) is not None
        }


@dataclass(frozen=True)
class RecordedNumber:
    """A number of a run that its summary does not have, such as one of its records; a `Key`.

    Each run keeps the value under the name of the number. So a file of rows, which has neither
    records nor arrays, has the value.

        last_loss = RecordedNumber("last loss", lambda run: run.metrics[-1]["loss"])

    Attributes:
        name: one name for one number; it contains the arguments, if there are any.
        compute: a function of a run; None where it was not measured. It may return a list.
    """

    name: str
    compute: Callable[[Result], Any]

    def __call__(self, run: Result) -> Any:
        if self.name not in run.recorded_numbers:
            run.recorded_numbers[self.name] = self.compute(run)
        return run.recorded_numbers[self.name]


class Runs:
    """The runs of a study that have ended, in its order.

    Args:
        failed: places and errors of runs that failed.
        missing_counts: the number of runs without a result, by place.
        seed_counts: how many seeds there were after each request, if a store has kept these.
    """

    def __init__(
        self,
        items: Iterable[Result] = (),
        failed: Sequence[str] = (),
        missing_counts: Mapping[Place, int] | None = None,
        seed_counts: Sequence[int] = (),
    ) -> None:
        self.items, self.failed = list(items), list(failed)
        self.missing_counts, self.seed_counts = dict(missing_counts or {}), tuple(seed_counts)
        self._made: dict[Any, Any] = {}

    @classmethod
    def load(cls, planned: Sequence[ResolvedTrial], store: Store) -> Runs:
        """Return the results of these runs as far as they have ended."""
        rows = store.find(run.name for _, run in planned)
        return cls(Result.of(place, rows[run.name]) for place, run in planned if run.name in rows)

    @property
    def planned(self) -> int:
        """The number of runs that were asked for."""
        return len(self) + sum(self.missing_counts.values())

    def __iter__(self) -> Iterator[Result]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    @property
    def places(self) -> list[Place]:
        return list(dict.fromkeys(item.place for item in self.items))

    def where(self, condition: Callable[[Result], bool]) -> Runs:
        """Return the runs for which the condition is true."""
        return Runs(
            [item for item in self.items if condition(item)],
            (),
            self.missing_counts,
            self.seed_counts,
        )

    def on(self, condition: str) -> Runs:
        """Return the runs on a condition."""
        return self.where(lambda item: item.place.condition == condition)

    @functools.cached_property
    def frame(self) -> pd.DataFrame:
        """A row for each run: condition, arm, seed, hyper-parameters, numbers, and `run` itself.

        The column of a hyper-parameter is `hyper.lr`, and `lr` too if no number is called so.
        """
        frame = pd.DataFrame([_record(item) for item in self.items])
        if frame.empty:
            numbers = dict.fromkeys((*WORST, "goodness"), float)
            return pd.DataFrame(columns=["run", *COLUMNS]).astype(numbers)
        frame = frame.reindex(columns=[*frame.columns, *(c for c in COLUMNS if c not in frame)])
        diverged = frame.pop("lost")
        for name in frame.columns:
            if (worst := _worst(name)) is not None:
                frame[name] = frame[name].astype(float).mask(diverged, worst)
        ratio = frame.norm_last / frame.norm_start.where(frame.norm_start != 0)
        frame["growth"] = ratio.mask(diverged, math.inf)
        falling = frame.better == "lower"
        _flip_worst_score(frame, falling)
        frame["goodness"] = frame.validation.mask(falling, -frame.validation)
        return frame.copy()  # whose columns lie together: views of it are made often

    @functools.cached_property
    def _arms(self) -> dict[Any, pd.DataFrame]:
        """The runs of each arm on each condition, by point."""
        ordered = self.frame.sort_values("point", kind="stable")
        return dict(iter(ordered.groupby(["condition", "arm"], sort=False)))

    def all_runs(self, condition: str, arm: str) -> pd.DataFrame:
        """Return all runs of an arm, by point."""
        return self._arms.get((condition, arm), self.frame[:0])

    def complete_grid(self, condition: str, arm: str) -> pd.DataFrame:
        """Return the runs at as many points as have ended on the same seeds.

        So a few runs of more seeds, or of one more point, do not narrow the search to their points,
        or the comparison to their seeds.
        """
        return self.cached(
            ("of", condition, arm), lambda: _largest_complete_grid(self.all_runs(condition, arm))
        )

    def selected(self, condition: str, arm: str, rate_chosen_by: str = "") -> pd.DataFrame:
        """Select each seed's run by its validation score; see `select_by_validation`.

        Args:
            rate_chosen_by: another arm, whose choice of the learning rate counts.
        """
        arm_runs = self.complete_grid(condition, arm)
        if not rate_chosen_by:
            return self.cached(("best", condition, arm), lambda: select_by_validation(arm_runs))
        reference = self.selected(condition, rate_chosen_by)
        return self.cached(
            ("best", condition, arm, rate_chosen_by), lambda: _chosen_by(reference, arm_runs)
        )

    def at_point(self, condition: str, arm: str, **point: float) -> pd.DataFrame:
        """Select each seed's run at a point."""
        arm_runs = self.complete_grid(condition, arm)
        for name, value in point.items():
            arm_runs = arm_runs[
                np.isclose(arm_runs[hyper(name)].astype(float), value, rtol=1e-6, atol=1e-15)
            ]
        return arm_runs.set_index("seed")

    def median_over_common_rates(
        self,
        condition: str,
        *pairs: tuple[str, str],
        number: Callable[[pd.DataFrame, pd.DataFrame], Any],
    ) -> pd.Series:
        """Return each seed's median of a number of two arms over their common learning rates.

        Rates at which the second diverged count for nothing; one at which only the first did has
        the sign alone.

        Args:
            *pairs: of arms; the median is over all of them.
        """
        parts = []
        for pair in pairs:
            arm_runs, other_runs = (
                self.complete_grid(condition, arm).set_index(["lr", "seed"]) for arm in pair
            )
            arm_runs, other_runs = arm_runs.align(other_runs, join="inner", axis=0)
            finite = np.isfinite(other_runs.norm_last.astype(float))
            value = pd.Series(number(arm_runs[finite], other_runs[finite]), dtype=float)
            diverged = np.isinf(arm_runs[finite].norm_last.astype(float))
            parts.append(pd.DataFrame({"value": value, "lost": diverged}))
        values = pd.concat(parts)
        diverged_values = values[values.lost].groupby("seed").value.first()
        return diverged_values.combine_first(values[~values.lost].groupby("seed").value.median())

    def cached(self, key: Any, make: Callable[[], T]) -> T:
        """Return the value of `make`, which is called once for each key."""
        if key not in self._made:
            self._made[key] = make()
        value: T = self._made[key]
        return value


def curves_of(items: Iterable[Result], key: str) -> tuple[np.ndarray, np.ndarray]:
    """Return a metric of the finished runs that have it, at the steps at which all of them have it.

    Returns:
        The steps, and the values of shape (runs, steps).
    """
    rows = [row for row in (item.curve(key) for item in items if not item.diverged) if row]
    steps = sorted(set.intersection(*map(set, rows))) if rows else []
    values = [[row[step] for step in steps] for row in rows]
    return np.array(steps, dtype=int), np.array(values, dtype=float)


def select_by_validation(frame: pd.DataFrame) -> pd.DataFrame:
    """Select each seed's run with the best validation score: that of most `goodness`.

    Of several, the seed chooses: with the first, an arm's points would decide which end of a
    plateau it takes, over all seeds alike. Seed s takes the run s mod n of n, in any arm.
    """
    scored = frame[frame.goodness.notna()].sort_values("seed", kind="stable")
    by_seed = scored.groupby("seed")
    top = scored[scored.goodness == by_seed.goodness.transform("max")]
    tied = top.groupby("seed")
    selected = tied.cumcount() == top.seed % tied.seed.transform("size")
    return top[selected.to_numpy(dtype=bool)].set_index("seed")


def _chosen_by(reference: pd.DataFrame, arm_runs: pd.DataFrame) -> pd.DataFrame:
    """Select each seed's run at the rate that it chooses in another arm."""
    chosen = arm_runs[arm_runs.lr == arm_runs.seed.map(reference.lr)].set_index("seed")
    unscored = chosen.index.isin(reference.index[reference.goodness == -math.inf])
    for name, worst in WORST.items():  # a seed without a choice has no number there
        chosen[name] = chosen[name].mask(unscored, worst)
    _flip_worst_score(chosen, unscored & (chosen.better == "lower"))
    chosen["goodness"] = chosen.goodness.mask(unscored, -math.inf)
    return chosen


def _flip_worst_score(frame: pd.DataFrame, falling: pd.Series) -> None:
    """Make the worst score plus infinity in the rows whose score falls as a model improves."""
    if not falling.any():
        return
    metrics = [f"test.{item.summary.get('score')}" for item in frame.run]
    for name in dict.fromkeys((*SCORES, *metrics)):
        if name in frame:
            is_score = (
                True if name in SCORES else np.array([score_name == name for score_name in metrics])
            )
            is_worst = falling & is_score & (frame[name] == -math.inf)
            frame[name] = frame[name].mask(is_worst, math.inf)


def number(frame: pd.DataFrame, key: Key, worst: float = math.nan) -> pd.Series:
    """Return a number of each run of a frame.

    Args:
        worst: of a run that diverged, where the key is a function.
    """
    if callable(key):
        values = [worst if item.diverged else key(item) for item in frame.run]
        return pd.Series(values, index=frame.index, dtype=float)
    return frame[key] if key in frame else pd.Series(math.nan, index=frame.index, dtype=float)


def mean_over(parts: Iterable[pd.Series]) -> pd.Series:
    """The mean of several Series, for each seed that all of them have; empty ones do not count."""
    measured = [part for part in parts if part.notna().any()]
    return (
        pd.concat(measured, axis=1).mean(axis=1, skipna=False)
        if measured
        else pd.Series(dtype=float)
    )


def align_seeds(parts: Iterable[pd.Series]) -> pd.DataFrame:
    """Return several Series beside each other, for each seed that all of them have."""
    columns = list(parts)
    return pd.concat(columns, axis=1, join="inner").dropna() if columns else pd.DataFrame()


def hyper(name: str) -> str:
    """Return the column of a hyper-parameter, which no number of a run has."""
    return f"hyper.{name}"


@functools.cache
def _declared_better(task: str) -> Better | None:
    """Return the direction that a task's class says; None if it is not here or says nothing."""
    with suppress(Exception, SystemExit):  # importing a user's module may raise anything
        return find_task_class(task).better
    return None


def _worst(name: str) -> float | None:
    """Return the number of a run that diverged, in a column that has one."""
    return WORST.get(name, -math.inf if name.startswith("test.") else None)


def _record(item: Result) -> dict[str, Any]:
    """Return a row of the frame; None stands for an infinite number, which JSON does not have."""
    hyper_parameters, summary = item.spec.hyper_parameters, item.summary
    numbers = {name: x for name, x in summary.items() if is_number(x) or x is None}
    if "total_effective_step" in numbers:  # what sweeps call a path
        numbers["path"] = numbers["total_effective_step"]
    numbers |= {f"test.{name}": x for name, x in (summary.get("test_metrics") or {}).items()}
    for name, value in numbers.items():
        if value is None or math.isnan(value):
            numbers[name] = _worst(name)
    point = {name: float(x) for name, x in hyper_parameters.items() if is_number(x)}
    named = {name: x for name, x in point.items() if name not in NUMBERS}
    named |= {hyper(name): x for name, x in point.items()}
    place = {"condition": item.place.condition, "arm": item.place.arm, "seed": item.spec.seed}
    diverged = item.diverged or not math.isfinite(numbers.get("validation", 0.0))
    more = {"point": tuple(point.items()), "run": item, "lost": diverged, "better": item.better}
    return {**named, **numbers, **place, **more}


def _largest_complete_grid(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the points and seeds of the largest rectangle without a gap."""
    seeds = {
        point: {*point_seeds} for point, point_seeds in frame.groupby("point", sort=False).seed
    }

    def size(chosen: set[int]) -> tuple[int, int]:
        points = sum(chosen <= point_seeds for point_seeds in seeds.values())
        return points * len(chosen), points

    chosen = max(seeds.values(), key=size, default=set())
    points = [point for point, point_seeds in seeds.items() if chosen <= point_seeds]
    return frame[frame.point.isin(points) & frame.seed.isin(chosen)]


def load(store: Path | str = "runs") -> pd.DataFrame:
    """Return the runs of a store that have ended, finished or diverged: one row each.

    Columns are `run`, its name; the fields of its spec (`task`, `recipe`, `seed`, ...); its
    hyper-parameters by their names; `option.<name>` and `regime.<name>`; and its numbers, such as
    `diverged_at`, `test` and `test.<metric>`. What a run does not have is missing there.

        frame = load("runs")
        frame[frame.task == "network"].pivot_table("test", ["recipe", "lr"], "seed")

    Args:
        store: the folder that `--out` names.

    Raises:
        FileNotFoundError: there is no store.
    """
    if not any((Path(store) / kind).is_dir() for kind in ("runs", "batches")):
        raise FileNotFoundError(f"no runs in {store}")
    rows = {row.name: _flat(row) for row in Store(store).rows()}  # some are there twice
    return pd.DataFrame([*rows.values()])


def _flat(row: Row) -> dict[str, Any]:
    spec: dict[str, Any] = asdict(row.spec) | {"regime": row.spec.regime.to_json()}
    options, regime, point = (spec.pop(part) for part in ("options", "regime", "hyper_parameters"))
    record: dict[str, Any] = {"run": row.name, **spec}
    record |= {name if name not in record else f"hyper.{name}": x for name, x in point.items()}
    record |= {f"option.{name}": x for name, x in options.items()}
    record |= {f"regime.{name}": x for name, x in regime.items()}
    for name, value in row.summary.items():
        if name in ("validation_metrics", "test_metrics") and isinstance(value, dict):
            split = name.removesuffix("_metrics")
            record |= {f"{split}.{metric}": x for metric, x in value.items()}
        elif name not in BULKY:
            record[name if name not in record else f"result.{name}"] = value
    return record
