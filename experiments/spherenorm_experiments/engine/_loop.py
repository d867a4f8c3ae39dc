"""A run of a task on batches: it trains with checkpoints, from where it stands to its summary."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

from spherenorm_experiments.core import Split, Task
from spherenorm_experiments.engine._evaluation import watched_outputs
from spherenorm_experiments.engine._origin import keep_origin
from spherenorm_experiments.engine._probes import is_finite
from spherenorm_experiments.engine._progress import Live
from spherenorm_experiments.engine._ranks import Ranks
from spherenorm_experiments.engine._run import Run
from spherenorm_experiments.engine._runner import Runner
from spherenorm_experiments.engine._training import Training
from spherenorm_experiments.store import Records


def train(run: Run, task: Task, runner: Runner, ranks: Ranks) -> None:
    """Bring a run to its end; its folder then has records, the last checkpoint and the summary."""
    training = Training(run, task, ranks, runner.workers)
    if ranks.first:
        keep_origin(run, backend=training.optimizers.backend)
    loop = _Loop(run, training, runner, ranks)
    try:
        loop.go()
    finally:
        loop.close()
    summary = _summary(training, loop)
    if ranks.first:
        run.folder.finish(summary, [loop.records.path.name])
    ranks.wait()


class _Loop:
    """The steps of a run, with its records, checkpoints and progress."""

    def __init__(self, run: Run, training: Training, runner: Runner, ranks: Ranks) -> None:
        self.run, self.training, self.ranks = run, training, ranks
        self.every = runner.checkpoint_seconds
        self.start_norm = training.watched.mean_norm(training.module)
        self.diverged_at: int | None = None
        self.done = self._resume()
        self.pending: list[dict[str, Any]] = []
        self.live: Live | None = None
        if ranks.first:
            root = run.folder.path.parents[1]
            events = root / "tensorboard" / run.id if runner.tensorboard else None
            self.live = Live(run.folder.path, run.steps, self.done, events)

    def go(self) -> None:
        """Step until the end, or until the run has diverged."""
        last_checkpoint = time.monotonic()
        while self.done < self.run.steps and self.diverged_at is None:
            waited = time.monotonic() - last_checkpoint
            # Rank 0's clock decides for all, on the way of the loss.
            due = float(self.ranks.first and waited >= self.every)
            record, (due,) = self.training.step(self.done, due)
            if record is not None and (self.done + 1) % self.run.steps_per_epoch == 0:
                record |= self._validation()
            last = self.done + 1 == self.run.steps
            if record is None or not _finite(record) or (last and not self.training.survived()):
                self.diverged_at = self.done
                break
            self.done += 1
            self.pending.append(record)
            if self.live is not None:
                self.live.tell(record)
            if due:
                self.checkpoint()
                last_checkpoint = time.monotonic()
        self.checkpoint()

    def checkpoint(self) -> None:
        """Write what there is, so that a run that is killed now loses nothing."""
        state = self.training.state()
        if self.ranks.first:
            self.records.append(self.pending)
            position = {"done": self.done, "diverged_at": self.diverged_at}
            mark = {"records": self.records.mark()}
            self.run.folder.save_checkpoint({**state, **position, **mark})
        self.pending.clear()
        self.ranks.wait()

    def close(self) -> None:
        if self.live is not None:
            self.live.close()

    def _validation(self) -> dict[str, float]:
        """The score as "validation", the other metrics as "validation/<name>"."""
        found = _scores(self.training, self.run.splits.validation)
        (_, score), *others = found.items()
        return {"validation": score, **{f"validation/{name}": x for name, x in others}}

    def _resume(self) -> int:
        """Load the last checkpoint, if it and the records before it are intact.

        Returns:
            How many steps are done.
        """
        self.records = Records(self.run.folder.path)
        found = self.run.folder.load_checkpoint() if self.ranks.first else None
        if found is not None and not self.records.rewind(found["records"]):
            found = None
        found = self.ranks.broadcast(found)
        if found is None:
            if self.ranks.first:
                self.run.folder.clear()
                self.records.clear()
            return 0
        self.training.restore(found)
        self.diverged_at = found["diverged_at"]
        return int(found["done"])


def _finite(record: Mapping[str, Any]) -> bool:
    return all(is_finite(value) for value in record.values())


def _summary(training: Training, loop: _Loop) -> dict[str, Any]:
    run, watched, survived = training.run, training.watched, loop.diverged_at is None
    summary: dict[str, Any] = {
        "diverged_at": loop.diverged_at,
        "steps": loop.done,
        "steps_per_epoch": run.steps_per_epoch,
        "views": dict(watched.views),
        "shapes": dict(watched.shapes),
        "invariant_share": watched.invariant_share,
        "metric": training.task.metric,
    }
    for name in ("validation", "test"):
        found = _scores(training, getattr(run.splits, name)) if survived else {}
        # JSON has no number for an infinite perplexity.
        known = {key: value if math.isfinite(value) else None for key, value in found.items()}
        summary |= {name: next(iter(known.values()), None), f"{name}_metrics": known}
    # By its name: a file has the metrics in the order of theirs.
    summary["score"] = next(iter(summary["test_metrics"]), None)
    if training.ranks.parallel is not None:
        summary |= {"processes": training.ranks.world, "parallel": training.ranks.parallel}
    if not training.ranks.first:
        return summary
    return summary | _norms(loop.records, run.steps_per_epoch, loop.start_norm)


def _scores(training: Training, split: Split) -> dict[str, float]:
    """The metrics of the model on a split; no numbers if an output of the model is not finite.

    Of outputs that are not numbers an argmax is 0 and nothing is above a threshold: accuracy, F1
    and recall would be those of a model that works.

    Raises:
        ValueError: one is not a number although all outputs of the model are finite: the run has
            not diverged, its task cannot compute the metric.
    """
    with watched_outputs(training.module) as finite:
        found = training.metrics(split)
    lost = training.ranks.totals([float(len(finite) - sum(finite))]) != [0.0]
    if lost:
        return dict.fromkeys(found, math.nan)
    lacking = [name for name, value in found.items() if math.isnan(value)]
    if lacking and training.survived():
        lack = f"task {training.spec.task!r}: the metric {lacking[0]!r} is not a number"
        raise ValueError(f"{lack}, although all outputs of the model are finite")
    return found


def _norms(records: Records, per_epoch: int, start: float | None) -> dict[str, Any]:
    """Numbers of the probe `norms` over the whole run.

    Between two probed steps the effective step counts as that of the later one.
    """
    read = records.read(("step", "norm", "effective_step"))
    probed = [record for record in read if "norm" in record]
    if not probed:
        return {}
    steps = [0, *(record["step"] for record in probed)]
    path = (
        record["effective_step"] * (record["step"] - before)
        for before, record in zip(steps, probed, strict=False)
    )
    first = [record["norm"] for record in probed if record["step"] <= per_epoch]
    return {
        "norm_start": start,
        "norm_first_epoch": first[-1] if first else probed[0]["norm"],
        "norm_last": probed[-1]["norm"],
        "norm_max": max(record["norm"] for record in probed),
        "total_effective_step": math.fsum(path),
    }
