"""One training run on batches, with checkpoints, from wherever it stands to its summary."""

from __future__ import annotations

import math
import time
from typing import Any

import torch
from torch import Tensor, nn

from experiments.probes import PROBES, StepView
from experiments.spec import SCHEDULES, Spec, sphere_of
from experiments.store import RunFolder
from experiments.task import Split, Task, generator, stream
from spherenorm import metrics
from spherenorm.invariance import audit
from spherenorm.optim import RecipeOptimizer, torch_optimizer
from spherenorm.registry import find_recipe, reference

__all__ = ["Training", "steps_per_epoch", "train"]


def steps_per_epoch(spec: Spec, task: Task) -> int:
    """How many batches the training data make, the last one possibly smaller."""
    return math.ceil(len(task.data().train[0]) / spec.batch_size)


class Training:
    """Model, optimizer and data of a run, before its first step."""

    def __init__(self, spec: Spec, task: Task) -> None:
        self.spec, self.task = spec, task
        torch.manual_seed(stream(spec.seed, "init"))
        self.model = task.model().to(spec.device)
        self.data = type(task.data())(
            *(tuple(x.to(spec.device) for x in split) for split in task.data())
        )
        findings = audit(self.model, *(x.to(spec.device) for x in task.audit_inputs()))
        self.views = {finding.name: finding.view for finding in findings}
        self.weights = {
            name: weight for name, weight in self.model.named_parameters() if name in self.views
        }
        self.optimizer = _optimizer(
            spec,
            self.model,
            [self.weights[name] for name, view in self.views.items() if view == "channel"],
        )
        self.base_lr = [group.get("lr") for group in self.optimizer.param_groups]
        self.steps_per_epoch = steps_per_epoch(spec, task)
        self.steps = spec.epochs * self.steps_per_epoch

    def batch(self, step: int) -> Split:
        epoch, index = divmod(step, self.steps_per_epoch)
        count = len(self.data.train[0])
        order = torch.randperm(count, generator=generator(self.spec.seed, "data", epoch))
        chosen = order[index * self.spec.batch_size : (index + 1) * self.spec.batch_size]
        return tuple(x[chosen] for x in self.data.train)

    def step(self, step: int) -> dict[str, Any] | None:
        """Take one step and return what was measured; None if the loss was not finite."""
        self.model.train()
        batch = self.batch(step)
        # Not torch.manual_seed: without a GPU that formats a stack trace each time, a tenth of a small step.
        torch.default_generator.manual_seed(stream(self.spec.seed, "noise", step))
        if self.spec.device != "cpu":
            torch.get_device_module(self.spec.device).manual_seed(
                stream(self.spec.seed, "noise", step)
            )
        loss = self.task.loss(self.model, batch)
        if not math.isfinite(loss.item()):
            return None
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        factor = SCHEDULES[self.spec.schedule](step / self.steps)
        for group, lr in zip(self.optimizer.param_groups, self.base_lr, strict=True):
            if lr is not None:
                group["lr"] = lr * factor
        before = (
            {name: weight.detach().clone() for name, weight in self.weights.items()}
            if self.spec.probes
            else {}
        )
        self.optimizer.step()
        record: dict[str, Any] = {"step": step + 1, "loss": loss.item()}
        if self.spec.probes:
            grads = {name: _grad(weight) for name, weight in self.weights.items()}
            after = {name: weight.detach() for name, weight in self.weights.items()}
            view = StepView(before, after, grads, self.views)
            for probe in self.spec.probes:
                record |= PROBES[probe](view)
        return record

    def survived(self) -> bool:
        """Whether the norms of the weights are finite, of which no loss tells after the last step."""
        return all(
            bool(torch.linalg.vector_norm(weight.detach()).isfinite())
            for weight in self.model.parameters()
        )

    def score(self, split: Split) -> float:
        self.model.eval()
        with torch.no_grad():
            return self.task.score(self.model, split)

    def start_norm(self) -> float | None:
        """The norm of the scale-invariant units before the first step."""
        norms = [
            metrics.norm(self.weights[name].detach(), view)
            for name, view in self.views.items()
            if view is not None
        ]
        return float(torch.cat(norms).mean()) if norms else None


def train(spec: Spec, task: Task, folder: RunFolder, checkpoint_seconds: float) -> None:
    """Bring a run to its end; its folder then holds metrics, the last checkpoint and the summary."""
    training = Training(spec, task)
    start_norm = training.start_norm()
    done, diverged_at = _resume(training, folder)
    pending: list[dict[str, Any]] = []
    last_checkpoint = time.monotonic()

    def checkpoint() -> None:
        folder.append_metrics(pending)
        pending.clear()
        length, digest = folder.metrics_mark()
        state = {"model": training.model.state_dict(), "optimizer": training.optimizer.state_dict()}
        folder.save_checkpoint(
            {**state, "done": done, "diverged_at": diverged_at, "length": length, "digest": digest}
        )

    while done < training.steps and diverged_at is None:
        record = training.step(done)
        if record is not None and (done + 1) % training.steps_per_epoch == 0:
            record["validation"] = training.score(training.data.validation)
        if (
            record is None
            or not _finite(record)
            or (done + 1 == training.steps and not training.survived())
        ):
            diverged_at = done
            break
        done += 1
        pending.append(record)
        if time.monotonic() - last_checkpoint >= checkpoint_seconds:
            checkpoint()
            last_checkpoint = time.monotonic()
    checkpoint()
    folder.finish(_summary(training, folder, start_norm, diverged_at), ["metrics.jsonl"])


def _finite(record: dict[str, Any]) -> bool:
    return all(math.isfinite(value) for value in record.values() if isinstance(value, float))


def _resume(training: Training, folder: RunFolder) -> tuple[int, int | None]:
    """Load the checkpoint, if it and the metrics before it are intact; how many steps are done, and where it diverged."""
    state = folder.load_checkpoint()
    if state is None or not folder.rewind_metrics((state["length"], state["digest"])):
        folder.clear()
        return 0, None
    training.model.load_state_dict(state["model"])
    training.optimizer.load_state_dict(state["optimizer"])
    return state["done"], state["diverged_at"]


def _summary(
    training: Training, folder: RunFolder, start_norm: float | None, diverged_at: int | None
) -> dict[str, Any]:
    records = folder.metrics()
    summary: dict[str, Any] = {
        "diverged_at": diverged_at,
        "steps": len(records),
        "steps_per_epoch": training.steps_per_epoch,
        "views": training.views,
        "shapes": {name: list(weight.shape) for name, weight in training.weights.items()},
        "invariant_share": _invariant_share(training.model, training.views),
        "validation": None,
        "test": None,
    }
    if diverged_at is None:
        summary |= {
            "validation": training.score(training.data.validation),
            "test": training.score(training.data.test),
        }
    if records and "norm" in records[-1]:
        first = records[min(training.steps_per_epoch, len(records)) - 1]
        summary |= {
            "norm_start": start_norm,
            "norm_first_epoch": first["norm"],
            "norm_last": records[-1]["norm"],
            "norm_max": max(record["norm"] for record in records),
            "total_effective_step": math.fsum(record["effective_step"] for record in records),
        }
    return summary


def _invariant_share(model: nn.Module, views: dict[str, str | None]) -> float:
    """The share of the model's parameters that is scale-invariant (the paper: 95.5 % of ResNet-18)."""
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    return sum(sizes[name] for name, view in views.items() if view is not None) / sum(
        sizes.values()
    )


def _optimizer(spec: Spec, model: nn.Module, on_sphere: list[Tensor]) -> RecipeOptimizer:
    """One group for most recipes; two for one on the sphere, whose weights then start with norm 1 (see `Spec.rest`)."""
    recipe, rule = find_recipe(spec.recipe), spec.rule()
    cls = torch_optimizer(recipe)
    sphere, euclidean = sphere_of(rule), spec.euclidean(rule)
    if sphere is None or euclidean is None:
        return cls(model.parameters(), **spec.hyper_parameters)
    with torch.no_grad():
        for weight in on_sphere:
            weight.copy_(sphere.normalize(weight))
    chosen = {id(weight) for weight in on_sphere}
    rest = [parameter for parameter in model.parameters() if id(parameter) not in chosen]
    return cls(
        [
            {"params": on_sphere, "recipe": reference(recipe), **spec.hyper_parameters},
            {"params": rest, **euclidean},
        ]
    )


def _grad(weight: Tensor) -> Tensor:
    return torch.zeros_like(weight) if weight.grad is None else weight.grad.detach()
