"""The trials of a study as a plan wants them: its device and its overrides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from spherenorm.support import did_you_mean
from spherenorm_experiments.analysis import Trial
from spherenorm_experiments.core import Regime, Spec, Task, find_task_class, load_recipe
from spherenorm_experiments.study._plan import Plan

SETTABLE = ("epochs", "batch_size", "schedule", "probe_every")
"""The fields of `Spec` that `--set` may set."""

REGIME = tuple(option.name for option in fields(Regime))
"""The options of `Regime`, which `--set` may set for tasks that train on batches."""


def apply_plan(
    plan: Plan, trials: Sequence[Trial], first: Sequence[Trial] | None = None
) -> list[Trial]:
    """The study's trials with the device and the overrides of a plan.

    Args:
        trials: those that the study asks for.
        first: the trials of its first round, if these are of a later one.

    Raises:
        ValueError: a setting that no trial has.
    """
    first_arms = {trial.arm for trial in (trials if first is None else first)}
    used: set[str] = set()
    applied = []
    for trial in trials:
        later = trial.arm not in first_arms
        spec = replace(trial.spec, device=plan.device)
        spec, taken = _with_overrides(spec, plan.overrides, later=later)
        used |= taken
        applied.append(Trial(trial.arm, spec))
    if trials and (unused := [name for name in plan.overrides if name not in used]):
        known = {*SETTABLE}.union(*(_settable(trial.spec) for trial in trials))
        raise ValueError(f"no run has a setting {unused[0]!r}; {did_you_mean(unused[0], known)}")
    return applied


def _with_overrides(
    spec: Spec, overrides: Mapping[str, Any], *, later: bool
) -> tuple[Spec, set[str]]:
    """The spec with those of the overrides that it has, and their names.

    Args:
        later: the spec is of a later round, which has chosen among the values of a list.
    """
    hyper_parameters, options = dict(spec.hyper_parameters), dict(spec.options)
    direct: dict[str, Any] = {}
    regime: dict[str, Any] = {}
    known = _settable(spec)
    taken = [name for name in overrides if name in known]
    # Lists first: a number beside them then holds at each of their points.
    for name in sorted(taken, key=lambda name: not isinstance(overrides[name], list)):
        value = overrides[name]
        if name in SETTABLE:
            direct[name] = value
        elif name in _options(spec):
            options[name] = value
        elif name in REGIME and name not in load_recipe(spec.recipe).defaults:
            regime[name] = tuple(value) if isinstance(value, list) else value
        elif not (later and isinstance(value, list) and _chosen_from(spec, name, value)):
            swept = replace(spec, hyper_parameters=hyper_parameters).points
            hyper_parameters |= _on_grid(swept, name, value)
    if regime:
        direct["regime"] = replace(spec.regime, **regime)
    return replace(spec, hyper_parameters=hyper_parameters, options=options, **direct), set(taken)


def _settable(spec: Spec) -> set[str]:
    """The settings that a spec has; a regime means something where a task trains on batches."""
    regime = REGIME if issubclass(find_task_class(spec.task), Task) else ()
    return {*SETTABLE, *regime, *_options(spec), *load_recipe(spec.recipe).defaults}


def _options(spec: Spec) -> list[str]:
    """The names of the options of a spec's task."""
    task: Any = find_task_class(spec.task)
    return [option.name for option in fields(task)]


def _chosen_from(spec: Spec, name: str, values: Sequence[Any]) -> bool:
    return set(spec.points.get(name, [spec.hyper_parameters.get(name)])) <= set(values)


def _on_grid(points: Mapping[str, list[float]], name: str, value: Any) -> dict[str, Any]:
    """A hyper-parameter's value beside the swept ones.

    One number for a swept hyper-parameter holds at each point, and points that become identical
    this way are merged.
    """
    if name not in points or isinstance(value, list):
        return {name: value}
    counts = {len(values) for other, values in points.items() if other != name} or {1}
    if len(counts) > 1:  # the door refuses these columns
        return {name: value}
    fixed = {**points, name: [value] * counts.pop()}
    rows = dict.fromkeys(zip(*fixed.values(), strict=True))
    columns = zip(*rows, strict=True)
    return {swept: list(column) for swept, column in zip(fixed, columns, strict=True)}
