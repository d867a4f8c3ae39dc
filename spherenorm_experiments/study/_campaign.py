"""`Campaign`: brings every run of the asked studies to its end, round by round, on some backend."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from spherenorm.support import located
from spherenorm_experiments.analysis import Arm, Results, Trial
from spherenorm_experiments.core import specs_without
from spherenorm_experiments.engine import (
    Outcome,
    Run,
    Runner,
    cast_of,
    execute,
    find_backend,
    find_rows,
    rehearse,
)
from spherenorm_experiments.engine.door import Door
from spherenorm_experiments.study._estimates import Clock, estimate
from spherenorm_experiments.study._lookup import name_of
from spherenorm_experiments.study._plan import Plan
from spherenorm_experiments.study._requests import Request
from spherenorm_experiments.study._study import Study
from spherenorm_experiments.study._trials import apply_plan

__all__ = ["Campaign", "Outcomes", "Planned", "StudyError"]

Progress = Callable[[Outcome, Run, int, int, float], None]
"""Called after each run: its outcome, the run, how many runs of this round have ended, how many
there are, and the estimated seconds that the rest of the round will take."""


class StudyError(ValueError):
    """A study raised something that no command line can be blamed for."""


class Planned(NamedTuple):
    """A trial that is resolved: one run, or several that may train as one computation."""

    arm: Arm
    run: Run


@dataclass
class Outcomes:
    """The ends of a campaign's runs, by run id."""

    by_id: dict[str, Outcome] = field(default_factory=dict)

    @property
    def failed(self) -> list[Outcome]:
        return [outcome for outcome in self.by_id.values() if outcome.state == "failed"]


@dataclass(frozen=True)
class Campaign:
    """Studies under a plan.

    Attributes:
        door: resolves every run, once, and knows the store.
        backend: local | ray | slurm.
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
        while len(more := self._planned(study, results)) > len(planned):
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
        taken |= {item.id for item in results if item.folder.path in complete}
        found = []
        for _, run in planned:
            done = {place for place, name in enumerate(run.rows) if name in taken}
            found += [self.door.resolve(spec) for spec in specs_without(run.spec, done)]
            taken.update(run.rows)
        return found

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

    def run(self, progress: Progress) -> Outcomes:
        """Run what is missing until nothing is, or until what is missing has failed."""
        outcomes = Outcomes()
        tried: set[str] = set()
        # Each run once: one that is missing again although it has ended would be run for ever.
        while missing := self.ask(skip=tried):
            tried.update(name for run in missing for name in run.rows)
            self._run_round(missing, outcomes, progress)
        return outcomes

    def estimate(self, runs: Sequence[Run]) -> dict[str, float]:
        """Seconds that each run will take on one core, by its id."""
        return estimate(self.door.store, runs)

    def _run_round(self, missing: Sequence[Run], outcomes: Outcomes, progress: Progress) -> None:
        runs, costs = {run.id: run for run in missing}, self.estimate(missing)
        clock = Clock(sum(costs.values()), self.jobs)
        ends = find_backend(self.backend)(missing, self.jobs, self.runner)
        busy = []
        for ended, outcome in enumerate(ends, 1):
            outcomes.by_id[outcome.id] = outcome
            if outcome.state == "busy":
                busy.append(outcome.id)
            left = clock.left_after(costs[outcome.id])
            progress(outcome, runs[outcome.id], ended, len(missing), left)
        for name in busy:  # another process had them; wait for it, or take over if it died
            wait = -1 if self.backend == "local" else 3600
            outcomes.by_id[name] = execute(runs[name], self.runner, wait=wait)

    def _planned(self, study: Study, results: Results) -> list[Planned]:
        """The study's trials under the plan, given these results, with their runs resolved."""
        trials = _trials(study, self.plan, results)
        first = _trials(study, self.plan, Results([])) if results else trials
        applied = apply_plan(self.plan, trials, self.door, study.settings, first)
        return [Planned(trial.arm, self.door.resolve(trial.spec)) for trial in applied]


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
