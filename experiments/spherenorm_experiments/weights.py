"""Readings of a run's weights: those that probes watch, their average, their optimizer states."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from spherenorm import audit, metrics
from spherenorm.optim import RecipeOptimizer
from spherenorm_experiments.ranks import placed, whole
from spherenorm_experiments.task import Task


@dataclass(frozen=True)
class Watched:
    """The weights of two or more dimensions that take a gradient.

    Attributes:
        views: the view in which each is scale-invariant, by name; None if in none.
        shapes: of each.
        invariant_share: the scale-invariant share of the model's parameters (the paper: 95.5 % of
            ResNet-18).
    """

    views: Mapping[str, str | None]
    shapes: Mapping[str, list[int]]
    invariant_share: float

    @classmethod
    def of(cls, module: nn.Module, task: Task, device: str) -> Watched:
        """The weights of a model that is not sharded yet."""
        inputs = task.audit_inputs()
        weights = {
            name: weight
            for name, weight in module.named_parameters()
            if weight.ndim > 1 and weight.requires_grad
        }
        views: dict[str, str | None] = dict.fromkeys(weights)
        if inputs:
            views = _audited(
                module, task, [x.to(device) if isinstance(x, Tensor) else x for x in inputs]
            )
        sizes = {name: weight.numel() for name, weight in module.named_parameters()}
        invariant = sum(sizes[name] for name, view in views.items() if view is not None)
        shapes = {name: list(weights[name].shape) for name in views}
        return cls(views, shapes, invariant / max(1, sum(sizes.values())))

    @property
    def channels(self) -> list[str]:
        """The weights that are scale-invariant channel by channel."""
        return [name for name, view in self.views.items() if view == "channel"]

    def copies(self, module: nn.Module) -> dict[str, Tensor]:
        """Copies of the weights, which the next step does not change."""
        return {name: x.clone() for name, x in self.now(module).items()}

    def now(self, module: nn.Module) -> dict[str, Tensor]:
        """The weights, whole but not copied."""
        weights = dict(module.named_parameters())
        return {name: whole(weights[name].detach()) for name in self.views}

    def gradients(self, module: nn.Module) -> dict[str, Tensor]:
        """The gradients; zero for a weight without."""
        weights = dict(module.named_parameters())
        found = {}
        for name in self.views:
            grad = weights[name].grad
            found[name] = whole(torch.zeros_like(weights[name]) if grad is None else grad).detach()
        return found

    def mean_norm(self, module: nn.Module) -> float | None:
        """The mean norm of the scale-invariant units; None without any."""
        weights = self.now(module)
        norms = [
            metrics.norm(weights[name], view)
            for name, view in self.views.items()
            if view is not None
        ]
        return float(torch.cat(norms).mean()) if norms else None


_AUDITED: dict[Any, dict[str, str | None]] = {}
"""The views of models, by the task and all tensors that they were found for."""


def _audited(module: nn.Module, task: Task, inputs: Sequence[Any]) -> dict[str, str | None]:
    """The view of each weight by an audit.

    Runs of a study begin with the same model, and so does a rehearsal: this one is audited once.
    """
    given = {str(number): x for number, x in enumerate(inputs) if isinstance(x, Tensor)}
    learned = tuple(weight.requires_grad for weight in module.parameters())
    options = type(task), repr(task)  # options are JSON; a user's task may have no hash
    key = options, learned, _digest(model_tensors(module)), _digest(given)
    if key not in _AUDITED:
        found = audit(module, *inputs, views=("channel", "layer"))
        _AUDITED[key] = {finding.name: finding.view for finding in found}
    return dict(_AUDITED[key])


def _digest(tensors: Mapping[str, Tensor]) -> str:
    """The SHA-256 of names, kinds and bytes."""
    found = hashlib.sha256()
    for name, x in tensors.items():
        found.update(f"{name} {x.dtype} {x.device} {tuple(x.shape)}".encode())
        found.update(x.detach().cpu().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()


class Average:
    """The exponential moving average a <- d a + (1 - d) w of weights and buffers.

    Integer buffers are copied.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        self.tensors = {name: x.detach().clone() for name, x in module.state_dict().items()}
        known = {name for name, _ in module.named_buffers()}
        self._buffers = [name for name in self.tensors if name in known]

    @torch.no_grad()
    def update(self, module: nn.Module) -> None:
        """Take in the weights after a step."""
        for name, now in module.state_dict().items():
            average = self.tensors[name]
            if average.is_floating_point():
                average.mul_(self.decay).add_(now, alpha=1 - self.decay)
            else:
                average.copy_(now)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take in the averages of a checkpoint."""
        self.tensors = {name: placed(tensors[name], like) for name, like in self.tensors.items()}

    def buffers(self) -> list[Tensor]:
        """The averages of buffers."""
        return [self.tensors[name] for name in self._buffers]

    @contextmanager
    def in_place(self, module: nn.Module) -> Iterator[None]:
        """Hold the average in place of the weights."""
        live = module.state_dict()
        kept = {name: x.detach().clone() for name, x in live.items()}
        try:
            _overwrite(live, self.tensors)
            yield
        finally:
            _overwrite(live, kept)


@torch.no_grad()
def _overwrite(live: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    for name, tensor in live.items():
        tensor.copy_(values[name])


def is_training(module: nn.Module) -> bool:
    """True if a module and all of its parts are in training mode.

    To ask costs a tenth of `module.train()`, which sets an attribute of each part.
    """
    parts = module._modules.values()  # (`children` builds a set at each call)
    return module.training and all(part is None or is_training(part) for part in parts)


def model_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Weights and buffers, those too that torch leaves out of a state (`persistent=False`)."""
    return {**dict(module.named_buffers()), **module.state_dict()}


def load_model(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """The inverse of `model_tensors`; a buffer may have grown since the model was made."""
    state = module.state_dict()
    module.load_state_dict({name: placed(tensors[name], like) for name, like in state.items()})
    device = next(module.parameters()).device
    for name in tensors.keys() - state.keys():
        owner, _, own = name.rpartition(".")
        setattr(module.get_submodule(owner), own, tensors[name].to(device))


def own_states(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, dict[str, Any]]:
    """The optimizer's states by the names of their weights."""
    return {
        name: dict(optimizer.state[weight])
        for name, weight in module.named_parameters()
        if weight in optimizer.state
    }


def load_states(
    module: nn.Module, optimizer: RecipeOptimizer, states: Mapping[str, Mapping[str, Tensor]]
) -> None:
    """The inverse of `own_states`."""
    names = {weight: name for name, weight in module.named_parameters()}
    for group in optimizer.param_groups:
        rule = optimizer.rule_of(group)
        for weight in group["params"]:
            kept = states.get(names[weight], {})
            fresh = rule.init(weight.detach()) if kept else {}
            if kept:
                optimizer.state[weight] = {name: placed(kept[name], fresh[name]) for name in kept}
