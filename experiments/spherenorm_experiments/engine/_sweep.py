"""Runs of a pure task: all points and seeds that are asked for at once, as one vmap computation.

What trains together shares no number, so that a run's result does not depend on the others: only
kernels that sum in another order for another number of runs may round otherwise. On the small tasks
here, on a CPU, a run is the same to the last bit alone, among 3 and among 7.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from spherenorm.functional import Sweep, sweep
from spherenorm_experiments.core import SCHEDULES, PureTask, seed_everything, stream
from spherenorm_experiments.engine._run import Run
from spherenorm_experiments.store import write_arrays


def sweep_rows(run: Run, task: PureTask) -> None:
    """Train every run and write the results. It takes seconds, so it has no checkpoint."""
    spec = run.spec
    start, swept = _swept(run, task, spec.epochs, spec.every_seed, *_columns(run))
    numbers, arrays = task.summarize(spec.every_seed, start, swept)
    ends = _ends(swept)
    lost = torch.tensor([end is not None for end in ends]).reshape(swept.loss.shape[1:])
    table: dict[str, list[Any]] = {
        name: [x if math.isfinite(x) else None for x in _flat(_but(values, lost)).tolist()]
        for name, values in numbers.items()
    }
    flat = {name: _flat(array).cpu().numpy() for name, array in arrays.items()}
    write_arrays(run.folder.path / "arrays.npz", flat)
    whole = None if None in ends else max(end for end in ends if end is not None)
    about = {"diverged_at": whole, "steps": spec.epochs}
    run.folder.finish({**about, "rows": {"diverged_at": ends, **table}}, ["arrays.npz"])


def _but(values: Tensor, lost: Tensor) -> Tensor:
    """The numbers in float64, nan for runs that diverged."""
    return torch.where(lost, torch.nan, values.detach().cpu().double())


def _flat(values: Tensor) -> Tensor:
    """One leading dimension in place of those of points and of seeds."""
    return values.detach().flatten(0, 1)


def first_step(run: Run, task: PureTask) -> None:
    """Take the first step of the first point and seed, and write nothing."""
    points, fixed = _columns(run)
    first = {name: values[:1] for name, values in points.items()}
    _swept(run, task, 1, run.spec.every_seed[:1], first, fixed)


def _swept(
    run: Run,
    task: PureTask,
    steps: int,
    seeds: Sequence[int],
    points: Mapping[str, list[float]],
    fixed: Mapping[str, Any],
) -> tuple[dict[str, Tensor], Sweep]:
    """The initial parameters, and the first steps over some points and seeds."""
    spec, factor = run.spec, SCHEDULES[run.spec.schedule]
    start = _stacked([_start(task, seed, spec.device) for seed in seeds], spec.device)
    columns = {
        name: torch.tensor(values, dtype=torch.float64, device=spec.device)
        for name, values in points.items()
    }
    swept = sweep(
        run.bound.recipe,
        task.loss,
        start,
        columns,
        steps=steps,
        batches=_batches(task, seeds, spec.device),
        schedule=None if spec.schedule == "constant" else lambda t: factor(t / spec.epochs),
        record=task.record,
        **fixed,
    )
    return start, swept


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


def _columns(run: Run) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """The hyper-parameters with a value per point, and those that all points share."""
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
