"""Model, optimizer and data of a run on batches, and one step of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from spherenorm import Bound, explain, sphere_of, torch_optimizer
from spherenorm.optim import RecipeOptimizer
from spherenorm_experiments.data import TrainingBatches
from spherenorm_experiments.errors import written
from spherenorm_experiments.probes import MeasuredStep, Watched, is_finite, measure
from spherenorm_experiments.ranks import ALONE, Ranks, parallelize, placed, synchronized, whole
from spherenorm_experiments.run import Run
from spherenorm_experiments.streams import seed_everything, stream
from spherenorm_experiments.task import Task


class Training:
    """A run on batches, before its first step.

    Attributes:
        module: the model with its weights.
        model: the model as the loss calls it, in DDP if there are several processes.
        watched: the weights of two or more dimensions, with their views.
        backend: the executor of its steps.
        scaler: of the loss, for float16.
    """

    def __init__(self, run: Run, task: Task, ranks: Ranks = ALONE, workers: int = 0) -> None:
        self.run, self.spec, self.task, self.ranks = run, run.spec, task, ranks
        self.regime, self.workers = run.spec.regime, workers
        self.device = ranks.device(self.spec.device)
        seed_everything(stream(self.spec.seed, "init"), self.device)
        self.module = _new_model(task).to(self.device)
        self.watched = Watched.of(self.module, task, self.device)
        self.model = parallelize(self.module, task, ranks, self.device)
        self.batches = TrainingBatches(run, task, ranks, workers, self.device)
        self.optimizer = make_optimizer(run, task, self.module, self.watched.channels)
        self.backend = self.optimizer.param_groups[0]["backend"]
        self._rates = [group.get("lr") for group in self.optimizer.param_groups]
        self._kind = torch.device(self.device).type
        self.scaler = torch.amp.GradScaler(self._kind, enabled=self.regime.precision == "float16")

    def step(self, step: int, *notes: float) -> tuple[dict[str, Any] | None, list[float]]:
        """Take one step.

        Args:
            notes: numbers to be summed over ranks, beside the loss.

        Returns:
            Its measurements, None if the loss was not finite; and the sums of the notes.
        """
        if not _is_training(self.module):
            self.module.train()
        self.optimizer.zero_grad()
        loss, *sums = self.ranks.totals([self._add_gradients(step), *notes])
        if not math.isfinite(loss):
            return None, sums
        record: dict[str, Any] = {"step": step + 1, "loss": loss}
        factor = self.spec.rate_factor(step, self.run.steps, self.run.steps_per_epoch)
        for group, lr in zip(self.optimizer.param_groups, self._rates, strict=True):
            if lr is not None:
                group["lr"] = lr * factor
        ends = (step + 1) % self.run.steps_per_epoch == 0
        probed = self.spec.probes and (ends or (step + 1) % self.spec.probe_every == 0)
        before = self.watched.copies(self.module) if probed else {}
        with self.task.around_step(self, step):
            record |= self._update()
        if probed:
            record |= self._probed(before)
        return record, sums

    def survived(self) -> bool:
        """True if the norms of the weights are finite: no loss is computed after the last step."""
        norms = map(torch.linalg.vector_norm, (x.detach() for x in self.module.parameters()))
        return all(bool(whole(norm).isfinite()) for norm in norms)

    def state(self) -> dict[str, Any]:
        """The content of a checkpoint, tensors whole; all ranks must ask. Buffers are rank 0's."""
        self.ranks.share(self.module.buffers())
        own = {
            name: dict(self.optimizer.state[weight])
            for name, weight in self.module.named_parameters()
            if weight in self.optimizer.state
        }
        # Buffers, too, that torch leaves out of a state (`persistent=False`).
        tensors = {**dict(self.module.named_buffers()), **self.module.state_dict()}
        content = {"model": tensors, "optimizer": {"state": own}}
        scaler = self.scaler.state_dict() if self.scaler.is_enabled() else {}
        return {**tree_map_only(Tensor, whole, content), "scaler": scaler}

    def restore(self, content: Mapping[str, Any]) -> None:
        """Go on from a checkpoint, whatever number of processes has written it."""
        _load_model(self.module, content["model"])
        _load_states(self.module, self.optimizer, content["optimizer"]["state"])
        if self.scaler.is_enabled():
            self.scaler.load_state_dict(content["scaler"])

    def autocast(self) -> AbstractContextManager[Any]:
        """The block in which the model computes in the run's precision."""
        precision = self.regime.precision
        if precision == "float32":
            return nullcontext()
        return torch.autocast(self._kind, dtype=getattr(torch, precision))

    def _add_gradients(self, step: int) -> float:
        """Add up the gradients of a step's micro-batches; the rank's part of its loss."""
        total, last = 0.0, len(self.batches.shares(step)) - 1
        for number, (batch, weight) in enumerate(self.batches.at(step)):
            key = (step, number, self.ranks.rank)
            seed_everything(stream(self.spec.seed, "noise", *key), self.device)
            with synchronized(self.model, last=number == last):
                with self.autocast():
                    loss = self.task.loss(self.model, batch)
                # DDP and FSDP2 take the mean over ranks of what is a sum.
                share = weight * self.ranks.world
                scaled = loss if share == 1 else share * loss
                self.scaler.scale(scaled).backward()  # type: ignore[no-untyped-call]
            total += weight * loss.item()
        return total

    def _update(self) -> dict[str, float]:
        """Clip the gradient and step; the norm before clipping, if it is clipped.

        A scaled gradient that overflowed has no norm, and no step: it is no divergence.
        """
        measured = {}
        if self.regime.clip_norm is not None:
            self.scaler.unscale_(self.optimizer)
            clipped = nn.utils.clip_grad_norm_(self.module.parameters(), self.regime.clip_norm)
            norm = float(whole(clipped))
            if math.isfinite(norm) or not self.scaler.is_enabled():
                measured["grad_norm"] = norm
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return measured

    def _probed(self, before: dict[str, Tensor]) -> dict[str, Any]:
        now, grads = self.watched.now(self.module), self.watched.gradients(self.module)
        measured = measure(self.run.probes, MeasuredStep(before, now, grads, self.watched.views))
        known = {name: value for name, value in measured.items() if is_finite(value)}
        # 0/0, say, where the weights are finite: the probe has no number here
        return known if len(known) < len(measured) and self.survived() else measured


def make_optimizer(
    run: Run, task: Task, model: nn.Module, invariant: Sequence[str]
) -> RecipeOptimizer:
    """The optimizer of a run, with the task's groups and the run's others in one more.

    With another recipe for the rest, the run's takes the weights that `Task.hidden` names, or those
    that are scale-invariant channel by channel; on a sphere it takes these alone, and they start
    with norm 1.

    Args:
        invariant: the weights that are scale-invariant channel by channel.

    Raises:
        ValueError: a weight in two of the task's groups, or one that is not the model's there or in
            `Task.hidden`.
    """
    bound, rest = run.bound, run.rest
    sphere = None if rest is None else sphere_of(bound.rule)
    hidden = None if sphere is not None else task.hidden(model)
    names = {id(weight): name for name, weight in model.named_parameters()}
    if unknown := sorted(set(hidden or ()) - set(names.values())):
        raise ValueError(f"hidden names {unknown[0]!r}, which is no weight of the model")
    chosen = set(names.values()) if rest is None else set(invariant if hidden is None else hidden)
    groups: list[dict[str, Any]] = []
    for weights, own in _task_groups(task, model, names):
        inside = [weight for weight in weights if names[id(weight)] in chosen]
        outside = [weight for weight in weights if names[id(weight)] not in chosen]
        if inside:
            if sphere is not None:
                with torch.no_grad():
                    for weight in inside:
                        weight.copy_(sphere.normalize(weight))
            groups.append({"params": inside, **_settings(bound, own)})
        if outside:
            assert rest is not None
            groups.append({"params": outside, "recipe": rest.recipe, **_settings(rest, own)})
    optimizer = torch_optimizer(bound.recipe)(groups, **bound.hyper_parameters)
    for group in optimizer.param_groups:
        if "max_lr" in group and group["max_lr"] is None:  # no schedule exceeds 1
            group["max_lr"] = group["lr"]
        if "total_steps" in group and group["total_steps"] is None:
            group["total_steps"] = run.steps
    # By name: the bits of a run depend on the path, and none is left to what a build does later.
    backend = name_backend(optimizer)
    for group in optimizer.param_groups:
        group["backend"] = backend
    return optimizer


def name_backend(optimizer: RecipeOptimizer) -> str:
    """The name of the executor: "compiled" if kernels take all weights here, else "rule"."""
    kernels = {"C++ kernel", "batched"}
    return "compiled" if all(line.path in kernels for line in explain(optimizer)) else "rule"


def _task_groups(
    task: Task, model: nn.Module, names: Mapping[int, str]
) -> Iterator[tuple[list[Tensor], dict[str, Any]]]:
    """Weights with their own hyper-parameters; all that are in no group of the task come first."""
    groups = []
    taken: set[int] = set()
    for group in task.parameter_groups(model):
        weights = list(group["params"])
        for weight in weights:
            if id(weight) not in names:
                raise ValueError("parameter_groups has a weight that is not the model's")
            if id(weight) in taken:
                raise ValueError(f"parameter_groups has the weight {names[id(weight)]!r} twice")
            taken.add(id(weight))
        groups.append((weights, {name: x for name, x in group.items() if name != "params"}))
    yield [weight for weight in model.parameters() if id(weight) not in taken], {}
    yield from groups


def _settings(bound: Bound, own: Mapping[str, Any]) -> dict[str, Any]:
    """The hyper-parameters of a recipe in a group: the recipe's, and the group's that it has."""
    known = {name: value for name, value in own.items() if name in bound.defaults}
    settings = {**bound.hyper_parameters, **known}
    if "lr_factor" in own and "lr" in settings:
        settings["lr"] = own["lr_factor"] * settings["lr"]
    return settings


def _is_training(module: nn.Module) -> bool:
    """True if a module and all of its parts are in training mode.

    To ask costs a tenth of `module.train()`, which sets an attribute of each part.
    """
    parts = module._modules.values()  # (`children` builds a set at each call)
    return module.training and all(part is None or _is_training(part) for part in parts)


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


def _load_model(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load weights and buffers; a buffer may have grown since the model was made."""
    state = module.state_dict()
    module.load_state_dict({name: placed(tensors[name], like) for name, like in state.items()})
    device = next(module.parameters()).device
    for name in tensors.keys() - state.keys():
        owner, _, own = name.rpartition(".")
        setattr(module.get_submodule(owner), own, tensors[name].to(device))


def _load_states(
    module: nn.Module, optimizer: RecipeOptimizer, states: Mapping[str, Mapping[str, Tensor]]
) -> None:
    """Load the optimizer's states by the names of their weights."""
    names = {weight: name for name, weight in module.named_parameters()}
    for group in optimizer.param_groups:
        rule = optimizer.rule_of(group)
        for weight in group["params"]:
            kept = states.get(names[weight], {})
            fresh = rule.init(weight.detach()) if kept else {}
            if kept:
                optimizer.state[weight] = {name: placed(kept[name], fresh[name]) for name in kept}
