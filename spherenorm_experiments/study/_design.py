"""`Design`: what a tuned comparison compares, on what, and the runs that this takes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from spherenorm.support import did_you_mean, unknown_name
from spherenorm_experiments.analysis import Arm, Claim, Results, Trial, tuned
from spherenorm_experiments.core import Regime, load_recipe, points
from spherenorm_experiments.study._condition import (
    Condition,
    Contender,
    Search,
    Setup,
    arm_of,
)
from spherenorm_experiments.study._plan import Plan, ranges_of
from spherenorm_experiments.study._study import Study

PROBES, PROBE_EVERY = ("norms", "detection"), 10


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
        departures: Sequence[tuple[str, str, str, str]] = (),
        first_seed: int = 0,
        seeds: Mapping[str, int] | None = None,
        tuned_on: int = 2,
        smoke_points: int | None = 1,
    ) -> None:
        self.name, self.on, self.departures = name, tuple(on), departures
        self.__doc__ = about or name
        self.contenders = [_contender(each) for each in (baseline, *contenders)]
        """The baseline is the first."""
        self.first_seed, self.smoke_points = first_seed, smoke_points
        self.search_seeds = self.tuning_seeds()[:tuned_on]
        """A point's score is its mean over these."""
        self.seeds = seeds or {"smoke": 1, "small": 6, "full": 12}
        self.has_real = any(condition.real for condition in self.on)
        self._tune, self.rows = tune, tuple(claims)
        """Claims beside those about the scores."""
        _require(self)

    @property
    def baseline(self) -> Contender:
        return self.contenders[0]

    @property
    def pairs(self) -> list[tuple[Contender, Contender]]:
        """Every contender after one that it is compared with."""
        known = {each.name: each for each in self.contenders}
        return [(known[name], each) for each in self.contenders for name in self.against(each)]

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
        """The searches, and the final runs of those that have ended; without a search on real data.

        The smoke tier has the first condition alone.
        """
        if not plan.real:
            self.final_seeds(plan)  # raises if one of them is a seed of the search
        searches: list[Trial] = []
        finals: list[Trial] = []
        on = [condition for condition in self.on if condition.real or not plan.real]
        on = on[:1] if plan.tier == "smoke" else on
        every = PROBE_EVERY * 10 if plan.real else PROBE_EVERY
        for condition, contender in itertools.product(on, self.with_added(plan)):
            best: Mapping[str, Any] | None = contender.paper
            if not plan.real:
                asked, best = self._searched(plan, condition, contender, results)
                searches += asked
            if best is not None:
                arm, probes = arm_of(condition, contender), {"probes": PROBES, "probe_every": every}
                finals += _runs(self, plan, condition, contender, arm, best, **probes)
        return searches + finals

    def _searched(
        self, plan: Plan, condition: Condition, contender: Contender, results: Results
    ) -> tuple[list[Trial], Mapping[str, Any] | None]:
        """The trials of a search, and the best point; None before all have ended.

        `--set lr` is one value for all points.
        """
        arm, search = arm_of(condition, contender, "tuning"), self.search(contender)
        ended = tuned(results.arm(arm), search.names, self.search_seeds)
        known = search.points(ended)
        if plan.tier == "smoke" and self.smoke_points is not None:
            known = known[: self.smoke_points]
        given = {name: plan.overrides[name] for name in search.names if name in plan.overrides}
        asked: list[Mapping[str, Any]] = []
        for point in ({**point, **given} for point in known):
            asked += [] if point in asked else [point]
        on_tuning = replace(plan, seeds=tuple(self.search_seeds))
        trials = [
            trial
            for point in asked
            for trial in _runs(
                self, on_tuning, condition, contender, arm, {**contender.fixed, **point}, probes=()
            )
        ]
        if len(ended.points) < len(asked):
            return trials, None
        # At the first point if all were lost, so that claims count them.
        return trials, {**contender.fixed, **ended.points[ended.best or 0]}

    def with_added(self, plan: Plan) -> list[Contender]:
        """The contenders, and those that a plan adds.

        Raises:
            ValueError: a recipe without a search, or that lacks what is tuned.
        """
        return [*self.contenders, *(_added(self, plan, name) for name in plan.optimizers or ())]


def _runs(
    design: Design,
    plan: Plan,
    condition: Condition,
    contender: Contender,
    arm: Arm,
    values: Mapping[str, Any],
    **more: Any,
) -> list[Trial]:
    """One trial for each seed."""
    setup = condition.on(plan.tier, real=plan.real)
    hyper_parameters = {**values, **setup.hyper_parameters}
    given = {name: plan.overrides.get(name, v) for name, v in hyper_parameters.items()}
    regime = Regime(**{**setup.regime, **contender.regime(given)})
    own = {**contender.fields, **(contender.paper_fields if plan.real else {})}
    fields = {"regime": regime, **more, **setup.fields, **own}
    return design.seeded(
        plan, arm, condition.task, hyper_parameters, options=setup.options, **fields
    )


def _require(design: Design) -> None:
    """Refuse names that say two things or none, before anything runs."""
    labels, names = [c.label for c in design.on], [c.name for c in design.contenders]
    for part, given in (("on", labels), ("contenders", names)):
        if twice := [name for name in given if given.count(name) > 1]:
            raise ValueError(f"{part} of {design.name!r} has {twice[0]!r} twice")
    for contender in design.contenders:
        for name in design.against(contender):
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
        search = Search(ranges, design.search(design.baseline).count)
        if plan.tier == "smoke" and design.smoke_points is not None:
            search = replace(search, trials=min(search.count, design.smoke_points))
        if len(ranges) == 1 and search.count > 1:  # one range over equal ratios
            rows = points(ranges, search.count, "grid")
            search = Search({name: [row[name] for row in rows] for name in ranges})
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
