"""The parts of a benchmark: contenders, settings, and the arms that a pair of both makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from spherenorm_experiments.analysis import MARGIN, Arm, Cell, Results

__all__ = ["THIRTEEN", "Conditions", "Contender", "Setting", "arm_of", "with_substitutes"]

THIRTEEN = (
    *("ImageNet", "MS-COCO", "CIFAR-10 attacked", "Biased MNIST", "9-Class ImageNet"),
    *("MagnaTagATune", "Speech Commands", "DCASE 2017", "WikiText-103"),
    *("CUB", "Cars-196", "In-Shop", "SOP"),
)
"""The thirteen benchmarks of the paper's abstract."""


@dataclass(frozen=True)
class Contender:
    """An optimizer of a benchmark.

    Attributes:
        name: as the paper calls it.
        rates: the learning rates of its search on embedded data.
        fixed: its other hyper-parameters on embedded data.
        paper: its hyper-parameters on the paper's data, the learning rate included.
        fields: fields of `Spec` that are its own, such as a schedule, in place of the setting's.
        real_fields: more of them, on the paper's data.
        regime: options of the regime that are its own, a function of its hyper-parameters, such
            as the optimizers that follow it in turn.
        called: its recipe; the name in lower case if it is empty.
    """

    name: str
    rates: Sequence[float] = field(hash=False)
    fixed: Mapping[str, Any] = field(default_factory=dict, hash=False)
    paper: Mapping[str, Any] = field(default_factory=dict, hash=False)
    fields: Mapping[str, Any] = field(default_factory=dict, hash=False)
    real_fields: Mapping[str, Any] = field(default_factory=dict, hash=False)
    regime: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda _: {}
    called: str = ""

    @property
    def recipe(self) -> str:
        return self.called or self.name.lower()


@dataclass(frozen=True)
class Conditions:
    """A setting's runs on one kind of data.

    Attributes:
        options: of the task.
        regime: options of the regime.
        hyper_parameters: those that every contender takes here, in place of its own.
        fields: fields of `Spec`, such as epochs, batch_size and schedule; the task's budget for
            the tier where they are not given.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    regime: Mapping[str, Any] = field(default_factory=dict)
    hyper_parameters: Mapping[str, Any] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Setting:
    """A network on a data set: a part of a table in which optimizers are compared.

    Attributes:
        label: its short name in our tables.
        theirs: the paper's network and data.
        benchmark: the one of `THIRTEEN` that it belongs to; "" for none.
        task: a task's name.
        embedded: the runs on embedded data.
        real: the runs on the paper's data.
        paper: the paper's numbers, by metric as `evaluate` names it, and by contender. The first
            metric is the score.
        source: the paper's statement about the scores, a name in `STATEMENTS`.
        unit: of a difference of scores.
        margin: two mean scores that differ by less are equivalent.
        invariant: has the network scale-invariant weights; without any there is no geometry to
            claim.

    Raises:
        ValueError: an unknown benchmark, or a rate for all in place of those of a search.
    """

    label: str
    theirs: str
    benchmark: str
    task: str
    embedded: Conditions = field(hash=False)
    real: Conditions = field(hash=False)
    paper: Mapping[str, Mapping[str, Decimal]] = field(hash=False)
    source: str
    unit: str = "pp"
    margin: float = MARGIN
    invariant: bool = True

    def __post_init__(self) -> None:
        if self.benchmark not in ("", *THIRTEEN):
            known = ", ".join(THIRTEEN)
            raise ValueError(f"benchmark must be one of {known}, got {self.benchmark!r}")
        if "lr" in self.embedded.hyper_parameters:  # no search over one rate would ever be complete
            raise ValueError(f"embedded of {self.label!r} has an lr, which the contenders search")

    def gap(self, ours: str, baseline: str) -> Cell | None:
        """The paper's score of one contender minus another's; None where it has none."""
        scores: Mapping[str, Decimal] = next(iter(self.paper.values()), {})
        if not {ours, baseline} <= scores.keys():
            return None
        return Cell(scores[ours] - scores[baseline], "+.2f")


def arm_of(setting: Setting, contender: Contender | str, stage: str = "final") -> Arm:
    """The arm of a contender on a setting, in the search or in the final runs."""
    name = contender if isinstance(contender, str) else contender.name
    recipe = name.lower() if isinstance(contender, str) else contender.recipe
    label = f"{setting.label}: {name}" + (", tuning" if stage == "tuning" else "")
    settings = {"setting": setting.label, "contender": name, "stage": stage}
    return Arm(label, recipe, settings)


def with_substitutes(results: Results, arm: Arm) -> list[Arm]:
    """An arm, and those of recipes that substitute for it."""
    return [arm, *(other for other in results.arms if other.substitutes_for == arm)]
