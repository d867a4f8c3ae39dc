"""`Campaign`: brings every run of the asked studies to its end, round by round, on some backend."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from spherenorm.support import located
from spherenorm_experiments.analysis import Arm, Results, Trial
from spherenorm_experiments.core import Spec, Task, fits
from spherenorm_experiments.engine import (
    Outcome,
    Run,
    Runner,
    Store,
    cast_of,
    execute,
    find_backend,
    find_rows,
    rehearse,
    time_step,
)
from spherenorm_experiments.engine.door import Door
from spherenorm_experiments.study._comparing import name_of
from spherenorm_experiments.study._plan import Plan, Request
from spherenorm_experiments.study._study import Study
from spherenorm_experiments.study._trials import apply_plan

SECONDS_PER_STEP = 0.008
"""Guessed before anything of the kind has run: a small network on one core."""

PURE_SHARE = 0.1
"""The share of that which a step of a pure task takes, at one point with one seed."""

ROWS_AT_TWICE = 100
"""So many further rows double the time of a step: rows of a toy cost little beside its calls."""

ROWS = 512
"""The most runs that train as one computation because they may, not because a study says so."""

Progress = Callable[[Outcome, Run, int, int, float], None]
"""Called after each run: its outcome, the run, how many runs of this round have ended, how many
there are, and the estimated seconds that the rest of the round will take."""


class StudyError(ValueError):
    """A study raised something that no command line can be blamed for."""


class Planned(NamedTuple):
    """A trial that is resolved: one run, or several that may train as one computation."""

    arm: Arm
    run: Run


@dataclass(frozen=True)
class Campaign:
    """Studies under a plan.

    Attributes:
        door: resolves every run, once, and knows the store.
        backend: local | slurm.
        jobs: how many runs at a time.
        runner: the flags of each run's execution.
    """

    studies: Sequence[Study]
    plan: Plan
    door: Door
    backend: str = "local"
    jobs: int = 1
    runner: Runner = field(default_factory=Runner)

    def trials(self, study: Study) -> tuple[list[Planned], Results]:
        """The study's trials as far as they are known now, and their results."""
        planned = self._planned(study, Results([]))
        results = Results.load(planned)
        while _count(more := self._planned(study, results)) > _count(planned):
            planned, results = more, Results.load(more)
        return planned, results

    def ask(self, skip: Collection[str] = ()) -> list[Run]:
        """Note in the store what is asked for, as far as it is known now.

        Returns:
            What of it has not ended, each run once, without those to skip.
        """
        asked: dict[str, list[tuple[Arm, str]]] = {}
        missing: list[Run] = []
        taken = set(skip)
        for study in self.studies:
            planned, results = self.trials(study)
            asked[name_of(study)] = [(arm, name) for arm, run in planned for name in run.rows]
            missing += self.lacking(planned, results, taken)
        Request(list(asked), self.plan, asked).save(self.door.store, ended=not missing)
        return missing

    def lacking(self, planned: Sequence[Planned], results: Results, taken: set[str]) -> list[Run]:
        """The computations that are left of these trials, but for the runs that are taken."""
        folders = {item.folder.path: item.folder for item in results}
        complete = {path for path, folder in folders.items() if folder.complete()}
        taken |= {item.name for item in results if item.folder.path in complete}
        asked: list[tuple[Spec, Collection[int]]] = []
        for _, run in planned:
            done = {place for place, name in enumerate(run.rows) if name in taken}
            asked.append((run.spec, done))
            taken.update(run.rows)
        return [self.door.resolve(spec) for spec in computations(asked)]

    def rehearse(self) -> None:
        """Find out if the first round of runs can start, before anything runs.

        Of each task with its options, and of each recipe on a task, one run that has not ended
        takes a step, and has a score and a record.

        Raises:
            ValueError: a setting is wrong, or a study, task or recipe raises for it.
        """
        find_backend(self.backend)
        rehearsed: set[str] = set()
        for study in self.studies:
            for _, run in self._planned(study, Results([])):
                cast = cast_of(run)
                if rehearsed.issuperset(cast):
                    continue
                if len(find_rows(run.store, run.rows)) < len(run.rows):
                    rehearse(run, alone=not self.runner.distributed)
                    rehearsed.update(cast)

    def run(self, progress: Progress) -> dict[str, Outcome]:
        """Run what is missing until nothing is, or until what is missing has failed.

        Returns:
            The ends of the runs, by their ids.
        """
        outcomes: dict[str, Outcome] = {}
        tried: set[str] = set()
        # Each run once: one that is missing again although it has ended would be run for ever.
        while missing := self.ask(skip=tried):
            tried.update(name for run in missing for name in run.rows)
            outcomes |= self._run_round(missing, progress)
        return outcomes

    def _run_round(self, missing: Sequence[Run], progress: Progress) -> dict[str, Outcome]:
        runs, costs = {run.id: run for run in missing}, estimate(self.door.store, missing)
        total, done, started = sum(costs.values()), 0.0, time.monotonic()
        ends = find_backend(self.backend)(missing, self.jobs, self.runner)
        outcomes = {}
        for ended, outcome in enumerate(ends, 1):
            outcomes[outcome.id] = outcome
            done += costs[outcome.id]  # of the others as many seconds as these have taken
            left = (total - done) * (time.monotonic() - started) / done if done else 0.0
            progress(outcome, runs[outcome.id], ended, len(missing), left)
        wait = -1 if self.backend == "local" else 3600
        for name in [name for name, outcome in outcomes.items() if outcome.state == "busy"]:
            # Another process had it; wait for it, or take over if it died.
            outcomes[name] = execute(runs[name], self.runner, wait=wait)
        return outcomes

    def _planned(self, study: Study, results: Results) -> list[Planned]:
        """The study's trials under the plan, given these results, with their runs resolved."""
        trials = _trials(study, self.plan, results)
        first = _trials(study, self.plan, Results([])) if results else trials
        applied = apply_plan(self.plan, trials, first)
        return [Planned(trial.arm, self.door.resolve(trial.spec)) for trial in applied]


def _count(planned: Sequence[Planned]) -> int:
    """The number of runs: a grid that grows makes more trials, or longer ones of a pure task."""
    return sum(len(run.rows) for _, run in planned)


def computations(asked: Iterable[tuple[Spec, Collection[int]]]) -> list[Spec]:
    """The runs of some specs that are left, those of one family as one computation.

    Points train together that lack the same seeds, as long as that is no more than `ROWS` runs.

    >>> sgd, heavy = (Spec("cosine", "sgd", {"lr": [0.1, 0.2], "momentum": m}, seeds=(0, 1))
    ...               for m in (0.0, 0.9))
    >>> [(spec.points, spec.seeds) for spec in computations([(sgd, {0, 1}), (heavy, ())])]
    [({'lr': [0.2, 0.1, 0.2], 'momentum': [0.0, 0.9, 0.9]}, (0, 1))]

    Args:
        asked: each with the places in `rows_of(spec)` of the runs that are done.
    """
    groups: dict[tuple[str, tuple[int, ...]], list[list[Spec]]] = {}
    for spec, done in asked:
        for seeds, points in _left(spec, done).items():
            parts = groups.setdefault((_family(spec), seeds), [])
            if parts and (len(parts[-1]) + len(points)) * len(seeds) <= ROWS:
                parts[-1] += points
            else:
                parts.append(points)
    return [_together(points, seeds) for (_, seeds), parts in groups.items() for points in parts]


def _left(spec: Spec, done: Collection[int]) -> dict[tuple[int, ...], list[Spec]]:
    """The points of a spec that are not done, one by one, by the seeds that each lacks."""
    seeds, left = spec.every_seed, dict[tuple[int, ...], list[Spec]]()
    for point in range(_rows(spec) // len(seeds)):
        lacking = tuple(s for i, s in enumerate(seeds, point * len(seeds)) if i not in done)
        own = {name: [values[point]] for name, values in spec.points.items()}
        if lacking:
            one = replace(spec, hyper_parameters={**spec.hyper_parameters, **own})
            left.setdefault(lacking, []).append(one)
    return left


def _family(spec: Spec) -> str:
    """All that runs share which may train together: of a pure task numbers may differ."""
    content = spec.to_json()
    if content.pop("seeds", ()):
        content["hyper_parameters"] = {
            name: 0.0 if name in spec.points or fits(value, float) else value
            for name, value in content["hyper_parameters"].items()
        }
    return json.dumps(content, sort_keys=True)


def _together(points: Sequence[Spec], seeds: tuple[int, ...]) -> Spec:
    """Points of one family as one spec; a number that all share, and none sweeps, stays one."""
    first, rows = points[0], [point.first_point for point in points]
    swept = {name for point in points for name in point.points}
    # (By their text, as the names of runs have them: 0 and 0.0 are runs of two names.)
    swept |= {name for name in rows[0] if len({repr(row[name]) for row in rows}) > 1}
    columns = {name: [row[name] for row in rows] for name in swept}
    values = {**first.hyper_parameters, **columns}
    return replace(first, hyper_parameters=values, seeds=seeds if first.seeds else ())


def _rows(spec: Spec) -> int:
    return max(map(len, spec.points.values()), default=1) * len(spec.every_seed)


def _trials(study: Study, plan: Plan, results: Results) -> list[Trial]:
    """The trials that a study asks for under a plan, given these results."""
    if plan.optimizers and not study.takes_optimizers:
        instead = "`compare --task ... --optimizers ...` tunes and compares yours"
        raise ValueError(f"--optimizers: {study.name!r} is of fixed methods; {instead}")
    try:
        return study.trials(plan, results)
    except ValueError:
        raise
    except (Exception, SystemExit) as error:  # a user's study may raise anything
        raise StudyError(
            f"study {name_of(study)!r} does not say what to run: {located(error)}"
        ) from error


def estimate(
    store: Store, runs: Sequence[Run], timed: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Seconds that each run will take on one core or GPU, by its id.

    They come from runs of the same kind that have ended, else from the seconds of a step of their
    kind (`time_steps`), without their scores; else they are guessed. Much shorter runs
    do not count, since most of their time is their start: the smoke tier's say nothing of the small
    one's.
    """
    measured: dict[str, list[tuple[int, float]]] = {}
    for folder in store.folders():
        status = folder.status()
        config = folder.config() if "seconds" in status else None
        if config is not None:
            spec = Spec.from_json(config)
            pace = spec.epochs, status["seconds"] / _load(spec)
            measured.setdefault(_kind(spec), []).append(pace)
    kinds = {run.id: _kind(run.spec) for run in runs}
    return {
        run.id: _seconds(run, measured.get(kinds[run.id], ()), (timed or {}).get(kinds[run.id]))
        for run in runs
    }


def time_steps(runs: Sequence[Run]) -> dict[str, float]:
    """Seconds of a step here, by the kind of run, of those that train on batches."""
    kinds = {_kind(run.spec): run for run in runs if isinstance(run.task, Task)}
    return {kind: time_step(run) for kind, run in kinds.items()}


def _seconds(run: Run, measured: Sequence[tuple[int, float]], timed: float | None) -> float:
    """Seconds of a run, from the epochs of others of its kind and their seconds for one row.

    Args:
        timed: seconds of one of its steps; None if not measured.
    """
    epochs, load = run.spec.epochs, _load(run.spec)
    paces = [seconds / taken for taken, seconds in measured if 2 * taken >= epochs]
    if paces:
        return load * epochs * statistics.median(paces)
    if timed is not None:
        return run.steps * timed
    share = 1.0 if isinstance(run.task, Task) else PURE_SHARE
    return load * run.steps * SECONDS_PER_STEP * share


def _load(spec: Spec) -> float:
    """The time of a step over that of one row: rows of points and seeds share its operations."""
    return 1 + (_rows(spec) - 1) / ROWS_AT_TWICE


def _kind(spec: Spec) -> str:
    """Runs of one kind take about the same time per epoch."""
    same = [spec.task, dict(spec.options), sorted(spec.points), spec.batch_size, spec.device]
    return json.dumps(same, sort_keys=True)
