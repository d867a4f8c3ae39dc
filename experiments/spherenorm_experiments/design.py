"""`Design`: the optimizers and conditions of a comparison, its runs, and its claims."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from spherenorm.support import did_you_mean, unknown_name
from spherenorm_experiments.claims import (
    LEAST_SEEDS,
    OURS,
    OUT_OF_REACH,
    Claim,
    Statement,
    slug,
)
from spherenorm_experiments.lookup import find_task_class
from spherenorm_experiments.plan import Plan, ranges_of
from spherenorm_experiments.recipes import load_recipe
from spherenorm_experiments.runs import Key, Place, Runs, Trial
from spherenorm_experiments.search import Axis, Point, Search, longer
from spherenorm_experiments.spec import Regime
from spherenorm_experiments.stats import detectable
from spherenorm_experiments.study import Study
from spherenorm_experiments.tables import Cell, gap
from spherenorm_experiments.task import PureTask

PROBES, PROBE_EVERY = ("norms", "detection"), 10

GROWTH = 3
"""The number of times that a grid may grow; a best that is at an edge then is marked."""

SMOKE_POINTS = 2
"""The points of a grid in the smoke tier, which does not grow."""


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
        return Setup(
            {**self.options, **other.options},
            {**self.regime, **other.regime},
            {**self.hyper_parameters, **other.hyper_parameters},
            {**self.fields, **other.fields},
            other.task or self.task,
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
        arms: the names of those that it has; all of the comparison's if empty.
        theirs: the paper's network and data.
        benchmark: the one of the paper's thirteen that it belongs to; "" for none.
        paper: the paper's numbers, by metric as `evaluate` names it or by the heading of a
            measure, and by arm. The first metric is the score.
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
    theirs: str = ""
    benchmark: str = ""
    paper: Mapping[str, Mapping[str, Cell]] = field(default_factory=dict, hash=False)
    cites: Statement = OURS
    unit: str | None = None
    margin: float | None = None
    spread: float = math.nan

    def has(self, arm: Arm) -> bool:
        """True if it has an arm; it has every one that a command adds."""
        return not self.arms or arm.added or arm.name in self.arms

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
        """The paper's number of one arm minus another's; None where it has none.

        Args:
            metric: the score by default.
        """
        first: Mapping[str, Cell] = next(iter(self.paper.values()), {})
        numbers = first if metric is None else self.paper.get(metric, {})
        if not {ours, baseline} <= numbers.keys():
            return None
        return gap(numbers[ours], numbers[baseline])


class Design(Study):
    """The question of a `Comparison`: arms, conditions, the runs of their searches, claims."""

    takes_optimizers = True

    def __init__(
        self,
        name: str,
        about: str = "",
        *,
        arms: Sequence[Arm | str],
        tune: Search | Mapping[str, Sequence[float]],
        conditions: Sequence[Condition],
        claims: Sequence[Claim] = (),
        scored: bool = True,
        measures: Mapping[str, tuple[Key, str]] | None = None,
        departures: Sequence[tuple[str, str, str, str]] = (),
        first_seed: int = 0,
        seeds: Mapping[str, int] | None = None,
    ) -> None:
        self.name, self.conditions = name, tuple(conditions)
        self.__doc__ = about or name
        self.arms = [_arm(each) for each in arms]
        self.first_seed, self._tune = first_seed, tune
        self.seeds = {"smoke": 1, "small": 3, "evidence": 12, "full": 12, **(seeds or {})}
        self.has_real = any(condition.real for condition in self.conditions)
        self.rows = list(claims)
        """Claims beside those about the scores."""
        self.scored, self.measures = scored, dict(measures or {})
        _require(self)
        self.departures = (*departures, *_left_out(self))

    def claim(self, name: str, relation: str, **more: Any) -> Callable[[Any], Any]:
        """A decorator: the function of the runs is the number of a claim; see `Claim`."""

        def keep(of: Any) -> Any:
            self.rows.append(Claim(name, relation, of, **more))
            return of

        return keep

    @property
    def baseline(self) -> Arm:
        return self.arms[0]

    @property
    def comparisons(self) -> list[tuple[Condition, tuple[Arm, Arm]]]:
        """Every arm after one that it is compared with, on every condition that has both."""
        known = {each.name: each for each in self.arms}
        own = (each for each in self.arms if not each.added)  # `compare` decides about others
        pairs = [(known[name], each) for each in own for name in self.against(each)]
        every = itertools.product(self.conditions, pairs)
        return [(condition, pair) for condition, pair in every if all(map(condition.has, pair))]

    def against(self, arm: Arm) -> Sequence[str]:
        """The names of the arms that one is compared with."""
        if arm.against is not None:
            return arm.against
        return () if arm.name == self.baseline.name else (self.baseline.name,)

    def search(self, arm: Arm) -> Search:
        """The search of an arm."""
        tune = self._tune if arm.tune is None else arm.tune
        return tune if isinstance(tune, Search) else Search(tune)

    def extended(self, plans: Iterable[Plan]) -> Design:
        """The same with the optimizers that plans add.

        Raises:
            ValueError: a recipe without a search, or that lacks what is tuned.
        """
        added = [_added(self, plan, name) for plan in plans for name in plan.optimizers or ()]
        names = [arm.name for arm in self.arms]
        new = {arm.name: arm for arm in added if arm.name not in names}
        if not new:
            return self
        made = copy.copy(self)
        made.arms = [*self.arms, *new.values()]
        return made

    def trials(self, plan: Plan, runs: Runs) -> list[Trial]:
        """Every point of every arm's grid with every seed; with real data the paper's point.

        The smoke tier has one condition alone, the first.
        """
        own = self.extended([plan])
        on = [each for each in self.conditions if each.runs_in(plan.budgets, real=plan.real)]
        return [
            trial
            for condition in (on[:1] if plan.tier == "smoke" else on)
            for arm, points in _points(own, plan, condition, runs)
            for point in points
            for trial in _trials(own, plan, condition, arm, point)
        ]

    @property
    def claims(self) -> Sequence[Claim]:
        """The scores of each condition and pair, then the others."""
        on = self.comparisons if self.scored else []
        return [*(score_claim(condition, *pair) for condition, pair in on), *self.rows]


def score_claim(condition: Condition, baseline: Arm, ours: Arm, **more: Any) -> Claim:
    """The claim about the scores of a pair."""
    parts = (condition.label, "score", ours.name, baseline.name)

    def difference(runs: Runs) -> pd.Series:
        first, second = (runs.best(condition.label, arm.name) for arm in (ours, baseline))
        return first.test - second.test

    given = {"cites": condition.cites, "primary": True, "spread": condition.spread}
    return Claim(
        ".".join(filter(None, map(slug, parts))), "> 0", difference,
        f"{ours.name} scores higher than {baseline.name} ({condition.place})", score=True,
        paper=condition.gap(ours.name, baseline.name) or "", **{**given, **more},
    )  # fmt: skip


def metric_of(runs: Runs, condition: Condition) -> str:
    """The quantity of the score, as the runs have noted it: the task may not be here."""
    own = (item for item in runs if item.place.condition == condition.label)
    return next(filter(None, (item.summary.get("metric") for item in own)), "score")


def differing(values: Mapping[Any, Mapping[str, Any]]) -> dict[str, dict[Any, Any]]:
    """The hyper-parameters in which some differ, by name; one that only some have has no value.

    >>> differing({"sgd": {"lr": 1, "momentum": 0}, "sgdp": {"lr": 1, "momentum": 0.9}})
    {'momentum': {'sgd': 0, 'sgdp': 0.9}}
    """
    by_name: dict[str, dict[Any, Any]] = {}
    for each, given in values.items():
        for name, value in given.items():
            by_name.setdefault(name, {})[each] = value
    return {name: of for name, of in by_name.items() if len(set(map(repr, of.values()))) > 1}


def _points(
    study: Design, plan: Plan, condition: Condition, runs: Runs
) -> list[tuple[Arm, list[Point]]]:
    """The points of each arm, as far as they are known.

    `--set lr` is one value for all points.
    """
    arms = [arm for arm in study.arms if condition.has(arm)]
    if plan.real:
        return [(each, [each.paper]) for each in arms]
    smoke = plan.tier == "smoke"
    axes = {} if smoke else _axes(study, plan, condition, runs)
    found: list[tuple[Arm, list[Point]]] = []
    for arm in arms:
        search = study.search(arm).on(axes)
        given = {name: x for name, x in plan.overrides.items() if name in search.names}
        points: list[Point] = []
        for each in search.points:
            point = {**arm.fixed, **each, **given}
            points += [] if point in points else [point]
        short = smoke and search.trials is None
        found.append((arm, points[:SMOKE_POINTS] if short else points))
    return found


def _axes(
    study: Design, plan: Plan, condition: Condition, runs: Runs
) -> dict[Axis, tuple[float, ...]]:
    """The values of each axis, longer where some arm's best mean score is at an end.

    An axis grows for all arms that share it, when all points have ended on all seeds.
    """
    own = [arm for arm in study.arms if condition.has(arm) and not arm.added]
    axes = {axis: axis[1] for arm in own for axis in study.search(arm).axes}
    seeds = sorted(_seeds(study, plan, condition))
    frames = {}
    for arm in own:
        every = runs.every(condition.label, arm.name)
        frames[arm.name] = every[every.seed.isin(seeds)]
    for _ in range(GROWTH):
        low: set[Axis] = set()
        high: set[Axis] = set()
        for arm in own:
            search = study.search(arm)
            best = _best_point(frames[arm.name], search.on(axes).points, len(seeds))
            if best is None:
                return axes
            for axis in search.axes if best else ():
                low |= {axis} if best[axis[0]] == min(axes[axis]) else set()
                high |= {axis} if best[axis[0]] == max(axes[axis]) else set()
        axes = {
            axis: longer(values, low=axis in low, high=axis in high)
            for axis, values in axes.items()
        }
    return axes


def _best_point(frame: pd.DataFrame, points: Sequence[Point], seeds: int) -> Point | None:
    """The point with the best mean score, none if all were lost; None if some run is missing."""
    if frame.empty:
        return None
    names = list(points[0])
    scores = frame.groupby(names).validation.agg(["mean", "count"])
    means: list[float] = []
    for point in points:
        place = tuple(point.values()) if len(names) > 1 else next(iter(point.values()))
        if place not in scores.index or scores["count"][place] < seeds:
            return None
        means.append(float(scores["mean"][place]))
    best = max(range(len(points)), key=means.__getitem__)
    return points[best] if math.isfinite(means[best]) else {}


def _trials(
    study: Design, plan: Plan, condition: Condition, arm: Arm, point: Mapping[str, Any]
) -> list[Trial]:
    """One trial for each seed."""
    setup = condition.on(plan.budgets, real=plan.real)
    task = setup.task or condition.task
    hyper_parameters = {**point, **setup.hyper_parameters}
    given = {name: plan.overrides.get(name, v) for name, v in hyper_parameters.items()}
    regime = Regime(**{**setup.regime, **arm.regime(given)})
    own = {**arm.fields, **(arm.paper_fields if plan.real else {})}
    every = PROBE_EVERY * 10 if plan.real else PROBE_EVERY
    fields = {"regime": regime, "probes": PROBES, "probe_every": every, **setup.fields, **own}
    if issubclass(find_task_class(task), PureTask):  # which measures itself
        fields = {"probes": (), **setup.fields, **own}
    if arm.length != 1:
        epochs = fields.get("epochs", study.budget(plan, task).epochs)
        fields["epochs"] = max(1, round(arm.length * epochs))
    fields["options"] = setup.options
    place, seeds = Place(condition.label, arm.name), _seeds(study, plan, condition)
    return study.seeded(plan, place, task, arm.recipe, hyper_parameters, seeds, **fields)


def _seeds(study: Design, plan: Plan, condition: Condition) -> Sequence[int]:
    """The seeds of a condition; of evidence only few if none of its scores can be decided there.

    The largest effect of the paper decides, of all metrics and arms: claims compare more than the
    pairs in their first metric. Norms and steps have a verdict from `LEAST_SEEDS` on.
    """
    seeds = study.chosen_seeds(plan)
    if plan.tier != "evidence" or plan.seeds is not None:
        return seeds
    columns = [[float(c.value or 0) for c in of.values()] for of in condition.paper.values() if of]
    effect = max((max(column) - min(column) for column in columns), default=math.inf)
    if not detectable(condition.spread, len(seeds)) > OUT_OF_REACH * effect:
        return seeds
    return seeds[: max(LEAST_SEEDS, study.seeds["small"])]


def _left_out(study: Design) -> Iterator[tuple[str, str, str, str]]:
    """The departures of conditions that the small tier leaves out."""
    count = study.seeds["evidence"]
    for condition in study.conditions:
        if not condition.runs_in("small", real=False):
            gaps = (condition.gap(ours.name, base.name) for on, (base, ours) in study.comparisons
                    if on is condition)  # fmt: skip
            effects = " and ".join(str(each) for each in gaps if each is not None)
            found = detectable(condition.spread, count)
            why = f"{count} seeds would find {found:.2g}; the paper's effect is {effects}"
            yield condition.place, "in the table", "not in the tiers small and evidence", why


def _require(study: Design) -> None:
    """Refuse names that say two things or none, before anything runs."""
    labels, names = [c.label for c in study.conditions], [c.name for c in study.arms]
    for part, given in (("conditions", labels), ("arms", names)):
        if twice := [name for name in given if given.count(name) > 1]:
            raise ValueError(f"{part} of {study.name!r} has {twice[0]!r} twice")
    asked = [name for arm in study.arms for name in study.against(arm)]
    for name in (*asked, *(name for condition in study.conditions for name in condition.arms)):
        if name not in names:
            raise unknown_name("arm", name, names)
    for condition, arm in itertools.product(study.conditions, study.arms):
        own = condition.setup if isinstance(condition.setup, Setup) else Setup()
        for name in study.search(arm).names:
            if name in own.hyper_parameters:  # no search over one value would be complete
                lack = f"{condition.label!r} has a value of {name}"
                raise ValueError(f"{lack}, which {arm.name} searches")


def _arm(given: Arm | str) -> Arm:
    """A recipe's name, or `module:function`, as an arm."""
    return given if isinstance(given, Arm) else Arm(given.rpartition(":")[2], recipe=given)


def _added(study: Design, plan: Plan, recipe: str) -> Arm:
    """A recipe of `--optimizers` as an arm with a search of its own.

    It has the ranges of `--search`, with as many trials as the baseline, or is searched as the arm
    of `--like`: at its points, and with its fixed values as far as the recipe has them.
    """
    known = load_recipe(recipe).defaults
    short = recipe.rpartition(":")[2]
    ranges = ranges_of(plan.search, recipe)
    if ranges and plan.real:
        raise ValueError(f"--search: {study.name} with --data searches nothing; give --like")
    if ranges:
        require_known(recipe, ranges, known)
        count = len(study.search(study.baseline).points)
        count = min(count, SMOKE_POINTS) if plan.tier == "smoke" else count
        method = "grid" if len(ranges) == 1 and count > 1 else "halton"
        said = ",".join(f"{name}={low:g}:{high:g}" for name, (low, high) in ranges.items())
        search, against = Search(ranges, count, method), [study.baseline.name]
        return Arm(f"{short} ({said})", search, {}, against, recipe=recipe, added=True)
    if not plan.like:
        give = f"--search {recipe}:lr=1e-3:1, or --like {study.baseline.recipe}"
        raise ValueError(f"--optimizers {recipe!r} has no search in {study.name}; give {give}")
    like = next((c for c in study.arms if plan.like in (c.name, c.recipe)), None)
    if like is None:
        right = did_you_mean(plan.like, [arm.recipe for arm in study.arms])
        raise ValueError(f"--like {plan.like!r} is no arm of {study.name}; {right}")
    search = study.search(like)
    require_known(recipe, search.names, known)
    fixed, paper = (
        {name: value for name, value in given.items() if name in known}
        for given in (like.fixed, like.paper)
    )
    return replace(
        like, name=f"{short} (like {like.name})", recipe=recipe, tune=search, fixed=fixed,
        paper=paper, against=list(study.against(like)) or [study.baseline.name], added=True,
    )  # fmt: skip


def require_known(recipe: str, names: Iterable[str], known: Mapping[str, Any]) -> None:
    """Refuse a hyper-parameter that a recipe lacks."""
    for name in names:
        if name not in known:
            right = did_you_mean(name, sorted(known)) if known else "it has none"
            raise ValueError(f"recipe {recipe!r} has no hyper-parameter {name!r}; {right}")
