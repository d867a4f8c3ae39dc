"""`Campaign`: brings every run of the asked studies to its end, round by round, on some backend."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from spherenorm.support import describe_with_user_line
from spherenorm_experiments.comparison import name_of
from spherenorm_experiments.execute import Resolver
from spherenorm_experiments.jobs import find_backend, jobs_of, outcomes
from spherenorm_experiments.plan import Plan, Request, apply_plan
from spherenorm_experiments.run import Job, Outcome, Run, Runner
from spherenorm_experiments.runs import ResolvedTrial, Runs, Trial
from spherenorm_experiments.spec import Spec
from spherenorm_experiments.store import Store
from spherenorm_experiments.study import Study
from spherenorm_experiments.task import Task

SECONDS_PER_STEP = 0.008
"""Guessed before anything of the kind has run: a small network on one core."""

PURE_SHARE = 0.1
"""The share of that which a step of a pure task takes, at one point with one seed."""

ROWS_AT_TWICE = 100
"""So many further rows double the time of a step: rows of a toy cost little beside its calls."""


class StudyError(ValueError):
    """A study raised something that no command line can be blamed for."""


Progress = Callable[[int, Job | None, Outcome | None], None]
"""Called with the number of runs at the start of a round, then with each job that has ended."""


@dataclass(frozen=True)
class Campaign:
    """Studies under a plan.

    Attributes:
        resolver: looks up every run, once, and knows the store.
        backend: local | slurm | ray.
        jobs: how many at a time; 0 runs them in this process.
        runner: the flags of each run's execution.
    """

    studies: Sequence[Study]
    plan: Plan
    resolver: Resolver
    backend: str = "local"
    jobs: int = 0
    runner: Runner = field(default_factory=Runner)

    def trials(self, study: Study) -> tuple[list[ResolvedTrial], Runs]:
        """Return the study's trials as far as they are known now, and their results."""
        planned, results = self._planned(study, Runs()), Runs()
        while True:
            results = Runs.load(planned, self.resolver.store)
            more = self._planned(study, results)
            if len(more) <= len(planned):
                return planned, results
            planned = more

    def save_request(self) -> list[Run]:
        """Note in the store what is asked for; what of it has not ended, each run once."""
        missing = {run.name: run for study in self.studies for run in self.missing_runs(study)}
        names = [name_of(study) for study in self.studies]
        Request(names, self.plan).save(self.resolver.store)
        return list(missing.values())

    def missing_runs(self, study: Study) -> list[Run]:
        """Return the runs of a study that have not ended."""
        planned, results = self.trials(study)
        ended = {item.name for item in results}
        return [*{run.name: run for _, run in planned if run.name not in ended}.values()]

    def require(self) -> None:
        """Resolve the first round of runs.

        Raises:
            ValueError: a setting is wrong, or a study, task or recipe raises for it.
        """
        find_backend(self.backend)
        for study in self.studies:
            self._planned(study, Runs())

    def run(self, progress: Progress = lambda *_: None) -> dict[str, Outcome]:
        """Run what is missing until nothing is, or until what is missing has failed.

        Of each task with a recipe one run comes first: where it fails, the others of its kind would
        fail alike, and are left out.

        Returns:
            The ends of the jobs, by their names.
        """
        outcomes_by_name: dict[str, Outcome] = {}
        started: set[str] = set()
        pioneer_states: dict[str, str] = {}  # of the first run of each cast
        # Each run once: one that is missing again although it has ended would be run for ever.
        while missing := [run for run in self.save_request() if run.name not in started]:
            started.update(run.name for run in missing)
            progress(len(missing), None, None)
            groups = {run.name: _failure_group_key(run) for run in missing}
            pioneers = {
                groups[run.name]: run for run in reversed(missing) if isinstance(run.task, Task)
            }
            pioneers = {
                group: run for group, run in pioneers.items() if group not in pioneer_states
            }
            outcomes_by_name |= self._run_round(jobs_of(list(pioneers.values())), progress)
            pioneer_states |= {
                group: outcomes_by_name[run.name].state for group, run in pioneers.items()
            }
            others = [run for run in missing if run.name not in outcomes_by_name]
            others = [run for run in others if pioneer_states.get(groups[run.name]) != "failed"]
            outcomes_by_name |= self._run_round(jobs_of(others), progress)
        return outcomes_by_name

    def _run_round(self, jobs: Sequence[Job], progress: Progress) -> dict[str, Outcome]:
        outcomes_by_name: dict[str, Outcome] = {}
        jobs_by_name, pending, wait = {job.name: job for job in jobs}, list(jobs), 0.0
        while pending:
            for outcome in outcomes(pending, self.jobs, self.runner, self.backend, wait):
                outcomes_by_name[outcome.name] = outcome
                if outcome.state != "busy":
                    progress(0, jobs_by_name[outcome.name], outcome)
            # Another process has these; wait for it, or take over if it died.
            pending, wait = (
                [
                    jobs_by_name[name]
                    for name, outcome in outcomes_by_name.items()
                    if outcome.state == "busy"
                ],
                -1.0,
            )
        return outcomes_by_name

    def _planned(self, study: Study, results: Runs) -> list[ResolvedTrial]:
        """The study's trials under the plan, given these results, with their runs resolved."""
        trials = planned_trials(study, self.plan, results)
        return [ResolvedTrial(trial.place, self.resolver.resolve(trial.spec)) for trial in trials]


def _failure_group_key(run: Run) -> str:
    """Return the task that a run is made of, with its options, and its recipes on it."""
    content = run.spec.to_json()
    names = ("task", "options", "recipe", "rest", "probes", "regime")
    return json.dumps([content.get(name) for name in names], sort_keys=True)


def planned_trials(study: Study, plan: Plan, results: Runs) -> list[Trial]:
    """Return the trials that a study asks for under a plan, given these results.

    Raises:
        ValueError: the study has no such setting.
        StudyError: it raises something else.
    """
    try:
        trials = study.trials(plan, results)
        first_round = study.trials(plan, Runs()) if results.items else trials
    except ValueError:
        raise
    except (Exception, SystemExit) as error:  # a user's study may raise anything
        message = (
            f"study {name_of(study)!r} does not say what to run: {describe_with_user_line(error)}"
        )
        raise StudyError(message) from error
    return apply_plan(plan, trials, first_round)


def _work(job: Job) -> float:
    """The work of a job, in steps of one run: rows of points and seeds share its operations."""
    return job.first.steps * (1 + (len(job.runs) - 1) / ROWS_AT_TWICE)


def estimate(store: Store, runs: Sequence[Run]) -> dict[str, float]:
    """Seconds that the runs will take on one core or GPU, job by job.

    They come from runs of the same kind that have ended, else they are guessed. Much shorter runs
    do not count, since most of their time is their start: the smoke tier's say nothing of the small
    one's.
    """
    measured: dict[str, list[tuple[int, float]]] = {}
    for row in store.rows():
        if row.index is None and "seconds" in row.about:
            pace = row.spec.epochs, row.about["seconds"] / row.spec.epochs
            measured.setdefault(_kind(row.spec), []).append(pace)
    seconds_by_job = {}
    for job in jobs_of(runs):
        epochs, history = job.first.spec.epochs, measured.get(_kind(job.first.spec), ())
        paces = [seconds for past_epochs, seconds in history if 2 * past_epochs >= epochs]
        share = 1.0 if isinstance(job.first.task, Task) else PURE_SHARE
        guessed = _work(job) * SECONDS_PER_STEP * share
        seconds_by_job[job.name] = epochs * statistics.median(paces) if paces else guessed
    return seconds_by_job


def _kind(spec: Spec) -> str:
    """Runs of one kind take about the same time per epoch."""
    return json.dumps([spec.task, dict(spec.options), spec.batch_size, spec.device], sort_keys=True)
