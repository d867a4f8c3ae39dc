"""`Comparison`: optimizers, each tuned alike by every seed, and compared seed by seed.

    T3 = Comparison(
        "t3", "Table 3: ...", arms=["Adam", "AdamP"], tune={"lr": [1e-3, 2e-3, 4e-3, 8e-3]},
        conditions=[Condition("centernet", "detection", {"detector": "centernet"}), ...],
    )

The paper's benchmarks and the command `compare` are instances. With `--data DIR` the runs are the
paper's: its data, networks, hyper-parameters and budgets, without a search.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from spherenorm.support import did_you_mean, unknown_name
from spherenorm_experiments.design import Arm, Axis, Condition, Point, Search, Setup, grown
from spherenorm_experiments.entries import Entry, entry_of, unit_and_margin
from spherenorm_experiments.lookup import find_task_class
from spherenorm_experiments.metrics import Better
from spherenorm_experiments.pictures import Picture
from spherenorm_experiments.plan import Plan
from spherenorm_experiments.recipes import load_recipe
from spherenorm_experiments.runs import Key, Place, Runs, Trial
from spherenorm_experiments.shown import pictures_of, tables_of
from spherenorm_experiments.spec import Regime
from spherenorm_experiments.study import Study
from spherenorm_experiments.tables import Table
from spherenorm_experiments.task import PureTask
from spherenorm_experiments.verdict import (
    LEAST_SEEDS,
    MAX_DETECTABLE_RATIO,
    Claim,
    Decision,
    detectable,
    evaluate_claim,
    slug,
    without_verdict,
)

__all__ = ["INTERIM", "Arm", "Comparison", "Condition", "Search", "Setup", "score_claim"]

INTERIM = "interim: no verdict before all runs of both have ended"

PROBES, PROBE_EVERY = ("norms", "detection"), 10

SMOKE_POINTS = 2
"""The points of a grid in the smoke tier, which does not grow."""


class Comparison(Study):
    """Optimizers, each tuned in as many trials, compared on every condition.

    Every point of an arm's grid trains on every seed. A seed takes the point with its best
    validation score; tables and claims are of the test scores of these runs. Arms with the same
    values share a grid, which grows, up to three times, by its own spacing at an end where the best
    mean validation score of one of them is.

    Args:
        name: of the study.
        about: its title, an empty line, and a text.
        arms: the optimizers, or their recipes; others are compared with the first.
        tune: the search of those that have none of their own; a mapping lists the values of each
            hyper-parameter.
        conditions: where they are compared; the smoke tier has the first one alone.
        claims: rows beside those about the scores.
        scored: False for a study without a claim about the scores of each pair.
        measures: further numbers of the chosen runs in the tables, by heading: a column or a
            function of a run, and a format.
        departures: settings that differ from the paper's: the setting, the paper's, ours, and why.
        first_seed: studies that share a task have different seeds.
        seeds: their number in each tier, where it is not the usual one.

    Raises:
        ValueError: two conditions or arms of one name, one that is compared with an unknown one, or
            values for all in place of those of a search.
    """

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
        self.arms = [a if isinstance(a, Arm) else Arm(a.rpartition(":")[2], recipe=a) for a in arms]
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
        pairs = [(known[name], each) for each in self.arms for name in self.against(each)]
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

    def with_arms(self, name: str, *arms: Arm) -> Comparison:
        """The same with more optimizers, as a study of its own; what the others have run counts.

        MINE = T6.with_arms("t6-mine", Arm("mine", {"lr": [1e-3, 1e-2]}, recipe="mymodule:mine"))
        """
        made, names = copy.copy(self), [arm.name for arm in arms]
        made.name, made.found_as, made.arms = name, "", [*self.arms, *arms]
        made.rows = list(self.rows)
        made.conditions = tuple(
            replace(each, arms=[*each.arms, *names] if each.arms else ())
            for each in self.conditions
        )
        _require(made)
        return made

    def trials(self, plan: Plan, runs: Runs) -> list[Trial]:
        """Every point of every arm's grid with every seed; with real data the paper's point.

        The smoke tier has one condition alone, the first; that of evidence those whose runs can be
        expected to decide, or the first with few seeds, whose norms and steps they do decide.
        """
        on = [each for each in self.conditions if each.runs_in(plan.budgets, real=plan.real)]
        if plan.tier == "smoke":
            on = on[:1]
        elif plan.tier == "evidence" and not plan.real:
            on = [each for each in on if _can_decide(self, each)] or on[:1]
        return [
            trial
            for condition in on
            for arm, points in _points(self, plan, condition, runs)
            for point in points
            for trial in _trials(self, plan, condition, arm, point)
        ]

    @property
    def claims(self) -> Sequence[Claim]:
        """The scores of each condition and pair, then the others."""
        on = self.comparisons if self.scored else []
        return [*(score_claim(condition, *pair) for condition, pair in on), *self.rows]

    def entries(self, runs: Runs) -> list[Entry]:
        """The arms with a run, by condition."""

        def made() -> list[Entry]:
            every = (
                entry_of(runs, condition, arm, self.search(arm), self.against(arm))
                for condition, arm in itertools.product(self.conditions, self.arms)
            )
            return [entry for entry in every if entry is not None]

        return runs.once(("entries", self), made)

    def tables(self, runs: Runs) -> list[Table]:
        return tables_of(self.entries(runs), self.conditions, self.measures)

    def pictures(self, runs: Runs) -> list[Picture]:
        return pictures_of(self.entries(runs))

    def evaluated(self, runs: Runs) -> list[Decision]:
        """Each claim by itself.

        A score whose unit is not given has the one that its runs note. A pair that lacks runs has
        no verdict; one that the tier leaves out has the verdict that its runs would have.
        """
        return _evaluated(self, runs)


def score_claim(
    condition: Condition, baseline: Arm, ours: Arm, *, better: Better = "higher", **more: Any
) -> Claim:
    """The claim that the second of a pair scores better."""
    parts = (condition.label, "score", ours.name, baseline.name)

    def difference(runs: Runs) -> pd.Series:
        first, second = (runs.best(condition.label, arm.name) for arm in (ours, baseline))
        return first.test - second.test

    word, relation, direction = "higher", "> 0", ""
    if better == "lower":
        word, relation, direction = "lower", "< 0", "; lower is better"
    given = {"cites": condition.cites, "primary": True, "spread": condition.spread}
    return Claim(
        ".".join(filter(None, map(slug, parts))), relation, difference,
        f"{ours.name} scores {word} than {baseline.name} ({condition.place}{direction})",
        is_performance=True, paper=condition.gap(ours.name, baseline.name) or "",
        **{**given, **more},
    )  # fmt: skip


def _evaluated(study: Comparison, runs: Runs) -> list[Decision]:
    claims, scored = list(study.claims), study.comparisons if study.scored else []
    entries = {entry.place: entry for entry in study.entries(runs)}
    pairs = [[Place(on.label, arm.name) for arm in pair[::-1]] for on, pair in scored]
    for i, (condition, _) in enumerate(scored):
        own = [entries[place] for place in pairs[i] if place in entries]
        unit, margin = unit_and_margin(condition, own)
        note = "; ".join(note for entry in own for note in entry.notes)
        claim = claims[i]
        if own and own[0].better == "lower":
            lower = score_claim(condition, *scored[i][1], better="lower")
            claim = replace(claim, relation=lower.relation, text=lower.text)
        claims[i] = replace(claim, unit=unit, equivalence_margin=margin, note=note)
    decisions = []
    for i, claim in enumerate(claims):
        compared = pairs[i] if i < len(pairs) else None
        decision = evaluate_claim(claim, runs, compared)
        if compared is not None and any(map(runs.lacking.get, compared)):
            decision = without_verdict(decision, INTERIM)
        decisions.append(decision)
    return decisions


def _points(
    study: Comparison, plan: Plan, condition: Condition, runs: Runs
) -> list[tuple[Arm, list[Point]]]:
    """The points of each arm, as far as they are known.

    `--set lr` is one value for all points.
    """
    arms = [arm for arm in study.arms if condition.has(arm)]
    if plan.real:
        return [(each, [each.paper]) for each in arms]
    smoke, axes = plan.tier == "smoke", dict[Axis, tuple[float, ...]]()
    if not smoke:
        own = {arm.name: study.search(arm) for arm in arms}
        every = {name: runs.every(condition.label, name) for name in own}
        axes = grown(own, every, _seeds(study, plan, condition))
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


def _trials(
    study: Comparison, plan: Plan, condition: Condition, arm: Arm, point: Mapping[str, Any]
) -> list[Trial]:
    """One trial for each seed."""
    setup = condition.on(plan.budgets, real=plan.real)
    task = setup.task or condition.task
    hyper_parameters = {**point, **setup.hyper_parameters}
    given = {name: plan.overrides.get(name, v) for name, v in hyper_parameters.items()}
    every = PROBE_EVERY * 10 if plan.real else PROBE_EVERY
    fields: dict[str, Any] = {"probes": PROBES, "probe_every": every}
    if issubclass(find_task_class(task), PureTask):  # which measures itself
        fields = {"probes": ()}
    else:
        fields["regime"] = Regime(**{**setup.regime, **arm.regime(given)})
    fields |= {**setup.fields, **arm.fields, **(arm.paper_fields if plan.real else {})}
    if arm.length != 1:
        epochs = fields.get("epochs", study.budget(plan, task).epochs)
        fields["epochs"] = max(1, round(arm.length * epochs))
    fields["options"] = setup.options
    place, seeds = Place(condition.label, arm.name), _seeds(study, plan, condition)
    return study.seeded(plan, place, task, arm.recipe, hyper_parameters, seeds, **fields)


def _seeds(study: Comparison, plan: Plan, condition: Condition) -> Sequence[int]:
    """The seeds of a condition; in the evidence tier few where its scores cannot be decided."""
    seeds = study.chosen_seeds(plan)
    if plan.tier != "evidence" or plan.seeds is not None or _can_decide(study, condition):
        return seeds
    return seeds[: max(LEAST_SEEDS, study.seeds["small"])]


def _can_decide(study: Comparison, condition: Condition) -> bool:
    """True if the evidence tier can be expected to find a multiple of the paper's effect.

    The largest effect counts, of all metrics and arms: claims compare more than the pairs in their
    first metric. A condition whose spread or effect is not known may decide.
    """
    columns = [[float(c.value or 0) for c in of.values()] for of in condition.paper.values() if of]
    effect = max((max(column) - min(column) for column in columns), default=math.inf)
    expected = detectable(condition.spread, study.seeds["evidence"])
    return not expected > MAX_DETECTABLE_RATIO * effect


def _left_out(study: Comparison) -> Iterator[tuple[str, str, str, str]]:
    """The departures of conditions that the small tier leaves out, or the evidence tier alone."""
    count = study.seeds["evidence"]
    known = [each for each in study.conditions if each.runs_in("small", real=False)]
    decisive = [each for each in known if _can_decide(study, each)] or known[:1]
    for condition in study.conditions:
        if condition in decisive:
            continue
        gaps = (condition.gap(ours.name, base.name) for on, (base, ours) in study.comparisons
                if on is condition)  # fmt: skip
        effects = " and ".join(str(each) for each in gaps if each is not None)
        found = detectable(condition.spread, count)
        why = f"{count} seeds would find {found:.2g}; the paper's effect is {effects}"
        tiers = "tier evidence" if condition in known else "tiers small and evidence"
        yield condition.place, "in the table", f"not in the {tiers}", why


def _require(study: Comparison) -> None:
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


def require_known(recipe: str, names: Iterable[str]) -> None:
    """Refuse a hyper-parameter that a recipe lacks."""
    known = load_recipe(recipe).defaults
    for name in names:
        if name not in known:
            right = did_you_mean(name, sorted(known)) if known else "it has none"
            raise ValueError(f"recipe {recipe!r} has no hyper-parameter {name!r}; {right}")
