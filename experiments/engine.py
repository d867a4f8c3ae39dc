"""The engine: brings every run of the asked studies to its end, round by round, on some backend."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from experiments.backends import find_backend
from experiments.requests import Request
from experiments.results import Results, Trial
from experiments.runner import CHECKPOINT_SECONDS, Outcome, check, execute, steps_of
from experiments.spec import Spec, one_line
from experiments.store import Store
from experiments.study import Plan, Study, StudyError
from experiments.task import Task, find_task

__all__ = ["Engine", "Report"]

GUESSED_SECONDS_PER_STEP = 0.008
"""Before anything of the kind has run: a small network on one core."""


@dataclass
class Report:
    """How a call of `Engine.run` went: outcomes by run id."""

    outcomes: dict[str, Outcome] = field(default_factory=dict)

    @property
    def failed(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes.values() if outcome.state == "failed"]

    def count(self, state: str) -> int:
        return sum(outcome.state == state for outcome in self.outcomes.values())


@dataclass(frozen=True)
class Engine:
    """Studies, a plan, and a store.

    Attributes:
        backend: local | ray | slurm.
        jobs: how many runs at a time.
    """

    studies: Sequence[Study]
    plan: Plan
    store: Store
    backend: str = "local"
    jobs: int = 1
    checkpoint_seconds: float = CHECKPOINT_SECONDS

    def trials(self, study: Study) -> tuple[list[Trial], Results]:
        """The study's trials as far as they are known now, and their results."""
        trials = self._asked(study, Results([]))
        results = Results.load(self.store, trials)
        while len(more := self._asked(study, results)) > len(trials):
            trials, results = more, Results.load(self.store, more)
        return trials, results

    def _asked(self, study: Study, results: Results) -> list[Trial]:
        try:
            trials = study.trials(self.plan, results)
            first = study.trials(self.plan, Results([])) if results else trials
        except ValueError:
            raise
        except Exception as error:  # whatever a study of one's own may raise
            raise StudyError(
                f"study {_reference(study)!r} does not say what to run: {one_line(error)}"
            ) from error
        return self.plan.apply(trials, study.settings, first)

    def ask(self, skip: Collection[str] = ()) -> list[Spec]:
        """Note in the store what is asked for, as far as it is known now. What of it is still to be run, each once."""
        asked: dict[str, list[tuple[str, str]]] = {}
        missing: dict[str, Spec] = {}
        for study in self.studies:
            trials, results = self.trials(study)
            asked[_reference(study)] = [(trial.arm, trial.spec.id) for trial in trials]
            done = {item.run for item in results if item.folder.whole()}
            missing |= {
                trial.spec.id: trial.spec
                for trial in trials
                if trial.spec.id not in done and trial.spec.id not in skip
            }
        Request(list(asked), self.plan, asked).save(self.store)
        return list(missing.values())

    def check(self) -> None:
        """Raises ValueError or TypeError for what is wrong with the first round of runs, before anything runs."""
        find_backend(self.backend)
        checked: list[Spec] = []
        for study in self.studies:
            for trial in self._asked(study, Results([])):
                if (spec := replace(trial.spec, seed=0)) not in checked:
                    check(spec)
                    checked.append(spec)

    def run(self, progress: Callable[[Outcome, Spec, int, int, float], None]) -> Report:
        """Run what is missing until nothing is, or until what is missing has failed.

        Args:
            progress: called after each run with its outcome, its spec, how many of this round have ended and how many
                there are, and the estimated seconds that the rest of the round will take.
        """
        report, backend = Report(), find_backend(self.backend)
        while missing := self.ask(skip={outcome.id for outcome in report.failed}):
            specs = {spec.id: spec for spec in missing}
            costs = self.estimate(missing)
            clock = _Clock(sum(costs.values()), self.jobs)
            busy = []
            for ended, outcome in enumerate(
                backend(missing, self.store.root, self.jobs, self.checkpoint_seconds), 1
            ):
                report.outcomes[outcome.id] = outcome
                if outcome.state == "busy":
                    busy.append(outcome.id)
                progress(
                    outcome,
                    specs[outcome.id],
                    ended,
                    len(missing),
                    clock.left_after(costs[outcome.id]),
                )
            for name in busy:  # another process had them; wait for it, or take over if it died
                report.outcomes[name] = execute(
                    specs[name],
                    self.store.root,
                    checkpoint_seconds=self.checkpoint_seconds,
                    wait=-1 if self.backend == "local" else 3600,
                )
        return report

    def estimate(self, specs: Sequence[Spec]) -> dict[str, float]:
        """Seconds that each run will take on one core, from runs of the same kind that have ended, else a guess.

        Much shorter runs do not count: most of their time is their start (the smoke tier's say nothing of the small one's).
        """
        measured: dict[str, list[tuple[int, float]]] = {}
        for folder in self.store.folders():
            status = folder.status()
            config = folder.config() if "seconds" in status else None
            if config is not None:
                spec = Spec.from_json(config)
                measured.setdefault(_kind(spec), []).append((steps_of(spec), status["seconds"]))
        estimates = {}
        for spec in specs:
            steps = steps_of(spec)
            paces = [
                seconds / taken
                for taken, seconds in measured.get(_kind(spec), ())
                if 2 * taken >= steps
            ]
            estimates[spec.id] = steps * (statistics.median(paces) if paces else _first_guess(spec))
        return estimates


class _Clock:
    """The time that is left: first from estimates, then ever more from how fast this machine is getting on now."""

    def __init__(self, cost: float, jobs: int) -> None:
        self.cost, self.done, self.jobs, self.started = cost, 0.0, jobs, time.monotonic()

    def left_after(self, cost: float) -> float:
        self.done += cost
        elapsed, expected = time.monotonic() - self.started, self.done / self.jobs
        trust = min(1.0, elapsed / 30)
        pace = 1 + trust * (elapsed / expected - 1) if expected else 1.0
        return max(0.0, self.cost - self.done) / self.jobs * pace


def _kind(spec: Spec) -> str:
    """Runs of one kind take about the same time per step."""
    return json.dumps(
        [spec.task, dict(spec.options), sorted(spec.points), spec.batch_size, spec.device],
        sort_keys=True,
    )


def _first_guess(spec: Spec) -> float:
    return GUESSED_SECONDS_PER_STEP * (
        0.2 if not isinstance(find_task(spec.task, spec.options), Task) else 1
    )


def _reference(study: Study) -> str:
    cls = type(study)
    return (
        cls.name
        if cls.__module__.startswith("experiments.studies.")
        else f"{cls.__module__}:{cls.__name__}"
    )
