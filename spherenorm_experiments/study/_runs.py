"""The trials of a tuned comparison, and the contenders that a plan adds to it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from spherenorm.support import did_you_mean
from spherenorm_experiments.analysis import Arm, Results, Trial
from spherenorm_experiments.core import Regime, load_recipe, points
from spherenorm_experiments.study._compared import differing
from spherenorm_experiments.study._condition import Condition, Contender, arm_of
from spherenorm_experiments.study._design import Design
from spherenorm_experiments.study._plan import Plan, Range, ranges_of
from spherenorm_experiments.study._search import Point, Search, Tuned, tuned
from spherenorm_experiments.study._study import final_seeds

__all__ = ["differences", "trials_of", "with_added"]

PROBES, PROBE_EVERY = ("norms", "detection"), 10


def trials_of(design: Design, plan: Plan, results: Results) -> list[Trial]:
    """The trials as far as they are known: the searches, and the final runs after these."""
    if plan.real:
        return [
            trial
            for condition, contender in _entries(design, plan)
            for trial in _final(design, plan, condition, contender, contender.paper)
        ]
    final_seeds(design, plan)  # raises if one of them is the seed of the search
    searches, finals = [], []
    for condition, contender in _entries(design, plan):
        arm, search = arm_of(condition, contender, "tuning"), design.search(contender)
        ended = tuned(results.arm(arm), search.names, design.tuning_seeds())
        asked = _points(design, plan, search, ended)
        on_tuning = replace(plan, seeds=tuple(design.tuning_seeds()))
        for point in asked:
            values = {**contender.fixed, **point}
            searches += _runs(design, on_tuning, condition, contender, arm, values)
        if len(ended.points) >= len(asked):
            # At the first point if all were lost, so that claims count them.
            best = {**contender.fixed, **ended.points[ended.best or 0]}
            finals += _final(design, plan, condition, contender, best)
    return searches + finals


def _entries(design: Design, plan: Plan) -> Iterator[tuple[Condition, Contender]]:
    """Every contender on every condition; the smoke tier has the first condition alone."""
    on = [condition for condition in design.on if condition.real or not plan.real]
    return itertools.product(on[:1] if plan.tier == "smoke" else on, with_added(design, plan))


def _points(design: Design, plan: Plan, search: Search, ended: Tuned) -> list[Point]:
    """The points of a search; fewer in the smoke tier; `--set lr` is one value for all."""
    known = search.points(ended)
    if plan.tier == "smoke" and design.smoke_points is not None:
        known = known[: design.smoke_points]
    given = {name: plan.overrides[name] for name in search.names if name in plan.overrides}
    apart: list[Point] = []
    for point in ({**point, **given} for point in known):
        apart += [] if point in apart else [point]
    return apart


def _final(
    design: Design,
    plan: Plan,
    condition: Condition,
    contender: Contender,
    values: Mapping[str, Any],
) -> list[Trial]:
    every = PROBE_EVERY * 10 if plan.real else PROBE_EVERY
    more: dict[str, Any] = {"probes": PROBES, "probe_every": every}
    return _runs(design, plan, condition, contender, arm_of(condition, contender), values, **more)


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
    fields = {"probes": (), "regime": regime, **more, **setup.fields, **own}
    return design.seeded(
        plan, arm, condition.task, hyper_parameters, options=setup.options, **fields
    )


def differences(design: Design, plan: Plan) -> list[str]:
    """The hyper-parameters that nobody tunes and in which contenders differ, with values."""
    chosen = with_added(design, plan)
    values = {each.name: {**load_recipe(each.recipe).defaults, **each.fixed} for each in chosen}
    return [
        f"{name}: " + ", ".join(f"{contender} {value!r}" for contender, value in of.items())
        for name, of in differing(values).items()
        if name not in plan.overrides
        and not any(name in design.search(each).names for each in chosen)
    ]


def with_added(design: Design, plan: Plan) -> list[Contender]:
    """The contenders, and those that a plan adds.

    Raises:
        ValueError: a recipe without a search, or that lacks what is tuned.
    """
    return [*design.contenders, *(_added(design, plan, name) for name in plan.optimizers or ())]


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
        _require_known(recipe, ranges, known)
        count = design.search(design.baseline).count
        if plan.tier == "smoke" and design.smoke_points is not None:
            count = min(count, design.smoke_points)
        said = ",".join(f"{name}={low:g}:{high:g}" for name, (low, high) in ranges.items())
        name, against = f"{short} ({said})", [design.baseline.name]
        return Contender(name, _ranged(ranges, count), {}, against, recipe=recipe, added=True)
    if not plan.like:
        give = f"--search {recipe}:lr=1e-3:1, or --like {design.baseline.recipe}"
        raise ValueError(f"--optimizers {recipe!r} has no search in {design.name}; give {give}")
    like = _like(design, plan.like)
    _require_known(recipe, design.search(like).names, known)
    fixed, paper = (
        {name: value for name, value in given.items() if name in known}
        for given in (like.fixed, like.paper)
    )
    return replace(
        like, name=f"{short} (like {like.name})", recipe=recipe, tune=design.search(like),
        fixed=fixed, paper=paper, against=list(design.against(like)) or [design.baseline.name],
        added=True,
    )  # fmt: skip


def _ranged(ranges: Mapping[str, Range], count: int) -> Search:
    """A search of one range over equal ratios; of several by Halton's sequence."""
    if len(ranges) > 1 or count < 2:
        return Search(ranges, count)
    return Search({name: [p[name] for p in points(ranges, count, "grid")] for name in ranges})


def _like(design: Design, name: str) -> Contender:
    """The contender that `--like` names, by its name or its recipe."""
    for contender in design.contenders:
        if name in (contender.name, contender.recipe):
            return contender
    known = [contender.recipe for contender in design.contenders]
    raise ValueError(
        f"--like {name!r} is no contender of {design.name}; {did_you_mean(name, known)}"
    )


def _require_known(recipe: str, names: Any, known: Mapping[str, Any]) -> None:
    for name in names:
        if name not in known:
            right = did_you_mean(name, sorted(known)) if known else "it has none"
            raise ValueError(f"recipe {recipe!r} has no hyper-parameter {name!r}; {right}")
