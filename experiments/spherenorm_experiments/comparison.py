"""`Comparison`: optimizers, each tuned alike by every seed, and compared seed by seed.

    T3 = Comparison(
        "t3", "Table 3: ...", arms=["Adam", "AdamP"], tune={"lr": [1e-3, 2e-3, 4e-3, 8e-3]},
        conditions=[Condition("centernet", "detection", {"detector": "centernet"}), ...],
    )

`build_comparison` makes one of a `CompareRequest`, the arguments of `spherenorm compare`. Studies
are found by name here, too, since a comparison's name is the text of its request. With `--data DIR`
the runs are the paper's: its data, networks, hyper-parameters and budgets, without a search.
"""

from __future__ import annotations

import copy
import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import pandas as pd
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from spherenorm.support import did_you_mean, look_up, split_at_commas, unknown_name
from spherenorm_experiments.comparison_report import (
    ArmResult,
    arm_result_of,
    pictures_of,
    tables_of,
    unit_and_margin,
)
from spherenorm_experiments.design import (
    Arm,
    Axis,
    Condition,
    Point,
    Search,
    Setup,
    Target,
    extend_grid,
    runs_to_target,
)
from spherenorm_experiments.lookup import (
    find_task,
    find_task_class,
    import_file,
    load_recipe,
    load_registered,
    registered,
    users_code,
)
from spherenorm_experiments.pictures import Picture
from spherenorm_experiments.plan import Plan, options_for_optimizer, split_owners
from spherenorm_experiments.runs import Key, Place, Runs, Trial
from spherenorm_experiments.spec import Regime
from spherenorm_experiments.study import Study
from spherenorm_experiments.tables import Table
from spherenorm_experiments.task import Better, PureTask, Task, metric_names
from spherenorm_experiments.verdict import (
    LEAST_SEEDS,
    MAX_DETECTABLE_RATIO,
    NOT_REACHED,
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
        target: a value of a metric: the steps to it are compared beside the scores.
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
        target: Target | None = None,
        first_seed: int = 0,
        seeds: Mapping[str, int] | None = None,
    ) -> None:
        self.name, self.conditions = name, tuple(conditions)
        self.__doc__ = about or name
        self.arms = [a if isinstance(a, Arm) else Arm(a.rpartition(":")[2], recipe=a) for a in arms]
        self.first_seed, self._tune = first_seed, tune
        self.seeds = {"smoke": 1, "small": 3, "evidence": 12, "full": 12, **(seeds or {})}
        self.uses_paper_data = any(condition.real for condition in self.conditions)
        self.extra_claims = list(claims)
        """Claims beside those about the scores."""
        self.scored, self.measures, self.target = scored, dict(measures or {}), target
        _check_study(self)
        self.departures = (*departures, *_excluded_conditions(self))

    def claim(self, name: str, relation: str, **more: Any) -> Callable[[Any], Any]:
        """Return a decorator: the function of the runs is the number of a claim; see `Claim`."""

        def keep(of: Any) -> Any:
            self.extra_claims.append(Claim(name, relation, of, **more))
            return of

        return keep

    @property
    def baseline(self) -> Arm:
        return self.arms[0]

    @property
    def comparisons(self) -> list[tuple[Condition, tuple[Arm, Arm]]]:
        """Every arm after one that it is compared with, on every condition that has both."""
        arms_by_name = {arm.name: arm for arm in self.arms}
        pairs = [(arms_by_name[name], arm) for arm in self.arms for name in self.baselines_of(arm)]
        combinations = itertools.product(self.conditions, pairs)
        return [
            (condition, pair) for condition, pair in combinations if all(map(condition.has, pair))
        ]

    def baselines_of(self, arm: Arm) -> Sequence[str]:
        """Return the names of the arms that one is compared with."""
        if arm.against is not None:
            return arm.against
        return () if arm.name == self.baseline.name else (self.baseline.name,)

    def search(self, arm: Arm) -> Search:
        """Return the search of an arm."""
        tune = self._tune if arm.tune is None else arm.tune
        return tune if isinstance(tune, Search) else Search(tune)

    def with_arms(self, name: str, *arms: Arm) -> Comparison:
        """Return a study with more optimizers; the runs of the others count in it, too.

        MINE = T6.with_arms("t6-mine", Arm("mine", {"lr": [1e-3, 1e-2]}, recipe="mymodule:mine"))
        """
        study, names = copy.copy(self), [arm.name for arm in arms]
        study.name, study.lookup_name, study.arms = name, "", [*self.arms, *arms]
        study.extra_claims = list(self.extra_claims)
        study.conditions = tuple(
            replace(condition, arms=[*condition.arms, *names] if condition.arms else ())
            for condition in self.conditions
        )
        _check_study(study)
        return study

    def trials(self, plan: Plan, runs: Runs) -> list[Trial]:
        """Return every point of every arm's grid with every seed; with real data the paper's point.

        The smoke tier has one condition alone, the first; that of evidence those whose runs can be
        expected to decide, or the first with few seeds, whose norms and steps they do decide.
        """
        conditions = [
            condition
            for condition in self.conditions
            if condition.runs_in(plan.budget_tier, real=plan.real)
        ]
        if plan.tier == "smoke":
            conditions = conditions[:1]
        elif plan.tier == "evidence" and not plan.real:
            conditions = [
                condition for condition in conditions if _can_decide(self, condition)
            ] or conditions[:1]
        return [
            trial
            for condition in conditions
            for arm, points in _points(self, plan, condition, runs)
            for point in points
            for trial in _trials(self, plan, condition, arm, point)
        ]

    def exclusions(self, plan: Plan) -> Mapping[str, str]:
        """Return the conditions whose scores the evidence tier cannot decide, with the reasons."""
        if plan.tier != "evidence" or plan.real:
            return {}
        return {place: f"{where}: {why}" for place, _, where, why in _excluded_conditions(self)}

    @property
    def claims(self) -> Sequence[Claim]:
        """The scores of each condition and pair, then the steps to a target, then the others."""
        pairs = self.comparisons if self.scored else []
        scores = [score_claim(condition, *pair) for condition, pair in pairs]
        if self.target is None:
            return [*scores, *self.extra_claims]
        speeds = [speed_claim(condition, *pair, self.target) for condition, pair in pairs]
        return [*scores, *speeds, *self.extra_claims]

    def arm_results(self, runs: Runs) -> list[ArmResult]:
        """Return the arms with a run, by condition."""

        def make_results() -> list[ArmResult]:
            results = (
                arm_result_of(runs, condition, arm, self.search(arm), self.baselines_of(arm))
                for condition, arm in itertools.product(self.conditions, self.arms)
            )
            return [entry for entry in results if entry is not None]

        return runs.cached(("entries", self), make_results)

    def tables(self, runs: Runs) -> list[Table]:
        return tables_of(self.arm_results(runs), self.conditions, self.measures, self.target)

    def pictures(self, runs: Runs) -> list[Picture]:
        return pictures_of(self.arm_results(runs))

    def evaluate_claims(self, runs: Runs) -> list[Decision]:
        """Each claim by itself.

        A score whose unit is not given has the one that its runs note. A pair that lacks runs has
        no verdict; one that the tier leaves out has the verdict that its runs would have.
        """
        return _evaluate_scores(self, runs)


def score_claim(
    condition: Condition, baseline: Arm, arm: Arm, *, better: Better = "higher", **more: Any
) -> Claim:
    """Return the claim that the second of a pair scores better."""
    parts = (condition.label, "score", arm.name, baseline.name)

    def difference(runs: Runs) -> pd.Series:
        arm_runs, baseline_runs = (
            runs.selected(condition.label, arm.name) for arm in (arm, baseline)
        )
        return arm_runs.test - baseline_runs.test

    word, relation, direction = "higher", "> 0", ""
    if better == "lower":
        word, relation, direction = "lower", "< 0", "; lower is better"
    defaults = {"cites": condition.cites, "primary": True, "spread": condition.spread}
    return Claim(
        ".".join(filter(None, map(slug, parts))), relation, difference,
        f"{arm.name} scores {word} than {baseline.name} ({condition.place}{direction})",
        is_performance=True, paper=condition.paper_difference(arm.name, baseline.name) or "",
        **{**defaults, **more},
    )  # fmt: skip


def speed_claim(condition: Condition, baseline: Arm, arm: Arm, target: Target) -> Claim:
    """Make the claim that the second of a pair reaches a target in fewer steps."""
    parts = (condition.label, "steps", arm.name, baseline.name)

    def ratio(runs: Runs) -> pd.Series:
        grids = (runs.complete_grid(condition.label, name) for name in (arm.name, baseline.name))
        arm_runs, baseline_runs = (runs_to_target(grid, target) for grid in grids)
        return arm_runs.steps / baseline_runs.steps  # nan where neither has reached it

    return Claim(
        ".".join(filter(None, map(slug, parts))), "< 1", ratio,
        f"{arm.name} reaches {target} in fewer steps than {baseline.name} ({condition.place})",
        ratio=True, primary=True, is_performance=True, lost_word=NOT_REACHED,
    )  # fmt: skip


def _evaluate_scores(study: Comparison, runs: Runs) -> list[Decision]:
    claims, scored = list(study.claims), study.comparisons if study.scored else []
    entries = {entry.place: entry for entry in study.arm_results(runs)}
    pairs = [[Place(condition.label, arm.name) for arm in pair[::-1]] for condition, pair in scored]
    for i, (condition, _) in enumerate(scored):
        pair_results = [entries[place] for place in pairs[i] if place in entries]
        unit, margin = unit_and_margin(condition, pair_results)
        note = "; ".join(note for entry in pair_results for note in entry.notes)
        claim = claims[i]
        if pair_results and pair_results[0].better == "lower":
            lower = score_claim(condition, *scored[i][1], better="lower")
            claim = replace(claim, relation=lower.relation, text=lower.text)
        claims[i] = replace(claim, unit=unit, equivalence_margin=margin, note=note)
    decisions = []
    compared_places = pairs * (1 if study.target is None else 2)
    for i, claim in enumerate(claims):
        compared = compared_places[i] if i < len(compared_places) else None
        decision = evaluate_claim(claim, runs, compared)
        if compared is not None and any(map(runs.missing_counts.get, compared)):
            decision = without_verdict(decision, INTERIM)
        decisions.append(decision)
    return decisions


def _points(
    study: Comparison, plan: Plan, condition: Condition, runs: Runs
) -> list[tuple[Arm, list[Point]]]:
    """Return the points of each arm, as far as they are known.

    `--set lr` is one value for all points.
    """
    arms = [arm for arm in study.arms if condition.has(arm)]
    if plan.real:
        return [(arm, [arm.paper]) for arm in arms]
    smoke, axes = plan.tier == "smoke", dict[Axis, tuple[float, ...]]()
    if not smoke:
        searches = {arm.name: study.search(arm) for arm in arms}
        frames = {name: runs.all_runs(condition.label, name) for name in searches}
        axes = extend_grid(searches, frames, _seeds(study, plan, condition))
    points_by_arm: list[tuple[Arm, list[Point]]] = []
    for arm in arms:
        search = study.search(arm).on(axes)
        overridden = {name: x for name, x in plan.overrides.items() if name in search.names}
        points: list[Point] = []
        for point in search.points:
            values = {**arm.fixed, **point, **overridden}
            points += [] if values in points else [values]
        short = smoke and search.trials is None
        points_by_arm.append((arm, points[:SMOKE_POINTS] if short else points))
    return points_by_arm


def _trials(
    study: Comparison, plan: Plan, condition: Condition, arm: Arm, point: Mapping[str, Any]
) -> list[Trial]:
    """Make one trial for each seed."""
    setup = condition.on(plan.budget_tier, real=plan.real)
    task = setup.task or condition.task
    hyper_parameters = {**point, **setup.hyper_parameters}
    values = {name: plan.overrides.get(name, v) for name, v in hyper_parameters.items()}
    probe_every = PROBE_EVERY * 10 if plan.real else PROBE_EVERY
    fields: dict[str, Any] = {"probes": PROBES, "probe_every": probe_every}
    if issubclass(find_task_class(task), PureTask):  # which measures itself
        fields = {"probes": ()}
    else:
        fields["regime"] = Regime(**{**setup.regime, **arm.regime(values)})
    fields |= {**setup.fields, **arm.fields, **(arm.paper_fields if plan.real else {})}
    if arm.length != 1:
        epochs = fields.get("epochs", study.budget(plan, task).epochs)
        fields["epochs"] = max(1, round(arm.length * epochs))
    fields["options"] = setup.options
    place, seeds = Place(condition.label, arm.name), _seeds(study, plan, condition)
    return study.make_trials(plan, place, task, arm.recipe, hyper_parameters, seeds, **fields)


def _seeds(study: Comparison, plan: Plan, condition: Condition) -> Sequence[int]:
    """The seeds of a condition; in the evidence tier few where its scores cannot be decided."""
    seeds = study.chosen_seeds(plan)
    if plan.tier != "evidence" or plan.seeds is not None or _can_decide(study, condition):
        return seeds
    return seeds[: max(LEAST_SEEDS, study.seeds["small"])]


def _can_decide(study: Comparison, condition: Condition) -> bool:
    """Return True if the evidence tier can be expected to find a multiple of the paper's effect.

    The largest effect counts, of all metrics and arms: claims compare more than the pairs in their
    first metric. A condition whose spread or effect is not known may decide.
    """
    columns = [[float(c.value or 0) for c in of.values()] for of in condition.paper.values() if of]
    effect = max((max(column) - min(column) for column in columns), default=math.inf)
    expected = detectable(condition.spread, study.seeds["evidence"])
    return not expected > MAX_DETECTABLE_RATIO * effect


def _excluded_conditions(study: Comparison) -> Iterator[tuple[str, str, str, str]]:
    """The departures of conditions that the small tier leaves out, or the evidence tier alone."""
    count = study.seeds["evidence"]
    candidates = [
        condition for condition in study.conditions if condition.runs_in("small", real=False)
    ]
    decisive = [
        condition for condition in candidates if _can_decide(study, condition)
    ] or candidates[:1]
    for condition in study.conditions:
        if condition in decisive:
            continue
        pairs = [pair for compared, pair in study.comparisons if compared is condition]
        cells = [condition.paper_difference(arm.name, base.name) for base, arm in pairs]
        effects = " and ".join(str(cell) for cell in cells if cell is not None)
        least_effect = detectable(condition.spread, count)
        why = f"{count} seeds would find {least_effect:.2g}; the paper's effect is {effects}"
        tiers = "tier evidence" if condition in candidates else "tiers small and evidence"
        yield condition.place, "in the table", f"not in the {tiers}", why


def _check_study(study: Comparison) -> None:
    """Refuse names that say two things or none, before anything runs."""
    labels, names = [c.label for c in study.conditions], [c.name for c in study.arms]
    for part, names_given in (("conditions", labels), ("arms", names)):
        if repeated := [name for name in names_given if names_given.count(name) > 1]:
            raise ValueError(f"{part} of {study.name!r} has {repeated[0]!r} twice")
    referenced = [name for arm in study.arms for name in study.baselines_of(arm)]
    for name in (*referenced, *(name for condition in study.conditions for name in condition.arms)):
        if name not in names:
            raise unknown_name("arm", name, names)
    for condition, arm in itertools.product(study.conditions, study.arms):
        setup = condition.setup if isinstance(condition.setup, Setup) else Setup()
        for name in study.search(arm).names:
            if name in setup.hyper_parameters:  # no search over one value would be complete
                lack = f"{condition.label!r} has a value of {name}"
                raise ValueError(f"{lack}, which {arm.name} searches")


def check_names_exist(recipe: str, names: Iterable[str]) -> None:
    """Refuse a hyper-parameter that a recipe lacks."""
    hyper_parameters = load_recipe(recipe).defaults
    for name in names:
        if name not in hyper_parameters:
            right = (
                did_you_mean(name, sorted(hyper_parameters)) if hyper_parameters else "it has none"
            )
            raise ValueError(f"recipe {recipe!r} has no hyper-parameter {name!r}; {right}")


COMMAND = "compare"

ABOUT = """Every optimizer is tuned in the same number of trials, over the same ranges if it is
given none of its own. All trials run on all seeds; each seed takes the trial with its best
validation score, and the test scores of these are compared seed by seed. Means in one column are
over the same seeds."""

MEASURED = {"probes": ("norms",), "probe_every": 1}
"""In every run, at every step."""

MOST_SEEDS = 10_000

Range = tuple[float, float]

Size = tuple[str, tuple[float, ...]]
"""An option of a task, and its values."""


def _parse_names(text: Any) -> Any:
    """Return the names of "a, b,module:c"."""
    names = split_at_commas(text) if isinstance(text, str) else text
    if "" in names:
        raise ValueError("a name is empty")
    return names


def _parse_ranges(entries: Any) -> Any:
    """Return the ranges of "lr=1e-4:1e-1,weight_decay=1e-5:1e-2", in one entry or several.

    A name may have an optimizer before it, "sgd:lr" or "module:recipe:lr".
    """
    if not isinstance(entries, list | tuple):
        return entries
    ranges: dict[str, Range] = {}
    for entry in (part.strip() for text in entries for part in text.split(",")):
        name, _, bounds = entry.partition("=")
        try:
            low, high = (float(end) for end in bounds.split(":"))
        except ValueError:
            low = high = math.nan
        if not (name and 0 < low < high < math.inf):
            right = "give name=low:high, a positive and rising range such as lr=1e-4:1e-1"
            raise ValueError(f"{entry!r}: {right}")
        if name in ranges:
            raise ValueError(f"{entry!r}: {name!r} is there twice")
        ranges[name] = low, high
    return ranges


def _parse_target(text: Any) -> Any:
    """Return the target of "loss=2.1"."""
    if not isinstance(text, str):
        return text
    metric, _, number = text.rpartition("=")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not (metric and math.isfinite(value)):
        raise ValueError(f"--target {text!r}: give metric=value, such as loss=2.1")
    return metric, value


def _parse_sizes(text: Any) -> Any:
    """Return the option and the values of "width=16,32"."""
    if not isinstance(text, str):
        return text
    name, _, values = text.partition("=")
    try:
        sizes = tuple(json.loads(value) for value in values.split(","))
    except ValueError:
        sizes = ()
    if not name or len(set(sizes)) < 2:
        raise ValueError(f"--sizes {text!r}: give option=size,size, such as width=16,32")
    return name, sizes


def labels_of(optimizers: Sequence[str]) -> dict[str, str]:
    """Return the name of each optimizer in tables: without its module, unless two are alike.

    >>> labels_of(["sgd", "mine:averaged"])
    {'sgd': 'sgd', 'mine:averaged': 'averaged'}
    """
    short = [recipe.rpartition(":")[2] for recipe in optimizers]
    return {
        recipe: name if short.count(name) == 1 else recipe
        for recipe, name in zip(optimizers, short, strict=True)
    }


class CompareRequest(BaseModel):
    """Optimizers on a task, each tuned in as many trials, over the same ranges or its own.

        >>> asked = CompareRequest(task="digits", optimizers="sgd, sgdp", search=["lr=1e-4:1e-1"])
        >>> str(asked)
        'compare {"task": "digits", "optimizers": ["sgd", "sgdp"], "search": {"lr": [0.0001, 0.1]}}'
        >>> CompareRequest.from_text(str(asked)) == asked
        True

    Attributes:
        task: a task's name, or `module:Class`.
        optimizers: two or more recipes, by name or as `module:function`.
        search: the hyper-parameters that are tuned, with their logarithmic ranges; one that is
            named `optimizer:name` is that optimizer's own.
        trials: of each optimizer.
        baseline: the optimizer to which the others are compared; the first by default.
        margin: two mean scores that differ by less are equivalent; None for no such verdict, or
            one percentage point if the score is in percent.
        fixed: values of one optimizer's own hyper-parameters, by `optimizer:name`; an optimizer's
            name in tables will do for it.
        target: a metric and its value, see `Target`; the steps to it are compared, too.
        sizes: an option of the task, and the values of it at which all are compared.

    Raises:
        ValidationError: an argument that is wrong by itself; it is a ValueError too.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: str
    optimizers: Annotated[tuple[str, ...], BeforeValidator(_parse_names)]
    search: Annotated[dict[str, Range], BeforeValidator(_parse_ranges)]
    trials: Annotated[int, Field(ge=1)] = 8
    baseline: str = ""
    margin: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    fixed: dict[str, Any] = {}
    target: Annotated[tuple[str, float] | None, BeforeValidator(_parse_target)] = None
    sizes: Annotated[Size | None, BeforeValidator(_parse_sizes)] = None

    @field_validator("search", "fixed")
    @classmethod
    def _replace_labels(cls, values: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        """Return the entries with recipes in the place of names in tables, as those are unique."""
        recipes = _recipes_by_label(info)
        replaced: dict[str, Any] = {}
        for (owner, name), value in zip(split_owners(values), values.values(), strict=True):
            full = ":".join(filter(None, [recipes.get(owner, owner), name]))
            if full in replaced:
                raise ValueError(f"{full!r} is there twice")
            replaced[full] = value
        return replaced

    @field_validator("baseline")
    @classmethod
    def _replace_label(cls, name: str, info: ValidationInfo) -> str:
        return _recipes_by_label(info).get(name, name)

    @model_validator(mode="after")
    def _check_together(self) -> CompareRequest:
        listed = ",".join(self.optimizers)
        if len(self.optimizers) < 2:
            raise ValueError(f"--optimizers {listed!r}: give two or more to compare")
        for name in self.optimizers:
            if self.optimizers.count(name) > 1:
                raise ValueError(f"--optimizers {listed!r}: {name!r} is there twice")
            if not options_for_optimizer(self.search, name):
                right = f"such as {name}:lr=1e-4:1e-1"
                raise ValueError(f"--search: no range for {name!r}; give one, {right}")
        names = [*self.search, *self.fixed]
        for name, (owner, _) in zip(names, split_owners(names), strict=True):
            if owner and owner not in self.optimizers:
                right = did_you_mean(owner, labels_of(self.optimizers).values())
                raise ValueError(f"{name!r}: {owner!r} is none of --optimizers {listed!r}; {right}")
        for name in self.optimizers:
            if clashing := options_for_optimizer(self.fixed, name).keys() & options_for_optimizer(
                self.search, name
            ):
                raise ValueError(f"--set {name}:{min(clashing)}: --search tunes it")
        if self.baseline and self.baseline not in self.optimizers:
            raise ValueError(f"--baseline {self.baseline!r} is none of --optimizers {listed!r}")
        return self

    def __str__(self) -> str:
        return f"{COMMAND} {json.dumps(self.model_dump(mode='json', exclude_defaults=True))}"

    @classmethod
    def from_text(cls, text: str) -> CompareRequest:
        """Return the inverse of `str`."""
        return cls.model_validate_json(text.partition(" ")[2])

    def require(self) -> None:
        """Look up the task and the recipes.

        Raises:
            ValueError: there is no such task or recipe, the task has no score, or a recipe lacks a
                hyper-parameter of the search.
        """
        task = find_task_class(self.task)
        if not issubclass(task, Task):
            remedy = "give a task that trains on batches (a subclass of Task)"
            raise ValueError(f"--task {self.task!r} has no score to compare: {remedy}")
        if task.evaluate is Task.evaluate:
            raise ValueError(f"--task {self.task!r} has no metric: it does not define `evaluate`")
        if self.sizes is not None:
            option, values = self.sizes
            for value in values:
                find_task(self.task, {option: value})
        if self.target is not None:
            self._require_target(self.target[0])
        for name in self.optimizers:
            check_names_exist(
                name,
                [
                    *options_for_optimizer(self.search, name),
                    *options_for_optimizer(self.fixed, name),
                ],
            )

    def _require_target(self, metric: str) -> None:
        """Refuse a metric that no run will have, as far as the task at its defaults says."""
        names: tuple[str, ...] = ()
        with suppress(Exception):  # options without a default are not known here
            names = metric_names(find_task(self.task))  # type: ignore[arg-type]
        targets = (*names, "loss", "validation")
        if names and metric not in targets:
            raise unknown_name("metric of --target", metric, targets)


def _recipes_by_label(info: ValidationInfo) -> dict[str, str]:
    labels = labels_of(info.data.get("optimizers", ()))
    return {label: recipe for recipe, label in labels.items()}


def build_comparison(request: CompareRequest) -> Comparison:
    """Return the study that a comparison's arguments ask for."""
    arms = {
        recipe: Arm(
            label,
            Search(options_for_optimizer(request.search, recipe), request.trials),
            options_for_optimizer(request.fixed, recipe),
            recipe=recipe,
        )
        for recipe, label in labels_of(request.optimizers).items()
    }
    baseline = arms.pop(request.baseline or request.optimizers[0])
    ordered = [baseline, *arms.values()]
    study = Comparison(
        re.sub(r"[^\w.-]+", "-", f"{COMMAND}-{request.task}"),
        f"{request.task}: {', '.join(arm.name for arm in ordered)}, tuned alike\n\n{ABOUT}",
        arms=ordered,
        tune=Search(options_for_optimizer(request.search, baseline.recipe), request.trials),
        conditions=_conditions_of_sizes(request),
        target=None if request.target is None else Target(*request.target),
        seeds=Study.seeds,
    )
    study.lookup_name = str(request)
    return study


def _conditions_of_sizes(request: CompareRequest) -> list[Condition]:
    """Return a condition for each size of the task; one without a name if no size is given."""
    name, values = request.sizes or ("", (None,))
    conditions = []
    for value in values:
        label = f"{name} {value:g}" if name and value is not None else ""
        setup = Setup({name: value} if name else {}, fields=MEASURED)
        conditions.append(Condition(label, request.task, setup, margin=request.margin))
    return conditions


def parse_overrides(entries: Sequence[str]) -> dict[str, Any]:
    """The values of key=value entries; a value is JSON (0.1, true, null, [0.9]) or else a word.

    Raises:
        ValueError: an entry without a key or an equals sign.
    """
    overrides: dict[str, Any] = {}
    for entry in entries:
        key, equals, text = entry.partition("=")
        if not (key and equals):
            raise ValueError(f"--set {entry!r}: give key=value, such as lr=0.05")
        try:
            overrides[key] = json.loads(text)
        except ValueError:
            overrides[key] = text
    return overrides


def parse_seeds(text: str) -> tuple[int, ...]:
    """Return the seeds of "3", "0:10" or "1,4,7".

    Raises:
        ValueError: a text that is none of these, no seed, too many or too large ones.
    """
    try:
        start, colon, last = text.rpartition(":")
        listed = [int(seed) for seed in text.split(",")] if "," in text else None
        seeds = listed or range(int(start) if colon else 0, int(last))
        if 0 < len(seeds) <= MOST_SEEDS and min(seeds) >= 0 and max(seeds) < 2**63:
            return tuple(dict.fromkeys(seeds))
    except (ValueError, OverflowError):
        pass
    right = f"give a count (3), a range (0:10) or a list (1,4,7), at most {MOST_SEEDS}"
    raise ValueError(f"--seeds {text!r}: {right}")


def study_classes() -> dict[str, type[Study] | Study]:
    """Return every registered study by name: a class, or an instance of one."""
    return {name: load_registered("STUDIES", name) for name in registered("STUDIES")}


def find_study(name: str) -> Study:
    """Find a study by its name.

    Args:
        name: of a registered study, in upper or lower case; the path of a file with one study, or
            `path.py:NAME`; `module:NAME`; or the text of a `CompareRequest`.

    Raises:
        ValueError: there is no such study.
    """
    if name.startswith(f"{COMMAND} "):
        return build_comparison(CompareRequest.from_text(name))
    path, _, attribute = name.partition(":")
    lookup_name = name
    if path.endswith(".py"):
        with users_code("study", name):
            module = import_file(Path(path))
            study_or_class = _study_in(module, attribute)
        lookup_name = ":".join(filter(None, [_short_path(Path(path)), attribute]))
    elif ":" in name:
        with users_code("study", name):
            study_or_class = look_up("study", name, "study", _is_study)
    else:
        addresses = registered("STUDIES")
        if name.lower() not in addresses:
            raise ValueError(f"no study is named {name!r}; {did_you_mean(name.lower(), addresses)}")
        study_or_class = load_registered("STUDIES", name.lower())
    with users_code("study", name):
        study: Study = study_or_class() if isinstance(study_or_class, type) else study_or_class
    study.lookup_name = lookup_name if ":" in name or path.endswith(".py") else study.name
    return study


def _study_in(module: ModuleType, attribute: str) -> Any:
    """Return the study of a module that has this name, or its only one.

    Raises:
        ValueError: there is none, or more than one to choose from.
    """
    studies = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, Study) or (_is_study(value) and value.__module__ == module.__name__)
    }
    if attribute in studies:
        return studies[attribute]
    file = Path(module.__file__ or "").name
    named = [name for name, value in studies.items() if getattr(value, "name", "")]
    if attribute:
        raise ValueError(f"{file} has no study {attribute!r}; {did_you_mean(attribute, named)}")
    if len(named) != 1:
        listed = ", ".join(f"{file}:{name}" for name in named) or "none"
        raise ValueError(f"{file} must have one study, or name it by {file}:NAME; it has {listed}")
    return studies[named[0]]


def _short_path(path: Path) -> str:
    """Return a path relative to the working directory if it lies below that, else absolute."""
    absolute = path.resolve()
    here = Path.cwd().resolve()
    return str(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute)


def _is_study(value: Any) -> bool:
    return isinstance(value, Study) or (isinstance(value, type) and issubclass(value, Study))


def name_of(study: Study) -> str:
    """Return the name by which `find_study` finds the study again."""
    if study.lookup_name or isinstance(study, Comparison):
        return study.lookup_name or study.name
    cls = type(study)
    address = f"{cls.__module__}:{cls.__name__}"
    return study.name if address in registered("STUDIES").values() else address
