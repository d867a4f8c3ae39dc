"""The door: the names in a run's request become things here, once, and go down as one object.

    store = Store("runs")
    outcome = execute(resolve(Spec("digits", "sgdp", {"lr": 0.1}), store))

A command opens one `Door` and keeps it. A worker process opens its own, in `execute_spec`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from spherenorm import Bound, sphere_of
from spherenorm_experiments.core import (
    EUCLIDEAN_REST,
    AnyTask,
    PureTask,
    Regime,
    Spec,
    Task,
    bind_spec,
    configuration,
    digest,
    family_of,
    find_task,
    load_recipe,
    row_names,
    run_name,
    sources_of,
)
from spherenorm_experiments.engine._execute import execute
from spherenorm_experiments.engine._probes import find_probe
from spherenorm_experiments.engine._processes import in_workers
from spherenorm_experiments.engine._ranks import ALONE, Ranks
from spherenorm_experiments.engine._run import Run
from spherenorm_experiments.engine._runner import Outcome, Runner
from spherenorm_experiments.store import Store


class Door:
    """Tasks and runs by name; each is looked up once in the life of the door."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._tasks: dict[str, AnyTask] = {}
        self._runs: dict[str, Run] = {}

    def resolve(self, spec: Spec) -> Run:
        """Look up everything that a spec names.

        Raises:
            RecipeError: there is no such recipe.
            ValueError: an unknown task, option, hyper-parameter or probe, a value that does not
                fit, or micro-batches of a loss that is no mean over items.
        """
        key = _key(spec.to_json())
        if key not in self._runs:
            bound = bind_spec(spec, load_recipe(spec.recipe))
            task, rest = self.task(spec.task, spec.options), self._rest(spec, bound)
            _require_mean(spec, task)
            later = [self._later(spec, asked) for asked in spec.regime.then]
            probes = [find_probe(name) for name in spec.probes]
            sources = sources_of(spec, task, bound, rest, later, probes)
            config = configuration(spec, task, bound, sources)
            name, rows = run_name(config), [run_name(config)]
            if isinstance(task, PureTask):
                family = run_name(family_of(spec, config))
                rows, codes = row_names(family, spec, bound)
                name = f"{family}-{digest(rows)[:8]}"
                config |= {"rows": rows, "codes": codes}
            elif spec.seeds:
                raise ValueError(f"task {spec.task!r} has one seed a run, got {spec.seeds}")
            folder = self.store.folder(name)
            run = Run(spec, task, bound, rest, config, folder, later, probes, sources, rows)
            self._runs[key] = run
        return self._runs[key]

    def task(self, name: str, options: Mapping[str, Any]) -> AnyTask:
        """The task called `name` with these options.

        Raises:
            ValueError: an unknown task or option, or a value that does not fit.
        """
        key = _key([name, dict(options)])
        if key not in self._tasks:
            self._tasks[key] = find_task(name, options)
        return self._tasks[key]

    def _rest(self, spec: Spec, bound: Bound) -> Bound | None:
        """The recipe of the other weights, if there are any: a recipe on a sphere needs one."""
        rules = [bound.rule, *(self._later(spec, asked).rule for asked in spec.regime.then)]
        if spec.rest is None and all(sphere_of(rule) is None for rule in rules):
            return None
        chosen = dict(spec.rest or EUCLIDEAN_REST)
        return load_recipe(chosen.pop("recipe")).replace(**chosen)

    def _later(self, spec: Spec, asked: Mapping[str, Any]) -> Bound:
        """The recipe of an optimizer that follows, bound as a spec's own is."""
        own = {name: value for name, value in asked.items() if name not in ("recipe", "after")}
        alone = replace(spec, recipe=asked["recipe"], hyper_parameters=own, regime=Regime())
        return bind_spec(alone, load_recipe(asked["recipe"]))


def resolve(spec: Spec, store: Store) -> Run:
    """Look up everything that one spec names; see `Door.resolve`."""
    return Door(store).resolve(spec)


def execute_spec(
    spec: Spec,
    root: Path | str,
    *,
    wait: float = 0.0,
    ranks: Ranks = ALONE,
    expected: str = "",
    **flags: Any,
) -> Outcome:
    """Resolve and execute a spec: a worker process does this with the spec that it is sent.

    Args:
        root: the store's.
        wait, ranks: see `execute`.
        expected: the run's id, as whoever sends the spec has resolved it. A process that resolves
            it to another has imported other sources, or sees other data, and refuses the run.
        **flags: fields of `Runner`, such as `checkpoint_seconds`. With a `time_limit` a process of
            its own executes the run.
    """
    run, runner = resolve(spec, Store(root)), Runner(**flags)
    if expected and run.id != expected:
        why = "its sources or data have changed since it was asked for, or differ between processes"
        return Outcome(expected, "failed", error=f"{why}: here it is {run.id}; ask again")
    if runner.time_limit is not None:  # kept from outside: a process cannot stop itself for sure
        (outcome,) = in_workers([run], 1, runner, wait)
        return outcome
    return execute(run, runner, wait=wait, ranks=ranks)


def _require_mean(spec: Spec, task: AnyTask) -> None:
    parts = spec.regime.micro_batches
    if parts > 1 and isinstance(task, Task) and not task.is_mean:
        lack = f"the loss of task {spec.task!r} is no mean over the items of a batch"
        raise ValueError(f"micro_batches={parts}: {lack}, so that its parts have another loss")


def _key(content: Any) -> str:
    return json.dumps(content, sort_keys=True)
