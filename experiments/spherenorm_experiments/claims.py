"""Claims: statements held against our numbers, each a row, and the grounds on which they are made.

Only a statement of the paper is reproduced; a claim of another kind holds or does not.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from spherenorm_experiments.results import Arm, Key, Results
from spherenorm_experiments.samples import Comparison, Sample, Values
from spherenorm_experiments.stats import NOISE, mean, t_test
from spherenorm_experiments.tables import Cell

Kind = Literal["paper", "calibrated", "identity", "ours"]
KINDS: tuple[Kind, ...] = get_args(Kind)

TITLES: dict[Kind, str] = {
    "paper": "Statements of the paper",
    "calibrated": "Calibrated: a free number was chosen so that the paper's number comes out",
    "identity": "Identities: true by construction, so that they test our code alone",
    "ours": "Ours: beyond the paper",
}


@dataclass(frozen=True)
class Statement:
    """The ground of a claim.

        >>> str(Statement("paper", "Section 3.2", "ensuring a faster convergence"))
        'Section 3.2: “ensuring a faster convergence”'

    Attributes:
        kind: paper, a statement with its place and wording; calibrated, a number of the paper's
            that a choice of ours was fitted to; identity, true by construction; ours, beyond the
            paper.
        place: the section, table, figure or equation; of another source its name.
        quotation: the paper's own words.
        topic: what it is about, in a page's index of statements.

    Raises:
        ValueError: an unknown kind, or a statement of the paper without its place and wording.
    """

    kind: Kind
    place: str
    quotation: str = ""
    topic: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {self.kind!r}")
        if self.kind == "paper" and not (self.place and self.quotation):
            lack = "a statement of the paper needs its place and its wording"
            raise ValueError(f"{lack}, got {self.place!r} and {self.quotation!r}")

    def __str__(self) -> str:
        return f"{self.place}: “{self.quotation}”" if self.quotation else self.place


OURS = Statement("ours", "ours")

MARGIN = 1.0
"""Points within which two scores are equivalent, unless a claim states another margin."""

Relation = Literal["<", ">", "="]

Side = Callable[[Results], "Values | float | None"]
"""One side of a claim: a number for each seed, or one without randomness; None if there is none."""


@dataclass(frozen=True)
class Of:
    """A number of an arm's runs, by seed: a side of a claim.

    Attributes:
        arm: a record, or its label.
        metric: an entry of the summaries, or a function of a result.
        performance: True for a score or a time; by default if the metric is one.
    """

    arm: Arm | str
    metric: Key
    performance: bool | None = None

    def __call__(self, results: Results) -> Sample:
        return results.arm(self.arm).values(self.metric, performance=self.performance)


def derive(function: Callable[..., Values], *sides: Side) -> Side:
    """A side made of others: a function of their numbers."""
    return lambda results: function(*(side(results) for side in sides))


@dataclass(frozen=True)
class Region:
    """The means for which a claim is true, an open interval."""

    low: float = -math.inf
    high: float = math.inf

    @property
    def ends(self) -> list[float]:
        return [end for end in (self.low, self.high) if math.isfinite(end)]

    def map(self, function: Callable[[float], float]) -> Region:
        """The region between the images of the ends."""
        return Region(function(self.low), function(self.high))

    def holds(self, value: float) -> bool:
        return self.low + NOISE < value < self.high - NOISE

    def touches(self, value: float) -> bool:
        """True on an end, where a value speaks neither for a claim nor against it."""
        return any(abs(value - end) <= NOISE for end in self.ends)

    def p_value(self, values: Sequence[float]) -> float:
        """The level at which the values decide, for or against."""
        center = mean(values)
        tests = [t_test(values, end) for end in self.ends]
        if self.holds(center):
            return max(tests)
        nearest = min(self.ends, key=lambda end: abs(center - end))
        return t_test(values, nearest)


@dataclass(frozen=True)
class Claim:
    """A row: `left` is above, below or near `right`, a bound or another side.

        Claim("growth", "SGDP grows its norm less than half as much as SGD", Of("SGDP", growth),
              "<", Of("SGD", growth), how="ratio", bound=0.5, cites=says("t1.restrain"))

    Two sides are compared by seed, over the seeds that both have. The mean of ratios is geometric,
    so that a / b and b / a decide alike. A ratio to 0 has no size; it counts by its sign, as a seed
    does on which a run diverged.

    Attributes:
        name: its own in its study, in lower case; it stays when other claims come and go.
        text: the claim in words.
        left: a side.
        relation: "<", ">", or "=" for at most `margin` away from the bound.
        right: the bound, or the other side.
        cites: the statement behind it.
        how: the comparison of the sides, a difference by default. Of one side against a bound, how
            its numbers were made of two: a difference is shown with its sign, a ratio with "×".
        bound: of the compared sides; 0 for a difference and 1 for a ratio, unless given.
        margin: for "=", how far from the bound the mean may lie. For a number without randomness,
            how far beyond the bound it has to lie: within the margin, another choice of what the
            paper leaves open might turn it round.
        tolerance: a margin relative to the bound, for a number without randomness.
        equivalent: a margin within which the claim is "equivalent" if it is not decided; never
            wider than the paper's effect.
        behind: the side that the claim puts behind: where it diverged and the other finished, that
            counts for the claim, and the reverse against it. For "=" both count against it. Seeds
            that only one of them has ended count for nothing.
        limits: of what the number may be, such as 0 and 100 percent; the interval is cut there,
            and where a number lies on a limit the sign test decides.
        spread: the standard deviation of the number over seeds that is expected before the runs;
            nan if none is. With the number of seeds it says if the paper's effect can be found.
        unit: of the number.
        format: of a number without randomness.
        paper: the paper's number. Of a comparison of two sides, a number with the unit of ours is
            its effect, which our interval has to hold.
        caveat: a fact that a reader needs, or a function of the results that gives it.
        performance: True for a score or a time; a `Sample` may say so itself.
        primary: True for the claims that a study is made for.

    Raises:
        ValueError: a name with capitals or spaces, or "=" without a margin.
    """

    name: str
    text: str
    left: Side
    relation: Relation
    right: Side | float
    cites: Statement = OURS
    how: Comparison | None = None
    bound: float | None = None
    margin: float = 0.0
    tolerance: float = 0.0
    equivalent: float | None = None
    behind: Literal["left", "right"] = "right"
    limits: tuple[float, float] = (-math.inf, math.inf)
    spread: float = math.nan
    unit: str = ""
    format: str = ".3g"
    paper: Cell | str = ""
    caveat: str | Callable[[Results], str] = ""
    performance: bool = False
    primary: bool = False

    def __post_init__(self) -> None:
        if self.name != slug(self.name) or not self.name:
            raise ValueError(f"name must be like 'norm-growth.sgdp', got {self.name!r}")
        if self.relation == "=" and not max(self.margin, self.tolerance) > 0:
            raise ValueError(f'{self.name}: "=" needs a positive margin, got {self.margin!r}')

    @property
    def level(self) -> float:
        """The bound of the number: of one side, of a difference, or of a ratio."""
        if not callable(self.right):
            return self.right
        if self.bound is not None:
            return self.bound
        return 1.0 if self.how == "ratio" else 0.0

    @property
    def effect(self) -> float | None:
        """The paper's effect, of a comparison whose size it gives."""
        sized = callable(self.right) and self.relation != "=" and isinstance(self.paper, Cell)
        number = self.paper.number if sized and isinstance(self.paper, Cell) else None
        return None if number is None else float(number)

    @property
    def same(self) -> float | None:
        """The margin of equivalence: at most the paper's effect, so that equivalent denies it."""
        margins = [margin for margin in (self.equivalent, self.effect) if margin is not None]
        return None if self.equivalent is None else min(map(abs, margins))

    @property
    def region(self) -> Region:
        """The numbers for which the claim is true."""
        if self.relation == "=":
            margin = self.margin or self.tolerance * abs(self.level)
            return Region(self.level - margin, self.level + margin)
        return Region(low=self.level) if self.relation == ">" else Region(high=self.level)


def slug(text: str) -> str:
    """A part of a claim's name.

    >>> slug("ResNet-50 + CutMix")
    'resnet-50-cutmix'
    """
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")
