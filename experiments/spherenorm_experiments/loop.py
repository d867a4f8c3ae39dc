"""A run of a task on batches: it trains with checkpoints, from where it stands to its row."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from spherenorm_experiments.data import evaluation_batches
from spherenorm_experiments.errors import require_extra
from spherenorm_experiments.metrics import Statistic
from spherenorm_experiments.probes import is_finite
from spherenorm_experiments.ranks import Ranks
from spherenorm_experiments.run import Run, Runner
from spherenorm_experiments.spec import Spec
from spherenorm_experiments.store import RunFolder
from spherenorm_experiments.streams import seed_everything, stream
from spherenorm_experiments.task import Split, Task, better_of
from spherenorm_experiments.train import Training

SECONDS_BETWEEN = 1.0
"""Two writings of the progress."""

MOST_SCALARS = 20
"""TensorBoard takes 50 microseconds for a number, so it gets only a few."""


def train(
    run: Run, task: Task, runner: Runner, ranks: Ranks
) -> tuple[list[tuple[str, Spec, dict[str, Any]]], list[str], dict[str, str]]:
    """Bring a run to its end; its folder then has the records and the last checkpoint.

    Returns:
        Its name, spec and summary as one row; the names of its code; the executor of its steps.
    """
    training = Training(run, task, ranks, runner.workers)
    loop = _Loop(run, training, runner)
    try:
        loop.go()
    finally:
        if loop.live is not None:
            loop.live.close()
    row = run.name, run.spec, _summary(training, loop)
    return [row], loop.code, {"executor": training.backend}


class _Loop:
    """The steps of a run, with its records, checkpoints and progress."""

    def __init__(self, run: Run, training: Training, runner: Runner) -> None:
        self.run, self.training, self.ranks = run, training, training.ranks
        self.every = runner.checkpoint_seconds
        self.start_norm = training.watched.mean_norm(training.module)
        self.diverged_at: int | None = None
        self.code: list[str] = []
        self.done = self._resume()
        self.pending: list[dict[str, Any]] = []
        self.live: _Live | None = None
        if self.ranks.first:
            events = run.store.root / "tensorboard" / run.name if runner.tensorboard else None
            self.live = _Live(run.folder.path, run.steps, self.done, events)

    def go(self) -> None:
        """Step until the end, or until the run has diverged."""
        last_checkpoint = time.monotonic()
        while self.done < self.run.steps and self.diverged_at is None:
            waited = time.monotonic() - last_checkpoint
            # Rank 0's clock decides for all, on the way of the loss.
            due = float(self.ranks.first and waited >= self.every)
            record, (due,) = self.training.step(self.done, due)
            if record is not None and (self.done + 1) % self.run.steps_per_epoch == 0:
                found = score(self.training, self.run.splits.validation)
                record["validation"] = next(iter(found.values()), math.nan)
                record |= {f"validation/{name}": found[name] for name in list(found)[1:]}
            last = self.done + 1 == self.run.steps
            finite = record is not None and all(map(is_finite, record.values()))
            if record is None or not finite or (last and not self.training.survived()):
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
            length = self.run.folder.append(self.pending)
            position = {"done": self.done, "diverged_at": self.diverged_at, "code": self.code}
            self.run.folder.save_checkpoint({**state, **position, "records": length})
        self.pending.clear()
        self.ranks.wait()

    def _resume(self) -> int:
        """Load the last checkpoint, if its code counts; how many steps are done."""
        folder, store, found = self.run.folder, self.run.store, None
        if self.ranks.first:
            found = folder.load_checkpoint()
            if found is None or not store.counts(found["code"]):
                found = None
                folder.clear()
            else:
                folder.rewind(found["records"])
            self.code = [*dict.fromkeys([*(found["code"] if found else ()), store.write_code()])]
        found = self.ranks.broadcast(found)
        if found is None:
            return 0
        self.training.restore(found)
        self.diverged_at = found["diverged_at"]
        return int(found["done"])


class _Live:
    """The progress of one run, told while it trains: one small file, and TensorBoard.

    Args:
        folder: the run's; `progress.json` in it has step, steps, rate, remaining, last values.
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
        now, done = time.monotonic(), record["step"]
        if "validation" in record:
            self.validation = {"validation": record["validation"]}
        if self.writer is not None:
            for name, value in _scalars(record).items():
                self.writer.add_scalar(name, value, done)
        if now - self.last_written < SECONDS_BETWEEN:
            return
        self.last_written = now
        rate = (done - self.first) / (now - self.started)
        content = {
            "step": done,
            "steps": self.steps,
            "rate": rate,
            "remaining": (self.steps - done) / rate,
            "last": {**_scalars(record), **self.validation},
            "updated": time.time(),
        }
        partial = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        with suppress(OSError):  # it only informs: a full disk stops a run where it matters
            partial.write_text(json.dumps(content), encoding="utf-8")
            os.replace(partial, self.path)

    def close(self) -> None:
        """The run has ended or stopped; what it is then is in its status."""
        self.path.unlink(missing_ok=True)
        if self.writer is not None:
            self.writer.close()


def _scalars(record: Mapping[str, Any]) -> dict[str, float]:
    numbers = {name: x for name, x in record.items() if isinstance(x, int | float)}
    numbers.pop("step")
    return dict(list(numbers.items())[:MOST_SCALARS])


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
        found = score(training, getattr(run.splits, name)) if survived else {}
        # JSON has no number for an infinite perplexity.
        known = {key: value if math.isfinite(value) else None for key, value in found.items()}
        summary |= {name: next(iter(known.values()), None), f"{name}_metrics": known}
    # By its name: a file has the metrics in the order of theirs.
    summary["score"] = next(iter(summary["test_metrics"]), None)
    summary["metric"] = training.task.metric or summary["score"]
    if better_of(training.task, summary["score"]) == "lower":
        summary["better"] = "lower"
    if training.ranks.parallel is not None:
        summary |= {"processes": training.ranks.world, "parallel": training.ranks.parallel}
    if not training.ranks.first:
        return summary
    return summary | _norms(run.folder, run.steps_per_epoch, loop.start_norm)


def _norms(folder: RunFolder, per_epoch: int, start: float | None) -> dict[str, Any]:
    """Numbers of the probe `norms` over the whole run.

    Between two probed steps the effective step counts as that of the later one.
    """
    read = folder.records(("step", "norm", "effective_step"))
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


def score(training: Training, split: Split) -> dict[str, float]:
    """The task's metrics on a split, alike for any number of ranks.

    None has a number if an output of the model is not finite: an accuracy, F1 or recall would be
    that of a model that works, since an argmax is then 0 and nothing is above a threshold.

    Raises:
        ValueError: one is not a number although all outputs of the model are finite: the run has
            not diverged, its task cannot compute the metric. Or `evaluate` returns no metrics, or
            others for one batch than for another.
    """
    ranks, module = training.ranks, training.module
    ranks.share(module.buffers())
    module.eval()
    with _watched_outputs(module) as finite, training.autocast():
        shares, own = _shares(training, split, finite)
        if ranks.totals([float(finite.count(False))]) != [0.0]:
            return dict.fromkeys(shares, math.nan)
        states = {number: state for part in ranks.gather(own) for number, state in part.items()}
        ordered = [states[number] for number in sorted(states)]  # as the data are
        found = {name: share.value([s[name] for s in ordered]) for name, share in shares.items()}
    lacking = [name for name, value in found.items() if math.isnan(value)]
    if lacking and training.survived():
        lack = f"task {training.spec.task!r}: the metric {lacking[0]!r} is not a number"
        raise ValueError(f"{lack}, although all outputs of the model are finite")
    return found


def _shares(
    training: Training, split: Split, finite: Sequence[bool]
) -> tuple[dict[str, Statistic], dict[int, dict[str, Any]]]:
    """The last shares of this rank, and the states of all of them by the number of their batch."""
    shares: dict[str, Statistic] = {}
    states: dict[int, dict[str, Any]] = {}
    run, task, where = training.run, training.task, f"task {training.spec.task!r}"
    which = training.ranks, training.workers, training.device
    for number, counts, batch in evaluation_batches(split, run, task, *which):
        seed_everything(stream(run.spec.seed, "evaluation", number), training.device)
        before = shares
        try:
            with torch.no_grad():
                shares = dict(task.evaluate(training.module, batch))
        except Exception:
            if all(finite):
                raise
            continue  # a library's metric, say, that refuses what is not a number
        for name, share in shares.items():
            if not isinstance(share, Statistic):
                need = f"evaluate: the metric {name!r} must be a Mean or Collected"
                raise ValueError(f"{where}: {need}, got {share!r}")
        if before and list(before) != list(shares):  # the first is the score
            each = f"{list(before)} of one batch and {list(shares)} of another"
            raise ValueError(f"{where}: the metrics are {each}; give all of each")
        if counts:
            states[number] = {name: share.state for name, share in shares.items()}
    if not shares and all(finite):
        raise ValueError(f"{where}: no metrics, or no items to evaluate")
    return shares, states


@contextmanager
def _watched_outputs(model: nn.Module) -> Iterator[list[bool]]:
    """Note of each call of the model if all that it returns is finite.

    Minus infinity counts as finite, unless there is nothing else: a mask fills logits with it.
    """
    found: list[bool] = []

    def is_known(x: Tensor) -> bool:
        finite = x.isfinite()
        return bool((finite | x.isneginf()).all()) and (not x.numel() or bool(finite.any()))

    def note(_: nn.Module, __: object, output: object) -> None:
        tensors = [x for x in tree_leaves(output) if isinstance(x, Tensor)]
        found.append(all(is_known(x) for x in tensors if x.is_floating_point()))

    handle = model.register_forward_hook(note)
    try:
        yield found
    finally:
        handle.remove()
