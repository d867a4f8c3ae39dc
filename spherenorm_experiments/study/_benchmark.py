"""`Benchmark`: the base of the studies that compare optimizers as the paper's tables do.

    class T5(Benchmark):
        name = "t5"
        table = (Setting("bytes", "Transformer-XL, WikiText-103", "WikiText-103", "language", ...),)
        contenders = (Contender("AdamW", (3e-4, 1e-3, 3e-3)), Contender("AdamP", ...))
        pairs = (("AdamW", "AdamP"),)

Every contender is tuned on every setting over equally many learning rates. The best one trains
again on other seeds; tables and claims are of these runs. With `--data DIR` the runs are the
paper's: its data, networks, hyper-parameters and budgets, without a search.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from spherenorm.support import unknown_name
from spherenorm_experiments.analysis import Arm, Claim, Results, Table, Trial
from spherenorm_experiments.core import Regime, Spec
from spherenorm_experiments.paper.statements import STATEMENTS
from spherenorm_experiments.report.pictures import Picture
from spherenorm_experiments.study._benchmark_shown import (
    Measured,
    benchmark_claims,
    benchmark_pictures,
    benchmark_tables,
)
from spherenorm_experiments.study._plan import Plan
from spherenorm_experiments.study._setting import (
    Conditions,
    Contender,
    Setting,
    arm_of,
    with_substitutes,
)
from spherenorm_experiments.study._study import Study, final_seeds, tuning_seeds
from spherenorm_experiments.study._tuning import Tuned, tuned

__all__ = ["Benchmark"]

PROBES, PROBE_EVERY = ("norms", "detection"), 10


class Benchmark(Study):
    """A table of the paper's: contenders on settings.

    A subclass gives `table`, `contenders`, `pairs`, `departures` and the docstring.
    """

    table: ClassVar[Sequence[Setting]]
    contenders: ClassVar[Sequence[Contender]]
    pairs: ClassVar[Sequence[tuple[str, str]]]
    """Baselines, each with the contender that the paper holds against it."""
    has_real = True
    seeds = {"smoke": 1, "small": 6, "full": 12}  # noqa: RUF012
    smoke_rates: ClassVar[int] = 1
    """The learning rates of a search in the smoke tier."""
    tuned_on: ClassVar[int] = 2
    """The seeds of a search, whose mean decides; 1 where two would take too long."""
    compared = {}  # noqa: RUF012  (every arm has a row)

    def trials(self, plan: Plan, results: Results) -> list[Trial]:
        _require_names(self)
        if plan.real:
            return [trial for each in self.entries(plan) for trial in self._real(plan, *each)]
        final_seeds(self, plan)  # raises if one of them is the seed of the search
        searches, finals = [], []
        for setting, contender in self.entries(plan):
            searches += self._searches(plan, setting, contender)
            for arm in with_substitutes(results, arm_of(setting, contender, "tuning")):
                found = self.found(results, arm)
                count = _points(self.rates(plan, contender), results.arm(arm))
                if len(found.points) >= count:
                    finals += self._finals(plan, setting, contender, arm, found)
        return searches + finals

    def tables(self, results: Results) -> list[Table]:
        return benchmark_tables(self.measured(results))

    def pictures(self, results: Results) -> list[Picture]:
        return benchmark_pictures(self.measured(results))

    def claims(self, results: Results) -> list[Claim]:
        return benchmark_claims(self.measured(results))

    def entries(self, plan: Plan) -> Iterator[tuple[Setting, Contender]]:
        """Every contender on every setting; the smoke tier has the first setting alone."""
        settings = self.table[:1] if plan.tier == "smoke" else self.table
        return itertools.product(settings, self.contenders)

    def tuning_seeds(self) -> Sequence[int]:
        """The seeds on which learning rates are chosen."""
        return tuning_seeds(self)[: self.tuned_on]

    def rates(self, plan: Plan, contender: Contender) -> Sequence[float]:
        """The learning rates of a search; fewer in the smoke tier; `--set lr` is one for all."""
        if "lr" in plan.settings:
            return (plan.settings["lr"],)
        return contender.rates[: self.smoke_rates] if plan.tier == "smoke" else contender.rates

    def found(self, results: Results, arm: Arm) -> Tuned:
        """The search of an arm, as far as it has ended."""
        runs = results.arm(arm)
        return tuned(runs, ["lr"] if _searched(runs) else [], self.tuning_seeds())

    def _searches(self, plan: Plan, setting: Setting, contender: Contender) -> list[Trial]:
        arm = arm_of(setting, contender, "tuning")
        plan = replace(plan, seeds=tuple(self.tuning_seeds()))
        points = ({**contender.fixed, "lr": rate} for rate in self.rates(plan, contender))
        return [
            trial
            for point in points
            for trial in _runs(self, plan, setting, setting.embedded, contender, arm, point)
        ]

    def _finals(
        self, plan: Plan, setting: Setting, contender: Contender, searched: Arm, found: Tuned
    ) -> list[Trial]:
        """The runs at the best rate; at the lowest if all were lost, so that claims count them."""
        point = found.points[found.best or 0]
        arm = arm_of(setting, contender)
        if searched.substitutes_for is not None:
            arm = arm.substitute(searched.recipe)
        more: dict[str, Any] = {"probes": PROBES, "probe_every": PROBE_EVERY}
        values = {**contender.fixed, **point}
        return _runs(self, plan, setting, setting.embedded, contender, arm, values, **more)

    def _real(self, plan: Plan, setting: Setting, contender: Contender) -> list[Trial]:
        """The paper's runs."""
        more: dict[str, Any] = {"probes": PROBES, "probe_every": PROBE_EVERY * 10}
        arm = arm_of(setting, contender)
        return _runs(self, plan, setting, setting.real, contender, arm, contender.paper, **more)

    def measured(self, results: Results) -> Measured:
        """The runs of this study's arms and searches."""
        tuning = {arm: self.found(results, arm) for arm in results.having(stage="tuning").arms}
        return Measured(self.table, self.contenders, self.pairs, results, tuning)


def _searched(runs: Results) -> bool:
    """True unless a substitute has no learning rate."""
    return all("lr" in item.spec.hyper_parameters for item in runs)


def _points(rates: Sequence[float], runs: Results) -> int:
    """The points of a search over these rates; one if there is nothing to search."""
    return len(set(rates)) if _searched(runs) else 1


def _runs(
    study: Benchmark,
    plan: Plan,
    setting: Setting,
    run: Conditions,
    contender: Contender,
    arm: Arm,
    values: Any,
    **more: Any,
) -> list[Trial]:
    """One trial for each seed."""
    hyper_parameters = {**values, **run.hyper_parameters}
    given = {name: plan.settings.get(name, value) for name, value in hyper_parameters.items()}
    regime = Regime(**{**run.regime, **contender.regime(given)})
    own = {**contender.fields, **(contender.real_fields if plan.real else {})}
    fields = {"probes": (), "regime": regime, **more, **run.fields, **own}
    budget = study.budget(plan, setting.task)
    common = {"epochs": budget.epochs, "batch_size": budget.batch_size, **fields}
    return [
        Trial(
            arm,
            Spec(setting.task, arm.recipe, hyper_parameters, run.options, seed=seed, **common),
        )
        for seed in study.chosen_seeds(plan)
    ]


def _require_names(study: Benchmark) -> None:
    """Refuse names that say two things or none, before anything runs.

    Raises:
        ValueError: two settings or contenders of one name, whose runs would be one arm's; a
            pair of an unknown contender; or a source that is no statement of the paper.
    """
    labels, names = [s.label for s in study.table], [c.name for c in study.contenders]
    for part, given in (("table", labels), ("contenders", names)):
        if twice := [name for name in given if given.count(name) > 1]:
            raise ValueError(f"{part} of {study.name!r} has {twice[0]!r} twice")
    for name in itertools.chain(*study.pairs):
        if name not in names:
            raise unknown_name("contender", name, names)
    for setting in study.table:
        if setting.source not in STATEMENTS:
            raise unknown_name("source", setting.source, list(STATEMENTS))
