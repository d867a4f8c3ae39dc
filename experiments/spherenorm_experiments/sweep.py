"""Runs of pure tasks: points times seeds, as one vmap computation.

What trains together shares no number, so that a run's result does not depend on the others: only
kernels that sum in another order for another number of runs may round otherwise. On the small tasks
here, on a CPU, a run is the same to the last bit alone, among 3 and among 7.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from spherenorm.functional import Sweep, sweep
from spherenorm_experiments.run import Job
from spherenorm_experiments.spec import SCHEDULES, Spec, is_number
from spherenorm_experiments.store import write_file
from spherenorm_experiments.streams import seed_everything, stream
from spherenorm_experiments.task import PureTask


def sweep_rows(job: Job, task: PureTask) -> list[tuple[str, Spec, dict[str, Any]]]:
    """Train every run and write the arrays; the name, the spec and the summary of each.

    It takes seconds, so it has no checkpoint.

    Args:
        job: every point with every seed, which are alike but for these.
    """
    keys = [json.dumps(dict(run.spec.hyper_parameters), sort_keys=True) for run in job.runs]
    points = {key: run.spec.hyper_parameters for key, run in zip(keys, job.runs, strict=True)}
    seeds = list(dict.fromkeys(run.spec.seed for run in job.runs))
    start, swept = _swept(job, task, list(points.values()), seeds)
    numbers, arrays = task.summarize(seeds, start, swept)
    ends, order, places, rows = _ends(swept), list(points), [], []
    for key, run in zip(keys, job.runs, strict=True):
        place = order.index(key), seeds.index(run.spec.seed)
        own = {name: float(x[place]) for name, x in numbers.items()}
        end = ends[place[0]][place[1]]
        known = {n: x if end is None and math.isfinite(x) else None for n, x in own.items()}
        rows.append((run.name, run.spec, {"diverged_at": end, "steps": run.spec.epochs, **known}))
        places.append(place)
    at = tuple(torch.tensor(column) for column in zip(*places, strict=True))
    buffer, kept = io.BytesIO(), {name: x.detach().cpu()[at] for name, x in arrays.items()}
    np.savez_compressed(buffer, **{n: x.numpy() for n, x in kept.items()})  # type: ignore[arg-type]
    write_file(job.folder.path / "arrays.npz", buffer.getvalue())
    return rows


def _swept(
    job: Job, task: PureTask, points: Sequence[Mapping[str, Any]], seeds: Sequence[int]
) -> tuple[dict[str, Tensor], Sweep]:
    """The initial parameters, and all steps."""
    spec, factor = job.first.spec, SCHEDULES[job.first.spec.schedule]

    def stacked(each: Sequence[Any]) -> Any:
        return tree_map(lambda *x: torch.stack(x).to(spec.device), *each)

    starts = []
    for seed in seeds:  # each its own, also of a task that draws from the global random states
        seed_everything(stream(seed, "init"), spec.device)
        starts.append(task.start(seed))
    batches = [batch for batch in map(task.batches, seeds) if batch is not None]
    columns, fixed = _columns(job, points)
    start = stacked(starts)
    swept = sweep(
        job.first.bound.recipe,
        task.loss,
        start,
        {
            name: torch.tensor(values, dtype=torch.float64, device=spec.device)
            for name, values in columns.items()
        },
        steps=spec.epochs,
        batches=(lambda t: stacked([batch(t) for batch in batches])) if batches else None,
        schedule=None if spec.schedule == "constant" else lambda t: factor(t / spec.epochs),
        record=task.record,
        **fixed,
    )
    return start, swept


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


def _ends(swept: Sweep) -> list[list[int | None]]:
    """The step at which each run diverged, if it did, by point and seed.

    A run diverges at the first step whose loss is not finite, or at the last one if the norms of
    the weights then are not.
    """
    bad = ~swept.loss.isfinite()
    norms = (x.double().square().flatten(2).sum(-1) for x in swept.params.values())
    lost = ~torch.stack([norm.isfinite() for norm in norms]).all(dim=0)
    ends = torch.where(bad.any(dim=0), bad.int().argmax(dim=0), len(bad) - 1)
    gone = torch.where(bad.any(dim=0) | lost, ends, -1)
    return [[step if step >= 0 else None for step in row] for row in gone.tolist()]
