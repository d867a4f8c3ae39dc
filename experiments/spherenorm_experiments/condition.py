"""The parts of a comparison: contenders with their searches, conditions, the arms of both."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from spherenorm_experiments.claims import OURS, Statement
from spherenorm_experiments.results import Arm
from spherenorm_experiments.search import points
from spherenorm_experiments.tables import Cell
from spherenorm_experiments.tuning import TUNED, Point, Tried

THIRTEEN = (
    *("ImageNet", "MS-COCO", "CIFAR-10 attacked", "Biased MNIST", "9-Class ImageNet"),
    *("MagnaTagATune", "Speech Commands", "DCASE 2017", "WikiText-103"),
    *("CUB", "Cars-196", "In-Shop", "SOP"),
)
"""The thirteen benchmarks of the paper's abstract."""

END = 0.05
"""The share of a logarithmic range that counts as its end."""

EDGE, OUTERMOST = "edge", "outermost"
"""Marks of a best value: the search ends there; no trial lies beyond it, but the range goes on."""

Axis = tuple[str, tuple[float, ...]]
"""A hyper-parameter with the values that are tried first; contenders of a family share it."""


@dataclass(frozen=True)
class Search:
    """The points that a contender tries.

        Search({"lr": [0.01, 0.1, 1.0]})  # these values, and more where the best is at an end
        Search({"lr": (1e-4, 1.0)}, trials=16)  # logarithmic ranges

    Attributes:
        over: of each tuned hyper-parameter its values; with `trials` the bounds of its range.
        trials: the number of points in the ranges; None for every combination of the values.
        method: of the points in ranges, a key of `METHODS`.

    Raises:
        ValueError: no hyper-parameter, or one without values.
    """

    over: Mapping[str, Sequence[float]] = field(hash=False)
    trials: int | None = None
    method: str = "halton"

    def __post_init__(self) -> None:
        if not self.over or not all(len(values) for values in self.over.values()):
            raise ValueError(f"tune needs hyper-parameters with values, got {dict(self.over)!r}")

    @property
    def names(self) -> list[str]:
        """The tuned hyper-parameters."""
        return list(self.over)

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """The bounds of each hyper-parameter; none if values are listed."""
        return {} if self.trials is None else {n: (v[0], v[1]) for n, v in self.over.items()}

    @property
    def axes(self) -> list[Axis]:
        """The lists of two or more values, which may grow."""
        listed = {} if self.trials is not None else self.over
        return [(name, tuple(values)) for name, values in listed.items() if len(values) > 1]

    def on(self, axes: Mapping[Axis, tuple[float, ...]]) -> Search:
        """The search with its axes as they have grown."""
        grown = {axis[0]: axes.get(axis, axis[1]) for axis in self.axes}
        return replace(self, over={**self.over, **grown})

    @property
    def points(self) -> list[Point]:
        """Every combination of the values, or so many trials in the ranges."""
        if self.trials is not None:
            return list(points(self.ranges, self.trials, self.method))
        rows = itertools.product(*self.over.values())
        return [dict(zip(self.over, row, strict=True)) for row in rows]

    def mark(self, name: str, value: float, tried: Tried) -> str:
        """`EDGE` or `OUTERMOST` if no trial lies beyond a value on one side; "" for others."""
        values = [] if tried.best is None else [point[name] for point in tried.points]
        if len(set(values)) < 2 or min(values) < value < max(values):
            return ""
        if name not in self.ranges:
            return EDGE
        low, high = map(math.log, self.ranges[name])
        to_end = min(math.log(value) - low, high - math.log(value))
        return EDGE if to_end <= END * (high - low) else OUTERMOST


def longer(values: tuple[float, ...], *, low: bool, high: bool) -> tuple[float, ...]:
    """The values and one more at an end, by the ratio of the last two there, to three digits.

    An end with a 0 beside it, or that is one, has no ratio and does not grow.

    >>> longer((0.01, 0.03, 0.1), low=False, high=True)
    (0.01, 0.03, 0.1, 0.333)
    """
    first, second, before, last = *sorted(values)[:2], *sorted(values)[-2:]
    below = (float(f"{first * first / second:.3g}"),) if low and first and second else ()
    above = (float(f"{last * last / before:.3g}"),) if high and before and last else ()
    return (*below, *values, *above)


@dataclass(frozen=True)
class Contender:
    """An optimizer of a comparison.

    Attributes:
        name: its name in tables.
        tune: its own search; None for that of the comparison. A mapping lists the values of each
            hyper-parameter.
        fixed: its hyper-parameters that are not tuned.
        against: the names of the contenders that it is compared with; None for the baseline.
        paper: its hyper-parameters on the paper's data, the learning rate included.
        fields: fields of `Spec` that are its own, such as a schedule, in place of the condition's.
        paper_fields: more of them, on the paper's data.
        length: the share of the epochs, or of a pure task's steps, that it trains.
        regime: train options that are its own, a function of its hyper-parameters, such as the
            optimizers that follow it.
        recipe: a recipe's name or `module:function`; the name in lower case if it is empty.
        added: True for one that a command adds to a study.
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
    added: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "recipe", self.recipe or self.name.lower())


@dataclass(frozen=True)
class Setup:
    """The training of a condition: the task's options and those of the run.

    Attributes:
        options: of the task.
        regime: train options, see `Regime`.
        hyper_parameters: those that every contender takes here, in place of its own.
        fields: fields of `Spec`, such as epochs, batch_size and schedule; the task's budget for
            the tier where they are not given.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    regime: Mapping[str, Any] = field(default_factory=dict)
    hyper_parameters: Mapping[str, Any] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)

    def updated(self, other: Setup) -> Setup:
        """This setup with the entries of another in place of its own."""
        return Setup(
            {**self.options, **other.options},
            {**self.regime, **other.regime},
            {**self.hyper_parameters, **other.hyper_parameters},
            {**self.fields, **other.fields},
        )


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
        contenders: the names of those that it has; all of the comparison's if empty.
        theirs: the paper's network and data.
        benchmark: the one of `THIRTEEN` that it belongs to; "" for none.
        paper: the paper's numbers, by metric as `evaluate` names it or by the heading of a
            measure, and by contender. The first metric is the score.
        cites: the statement about the scores; a comparison of your own is of the kind "ours".
        unit: of a difference of scores; None for percentage points if the metric is in percent.
        margin: two mean scores that differ by less are equivalent; None for one point if the unit
            is that, else for no such verdict.
        spread: the standard deviation over seeds of a difference of scores, as earlier runs have
            it; with the number of seeds it says beforehand if the paper's effect can be found.

    Raises:
        ValueError: an unknown benchmark.
    """

    label: str
    task: str
    setup: Setup | Mapping[str, Any] = field(default_factory=Setup, hash=False)
    real: Setup | None = field(default=None, hash=False)
    tiers: Mapping[str, Setup | None] = field(default_factory=dict, hash=False)
    contenders: Sequence[str] = ()
    theirs: str = ""
    benchmark: str = ""
    paper: Mapping[str, Mapping[str, Decimal]] = field(default_factory=dict, hash=False)
    cites: Statement = OURS
    unit: str | None = None
    margin: float | None = None
    spread: float = math.nan

    def __post_init__(self) -> None:
        if self.benchmark not in ("", *THIRTEEN):
            known = ", ".join(THIRTEEN)
            raise ValueError(f"benchmark must be one of {known}, got {self.benchmark!r}")

    def has(self, contender: Contender) -> bool:
        """True if it has a contender; it has every one that a command adds."""
        return not self.contenders or contender.added or contender.name in self.contenders

    @property
    def place(self) -> str:
        """The condition in words."""
        return self.label or self.task

    def on(self, tier: str, *, real: bool) -> Setup:
        """The setup of a tier, or of the paper's data."""
        if real:
            assert self.real is not None
            return self.real
        own = self.setup if isinstance(self.setup, Setup) else Setup(self.setup)
        return own.updated(self.tiers.get(tier) or Setup())

    def runs_in(self, tier: str, *, real: bool) -> bool:
        """False if it has no setup in a tier, or on the paper's data."""
        return self.real is not None if real else self.tiers.get(tier, self.setup) is not None

    def gap(self, ours: str, baseline: str, metric: str | None = None) -> Cell | None:
        """The paper's number of one contender minus another's; None where it has none.

        Args:
            metric: the score by default.
        """
        first: Mapping[str, Decimal] = next(iter(self.paper.values()), {})
        numbers = first if metric is None else self.paper.get(metric, {})
        if not {ours, baseline} <= numbers.keys():
            return None
        return Cell(numbers[ours] - numbers[baseline], "+.2f")


def arm_of(condition: Condition, contender: Contender | str) -> Arm:
    """The arm of a contender on a condition: of each seed the run that it chooses."""
    own = contender if isinstance(contender, Contender) else Contender(contender)
    settings: dict[str, Any] = {"condition": condition.label, "contender": own.name}
    settings["stage"] = TUNED
    if own.added:  # a study that reads its results again does not know them
        settings["against"] = list(own.against or ())
        tune = own.tune if isinstance(own.tune, Search) else Search(own.tune or {"lr": [math.nan]})
        over = {name: list(values) for name, values in tune.over.items()}
        settings["search"] = {"over": over, "trials": tune.trials, "method": tune.method}
    return Arm(": ".join(filter(None, (condition.label, own.name))), own.recipe, settings)
