"""A run of a pure task: all points of its hyper-parameters at once, as one vmap sweep."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from spherenorm.functional import Sweep, sweep
from spherenorm_experiments.core import SCHEDULES, PureTask
from spherenorm_experiments.engine._run import Run

__all__ = ["first_step", "sweep_points"]


def sweep_points(run: Run, task: PureTask) -> None:
    """Train every point and write the result. It takes seconds, so it has no checkpoint."""
    start, swept = _swept(run, task, run.spec.epochs, *_columns(run))
    summary, arrays = task.summarize(start, swept)
    run.folder.save_arrays(arrays)
    found = {"steps": run.spec.epochs, **_without_nan(summary), **_ends(swept)}
    run.folder.finish(found, ["arrays.npz"])


def first_step(run: Run, task: PureTask) -> None:
    """Take the first step of the first point, and write nothing."""
    points, fixed = _columns(run)
    _swept(run, task, 1, {name: values[:1] for name, values in points.items()}, fixed)


def _swept(
    run: Run,
    task: PureTask,
    steps: int,
    points: Mapping[str, list[float]],
    fixed: Mapping[str, Any],
) -> tuple[dict[str, Tensor], Sweep]:
    """The initial parameters, and the first steps of a sweep over some points."""
    spec = run.spec
    batches = task.batches((spec.seed,))
    factor = SCHEDULES[spec.schedule]
    start = {name: value.to(spec.device) for name, value in task.start((spec.seed,)).items()}
    columns = {
        name: torch.tensor(values, dtype=torch.float64, device=spec.device)
        for name, values in points.items()
    }

    def batch(t: int) -> Any:
        assert batches is not None
        return tree_map(lambda x: x.to(spec.device), batches(t))

    swept = sweep(
        run.bound.recipe,
        task.loss,
        start,
        columns,
        steps=steps,
        batches=None if batches is None else batch,
        schedule=None if spec.schedule == "constant" else lambda t: factor(t / spec.epochs),
        record=task.record,
        **fixed,
    )
    return start, swept


def _columns(run: Run) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """The swept hyper-parameters, a value per point, and those that all points share."""
    spec, known = run.spec, run.bound.defaults
    points = spec.points
    fixed = {
        name: tuple(value) if name == "betas" else value
        for name, value in spec.hyper_parameters.items()
        if name not in points
    }
    if "lr" in known and "lr" not in points:  # a schedule needs it at every point
        count = max(map(len, points.values()), default=1)
        points["lr"] = [fixed.pop("lr", known["lr"])] * count
    return points, fixed


def _ends(swept: Sweep) -> dict[str, Any]:
    """The step at which each point diverged, if it did, and the last one if all of them did.

    A point diverges at the first step whose loss is not finite, or at the last one if the weights
    then are not.
    """
    bad = ~swept.loss.isfinite().flatten(2).all(dim=-1)
    weights = [
        value.double().square().flatten(1).sum(-1).isfinite() for value in swept.params.values()
    ]
    lost = ~torch.stack(weights).all(dim=0)
    first = bad.int().argmax(dim=0)
    ends = [
        int(step) if any_ else len(bad) - 1 if gone else None
        for step, any_, gone in zip(first, bad.any(dim=0), lost, strict=True)
    ]
    whole = None if None in ends else max((end for end in ends if end is not None), default=None)
    return {"diverged_at": whole, "points_diverged_at": ends}


def _without_nan(content: Any) -> Any:
    """JSON has no number for what is not finite."""
    return tree_map(lambda x: None if isinstance(x, float) and not math.isfinite(x) else x, content)
