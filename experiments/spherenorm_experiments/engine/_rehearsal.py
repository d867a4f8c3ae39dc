"""A rehearsal: the first steps of a run, its score and its record, before anything is stored."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from spherenorm.support import located
from spherenorm_experiments.core import PureTask, Task, preserved_randomness
from spherenorm_experiments.engine._execute import one_thread
from spherenorm_experiments.engine._run import Run
from spherenorm_experiments.engine._sweep import first_step
from spherenorm_experiments.engine._training import Training

TASKS_OWN = ("task", "options", "probes", "device")
RECIPES_OWN = ("task", "recipe", "rest", "probes", "device", "regime")
"""Fields of a spec."""

TIMED = 3
"""Steps whose median is the time of a step."""


def cast_of(run: Run) -> tuple[str, str]:
    """The task that a run is made of, with its options, and its recipes on this task.

    A run whose task and recipe were already rehearsed is skipped, whatever its hyper-parameters,
    budget and seed.
    """
    spec = run.spec.to_json()
    task, recipe = ([spec.get(name) for name in names] for names in (TASKS_OWN, RECIPES_OWN))
    return json.dumps(task), json.dumps([recipe, sorted(run.spec.points)])


def rehearse(run: Run, alone: bool = True) -> None:
    """Find out if a run can start: a loss, a score, a step of its recipe, and a record as JSON.

    Nothing is written, and random states stay as they are.

    Args:
        alone: False for a run in several processes, whose model one alone may not hold: the step
            and the record are left out then.

    Raises:
        ValueError: the task or the recipe raises, a probe's numbers are no JSON, or a list for a
            task that trains one point at a time. The message has the user's file and line.
    """
    spec = run.spec
    if spec.points and not isinstance(run.task, PureTask):
        swept = next(iter(spec.points))
        lack = f"task {spec.task!r} trains one point at a time"
        raise ValueError(f"{lack}; {swept} must be a number, not a list")
    try:
        with _exits_raised():
            run.task.rehearse()
    except (Exception, SystemExit) as error:  # a user's task may raise anything
        given = _shown(spec.options)
        raise ValueError(f"task {spec.task!r} with {given}: {located(error)}") from error
    try:
        with preserved_randomness(), _exits_raised():
            if alone:
                _step(run)
    except (Exception, SystemExit) as error:  # so may a user's recipe or probe
        given = f"recipe {spec.recipe!r} with {_shown(spec.hyper_parameters)}"
        raise ValueError(f"{given}, on task {spec.task!r}: {located(error)}") from error


def time_step(run: Run) -> float:
    """Seconds that a step of a run on batches takes here, in one process.

    The first step also builds kernels, and does not count. Nothing is written, and random states
    stay as they are.
    """
    assert isinstance(run.task, Task)
    seconds = []
    with one_thread(), preserved_randomness():
        training = Training(run, run.task)
        for step in range(1 + TIMED):
            started = time.perf_counter()
            training.step(step % run.steps)  # reads the loss, which waits for a GPU
            seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[1:])


@contextmanager
def _exits_raised() -> Iterator[None]:
    """Let `os._exit` raise SystemExit: a rehearsal would end the command without a word."""
    process, leave = os.getpid(), os._exit

    def raised(code: int) -> None:
        if os.getpid() != process:  # one that the user's code has forked
            leave(code)
        raise SystemExit(code)

    os._exit = raised  # type: ignore[assignment]
    try:
        yield
    finally:
        os._exit = leave


def _step(run: Run) -> None:
    if isinstance(run.task, Task):
        record, _ = Training(run, run.task).step(0)
        json.dumps(record)
    elif isinstance(run.task, PureTask):
        first_step(run, run.task)


def _shown(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={json.dumps(value)}" for name, value in values.items()) or (
        "its defaults"
    )
