"""The optimizers of a run, one after another, each with its groups of weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from spherenorm import Bound, explain, sphere_of, torch_optimizer
from spherenorm.optim import RecipeOptimizer
from spherenorm_experiments.run import Run
from spherenorm_experiments.spec import SCHEDULES, Spec
from spherenorm_experiments.task import Task


class OptimizerSchedule:
    """The optimizers of a run, one after another; each has a state of its own.

    Attributes:
        now: the number of the one that steps now.
        optimizer: that one.
        backend: its `backend`.
    """

    def __init__(self, run: Run, task: Task, module: nn.Module, invariant: Sequence[str]) -> None:
        self.run, self.task, self.module, self.invariant = run, task, module, invariant
        self._recipes = [run.bound, *run.later]
        self._starts = [0, *(round(later["after"] * run.steps) for later in run.spec.regime.then)]
        self.now = -1
        self.optimizer: RecipeOptimizer
        self.backend = ""
        self.take(0)

    def begin(self, step: int) -> None:
        """Make the optimizer of a step, unless it steps already."""
        self.take(sum(start <= step for start in self._starts) - 1)

    def take(self, number: int) -> None:
        """Make the optimizer of this number, unless it steps already."""
        if number != self.now:
            bound = self._recipes[number]
            shared = self.run.spec.rest is not None or sphere_of(bound.rule) is not None
            rest = self.run.rest if shared else None
            optimizer = make_optimizer(bound, rest, self.task, self.module, self.invariant)
            self.optimizer, self.backend = optimizer, name_backend(optimizer)
            self.now = number
            self._base_lr = [group.get("lr") for group in self.optimizer.param_groups]
            for group, lr in zip(self.optimizer.param_groups, self._base_lr, strict=True):
                if "max_lr" in group and group["max_lr"] is None:  # no schedule exceeds 1
                    group["max_lr"] = lr

    def schedule(self, step: int) -> None:
        """Set the learning rates of a step: the schedule's, and below them in the warm-up."""
        factor = rate_factor(self.run.spec, step, self.run.steps, self.run.steps_per_epoch)
        for group, lr in zip(self.optimizer.param_groups, self._base_lr, strict=True):
            if lr is not None:
                group["lr"] = lr * factor


def rate_factor(spec: Spec, step: int, steps: int, steps_per_epoch: int) -> float:
    """The learning rate of a step over that of the run: its schedule's, and lower in the warm-up.

    Args:
        step: its number, from 0.
        steps: of the whole run.
    """
    rising = spec.regime.warmup * steps_per_epoch
    factor = SCHEDULES[spec.schedule](step / steps)
    return factor * (min(1.0, (step + 1) / rising) if rising else 1.0)


def name_backend(optimizer: RecipeOptimizer) -> str:
    """Ask for one path by name: "compiled" if kernels take all weights here, else "rule".

    The bits of a run depend on the path. So none is left to what a build at some later step does.
    """
    kernels = {"C++ kernel", "horizontal"}
    backend = "compiled" if all(line.path in kernels for line in explain(optimizer)) else "rule"
    for group in optimizer.param_groups:
        group["backend"] = backend
    return backend


def make_optimizer(
    bound: Bound, rest: Bound | None, task: Task, model: nn.Module, invariant: Sequence[str]
) -> RecipeOptimizer:
    """The optimizer of a recipe, with the task's groups and the run's others in one more.

    With another recipe for the rest, `bound` takes the weights that `Task.hidden` names, or those
    that are scale-invariant channel by channel; on a sphere it takes these alone, and they start
    with norm 1.

    Args:
        rest: the recipe of the other weights; None if `bound` takes all.
        invariant: the weights that are scale-invariant channel by channel.

    Raises:
        ValueError: a weight in two of the task's groups, or one that is not the model's there or in
            `Task.hidden`.
    """
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
                _normalize(sphere, inside)
            groups.append({"params": inside, **_settings(bound, own)})
        if outside:
            assert rest is not None
            groups.append({"params": outside, "recipe": rest.recipe, **_settings(rest, own)})
    return torch_optimizer(bound.recipe)(groups, **bound.hyper_parameters)


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


def _normalize(sphere: Any, weights: Sequence[Tensor]) -> None:
    with torch.no_grad():
        for weight in weights:
            weight.copy_(sphere.normalize(weight))
