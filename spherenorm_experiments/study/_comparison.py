"""`TunedComparison`: optimizers, each tuned alike, then compared on seeds that tuning did not see.

    T3 = TunedComparison(
        "t3", "Table 3: ...", baseline=Contender("Adam"), contenders=[Contender("AdamP")],
        tune={"lr": [1e-3, 2e-3, 4e-3, 8e-3]},
        on=[Condition("centernet", "detection", {"detector": "centernet"}), ...],
    )

The paper's benchmarks and the command `compare` are instances. With `--data DIR` the runs are the
paper's: its data, networks, hyper-parameters and budgets, without a search.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from spherenorm.support import did_you_mean, unknown_name
from spherenorm_experiments.analysis import (
    MARGIN,
    Arm,
    Claim,
    Decision,
    Of,
    Results,
    Table,
    Trial,
    evaluate,
    slug,
)
from spherenorm_experiments.core import Regime, load_recipe, points
from spherenorm_experiments.report.pictures import Picture
from spherenorm_experiments.study._compared import Compared, differing
from spherenorm_experiments.study._condition import Condition, Contender, Setup, arm_of
from spherenorm_experiments.study._plan import Plan, Range, ranges_of
from spherenorm_experiments.study._search import Point, Search, Tuned, tuned
from spherenorm_experiments.study._shown import pictures_of, tables_of
from spherenorm_experiments.study._study import Study, final_seeds, tuning_seeds

__all__ = ["TunedComparison", "score_claim"]

PROBES, PROBE_EVERY = ("norms", "detection"), 10


class TunedComparison(Study):
    """Optimizers, each tuned in as many trials, compared on every condition.

    A point's score is its mean validation score on seeds that no final run uses. The best point of
    each contender trains again on other seeds; tables and claims are of these runs.

    Args:
        name: of the study.
        about: its title, an empty line, and a text.
        baseline: the contender, or the recipe, that others are compared with.
        contenders: the others.
        tune: the search of those that have none of their own; a mapping lists the values of each
            hyper-parameter.
        on: the conditions; the smoke tier has the first one alone.
        claims: rows beside those about the scores.
        departures: settings that differ from the paper's: the setting, the paper's, ours, and why.
        first_seed: of the final runs; studies that share a task have different seeds.
        seeds: their number in each tier.
        tuned_on: the seeds of a search, whose mean decides; 1 where two would take too long.
        smoke_points: the points of a search in the smoke tier; None for all.

    Raises:
        ValueError: two conditions or contenders of one name, whose runs would be one arm's; one
            that is compared with an unknown one; or values for all in place of those of a search.
    """

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
        self.first_seed, self.tuned_on, self.smoke_points = first_seed, tuned_on, smoke_points
        self.seeds = seeds or {"smoke": 1, "small": 6, "full": 12}
        self.has_real = any(condition.real for condition in self.on)
        self._tune, self._claims = tune, tuple(claims)
        self._require()

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

    def tuning_seeds(self) -> Sequence[int]:
        """The seeds on which hyper-parameters are chosen."""
        return tuning_seeds(self)[: self.tuned_on]

    def trials(self, plan: Plan, results: Results) -> list[Trial]:
        if plan.real:
            return [
                trial
                for condition, contender in self._entries(plan)
                for trial in self._final(plan, condition, contender, contender.paper)
            ]
        final_seeds(self, plan)  # raises if one of them is the seed of the search
        searches, finals = [], []
        for condition, contender in self._entries(plan):
            arm, search = arm_of(condition, contender, "tuning"), self.search(contender)
            ended = tuned(results.arm(arm), search.names, self.tuning_seeds())
            asked = self._points(plan, search, ended)
            on_tuning = replace(plan, seeds=tuple(self.tuning_seeds()))
            for point in asked:
                values = {**contender.fixed, **point}
                searches += self._runs(on_tuning, condition, contender, arm, values)
            if len(ended.points) >= len(asked):
                # At the first point if all were lost, so that claims count them.
                best = {**contender.fixed, **ended.points[ended.best or 0]}
                finals += self._final(plan, condition, contender, best)
        return searches + finals

    def tables(self, results: Results) -> list[Table]:
        return tables_of(self.compared(results))

    def pictures(self, results: Results) -> list[Picture]:
        return pictures_of(self.compared(results))

    @property
    def claims(self) -> Sequence[Claim]:
        """The scores of each condition and pair, then the others."""
        scores = [
            score_claim(condition, *pair, caveat=partial(self._caveats, condition, pair))
            for condition in self.on
            for pair in self.pairs
        ]
        return [*scores, *self._claims]

    def evaluated(self, results: Results) -> list[Decision]:
        """Each claim by itself; a score whose unit is not given has the one that its runs note."""
        seen, claims = self.compared(results), list(self.claims)
        places = itertools.product(self.on, self.pairs)
        for i, (condition, _) in enumerate(places):
            unit, margin = seen.unit(condition), condition.margin
            if margin is None and unit == "pp":
                margin = MARGIN
            claims[i] = replace(claims[i], unit=unit, equivalent=margin)
        return [evaluate(claim, results) for claim in claims]

    def compared(self, results: Results) -> Compared:
        """The comparison as far as it has run."""
        return Compared(
            self.on,
            self.contenders,
            {each.name: list(self.against(each)) for each in self.contenders},
            {each.name: self.search(each) for each in self.contenders},
            self.tuning_seeds(),
            results,
        )

    def differences(self, plan: Plan) -> list[str]:
        """The hyper-parameters that nobody tunes and in which contenders differ, with values."""
        chosen = self.with_added(plan)
        values = {each.name: {**load_recipe(each.recipe).defaults, **each.fixed} for each in chosen}
        return [
            f"{name}: " + ", ".join(f"{contender} {value!r}" for contender, value in of.items())
            for name, of in differing(values).items()
            if name not in plan.overrides
            and not any(name in self.search(each).names for each in chosen)
        ]

    def with_added(self, plan: Plan) -> list[Contender]:
        """The contenders, and those that a plan adds.

        Raises:
            ValueError: a recipe without a search, or that lacks what is tuned.
        """
        return [*self.contenders, *(_added(self, plan, name) for name in plan.optimizers or ())]

    def _caveats(
        self, condition: Condition, pair: tuple[Contender, Contender], results: Results
    ) -> str:
        seen = self.compared(results)
        arms = [arm_of(condition, contender) for contender in reversed(pair)]
        return "; ".join(caveat for arm in arms for caveat in seen.caveats(arm))

    def _entries(self, plan: Plan) -> Iterator[tuple[Condition, Contender]]:
        """Every contender on every condition; the smoke tier has the first condition alone."""
        on = [condition for condition in self.on if condition.real or not plan.real]
        return itertools.product(on[:1] if plan.tier == "smoke" else on, self.with_added(plan))

    def _points(self, plan: Plan, search: Search, ended: Tuned) -> list[Point]:
        """The points of a search; fewer in the smoke tier; `--set lr` is one value for all."""
        known = search.points(ended)
        if plan.tier == "smoke" and self.smoke_points is not None:
            known = known[: self.smoke_points]
        given = {name: plan.overrides[name] for name in search.names if name in plan.overrides}
        apart: list[Point] = []
        for point in ({**point, **given} for point in known):
            apart += [] if point in apart else [point]
        return apart

    def _final(
        self, plan: Plan, condition: Condition, contender: Contender, values: Mapping[str, Any]
    ) -> list[Trial]:
        every = PROBE_EVERY * 10 if plan.real else PROBE_EVERY
        more: dict[str, Any] = {"probes": PROBES, "probe_every": every}
        return self._runs(plan, condition, contender, arm_of(condition, contender), values, **more)

    def _runs(
        self,
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
        fields = {"probes": (), "regime": regime, **more, **setup.fields, **own}
        return self.seeded(
            plan, arm, condition.task, hyper_parameters, options=setup.options, **fields
        )

    def _require(self) -> None:
        """Refuse names that say two things or none, before anything runs."""
        labels, names = [c.label for c in self.on], [c.name for c in self.contenders]
        for part, given in (("on", labels), ("contenders", names)):
            if twice := [name for name in given if given.count(name) > 1]:
                raise ValueError(f"{part} of {self.name!r} has {twice[0]!r} twice")
        for contender in self.contenders:
            for name in self.against(contender):
                if name not in names:
                    raise unknown_name("contender", name, names)
        for condition, contender in itertools.product(self.on, self.contenders):
            own = condition.setup if isinstance(condition.setup, Setup) else Setup()
            for name in self.search(contender).names:
                if name in own.hyper_parameters:  # no search over one value would be complete
                    lack = f"{condition.label!r} has a value of {name}"
                    raise ValueError(f"{lack}, which {contender.name} searches")


def score_claim(condition: Condition, baseline: Contender, ours: Contender, **more: Any) -> Claim:
    """The claim about the scores of a pair."""
    parts = (condition.label, "score", ours.name, baseline.name)
    fields = {"cites": condition.cites, "primary": True, **more}
    return Claim(
        ".".join(filter(None, map(slug, parts))),
        f"{ours.name} scores higher than {baseline.name} ({condition.place})",
        Of(arm_of(condition, ours), "test"), ">", Of(arm_of(condition, baseline), "test"),
        paper=condition.gap(ours.name, baseline.name) or "", **fields,
    )  # fmt: skip


def _contender(given: Contender | str) -> Contender:
    """A recipe's name, or `module:function`, as a contender."""
    if isinstance(given, Contender):
        return given
    return Contender(given.rpartition(":")[2], recipe=given)


def _added(study: TunedComparison, plan: Plan, recipe: str) -> Contender:
    """A recipe of `--optimizers` as a contender with a search of its own.

    It has the ranges of `--search`, with as many trials as the baseline, or is searched as the
    contender of `--like`: at its points, and with its fixed values as far as the recipe has them.
    """
    known = load_recipe(recipe).defaults
    short = recipe.rpartition(":")[2]
    ranges = ranges_of(plan.search, recipe)
    if ranges and plan.real:
        raise ValueError(f"--search: {study.name} with --data searches nothing; give --like")
    if ranges:
        _require_known(recipe, ranges, known)
        count = study.search(study.baseline).count
        if plan.tier == "smoke" and study.smoke_points is not None:
            count = min(count, study.smoke_points)
        said = ",".join(f"{name}={low:g}:{high:g}" for name, (low, high) in ranges.items())
        name, against = f"{short} ({said})", [study.baseline.name]
        return Contender(name, _ranged(ranges, count), {}, against, recipe=recipe, added=True)
    if not plan.like:
        give = f"--search {recipe}:lr=1e-3:1, or --like {study.baseline.recipe}"
        raise ValueError(f"--optimizers {recipe!r} has no search in {study.name}; give {give}")
    like = _like(study, plan.like)
    _require_known(recipe, study.search(like).names, known)
    fixed, paper = (
        {name: value for name, value in given.items() if name in known}
        for given in (like.fixed, like.paper)
    )
    return replace(
        like, name=f"{short} (like {like.name})", recipe=recipe, tune=study.search(like),
        fixed=fixed, paper=paper, against=list(study.against(like)) or [study.baseline.name],
        added=True,
    )  # fmt: skip


def _ranged(ranges: Mapping[str, Range], count: int) -> Search:
    """A search of one range over equal ratios; of several by Halton's sequence."""
    if len(ranges) > 1 or count < 2:
        return Search(ranges, count)
    return Search({name: [p[name] for p in points(ranges, count, "grid")] for name in ranges})


def _like(study: TunedComparison, name: str) -> Contender:
    """The contender that `--like` names, by its name or its recipe."""
    for contender in study.contenders:
        if name in (contender.name, contender.recipe):
            return contender
    known = [contender.recipe for contender in study.contenders]
    raise ValueError(
        f"--like {name!r} is no contender of {study.name}; {did_you_mean(name, known)}"
    )


def _require_known(recipe: str, names: Any, known: Mapping[str, Any]) -> None:
    for name in names:
        if name not in known:
            right = did_you_mean(name, sorted(known)) if known else "it has none"
            raise ValueError(f"recipe {recipe!r} has no hyper-parameter {name!r}; {right}")
