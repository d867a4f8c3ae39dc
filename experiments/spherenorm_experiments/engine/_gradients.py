"""The gradient of a step: of its micro-batches, in the run's precision, and clipped."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from spherenorm_experiments.core import Batch, Smoothing, Task, seed_everything, stream
from spherenorm_experiments.engine._loader import TrainingBatches
from spherenorm_experiments.engine._parallel import synchronized, whole
from spherenorm_experiments.engine._ranks import Ranks
from spherenorm_experiments.engine._run import Run


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
            raise ValueError(f"{lack}; let it call spherenorm_experiments.core.cross_entropy")
        return loss
