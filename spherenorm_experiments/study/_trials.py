"""The trials of a study as a plan wants them: its optimizers, its device and its settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from spherenorm.support import close_names
from spherenorm_experiments.analysis import Arm, Trial
from spherenorm_experiments.core import Regime, Spec
from spherenorm_experiments.engine.door import Door
from spherenorm_experiments.study._plan import Plan

__all__ = ["apply_plan"]

SETTABLE = ("epochs", "batch_size", "schedule", "probe_every")
"""The fields of `Spec` that `--set` may set."""

SIMILAR = 0.6
"""The least similarity to an unknown setting: among so many, "nope" is half of "per"."""

REGIME = tuple(option.name for option in fields(Regime))
"""The options of `Regime`, which `--set` may set for tasks that train on batches."""


def apply_plan(
    plan: Plan,
    trials: Sequence[Trial],
    door: Door,
    own: Sequence[str] = (),
    first: Sequence[Trial] | None = None,
) -> list[Trial]:
    """The study's trials with the optimizers, the device and the settings of a plan.

    Args:
        trials: those that the study asks for.
        own: settings that the study takes itself.
        first: the trials of its first round, if these are of a later one.

    Raises:
        ValueError: a setting that no trial has.
    """
    first = trials if first is None else first
    chosen = list(trials)
    if plan.optimizers is not None:
        chosen = _with_optimizers(trials, plan.optimizers, first, door)
    first_arms = {trial.arm for trial in first}
    used: set[str] = set(own)
    applied = []
    for trial in chosen:
        later = (trial.arm.substitutes_for or trial.arm) not in first_arms
        spec = replace(_known_only(trial, door), device=plan.device)
        spec, taken = _with_settings(spec, plan.settings, door, later=later)
        used |= taken
        applied.append(Trial(trial.arm, spec))
    if chosen and (unused := [name for name in plan.settings if name not in used]):
        known = {*SETTABLE, *own}.union(*(_settable(trial.spec, door) for trial in chosen))
        near = close_names(unused[0], known, cutoff=SIMILAR)
        right = (
            f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(sorted(known))}"
        )
        raise ValueError(f"no run has a setting {unused[0]!r}; {right}")
    return _merged(applied)


def _with_optimizers(
    trials: Sequence[Trial], wanted: Sequence[str], first: Sequence[Trial], door: Door
) -> list[Trial]:
    """The trials of the wanted recipes.

    A recipe that the study does not have substitutes for the one with which it shares most
    hyper-parameters. A substitute replaces first-round trials only: values derived from another
    recipe's results, such as its best learning rate, do not apply to it. The study makes later
    rounds for it as for its own recipes.
    """
    chosen = []
    for name in wanted:
        asked = [trial for trial in trials if trial.spec.recipe == name]
        if all(trial.arm.substitutes_for for trial in asked):  # the study has no such recipe
            nearest = _nearest_recipe(name, first, door)
            chosen += [trial.substitute(name) for trial in first if trial.spec.recipe == nearest]
        chosen += asked
    return chosen


def _nearest_recipe(name: str, first: Sequence[Trial], door: Door) -> str | None:
    """The recipe of these trials that shares most hyper-parameters with the one called `name`."""
    known = set(door.recipe(name).defaults)
    recipes = dict.fromkeys(trial.spec.recipe for trial in first)
    return max(recipes, key=lambda own: len(known & set(door.recipe(own).defaults)), default=None)


def _known_only(trial: Trial, door: Door) -> Spec:
    """The trial's spec; a substitute's without hyper-parameters that its recipe does not have."""
    if trial.arm.substitutes_for is None:
        return trial.spec
    known = door.recipe(trial.spec.recipe).defaults
    given = trial.spec.hyper_parameters
    kept = {name: value for name, value in given.items() if name in known}
    return replace(trial.spec, hyper_parameters=kept)


def _with_settings(
    spec: Spec, settings: Mapping[str, Any], door: Door, *, later: bool
) -> tuple[Spec, set[str]]:
    """The spec with the settings that it has, and their names.

    Args:
        later: the spec is of a later round, which has chosen among the values of a list.
    """
    hyper_parameters, options = dict(spec.hyper_parameters), dict(spec.options)
    direct: dict[str, Any] = {}
    regime: dict[str, Any] = {}
    known = _settable(spec, door)
    taken = [name for name in settings if name in known]
    for name in taken:
        value = settings[name]
        if name in SETTABLE:
            direct[name] = value
        elif name in door.options(spec):
            options[name] = value
        elif name in REGIME and name not in door.recipe(spec.recipe).defaults:
            regime[name] = tuple(value) if isinstance(value, list) else value
        elif not (later and isinstance(value, list) and _chosen_from(spec, name, value)):
            hyper_parameters |= _on_grid(spec.points, name, value)
    if regime:
        direct["regime"] = replace(spec.regime, **regime)
    return replace(spec, hyper_parameters=hyper_parameters, options=options, **direct), set(taken)


def _settable(spec: Spec, door: Door) -> set[str]:
    """The settings that a spec has."""
    regime = REGIME if door.is_trained(spec) else ()
    return {*SETTABLE, *regime, *door.options(spec), *door.recipe(spec.recipe).defaults}


def _chosen_from(spec: Spec, name: str, values: Sequence[Any]) -> bool:
    return set(spec.points.get(name, [spec.hyper_parameters.get(name)])) <= set(values)


def _on_grid(points: Mapping[str, list[float]], name: str, value: Any) -> dict[str, Any]:
    """A hyper-parameter's value beside the swept ones.

    One number for a swept hyper-parameter holds at each point, and points that become identical
    this way are merged.
    """
    if name not in points or isinstance(value, list):
        return {name: value}
    fixed = {**points, name: [value] * len(points[name])}
    rows = dict.fromkeys(zip(*fixed.values(), strict=True))
    columns = zip(*rows, strict=True)
    return {swept: list(column) for swept, column in zip(fixed, columns, strict=True)}


def _merged(trials: Sequence[Trial]) -> list[Trial]:
    """The trials without repetitions: substitutes' arms that have become identical are merged.

    They are identical if the recipe lacks the hyper-parameter in which the study's arms differ. The
    study's own arms keep their names.
    """
    arms: dict[Arm, list[Spec]] = {}
    for trial in trials:
        if trial.arm.substitutes_for and trial.spec not in arms.setdefault(trial.arm, []):
            arms[trial.arm].append(trial.spec)
    runs = list(arms.values())
    left = {
        arm: list(specs)
        for number, (arm, specs) in enumerate(arms.items())
        if specs not in runs[:number]
    }
    kept = []
    for trial in trials:
        if trial.arm.substitutes_for is None:
            kept.append(trial)
        elif trial.spec in left.get(trial.arm, ()):
            left[trial.arm].remove(trial.spec)  # once: a later round may ask for it again
            kept.append(trial)
    return kept
