"""`Design`: what a tuned comparison compares, on what, and the runs that this takes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from spherenorm.support import did_you_mean, unknown_name
from spherenorm_experiments.claims import Claim
from spherenorm_experiments.condition import (
    Axis,
    Condition,
    Contender,
    Search,
    Setup,
    arm_of,
    longer,
)
from spherenorm_experiments.decisions import LEAST_SEEDS, OUT_OF_REACH
from spherenorm_experiments.lookup import find_task_class
from spherenorm_experiments.plan import Plan, ranges_of
from spherenorm_experiments.recipes import load_recipe
from spherenorm_experiments.results import Arm, Key, Results, Trial
from spherenorm_experiments.spec import Regime
from spherenorm_experiments.stats import detectable
from spherenorm_experiments.study import Study
from spherenorm_experiments.task import PureTask
from spherenorm_experiments.tuning import Point, Tried, grid_arm

PROBES, PROBE_EVERY = ("norms", "detection"), 10

GROWTH = 3
"""The number of times that a grid may grow; a best that is at an edge then is marked."""

SMOKE_POINTS = 2
"""The points of a grid in the smoke tier, which does not grow."""


class Design(Study):
    """The conditions, the contenders and their searches; see `TunedComparison`."""

    takes_optimizers = True

    def __init__(
        self,
        name: str,
        about: str = "",
        *,
        baseline: Contender | str,
        contenders: Sequence[Contender | str],
        tune: Search | Mapping[str, Sequence[float]],
        on: Sequence[Condition],
        claims: Sequence[Claim] = (),
        scored: bool = True,
        measures: Mapping[str, tuple[Key, str]] | None = None,
        departures: Sequence[tuple[str, str, str, str]] = (),
        first_seed: int = 0,
        seeds: Mapping[str, int] | None = None,
    ) -> None:
        self.name, self.on = name, tuple(on)
        self.__doc__ = about or name
        self.contenders = [_contender(each) for each in (baseline, *contenders)]
        """The baseline is the first."""
        self.first_seed = first_seed
        self.seeds = {"smoke": 1, "small": 3, "evidence": 12, "full": 12, **(seeds or {})}
        self.has_real = any(condition.real for condition in self.on)
        self._tune, self.rows = tune, tuple(claims)
        """Claims beside those about the scores."""
        self.scored, self.measures = scored, dict(measures or {})
        self.departures = (*departures, *_left_out(self))
        _require(self)

    @property
    def baseline(self) -> Contender:
        return self.contenders[0]

    @property
    def pairs(self) -> list[tuple[Contender, Contender]]:
        """Every contender after one that it is compared with."""
        known = {each.name: each for each in self.contenders}
        return [(known[name], each) for each in self.contenders for name in self.against(each)]

    @property
    def comparisons(self) -> list[tuple[Condition, tuple[Contender, Contender]]]:
        """Every pair on every condition that has both."""
        every = itertools.product(self.on, self.pairs)
        return [(condition, pair) for condition, pair in every if all(map(condition.has, pair))]

    def against(self, contender: Contender) -> Sequence[str]:
        """The names of the contenders that one is compared with."""
        if contender.against is not None:
            return contender.against
        return () if contender.name == self.baseline.name else (self.baseline.name,)

    def search(self, contender: Contender) -> Search:
        """The search of a contender."""
        tune = self._tune if contender.tune is None else contender.tune
        return tune if isinstance(tune, Search) else Search(tune)

    def trials(self, plan: Plan, results: Results) -> list[Trial]:
        """Every point of every contender's grid with every seed; with real data the paper's point.

        The smoke tier has one condition alone, the first.
        """
        on = [condition for condition in self.on if condition.runs_in(plan.budgets, real=plan.real)]
        return [
            trial
            for condition in (on[:1] if plan.tier == "smoke" else on)
            for contender, points in _points(self, plan, condition, results)
            for point in points
            for trial in _runs(self, plan, condition, contender, point)
        ]

    def grid(self, plan: Plan, condition: Condition, contender: Contender) -> Arm:
        """The arm of all runs of a contender on a condition."""
        tuned = [] if plan.real else self.search(contender).names
        return grid_arm(arm_of(condition, contender), tuned)

    def with_added(self, plan: Plan) -> list[Contender]:
        """The contenders, and those that a plan adds.

        Raises:
            ValueError: a recipe without a search, or that lacks what is tuned.
        """
        return [*self.contenders, *(_added(self, plan, name) for name in plan.optimizers or ())]


def _points(
    design: Design, plan: Plan, condition: Condition, results: Results
) -> list[tuple[Contender, list[Point]]]:
    """The points of each contender, as far as they are known.

    `--set lr` is one value for all points.
    """
    if plan.real:
        return [(each, [each.paper]) for each in filter(condition.has, design.with_added(plan))]
    smoke = plan.tier == "smoke"
    axes = {} if smoke else _axes(design, plan, condition, results)
    found: list[tuple[Contender, list[Point]]] = []
    for contender in filter(condition.has, design.with_added(plan)):
        search = design.search(contender).on(axes)
        given = {name: x for name, x in plan.overrides.items() if name in search.names}
        points: list[Point] = []
        for each in search.points:
            point = {**contender.fixed, **each, **given}
            points += [] if point in points else [point]
        short = smoke and search.trials is None
        found.append((contender, points[:SMOKE_POINTS] if short else points))
    return found


def _axes(
    design: Design, plan: Plan, condition: Condition, results: Results
) -> dict[Axis, tuple[float, ...]]:
    """The values of each axis, longer where some contender's best mean score is at an end.

    An axis grows for all contenders that share it, when all points have ended on all seeds.
    """
    contenders = filter(condition.has, design.contenders)
    own = [(design.search(each), design.grid(plan, condition, each)) for each in contenders]
    axes = {axis: axis[1] for search, _ in own for axis in search.axes}
    seeds = set(_seeds(design, plan, condition))
    runs = results.where(lambda item: item.spec.seed in seeds)
    tried = [(search, Tried.of(runs, arm)) for search, arm in own]
    for _ in range(GROWTH):
        low: set[Axis] = set()
        high: set[Axis] = set()
        for search, every in tried:
            ended = every.among(search.on(axes).points)
            if ended is None or set(ended.seeds) != seeds:
                return axes
            for axis in search.axes if ended.best is not None else ():
                value = ended.points[ended.best or 0][axis[0]]
                low |= {axis} if value == min(axes[axis]) else set()
                high |= {axis} if value == max(axes[axis]) else set()
        axes = {
            axis: longer(values, low=axis in low, high=axis in high)
            for axis, values in axes.items()
        }
    return axes


def _runs(
    design: Design,
    plan: Plan,
    condition: Condition,
    contender: Contender,
    point: Mapping[str, Any],
) -> list[Trial]:
    """One trial for each seed, or one for all."""
    setup = condition.on(plan.budgets, real=plan.real)
    hyper_parameters = {**point, **setup.hyper_parameters}
    given = {name: plan.overrides.get(name, v) for name, v in hyper_parameters.items()}
    regime = Regime(**{**setup.regime, **contender.regime(given)})
    own = {**contender.fields, **(contender.paper_fields if plan.real else {})}
    every = PROBE_EVERY * 10 if plan.real else PROBE_EVERY
    fields = {"regime": regime, "probes": PROBES, "probe_every": every, **setup.fields, **own}
    if issubclass(find_task_class(condition.task), PureTask):  # which measures itself
        fields = {"probes": (), **setup.fields, **own}
    if contender.length != 1:
        epochs = fields.get("epochs", design.budget(plan, condition.task).epochs)
        fields["epochs"] = max(1, round(contender.length * epochs))
    arm = design.grid(plan, condition, contender)
    seeds = _seeds(design, plan, condition)
    fields["options"] = setup.options
    return design.seeded(plan, arm, condition.task, hyper_parameters, seeds, **fields)


def _seeds(design: Design, plan: Plan, condition: Condition) -> Sequence[int]:
    """The seeds of a condition; of evidence only few if none of its scores can be decided there.

    The largest effect of the paper decides, of all metrics and contenders: claims compare more than
    the pairs in their first metric. Norms and steps have a verdict from `LEAST_SEEDS` on.
    """
    seeds = design.chosen_seeds(plan)
    if plan.tier != "evidence" or plan.seeds is not None:
        return seeds
    columns = [column.values() for column in condition.paper.values() if column]
    effect = max((float(max(column) - min(column)) for column in columns), default=math.inf)
    if not detectable(condition.spread, len(seeds)) > OUT_OF_REACH * effect:
        return seeds
    return seeds[: max(LEAST_SEEDS, design.seeds["small"])]


def _left_out(design: Design) -> Iterator[tuple[str, str, str, str]]:
    """The departures of conditions that the small tier leaves out."""
    count = design.seeds["evidence"]
    for condition in design.on:
        if not condition.runs_in("small", real=False):
            gaps = (condition.gap(ours.name, base.name) for base, ours in design.pairs)
            effects = " and ".join(str(gap) for gap in gaps if gap is not None)
            found = detectable(condition.spread, count)
            why = f"{count} seeds would find {found:.2g}; the paper's effect is {effects}"
            yield condition.place, "in the table", "not in the tiers small and evidence", why


def _require(design: Design) -> None:
    """Refuse names that say two things or none, before anything runs."""
    labels, names = [c.label for c in design.on], [c.name for c in design.contenders]
    for part, given in (("on", labels), ("contenders", names)):
        if twice := [name for name in given if given.count(name) > 1]:
            raise ValueError(f"{part} of {design.name!r} has {twice[0]!r} twice")
    asked = [name for contender in design.contenders for name in design.against(contender)]
    for name in (*asked, *(name for condition in design.on for name in condition.contenders)):
        if name not in names:
            raise unknown_name("contender", name, names)
    for condition, contender in itertools.product(design.on, design.contenders):
        own = condition.setup if isinstance(condition.setup, Setup) else Setup()
        for name in design.search(contender).names:
            if name in own.hyper_parameters:  # no search over one value would be complete
                lack = f"{condition.label!r} has a value of {name}"
                raise ValueError(f"{lack}, which {contender.name} searches")


def _contender(given: Contender | str) -> Contender:
    """A recipe's name, or `module:function`, as a contender."""
    if isinstance(given, Contender):
        return given
    return Contender(given.rpartition(":")[2], recipe=given)


def _added(design: Design, plan: Plan, recipe: str) -> Contender:
    """A recipe of `--optimizers` as a contender with a search of its own.

    It has the ranges of `--search`, with as many trials as the baseline, or is searched as the
    contender of `--like`: at its points, and with its fixed values as far as the recipe has them.
    """
    known = load_recipe(recipe).defaults
    short = recipe.rpartition(":")[2]
    ranges = ranges_of(plan.search, recipe)
    if ranges and plan.real:
        raise ValueError(f"--search: {design.name} with --data searches nothing; give --like")
    if ranges:
        require_known(recipe, ranges, known)
        count = len(design.search(design.baseline).points)
        count = min(count, SMOKE_POINTS) if plan.tier == "smoke" else count
        method = "grid" if len(ranges) == 1 and count > 1 else "halton"
        search = Search(ranges, count, method)
        said = ",".join(f"{name}={low:g}:{high:g}" for name, (low, high) in ranges.items())
        against = [design.baseline.name]
        return Contender(f"{short} ({said})", search, {}, against, recipe=recipe, added=True)
    if not plan.like:
        give = f"--search {recipe}:lr=1e-3:1, or --like {design.baseline.recipe}"
        raise ValueError(f"--optimizers {recipe!r} has no search in {design.name}; give {give}")
    like = next((c for c in design.contenders if plan.like in (c.name, c.recipe)), None)
    if like is None:
        right = did_you_mean(plan.like, [contender.recipe for contender in design.contenders])
        raise ValueError(f"--like {plan.like!r} is no contender of {design.name}; {right}")
    search = design.search(like)
    require_known(recipe, search.names, known)
    fixed, paper = (
        {name: value for name, value in given.items() if name in known}
        for given in (like.fixed, like.paper)
    )
    return replace(
        like, name=f"{short} (like {like.name})", recipe=recipe, tune=search, fixed=fixed,
        paper=paper, against=list(design.against(like)) or [design.baseline.name], added=True,
    )  # fmt: skip


def require_known(recipe: str, names: Iterable[str], known: Mapping[str, Any]) -> None:
    """Refuse a hyper-parameter that a recipe lacks."""
    for name in names:
        if name not in known:
            right = did_you_mean(name, sorted(known)) if known else "it has none"
            raise ValueError(f"recipe {recipe!r} has no hyper-parameter {name!r}; {right}")
