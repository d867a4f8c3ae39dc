"""Runs of a pure task: points times seeds, as one vmap computation.

What trains together shares no number, so that a run's result does not depend on the others: only
kernels that sum in another order for another number of runs may round otherwise. On the small tasks
here, on a CPU, a run is the same to the last bit alone, among 3 and among 7.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from spherenorm.functional import Sweep, sweep
from spherenorm_experiments.run import Job
from spherenorm_experiments.spec import SCHEDULES, Spec
from spherenorm_experiments.store import write_arrays
from spherenorm_experiments.streams import seed_everything, stream
from spherenorm_experiments.task import PureTask


def is_number(value: Any) -> bool:
    """True for a hyper-parameter in which points that train together may differ."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def sweep_rows(job: Job, task: PureTask) -> list[tuple[str, Spec, dict[str, Any]]]:
    """Train every run and write the arrays; the name, the spec and the summary of each.

    It takes seconds, so it has no checkpoint.

    Args:
        job: every point with every seed, which are alike but for these.
    """
    spec = job.first.spec
    points = {_key(run.spec): run.spec.hyper_parameters for run in job.runs}
    seeds = list(dict.fromkeys(run.spec.seed for run in job.runs))
    start, swept = _swept(job, task, list(points.values()), seeds)
    numbers, arrays = task.summarize(seeds, start, swept)
    ends, order = _ends(swept), list(points)
    places = [(order.index(_key(run.spec)), seeds.index(run.spec.seed)) for run in job.runs]
    rows = []
    for run, place in zip(job.runs, places, strict=True):
        end = ends[place[0] * len(seeds) + place[1]]
        own = {} if end is not None else {n: float(x[place]) for n, x in numbers.items()}
        known = {n: own[n] if n in own and math.isfinite(own[n]) else None for n in numbers}
        summary = {"diverged_at": end, "steps": spec.epochs, **known}
        rows.append((run.name, run.spec, summary))
    at = tuple(torch.tensor(column) for column in zip(*places, strict=True))
    kept = {name: array.detach().cpu()[at].numpy() for name, array in arrays.items()}
    write_arrays(job.folder.path / "arrays.npz", kept)
    return rows


def _swept(
    job: Job, task: PureTask, points: Sequence[Mapping[str, Any]], seeds: Sequence[int]
) -> tuple[dict[str, Tensor], Sweep]:
    """The initial parameters, and all steps."""
    spec, factor = job.first.spec, SCHEDULES[job.first.spec.schedule]
    columns, fixed = _columns(job, points)
    start = _stacked([_start(task, seed, spec.device) for seed in seeds], spec.device)
    swept = sweep(
        job.first.bound.recipe,
        task.loss,
        start,
        {
            name: torch.tensor(values, dtype=torch.float64, device=spec.device)
            for name, values in columns.items()
        },
        steps=spec.epochs,
        batches=_batches(task, seeds, spec.device),
        schedule=None if spec.schedule == "constant" else lambda t: factor(t / spec.epochs),
        record=task.record,
        **fixed,
    )
    return start, swept


def _key(spec: Spec) -> str:
    return json.dumps(dict(spec.hyper_parameters), sort_keys=True)


def _start(task: PureTask, seed: int, device: str) -> dict[str, Tensor]:
    """A run's own start, also of a task that draws from the global random states."""
    seed_everything(stream(seed, "init"), device)
    return task.start(seed)


def _batches(task: PureTask, seeds: Sequence[int], device: str) -> Callable[[int], Any] | None:
    drawn = [task.batches(seed) for seed in seeds]
    each = [batch for batch in drawn if batch is not None]
    return (lambda t: _stacked([batch(t) for batch in each], device)) if each else None


def _stacked(each: Sequence[Any], device: str) -> Any:
    return tree_map(lambda *x: torch.stack(x).to(device), *each)


def _columns(
    job: Job, points: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """The hyper-parameters with a value per point, and those that all points share."""
    known, fixed = job.first.bound.defaults, dict[str, Any]()
    columns: dict[str, list[float]] = {}
    for name, value in points[0].items():
        values = [point[name] for point in points]
        if is_number(value) and (name == "lr" or any(x != value for x in values)):
            columns[name] = values
        else:
            fixed[name] = tuple(value) if isinstance(value, list) else value
    if "lr" in known and "lr" not in columns:  # a schedule needs it at every point
        columns["lr"] = [fixed.pop("lr", known["lr"])] * len(points)
    return columns, fixed


def _ends(swept: Sweep) -> list[int | None]:
    """The step at which each run diverged, if it did.

    A run diverges at the first step whose loss is not finite, or at the last one if the norms of
    the weights then are not.
    """
    bad = ~swept.loss.isfinite()
    weights = [
        value.double().square().flatten(2).sum(-1).isfinite() for value in swept.params.values()
    ]
    lost = ~torch.stack(weights).all(dim=0)
    ends = torch.where(bad.any(dim=0), bad.int().argmax(dim=0), len(bad) - 1)
    pairs = zip(ends.flatten().tolist(), (bad.any(dim=0) | lost).flatten().tolist(), strict=True)
    return [step if gone else None for step, gone in pairs]
