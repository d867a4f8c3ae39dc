"""One run, from wherever it stands to its end: training on batches with checkpoints, or a vmap sweep of a pure task.

A run that was interrupted anywhere ends bit-identical to one that was not: batches and noise are functions of (seed,
step), so that a checkpoint holds all there is: model, optimizer and step.
"""

from __future__ import annotations

import json
import math
import socket
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map

from experiments.probes import PROBES
from experiments.spec import SCHEDULES, Spec, load_recipe, nearest, one_line
from experiments.store import Busy, RunFolder, Store, StoreError
from experiments.task import Measurement, PureTask, Task, find_task
from experiments.training import steps_per_epoch, train
from spherenorm.functional import Sweep, sweep
from spherenorm.registry import defaults

__all__ = ["Outcome", "check", "execute", "steps_of"]

CHECKPOINT_SECONDS = 10.0


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        id: the run's.
        state: finished | diverged (both are results) | failed (its error is in its status) | busy (another process holds it).
        cached: it had ended before, nothing was computed.
        seconds: what was spent now.
        error: one line.
    """

    id: str
    state: str
    cached: bool = False
    seconds: float = 0.0
    error: str = ""


def execute(
    spec: Spec,
    root: Path | str,
    *,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    wait: float = 0.0,
) -> Outcome:
    """Bring one run to its end, from its checkpoint if it has one.

    Args:
        root: the store's.
        checkpoint_seconds: how much work an interruption loses at most; 0 writes a checkpoint at every step.
        wait: how long to wait for another process that holds the run.

    A recipe or task that raises fails its own run only. Raises StoreError when the store cannot be written, and
    KeyboardInterrupt after noting it.
    """
    torch.set_num_threads(
        1
    )  # one process per core; and the number of threads decides the order of sums
    started = time.perf_counter()
    folder = Store(root).folder(spec)
    try:
        with folder.lock(wait):
            if (summary := folder.summary()) is not None:
                if folder.config() is None:
                    folder.write_config(spec.config)
                if not folder.status():
                    folder.write_status(_state(summary))
                return Outcome(spec.id, _state(summary), cached=True)
            about = {"host": socket.gethostname(), "started": time.time()}
            folder.write_config(spec.config)
            folder.write_status("running", **about)
            try:
                task = find_task(spec.task, spec.options)
                with torch.random.fork_rng():
                    if isinstance(task, Measurement):
                        folder.finish(
                            {"diverged_at": None, "steps": spec.epochs, **task.measure(spec)}, []
                        )
                    elif isinstance(task, PureTask):
                        _sweep(spec, task, folder)
                    else:
                        train(spec, task, folder, checkpoint_seconds)
            except KeyboardInterrupt:
                folder.write_status("interrupted", **about)
                raise
            except StoreError:
                raise
            except Exception as error:
                text = f"{type(error).__name__}: {error}"
                folder.write_status("failed", error=text, traceback=traceback.format_exc(), **about)
                return Outcome(spec.id, "failed", seconds=time.perf_counter() - started, error=text)
            summary = folder.summary()
            assert summary is not None
            seconds = time.perf_counter() - started
            folder.write_status(_state(summary), seconds=seconds, **about)
            return Outcome(spec.id, _state(summary), seconds=seconds)
    except Busy:
        return Outcome(spec.id, "busy")


def check(spec: Spec) -> None:
    """Find what is wrong with a spec without running it.

    Raises:
        ValueError, TypeError: an unknown task, option, recipe, hyper-parameter or probe, or a value that does not fit.
    """
    spec.rule()
    task = find_task(spec.task, spec.options)
    try:
        task.check()
    except Exception as error:  # whatever a task of one's own may raise
        given = ", ".join(f"{name}={json.dumps(value)}" for name, value in spec.options.items())
        raise ValueError(
            f"task {spec.task!r} with {given or 'its defaults'}: {one_line(error)}"
        ) from error
    for probe in spec.probes:
        if probe not in PROBES:
            raise ValueError(f"no probe is named {probe!r}; {nearest(probe, PROBES)}")
    if spec.points and isinstance(task, Task):
        raise ValueError(
            f"task {spec.task!r} trains one point at a time; {next(iter(spec.points))} must be a number, not a list"
        )


def steps_of(spec: Spec) -> int:
    """How many optimizer steps a run takes."""
    task = find_task(spec.task, spec.options)
    return spec.epochs * steps_per_epoch(spec, task) if isinstance(task, Task) else spec.epochs


def _state(summary: dict[str, Any]) -> str:
    return "finished" if summary["diverged_at"] is None else "diverged"


def _sweep(spec: Spec, task: PureTask, folder: RunFolder) -> None:
    """A whole grid at once. It takes seconds, so it has no checkpoint."""
    points = spec.points
    pairs = ("betas",) if "betas" in spec.hyper_parameters else ()
    single = {
        name: value
        for name, value in spec.hyper_parameters.items()
        if name not in points and name not in pairs
    }
    single |= {name: tuple(spec.hyper_parameters[name]) for name in pairs}
    if "lr" not in points and "lr" in (
        known := defaults(load_recipe(spec.recipe))
    ):  # a schedule needs it at every point
        points["lr"] = [single.pop("lr", known["lr"])] * max(map(len, points.values()), default=1)
    schedule = (
        None
        if spec.schedule == "constant"
        else (lambda t: SCHEDULES[spec.schedule](t / spec.epochs))
    )
    batches = task.batches((spec.seed,))
    start = {name: value.to(spec.device) for name, value in task.start((spec.seed,)).items()}
    swept = sweep(
        spec.recipe,
        task.loss,
        start,
        {
            name: torch.tensor(values, dtype=torch.float64, device=spec.device)
            for name, values in points.items()
        },
        steps=spec.epochs,
        batches=None
        if batches is None
        else (lambda t: tree_map(lambda x: x.to(spec.device), batches(t))),
        schedule=schedule,
        record=task.record,
        **single,
    )
    summary, arrays = task.summarize(start, swept)
    folder.save_arrays(arrays)
    ends = _ends(swept)
    whole = {
        "diverged_at": max((end for end in ends if end is not None), default=None)
        if None not in ends
        else None,
        "points_diverged_at": ends,
    }
    folder.finish({"steps": spec.epochs, **_without_nan(summary), **whole}, ["arrays.npz"])


def _ends(swept: Sweep) -> list[int | None]:
    """For each point the first step whose loss was not finite, or the last one if the weights then were not; None if it survived."""
    bad = ~swept.loss.isfinite().flatten(2).all(dim=-1)
    weights = [
        value.double().square().flatten(1).sum(-1).isfinite() for value in swept.params.values()
    ]
    lost = ~torch.stack(weights).all(dim=0)
    first = bad.int().argmax(dim=0)
    return [
        int(step) if any_ else len(bad) - 1 if gone else None
        for step, any_, gone in zip(first, bad.any(dim=0), lost, strict=True)
    ]


def _without_nan(content: Any) -> Any:
    """JSON has no number for what is not finite."""
    return tree_map(lambda x: None if isinstance(x, float) and not math.isfinite(x) else x, content)
