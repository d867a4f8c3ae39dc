"""The gradient of a step: of its micro-batches, in the run's precision, and clipped.

The metrics of a model on a split, over batches and ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from spherenorm_experiments.data import TrainingBatches, evaluation_batches
from spherenorm_experiments.metrics import Smoothing, Statistic
from spherenorm_experiments.ranks import Ranks, synchronized, whole
from spherenorm_experiments.run import Run
from spherenorm_experiments.streams import seed_everything, stream
from spherenorm_experiments.task import Batch, Split, Task


class Gradients:
    """The gradients of a run's model.

    Attributes:
        model: as the loss calls it.
        scaler: of the loss, for float16.
    """

    def __init__(
        self,
        run: Run,
        task: Task,
        model: nn.Module,
        batches: TrainingBatches,
        ranks: Ranks,
        device: str,
    ) -> None:
        self.spec, self.regime, self.task = run.spec, run.spec.regime, task
        self.model, self.batches, self.ranks, self.device = model, batches, ranks, device
        self.steps_per_epoch = run.steps_per_epoch
        self._kind, scaled = torch.device(device).type, self.regime.precision == "float16"
        self.scaler = torch.amp.GradScaler(self._kind, enabled=scaled)
        self._smoothing = Smoothing(self.regime.label_smoothing)

    def autocast(self) -> AbstractContextManager[Any]:
        """The block in which the model computes in the run's precision."""
        precision = self.regime.precision
        if precision == "float32":
            return nullcontext()
        return torch.autocast(self._kind, dtype=getattr(torch, precision))

    def add(self, step: int) -> float:
        """Add up the gradients of a step's micro-batches; the rank's part of its loss."""
        total, shares = 0.0, len(self.batches.order.shares(step))
        for number, (batch, weight) in enumerate(self.batches.at(step)):
            key = (step, number, self.ranks.rank)
            seed_everything(stream(self.spec.seed, "noise", *key), self.device)
            with synchronized(self.model, last=number == shares - 1):
                with self.autocast():
                    loss = self._loss(batch)
                # DDP and FSDP2 take the mean over ranks of what is a sum.
                share = weight * self.ranks.world
                scaled = loss if share == 1 else share * loss
                self.scaler.scale(scaled).backward()  # type: ignore[no-untyped-call]
            total += weight * loss.item()
        return total

    def freeze(self, module: nn.Module, step: int) -> None:
        """Take the gradients of the weights that are frozen at this step."""
        prefix, epochs = self.regime.frozen or ("", 0.0)
        if step < epochs * self.steps_per_epoch:
            for name, weight in module.named_parameters():
                if name.startswith(prefix):
                    weight.grad = None

    def update(self, optimizer: torch.optim.Optimizer, module: nn.Module) -> dict[str, float]:
        """Clip the gradient and step; the norm before clipping, if it is clipped.

        A scaled gradient that overflowed has no norm, and no step: it is no divergence.
        """
        measured = {}
        if self.regime.clip_norm is not None:
            self.scaler.unscale_(optimizer)
            clipped = nn.utils.clip_grad_norm_(module.parameters(), self.regime.clip_norm)
            norm = float(whole(clipped))
            if math.isfinite(norm) or not self.scaler.is_enabled():
                measured["grad_norm"] = norm
        self.scaler.step(optimizer)
        self.scaler.update()
        return measured

    def _loss(self, batch: Batch) -> Tensor:
        if not self._smoothing.amount:
            return self.task.loss(self.model, batch)
        with self._smoothing.active():
            loss = self.task.loss(self.model, batch)
        if not self._smoothing.used:
            lack = f"the loss of task {self.spec.task!r} has no label_smoothing"
            raise ValueError(f"{lack}; let it call spherenorm_experiments.metrics.cross_entropy")
        return loss


def evaluate(
    run: Run, task: Task, model: nn.Module, split: Split, ranks: Ranks, workers: int, device: str
) -> dict[str, float]:
    """The task's metrics on a split; equal for any number of ranks.

    The shares of all batches meet in the order of the data.

    Raises:
        ValueError: `evaluate` returns no metrics, or others for one batch than for another, or the
            split is empty.
    """
    shares: dict[str, Statistic] = {}
    states: dict[int, dict[str, object]] = {}
    batches = evaluation_batches(split, run, task, ranks, workers, device)
    for number, counts, batch in batches:
        seed_everything(stream(run.spec.seed, "evaluation", number), device)
        with torch.no_grad():
            before, shares = shares, dict(task.evaluate(model, batch))
        for name, share in shares.items():
            if not isinstance(share, Statistic):
                need = f"evaluate: the metric {name!r} must be a Mean, Sums or Collected"
                raise ValueError(f"task {run.spec.task!r}: {need}, got {share!r}")
        if before and list(before) != list(shares):  # the first is the score
            each = f"{list(before)} of one batch and {list(shares)} of another"
            raise ValueError(f"task {run.spec.task!r}: the metrics are {each}; give all of each")
        if counts:
            states[number] = {name: share.state for name, share in shares.items()}
    if not shares:
        raise ValueError(f"task {run.spec.task!r}: no metrics, or no items to evaluate")
    merged = {number: state for part in ranks.gather(states) for number, state in part.items()}
    ordered = [merged[number] for number in sorted(merged)]
    return {name: share.value([state[name] for state in ordered]) for name, share in shares.items()}


@contextmanager
def watched_outputs(model: nn.Module) -> Iterator[list[bool]]:
    """Note of each call of the model if all that it returns is finite.

    Minus infinity counts as finite, unless there is nothing else: a mask fills logits with it.
    """
    found: list[bool] = []

    def note(_: nn.Module, __: object, output: object) -> None:
        tensors = [
            x for x in tree_leaves(output) if isinstance(x, Tensor) and x.is_floating_point()
        ]
        found.append(all(_is_finite(x) for x in tensors))

    handle = model.register_forward_hook(note)
    try:
        yield found
    finally:
        handle.remove()


def _is_finite(x: Tensor) -> bool:
    finite = x.isfinite()
    return bool((finite | x.isneginf()).all()) and (not x.numel() or bool(finite.any()))
