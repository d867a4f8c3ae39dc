"""Tuning on the seeds that are scored: each takes the point that its own validation set chooses.

Every point of a grid trains on every seed, and each run is scored on validation and on test. A
seed's score is the test score of its point with the best validation score. So a seed is one
repetition of the whole procedure, search included; scores of seeds are independent, and Student's
interval holds the choice. Where seeds share a choice, it does not: of studies without a difference
two halves that choose for each other find up to 9 %, leave-one-out up to 16 %
(`python -m tests.experiments.study.null_searches`).
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

from spherenorm_experiments.results import Arm, Key, Result, Results
from spherenorm_experiments.samples import Comparison, Sample, advantage, worst_of
from spherenorm_experiments.stats import mean

Point = Mapping[str, float]

SampleSide = Callable[[Results], Sample]
"""A side of a claim that always has a sample."""

GRID, TUNED = "grid", "tuned"
"""The stages of an arm: all of its runs, and of each seed the one that is chosen."""


@dataclass(frozen=True)
class Tried:
    """The runs of an arm at points that have ended on the same seeds.

    Attributes:
        points: the tuned hyper-parameters of each.
        runs: of each point, by seed.
        left_out: the number of points that have not ended on all of these seeds.
    """

    points: list[Point]
    runs: list[dict[int, Result]]
    left_out: int = 0

    @classmethod
    def of(cls, results: Results, arm: Arm) -> Tried:
        """Those of an arm of the stage `GRID`: as many as have every point on every seed.

        So a few runs of more seeds, or of one more point, do not narrow the search to their points,
        or the comparison to their seeds.
        """
        names = arm.settings["tuned"]
        runs: dict[tuple[float, ...], dict[int, Result]] = {}
        for item in results.arm(arm):
            point = tuple(float(item.spec.hyper_parameters[name]) for name in names)
            runs.setdefault(point, {})[item.spec.seed] = item
        ordered = sorted(runs.items())
        wholes = [
            {point: {s: of[s] for s in seeds} for point, of in ordered if seeds <= of.keys()}
            for seeds in map(set, runs.values())
        ]
        whole = max(wholes, key=lambda of: (sum(map(len, of.values())), len(of)), default={})
        points: list[Point] = [dict(zip(names, point, strict=True)) for point in whole]
        return cls(points, [*whole.values()], len(runs) - len(whole))

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

    @functools.cached_property
    def chosen(self) -> dict[int, Result]:
        """The run that each seed takes, see `choose`."""
        return {seed: choose([of[seed] for of in self.runs]) for seed in self.seeds}

    @property
    def counts(self) -> list[int]:
        """The number of seeds that take each point; those without any score take none."""
        return [sum(of[seed] is run for seed, run in self.chosen.items()) for of in self.runs]

    @property
    def unscored(self) -> list[int]:
        """The seeds without a validation score at any point."""
        chosen = self.chosen
        return [s for s, run in chosen.items() if all(of[s] is not run for of in self.runs)]

    def sample(self, index: int, key: Key, *, performance: bool | None = None) -> Sample:
        """The number at a point, by seed."""
        return Results([*self.runs[index].values()]).values(key, performance=performance)


def validation_of(item: Result) -> float:
    """The validation score of a run; minus infinity if it diverged or has none."""
    noted = None if item.diverged else item.summary.get("validation")
    return -math.inf if noted is None or not math.isfinite(noted) else float(noted)


def choose(runs: Sequence[Result]) -> Result:
    """The run with the best validation score.

    Of several, the seed chooses: with the first, a contender's points would decide which end of a
    plateau it takes, over all seeds alike. Seed s takes the run s mod n of n, in either arm.

    If none has a score, a run that counts as diverged and has no number.
    """
    scores = [validation_of(run) for run in runs]
    best = [run for run, score in zip(runs, scores, strict=True) if score == max(scores)]
    chosen = best[best[0].spec.seed % len(best)]
    if math.isfinite(max(scores)):
        return chosen
    return replace(chosen, summary={"diverged_at": chosen.summary["diverged_at"] or 0})


_tried: WeakKeyDictionary[Results, dict[str, Tried]] = WeakKeyDictionary()


def tried_of(results: Results, label: str) -> Tried:
    """The points that the grid of an arm has tried; none if nothing has ended.

    Args:
        label: of the arm of the chosen runs.
    """
    known = _tried.setdefault(results, {})
    if label not in known:
        arms = results.arm(f"{label}{EVERY_POINT}").arms
        known[label] = Tried.of(results, arms[0]) if arms else Tried([], [])
    return known[label]


def of_point(label: str, key: Key, **point: float) -> SampleSide:
    """A side of a claim: the number of an arm at a point of its grid.

    Args:
        label: of the arm of the chosen runs.
    """

    def side(results: Results) -> Sample:
        tried = tried_of(results, label)
        places = [i for i, each in enumerate(tried.points) if _near(each, point)]
        return tried.sample(places[0], key) if places else Results([]).values(key)

    return side


def of_best(*labels: str, key: Key = "test", among: Collection[float] = ()) -> SampleSide:
    """A side of a claim: each seed's number at the best point of several grids together.

    Args:
        among: the learning rates that may be chosen; all of them if empty.
    """

    def side(results: Results) -> Sample:
        runs: dict[int, list[Result]] = {}
        for tried in (tried_of(results, label) for label in labels):
            for point, of in zip(tried.points, tried.runs, strict=True):
                if not among or any(_near(point, {"lr": rate}) for rate in among):
                    for seed, item in of.items():
                        runs.setdefault(seed, []).append(item)
        return Results([choose(of) for of in runs.values()]).values(key)

    return side


def of_point_chosen_by(reference: str, label: str, key: Key) -> SampleSide:
    """A side of a claim: each seed's number at the point that it chooses for another arm."""

    def side(results: Results) -> Sample:
        tried, other = (tried_of(results, each) for each in (label, reference))
        runs = [other.chosen[seed] for seed in other.unscored]  # without a point, and a number
        for point, of in zip(tried.points, tried.runs, strict=True):
            place = other.points.index(point) if point in other.points else None
            theirs = {} if place is None else other.runs[place]
            runs += [of[s] for s, run in other.chosen.items() if run is theirs.get(s) and s in of]
        return Results(runs).values(key)

    return side


def of_equal_points(*pairs: tuple[str, str], key: Key, how: Comparison = "ratio") -> SampleSide:
    """A side of a claim: the first of each pair of arms against the second, at equal points.

    For each seed the median over the pairs and the points that both have. A seed is lost where the
    first diverged and the second did not.
    """

    def side(results: Results) -> Sample:
        parts = []
        for ours, theirs in pairs:
            left, right = tried_of(results, ours), tried_of(results, theirs)
            for i, point in enumerate(left.points):
                if point in right.points:
                    other = right.sample(right.points.index(point), key)
                    parts.append(advantage(left.sample(i, key), other, how))
        return worst_of(statistics.median, parts) if parts else Sample({})

    return side


def _near(point: Point, wanted: Point) -> bool:
    return all(math.isclose(point[name], value, rel_tol=1e-6) for name, value in wanted.items())


EVERY_POINT = ", every point"


def grid_arm(arm: Arm, tuned: list[str]) -> Arm:
    """The arm of all runs whose chosen ones are those of `arm`."""
    settings = {**arm.settings, "stage": GRID, "tuned": tuned}
    return replace(arm, label=f"{arm.label}{EVERY_POINT}", settings=settings)


def tuned_arm(arm: Arm) -> Arm:
    """The arm of the chosen runs of an arm of the stage `GRID`."""
    settings = {name: x for name, x in arm.settings.items() if name != "tuned"}
    label = arm.label.removesuffix(EVERY_POINT)
    return replace(arm, label=label, settings={**settings, "stage": TUNED})


def with_tuned(results: Results) -> Results:
    """The results, and for each grid an arm of the runs that its seeds choose."""
    items: list[Result] = []
    for arm in results.arms:
        if arm.settings.get("stage") == GRID and tuned_arm(arm) not in results.arms:
            tried, own = Tried.of(results, arm), tuned_arm(arm)
            items += [replace(item, arm=own) for item in tried.chosen.values()]
    return Results([*results, *items], results.failed, results.lacking)
