"""Tuning on the seeds that are scored: each takes the point that its own validation set chooses.

Every point of a grid trains on every seed, and each run is scored on validation and on test. A
seed's score is the test score of its point with the best validation score. So a seed is one
repetition of the whole procedure, search included; scores of seeds are independent, and Student's
interval holds the choice. Where seeds share a choice, it does not: of studies without a difference
two halves that choose for each other find up to 9 %, leave-one-out up to 16 %
(`python -m tests.experiments.study.null_searches`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from spherenorm_experiments.analysis._results import Arm, Key, Result, Results
from spherenorm_experiments.analysis._samples import Sample
from spherenorm_experiments.analysis._statistics import mean

Point = Mapping[str, float]

GRID, TUNED = "grid", "tuned"
"""The stages of an arm: all of its runs, and of each seed the one that is chosen."""


@dataclass(frozen=True)
class Tried:
    """The runs of an arm at the points that have ended on every seed.

    Attributes:
        points: the tuned hyper-parameters of each.
        runs: of each point, by seed.
    """

    points: list[Point]
    runs: list[dict[int, Result]]

    @classmethod
    def of(cls, results: Results, arm: Arm) -> Tried:
        """Those of an arm of the stage `GRID`."""
        names = arm.settings["tuned"]
        runs: dict[tuple[float, ...], dict[int, Result]] = {}
        for item in results.arm(arm):
            point = tuple(float(item.spec.hyper_parameters[name]) for name in names)
            runs.setdefault(point, {})[item.spec.seed] = item
        seeds = set().union(*runs.values())
        whole = {point: of for point, of in sorted(runs.items()) if len(of) == len(seeds)}
        return cls([dict(zip(names, point, strict=True)) for point in whole], [*whole.values()])

    def among(self, points: Sequence[Point]) -> Tried | None:
        """The same at these points alone; None if one of them has not ended."""
        if any(point not in self.points for point in points):
            return None
        places = [place for place, point in enumerate(self.points) if point in points]
        return Tried([self.points[i] for i in places], [self.runs[i] for i in places])

    @property
    def seeds(self) -> list[int]:
        return sorted(self.runs[0]) if self.runs else []

    @property
    def scores(self) -> list[float]:
        """The mean validation score of each point; minus infinity if a seed has none."""
        return [mean(map(validation_of, runs.values())) for runs in self.runs]

    @property
    def lost(self) -> int:
        """The number of points without a score."""
        return sum(not math.isfinite(score) for score in self.scores)

    @property
    def best(self) -> int | None:
        """The point with the best mean score, of several the first; None if all were lost."""
        if self.lost == len(self.runs):
            return None
        return max(range(len(self.runs)), key=self.scores.__getitem__)

    @property
    def chosen(self) -> dict[int, int]:
        """The point that each seed takes.

        If it lost all of them, the first, so that a claim counts it.
        """
        places = range(len(self.runs))
        return {
            seed: max(places, key=lambda i: validation_of(self.runs[i][seed]))
            for seed in self.seeds
        }

    def sample(self, index: int, key: Key, *, performance: bool | None = None) -> Sample:
        """The number at a point, by seed."""
        return Results([*self.runs[index].values()]).values(key, performance=performance)


def validation_of(item: Result) -> float:
    """The validation score of a run; minus infinity if it diverged or has none."""
    noted = None if item.diverged else item.summary.get("validation")
    return -math.inf if noted is None or not math.isfinite(noted) else float(noted)


def grid_arm(arm: Arm, tuned: list[str]) -> Arm:
    """The arm of all runs whose chosen ones are those of `arm`."""
    settings = {**arm.settings, "stage": GRID, "tuned": tuned}
    return replace(arm, label=f"{arm.label}, every point", settings=settings)


def tuned_arm(arm: Arm) -> Arm:
    """The arm of the chosen runs of an arm of the stage `GRID`."""
    settings = {name: x for name, x in arm.settings.items() if name != "tuned"}
    label = arm.label.removesuffix(", every point")
    return replace(arm, label=label, settings={**settings, "stage": TUNED})


def with_tuned(results: Results) -> Results:
    """The results, and for each grid an arm of the runs that its seeds choose."""
    items: list[Result] = []
    for arm in results.arms:
        if arm.settings.get("stage") == GRID and tuned_arm(arm) not in results.arms:
            tried, own = Tried.of(results, arm), tuned_arm(arm)
            items += [replace(tried.runs[i][s], arm=own) for s, i in tried.chosen.items()]
    return Results([*results, *items], results.failed, results.replaced, results.lacking)
