"""The progress of a run while it trains: one small file for the command line, and TensorBoard.

progress.json   step, steps, rate, remaining, last values; written whole about once a second

A run of a task on batches: it trains with checkpoints, from where it stands to its summary.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from spherenorm_experiments.errors import require_extra
from spherenorm_experiments.gradients import watched_outputs
from spherenorm_experiments.probes import is_finite
from spherenorm_experiments.ranks import Ranks
from spherenorm_experiments.run import Run, Runner
from spherenorm_experiments.store import Records
from spherenorm_experiments.task import Split, Task
from spherenorm_experiments.train import Training

SECONDS_BETWEEN = 1.0
MOST_SCALARS = 20
"""TensorBoard takes 50 microseconds for a number, so it gets only a few."""


class Live:
    """The progress of one run, told while it trains.

    Args:
        folder: the run's.
        steps: of the whole run.
        done: before this process began.
        events: the folder of TensorBoard's event files; None writes none.
    """

    def __init__(self, folder: Path, steps: int, done: int, events: Path | None) -> None:
        self.path, self.steps, self.first = folder / "progress.json", steps, done
        self.started = self.last_written = time.monotonic()
        self.validation: dict[str, float] = {}
        self.writer: Any = None
        if events is not None:
            board = require_extra("torch.utils.tensorboard", "--tensorboard")
            # What a run that was killed wrote after its last checkpoint is written again.
            self.writer = board.SummaryWriter(str(events), purge_step=done + 1)

    def tell(self, record: Mapping[str, Any]) -> None:
        """Take in the record of a step."""
        now = time.monotonic()
        if "validation" in record:
            self.validation = {"validation": record["validation"]}
        if now - self.last_written >= SECONDS_BETWEEN:
            self.last_written = now
            self._write(record, now)
        if self.writer is not None:
            for name, value in _scalars(record).items():
                self.writer.add_scalar(name, value, record["step"])

    def close(self) -> None:
        """The run has ended or stopped; what it is then is in its status."""
        self.path.unlink(missing_ok=True)
        if self.writer is not None:
            self.writer.close()

    def _write(self, record: Mapping[str, Any], now: float) -> None:
        done = record["step"]
        rate = (done - self.first) / max(now - self.started, 1e-9)
        content = {
            "step": done,
            "steps": self.steps,
            "rate": rate,
            "remaining": (self.steps - done) / rate if rate else None,
            "last": {**_scalars(record), **self.validation},
            "updated": time.time(),
        }
        partial = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:  # it only informs: a full disk stops a run where it matters
            partial.write_text(json.dumps(content))
            os.replace(partial, self.path)
        except OSError:
            partial.unlink(missing_ok=True)


def _scalars(record: Mapping[str, Any]) -> dict[str, float]:
    numbers = {
        name: value
        for name, value in record.items()
        if name != "step" and isinstance(value, int | float)
    }
    return dict(list(numbers.items())[:MOST_SCALARS])


def train(
    run: Run, task: Task, runner: Runner, ranks: Ranks, told: Callable[..., dict[str, Any]]
) -> None:
    """Bring a run to its end; its folder then has records, the last checkpoint and its row.

    Args:
        told: what its row says about it, with further entries.
    """
    training = Training(run, task, ranks, runner.workers)
    loop = _Loop(run, training, runner, ranks)
    try:
        loop.go()
    finally:
        loop.close()
    summary = _summary(training, loop)
    if ranks.first:
        about = told(executor=training.optimizers.backend)
        run.folder.finish([(run.name, run.spec, summary)], loop.code, about)
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
            root = run.store.root
            events = root / "tensorboard" / run.name if runner.tensorboard else None
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
            self.length = self.records.append(self.pending)
            position = {"done": self.done, "diverged_at": self.diverged_at, "code": self.code}
            self.run.folder.save_checkpoint({**state, **position, "records": self.length})
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
        """Load the last checkpoint, if its code counts and the records before it are there.

        Returns:
            How many steps are done.
        """
        folder, store = self.run.folder, self.run.store
        self.records, self.length, self.code = folder.metrics, 0, list[str]()
        found = folder.load_checkpoint() if self.ranks.first else None
        if found is not None:
            usable = store.counts(found["code"]) and self.records.rewind(found["records"])
            found = found if usable else None
        found = self.ranks.broadcast(found)
        if self.ranks.first:
            here = store.write_code()
            self.code = [*dict.fromkeys([*(found["code"] if found else ()), here])]
        if found is None:
            if self.ranks.first:
                folder.clear()
            return 0
        self.training.restore(found)
        self.diverged_at, self.length = found["diverged_at"], found["records"]
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
    }
    for name in ("validation", "test"):
        found = _scores(training, getattr(run.splits, name)) if survived else {}
        # JSON has no number for an infinite perplexity.
        known = {key: value if math.isfinite(value) else None for key, value in found.items()}
        summary |= {name: next(iter(known.values()), None), f"{name}_metrics": known}
    # By its name: a file has the metrics in the order of theirs.
    summary["score"] = next(iter(summary["test_metrics"]), None)
    summary["metric"] = training.task.metric or summary["score"]
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
