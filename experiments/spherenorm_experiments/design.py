"""The parts of a comparison: its arms, the conditions that it has them on, and their searches."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from spherenorm_experiments.runs import RecordedNumber, Result, hyper
from spherenorm_experiments.tables import Cell, subtract_printed
from spherenorm_experiments.task import falls
from spherenorm_experiments.verdict import BEYOND_PAPER, Statement

GROWTH = 3
"""The number of times that a grid may grow; a best that is at an edge then is marked."""

Point = Mapping[str, float]

Axis = tuple[str, tuple[float, ...]]
"""A hyper-parameter with the values that are tried first; arms of a family share it."""


@dataclass(frozen=True)
class Search:
    """The points that an arm tries.

        Search({"lr": [0.01, 0.1, 1.0]})  # these values, and more where the best is at an end
        Search({"lr": (1e-4, 1.0)}, trials=16)  # logarithmic ranges

    Attributes:
        over: of each tuned hyper-parameter its values; with `trials` the bounds of its range.
        trials: the number of points in the ranges, at equal ratios for one hyper-parameter, else by
            Halton's sequence, which fills them evenly at any length; None for every combination of
            the values.

    Raises:
        ValueError: no hyper-parameter, one without values, or a range that is not positive and
            rising.
    """

    over: Mapping[str, Sequence[float]] = field(hash=False)
    trials: int | None = None

    def __post_init__(self) -> None:
        if not self.over or not all(len(values) for values in self.over.values()):
            raise ValueError(f"tune needs hyper-parameters with values, got {dict(self.over)!r}")
        for name, (low, high) in self.over.items() if self.trials is not None else ():
            if not 0 < low < high < math.inf:
                lack = "must be positive and rising"
                raise ValueError(f"the range of {name} {lack}, got {low:g} to {high:g}")

    @property
    def names(self) -> list[str]:
        """The tuned hyper-parameters."""
        return list(self.over)

    @property
    def axes(self) -> list[Axis]:
        """The lists of two or more values, which may grow."""
        listed = {} if self.trials is not None else self.over
        return [(name, tuple(values)) for name, values in listed.items() if len(values) > 1]

    def on(self, axes: Mapping[Axis, tuple[float, ...]]) -> Search:
        """Return the search with its axes as they have grown."""
        more = {axis[0]: axes.get(axis, axis[1]) for axis in self.axes}
        return replace(self, over={**self.over, **more})

    @property
    def points(self) -> list[Point]:
        """The points, the same each time; those in ranges to six digits."""
        if self.trials is None:
            combinations = itertools.product(*self.over.values())
            return [dict(zip(self.over, row, strict=True)) for row in combinations]
        ends = np.log([*self.over.values()])
        unit = np.linspace(0, 1, self.trials)[:, None]
        if len(self.over) > 1 or self.trials == 1:
            unit = _halton(len(self.over), self.trials)
        rows = np.exp((1 - unit) * ends[:, 0] + unit * ends[:, 1])
        return [
            {name: float(f"{value:.6g}") for name, value in zip(self.over, row, strict=True)}
            for row in rows
        ]


def _halton(dimensions: int, count: int) -> np.ndarray:
    """So many points of Halton's sequence in the unit cube."""
    from scipy.stats import qmc  # half a second to import, which workers do without

    # Unscrambled, its first point is the corner 0; the second one on fills the middle first.
    return np.asarray(qmc.Halton(dimensions, scramble=False).random(count + 1)[1:])


def extend_grid(
    searches: Mapping[str, Search], frames: Mapping[str, pd.DataFrame], seeds: Sequence[int]
) -> dict[Axis, tuple[float, ...]]:
    """Return the values of each axis, longer where some arm's best mean score is at an end.

    An axis grows for all arms that share it, when all points have ended on all seeds.

    Args:
        searches: of each arm.
        frames: its runs.
    """
    axes = {axis: axis[1] for search in searches.values() for axis in search.axes}
    frames_of_seeds = {name: frame[frame.seed.isin(list(seeds))] for name, frame in frames.items()}
    for _ in range(GROWTH):
        low: set[Axis] = set()
        high: set[Axis] = set()
        for name, search in searches.items():
            best = _best_point(frames_of_seeds[name], search.on(axes).points, len(seeds))
            if best is None:
                return axes
            for axis in search.axes if best else ():
                low |= {axis} if best[axis[0]] == min(axes[axis]) else set()
                high |= {axis} if best[axis[0]] == max(axes[axis]) else set()
        axes = {axis: _longer(x, low=axis in low, high=axis in high) for axis, x in axes.items()}
    return axes


def _best_point(frame: pd.DataFrame, points: Sequence[Point], seeds: int) -> Point | None:
    """The point with the best mean score, none if all were lost; None if some run is missing."""
    if frame.empty:
        return None
    names = list(points[0])
    places = [tuple(point.values()) if names[1:] else point[names[0]] for point in points]
    scores = frame.groupby([*map(hyper, names)]).goodness.agg(["mean", "count"]).reindex(places)
    if not (scores["count"] >= seeds).all():
        return None
    best = int(scores["mean"].argmax())
    return points[best] if math.isfinite(scores["mean"].iloc[best]) else {}


def _longer(values: tuple[float, ...], *, low: bool, high: bool) -> tuple[float, ...]:
    """The values and one more at an end, by the ratio of the last two there, to three digits.

    An end with a 0 beside it, or that is one, has no ratio and does not grow.
    """
    first, second, before, last = *sorted(values)[:2], *sorted(values)[-2:]
    below = (float(f"{first * first / second:.3g}"),) if low and first and second else ()
    above = (float(f"{last * last / before:.3g}"),) if high and before and last else ()
    return (*below, *values, *above)


@dataclass(frozen=True)
class Target:
    """A value of a metric that a run has to reach, fixed before the runs.

    Attributes:
        metric: a metric of the task's `evaluate` on the validation set, at the end of each epoch;
            "validation" for the score; "loss", unless a metric has that name, for the mean training
            loss of an epoch.
        value: the metric of a run that has reached it, or a better one.
    """

    metric: str
    value: float

    def __str__(self) -> str:
        return f"{self.metric} {self.value:g}"

    def steps(self, run: Result) -> float:
        """Return the steps after which a run has reached the target; infinity if it never did."""
        step: int | None = RecordedNumber(f"steps to {self!r}", self._first_step)(run)
        return math.inf if step is None else step

    def seconds(self, run: Result) -> float:
        """Return the part of a run's time that its steps to the target took."""
        seconds: float = run.about.get("seconds", math.nan)
        n_steps: int = run.summary["steps"]
        return self.steps(run) * seconds / max(1, n_steps)

    def is_lower_better(self, run: Result) -> bool:
        """Return True if the metric falls as a model improves."""
        if self.metric in ("validation", run.summary.get("score")):
            return run.better == "lower"
        return falls(self.metric)

    def _first_step(self, run: Result) -> int | None:
        """Return the first end of an epoch at which a run has the target; None if there is none."""
        sign = -1 if self.is_lower_better(run) else 1
        for step, value in self._curve(run):
            if sign * value >= sign * self.value:
                return step
        return None

    def _curve(self, run: Result) -> list[tuple[int, float]]:
        """Return the step and the metric at the end of each epoch."""
        per_epoch: int = run.summary["steps_per_epoch"]
        ends = [record for record in run.metrics if record["step"] % per_epoch == 0]
        score = run.summary.get("score")
        if not ends:
            return []
        if self.metric in ("validation", score):
            return [(record["step"], record["validation"]) for record in ends]
        key = f"validation/{self.metric}"
        if any(key in record for record in ends):
            return [(record["step"], record[key]) for record in ends]
        if self.metric != "loss":
            others = [name.removeprefix("validation/") for name in ends[-1] if "/" in name]
            names = ", ".join(filter(None, (score, *others)))
            raise ValueError(
                f"--target {self.metric!r}: the metrics of a run are {names}, and loss"
            )
        losses = [record["loss"] for record in run.metrics]
        return [(end, float(np.mean(losses[end - per_epoch : end]))) for end in
                range(per_epoch, len(losses) + 1, per_epoch)]  # fmt: skip


def runs_to_target(runs: pd.DataFrame, target: Target) -> pd.DataFrame:
    """Return each seed's fewest steps to a target over the points of a search, and their seconds.

    Where no point of a seed has reached it, both are infinity: the runs are censored at their end.

    Args:
        runs: all points on all seeds, as of `Runs.complete_grid`.
    """
    numbers = pd.DataFrame({
        "seed": runs.seed,
        "steps": [target.steps(run) for run in runs.run],
        "seconds": [target.seconds(run) for run in runs.run],
    })  # fmt: skip
    return numbers.sort_values(["steps", "seconds"]).groupby("seed").first()


@dataclass(frozen=True)
class Arm:
    """An optimizer of a comparison.

    Attributes:
        name: its name in tables.
        tune: its own search; None for that of the comparison. A mapping lists the values of each
            hyper-parameter.
        fixed: its hyper-parameters that are not tuned.
        against: the names of the arms that it is compared with; None for the first.
        paper: its hyper-parameters on the paper's data, the learning rate included.
        fields: fields of `Spec` that are its own, such as a schedule, in place of the condition's.
        paper_fields: more of them, on the paper's data.
        length: the share of the epochs, or of a pure task's steps, that it trains.
        regime: train options that are its own, a function of its hyper-parameters, such as the
            optimizers that follow it.
        recipe: a recipe's name or `module:function`; the name in lower case if it is empty.
    """

    name: str
    tune: Search | Mapping[str, Sequence[float]] | None = field(default=None, hash=False)
    fixed: Mapping[str, Any] = field(default_factory=dict, hash=False)
    against: Sequence[str] | None = field(default=None, hash=False)
    paper: Mapping[str, Any] = field(default_factory=dict, hash=False)
    fields: Mapping[str, Any] = field(default_factory=dict, hash=False)
    paper_fields: Mapping[str, Any] = field(default_factory=dict, hash=False)
    length: float = 1.0
    regime: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda _: {}
    recipe: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "recipe", self.recipe or self.name.lower())


@dataclass(frozen=True)
class Setup:
    """The training of a condition: the task's options and those of the run.

    Attributes:
        options: of the task.
        regime: train options, see `Regime`.
        hyper_parameters: those that every arm takes here, in place of its own.
        fields: fields of `Spec`, such as epochs, batch_size and schedule; the task's budget for
            the tier where they are not given.
        task: in place of the condition's; "" for that.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    regime: Mapping[str, Any] = field(default_factory=dict)
    hyper_parameters: Mapping[str, Any] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)
    task: str = ""

    def updated(self, other: Setup) -> Setup:
        """This setup with the entries of another in place of its own."""
        names = ("options", "regime", "hyper_parameters", "fields")
        merged = {name: {**getattr(self, name), **getattr(other, name)} for name in names}
        return Setup(**merged, task=other.task or self.task)


@dataclass(frozen=True)
class Condition:
    """A task with its options: a part of a table in which optimizers are compared.

        Condition("residual", "digits", {"variant": "residual"})

    Attributes:
        label: its short name in our tables; "" for the only one.
        task: a task's name, or `module:Class`.
        setup: the training on embedded data; a mapping is the task's options.
        real: the training on the paper's data; None if there is none.
        tiers: what differs from `setup` in a tier; None for a tier without this condition, as where
            its runs could not find the paper's effect. (That of evidence is the small one's.)
        arms: the names of those that it has; all of the comparison's if empty.
        paper_setup: the paper's network and data.
        benchmark: the one of the paper's thirteen that it belongs to; "" for none.
        paper: the paper's numbers, by metric as `evaluate` names it or by the heading of a
            measure, and by arm. The first metric is the score.
        figures: the paper's figures, by the curves that they show: norm, effective_step, loss or
            validation.
        cites: the statement about the scores; a comparison of your own is of the kind "ours".
        unit: of a difference of scores; None for percentage points if the metric is in percent.
        margin: two mean scores that differ by less are equivalent; None for one point if the unit
            is that, else for no such verdict.
        spread: the standard deviation over seeds of a difference of scores, as earlier runs have
            it; with the number of seeds it says beforehand if the paper's effect can be found.
    """

    label: str
    task: str
    setup: Setup | Mapping[str, Any] = field(default_factory=Setup, hash=False)
    real: Setup | None = field(default=None, hash=False)
    tiers: Mapping[str, Setup | None] = field(default_factory=dict, hash=False)
    arms: Sequence[str] = ()
    paper_setup: str = ""
    benchmark: str = ""
    paper: Mapping[str, Mapping[str, Cell]] = field(default_factory=dict, hash=False)
    figures: Mapping[str, str] = field(default_factory=dict, hash=False)
    cites: Statement = BEYOND_PAPER
    unit: str | None = None
    margin: float | None = None
    spread: float = math.nan

    def has(self, arm: Arm) -> bool:
        """Return True if it has an arm."""
        return not self.arms or arm.name in self.arms

    @property
    def place(self) -> str:
        """The condition in words."""
        return self.label or self.task

    def on(self, tier: str, *, real: bool) -> Setup:
        """Return the setup of a tier, or of the paper's data."""
        if real:
            assert self.real is not None
            return self.real
        setup = self.setup if isinstance(self.setup, Setup) else Setup(self.setup)
        return setup.updated(self.tiers.get(tier) or Setup())

    def runs_in(self, tier: str, *, real: bool) -> bool:
        """False if it has no setup in a tier, or on the paper's data."""
        return self.real is not None if real else self.tiers.get(tier, self.setup) is not None

    def paper_difference(self, arm: str, baseline: str, metric: str | None = None) -> Cell | None:
        """Return the paper's number of one arm minus another's; None where it has none.

        Args:
            metric: the score by default.
        """
        first: Mapping[str, Cell] = next(iter(self.paper.values()), {})
        numbers = first if metric is None else self.paper.get(metric, {})
        if not {arm, baseline} <= numbers.keys():
            return None
        return subtract_printed(numbers[arm], numbers[baseline])
