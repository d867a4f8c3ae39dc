"""The parts of a comparison: contenders, conditions, and the arms that a pair of both makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from spherenorm_experiments.analysis import OURS, Arm, Cell, Statement
from spherenorm_experiments.study._search import Search

THIRTEEN = (
    *("ImageNet", "MS-COCO", "CIFAR-10 attacked", "Biased MNIST", "9-Class ImageNet"),
    *("MagnaTagATune", "Speech Commands", "DCASE 2017", "WikiText-103"),
    *("CUB", "Cars-196", "In-Shop", "SOP"),
)
"""The thirteen benchmarks of the paper's abstract."""


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
    regime: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda _: {}
    recipe: str = ""
    added: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "recipe", self.recipe or self.name.lower())

    @property
    def searched(self) -> list[str]:
        """The hyper-parameters of its own search."""
        return list(self.tune.over if isinstance(self.tune, Search) else self.tune or ())


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
        tiers: what differs from `setup` in a tier.
        theirs: the paper's network and data.
        benchmark: the one of `THIRTEEN` that it belongs to; "" for none.
        paper: the paper's numbers, by metric as `evaluate` names it, and by contender. The first
            metric is the score.
        cites: the statement about the scores; a comparison of your own is of the kind "ours".
        unit: of a difference of scores; None for percentage points if the metric is in percent.
        margin: two mean scores that differ by less are equivalent; None for one point if the unit
            is that, else for no such verdict.

    Raises:
        ValueError: an unknown benchmark.
    """

    label: str
    task: str
    setup: Setup | Mapping[str, Any] = field(default_factory=Setup, hash=False)
    real: Setup | None = field(default=None, hash=False)
    tiers: Mapping[str, Setup] = field(default_factory=dict, hash=False)
    theirs: str = ""
    benchmark: str = ""
    paper: Mapping[str, Mapping[str, Decimal]] = field(default_factory=dict, hash=False)
    cites: Statement = OURS
    unit: str | None = None
    margin: float | None = None

    def __post_init__(self) -> None:
        if self.benchmark not in ("", *THIRTEEN):
            known = ", ".join(THIRTEEN)
            raise ValueError(f"benchmark must be one of {known}, got {self.benchmark!r}")

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
        return own.updated(self.tiers.get(tier, Setup()))

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


def arm_of(condition: Condition, contender: Contender | str, stage: str = "final") -> Arm:
    """The arm of a contender on a condition, in the search or in the final runs."""
    own = contender if isinstance(contender, Contender) else Contender(contender)
    settings: dict[str, Any] = {"condition": condition.label, "contender": own.name}
    settings["stage"] = "final"
    if own.added:  # a study that reads its results again does not know them
        settings |= {"against": list(own.against or ()), "tuned": list(own.searched)}
    label = ": ".join(filter(None, (condition.label, own.name)))
    arm = Arm(label, own.recipe, settings)
    return arm if stage == "final" else tuning_of(arm)


def tuning_of(arm: Arm) -> Arm:
    """The arm of the search before some final runs."""
    return replace(arm, label=f"{arm.label}, tuning", settings={**arm.settings, "stage": "tuning"})
