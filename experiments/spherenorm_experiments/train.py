"""Model, optimizers and data of a run on batches, and one step of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from spherenorm.optim import RecipeOptimizer
from spherenorm_experiments.data import TrainingBatches
from spherenorm_experiments.errors import written
from spherenorm_experiments.given_steps import GivenSteps
from spherenorm_experiments.gradients import Gradients, evaluate
from spherenorm_experiments.optimizers import OptimizerSchedule
from spherenorm_experiments.probes import MeasuredStep, is_finite, measure
from spherenorm_experiments.ranks import ALONE, Ranks, parallelize, whole
from spherenorm_experiments.run import Run
from spherenorm_experiments.streams import seed_everything, stream
from spherenorm_experiments.task import Split, Task
from spherenorm_experiments.weights import (
    Average,
    Watched,
    is_training,
    load_model,
    load_states,
    model_tensors,
    own_states,
)


class Training:
    """A run on batches, before its first step.

    Attributes:
        module: the model with its weights.
        model: the model as the loss calls it, in DDP if there are several processes.
        watched: the weights of two or more dimensions, with their views.
    """

    def __init__(self, run: Run, task: Task, ranks: Ranks = ALONE, workers: int = 0) -> None:
        self.run, self.spec, self.task, self.ranks = run, run.spec, task, ranks
        self.regime, self.workers = run.spec.regime, workers
        self.device = ranks.device(self.spec.device)
        seed_everything(stream(self.spec.seed, "init"), self.device)
        self.module = _new_model(task).to(self.device)
        _require_frozen(self.module, self.regime.frozen)
        self.watched = Watched.of(self.module, task, self.device)
        given = self.regime.steps_of is not None
        self.given_steps = GivenSteps(run, self.watched, ranks.parallel) if given else None
        self.model = parallelize(self.module, task, ranks, self.device)
        self.batches = TrainingBatches(run, task, ranks, workers, self.device)
        self.optimizers = OptimizerSchedule(run, task, self.module, self.watched.channels)
        self.average = None if self.regime.ema is None else Average(self.module, self.regime.ema)
        self.gradients = Gradients(run, task, self.model, self.batches, ranks, self.device)

    @property
    def optimizer(self) -> RecipeOptimizer:
        """The one that steps now."""
        return self.optimizers.optimizer

    def step(self, step: int, *notes: float) -> tuple[dict[str, Any] | None, list[float]]:
        """Take one step.

        Args:
            notes: numbers to be summed over ranks, beside the loss.

        Returns:
            Its measurements, None if the loss was not finite; and the sums of the notes.
        """
        self.optimizers.begin(step)
        if not is_training(self.module):
            self.module.train()
        self.optimizer.zero_grad()
        loss, *sums = self.ranks.totals([self.gradients.add(step), *notes])
        if not math.isfinite(loss):
            return None, sums
        record: dict[str, Any] = {"step": step + 1, "loss": loss}
        self.optimizers.schedule(step)
        probed = self._is_probed(step + 1)
        before = self.watched.copies(self.module) if probed or self.given_steps else {}
        self.gradients.freeze(self.module, step)
        record |= self.gradients.update(self.optimizer, self.module)
        if self.given_steps is not None:
            self.given_steps.turn(step, before, self.module)
        if self.average is not None:
            self.average.update(self.module)
        if probed:
            record |= self._probed(before)
        return record, sums

    def survived(self) -> bool:
        """True if the norms of the weights are finite: no loss is computed after the last step."""
        norms = map(torch.linalg.vector_norm, (x.detach() for x in self.module.parameters()))
        return all(bool(whole(norm).isfinite()) for norm in norms)

    def metrics(self, split: Split) -> dict[str, float]:
        """The task's metrics on a split, of the averaged weights if the regime keeps them."""
        self._share_buffers()
        self.module.eval()
        with ExitStack() as stack:
            stack.enter_context(self.gradients.autocast())
            if self.average is not None:
                stack.enter_context(self.average.in_place(self.module))
            where = self.ranks, self.workers, self.device
            return evaluate(self.run, self.task, self.module, split, *where)

    def state(self) -> dict[str, Any]:
        """The content of a checkpoint, tensors whole; all ranks must ask. Buffers are rank 0's."""
        self._share_buffers()
        state = own_states(self.module, self.optimizer)
        content = {"model": model_tensors(self.module), "optimizer": {"state": state}}
        if self.average is not None:
            content["ema"] = self.average.tensors
        whole_: dict[str, Any] = tree_map_only(Tensor, whole, content)
        scaler = self.gradients.scaler
        scaled = {"scaler": scaler.state_dict()} if scaler.is_enabled() else {}
        return {**whole_, "turn": self.optimizers.now, **scaled}

    def restore(self, content: Mapping[str, Any]) -> None:
        """Go on from a checkpoint, whatever number of processes has written it."""
        self.optimizers.take(content["turn"])
        load_model(self.module, content["model"])
        load_states(self.module, self.optimizer, content["optimizer"]["state"])
        if self.average is not None:
            self.average.load(content["ema"])
        if self.gradients.scaler.is_enabled():
            self.gradients.scaler.load_state_dict(content["scaler"])

    def _share_buffers(self) -> None:
        """Make buffers, such as the statistics of BatchNorm, and their averages those of rank 0."""
        averages = () if self.average is None else self.average.buffers()
        self.ranks.share([*self.module.buffers(), *averages])

    def _is_probed(self, done: int) -> bool:
        ends = done % self.run.steps_per_epoch == 0
        return bool(self.spec.probes) and (ends or done % self.spec.probe_every == 0)

    def _probed(self, before: dict[str, Tensor]) -> dict[str, Any]:
        now, grads = self.watched.now(self.module), self.watched.gradients(self.module)
        step = MeasuredStep(before, now, grads, self.watched.views)
        measured = measure(self.run.probes, step)
        known = {name: value for name, value in measured.items() if is_finite(value)}
        # 0/0, say, where the weights are finite: the probe has no number here
        return known if len(known) < len(measured) and self.survived() else measured


def _require_frozen(module: torch.nn.Module, frozen: tuple[str, float] | None) -> None:
    """Refuse a prefix of frozen weights that no weight's name begins with."""
    names = [name for name, _ in module.named_parameters()]
    prefix, _ = frozen or ("", 0.0)
    if not any(name.startswith(prefix) for name in names):
        right = f"the first is {names[0]!r}" if names else "it has none"
        raise ValueError(f"frozen: no weight's name begins with {prefix!r}; {right}")


def _new_model(task: Task) -> nn.Module:
    """A model whose weights no run of this process has had.

    Raises:
        ValueError: they are those of an earlier run, which has trained them.
    """
    model = task.model()
    for name, weight in model.named_parameters():
        if getattr(weight, "_of_a_run", False) and weight.requires_grad:
            raise ValueError(
                f"{written(type(task), 'model')} returns the same {name!r} on each call: a run "
                "would go on from the last one's; make a new module"
            )
        weight._of_a_run = True  # type: ignore[attr-defined]
    return model
