"""Probes: measurements of the weights at each step of a training run, beside the loss.

`Watched` is the weights that they see.

A probe is a function of one `MeasuredStep`; the names of its numbers are its keys in
the records. `norms` is on by default; `steps` records the effective step of each weight, and
`detection` the scale-invariance test.
"""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from spherenorm import as_view, audit, metrics
from spherenorm.support import look_up, unknown_name
from spherenorm_experiments.lookup import users_code
from spherenorm_experiments.task import Task

RECORDED = {"step", "loss", "grad_norm", "validation"}
"""Names in a record that the engine gives itself."""

MOST_CHANNELS = 4096
"""Of all weights together; `detection` records each of so many."""


@dataclass(frozen=True)
class MeasuredStep:
    """An optimizer step of the weights of two or more dimensions, by name.

    Attributes:
        before: the weights before the step.
        after: the weights after it.
        grad: their gradients as the step takes them, after clipping (`Regime.clip_norm`).
        views: the view in which the audit found each scale-invariant; None if in none.
    """

    before: Mapping[str, Tensor]
    after: Mapping[str, Tensor]
    grad: Mapping[str, Tensor]
    views: Mapping[str, str | None]

    def invariant(self) -> list[tuple[str, str]]:
        """Return the scale-invariant weights with their views."""
        return [(name, view) for name, view in self.views.items() if view is not None]


def norms(step: MeasuredStep) -> dict[str, float]:
    """Norms and effective steps of the units of the scale-invariant weights.

    `norm` and `norm_rms` are the mean and the root mean square of the norms of all units after the
    step, `norm_total` is the norm of all of them together. `effective_step` is the mean effective
    step size, `angular_update` the mean angle in radians, `angular_update_rms` its root mean
    square.

    The paper does not define the norm in its tables; ours show `norm`, the mean over units.
    """
    invariant = step.invariant()
    if not invariant:
        return {}
    before, after = step.before, step.after
    norm = torch.cat([metrics.norm(after[name], view) for name, view in invariant])
    effective_steps = torch.cat(
        [metrics.effective_step(before[name], after[name], view) for name, view in invariant]
    )
    angle = 2 * torch.asin((effective_steps / 2).clamp(max=1))
    squared = norm.square()
    return {
        "norm": float(norm.mean()),
        "norm_rms": float(squared.mean().sqrt()),
        "norm_total": float(squared.sum().sqrt()),
        "effective_step": float(effective_steps.mean()),
        "angular_update": float(angle.mean()),
        "angular_update_rms": float(angle.square().mean().sqrt()),
    }


def steps(step: MeasuredStep) -> dict[str, Any]:
    """Return the mean effective step of the units of each scale-invariant weight, by its name."""
    return {
        "steps": {
            name: float(
                metrics.effective_step(step.before[name], step.after[name], view).double().mean()
            )
            for name, view in step.invariant()
        }
    }


def detection(step: MeasuredStep) -> dict[str, Any]:
    """The statistic sqrt(dim) |cos(w, g)| of every unit of every weight: channels, then the layer.

    The scale-invariance test passes where it is below delta. None where there is no gradient.

    A model of more than `MOST_CHANNELS` channels (ResNet-50 has 26,560) has only the largest of
    each weight's channels, which decides the test of a single step as all of them do: it passes if
    every channel does.
    """
    only_largest = sum(map(len, step.before.values())) > MOST_CHANNELS
    statistics = {}
    for name, weight in step.before.items():
        by_view: list[list[float | None]] = []
        for view in ("channel", "layer"):
            scale = math.sqrt(as_view(view).size(weight))
            statistic = metrics.cosine(weight, step.grad[name], view).abs() * scale
            if only_largest and view == "channel":  # of those that have a gradient
                finite = statistic[statistic.isfinite()]
                statistic = finite.max().reshape(1) if len(finite) else statistic[:1]
            numbers = statistic.tolist()
            by_view.append([float(f"{x:.4g}") if math.isfinite(x) else None for x in numbers])
        statistics[name] = by_view
    return {"statistic": statistics}


Probe = Callable[[MeasuredStep], dict[str, Any]]

PROBES: dict[str, Probe] = {"norms": norms, "steps": steps, "detection": detection}


def find_probe(name: str) -> Probe:
    """Return the probe called `name`, a key of `PROBES` or `module:function`.

    Raises:
        ValueError: there is none.
    """
    if ":" in name:
        with users_code("probe", name):
            return look_up("probe", name, "function", inspect.isfunction)  # type: ignore[no-any-return]
    if name not in PROBES:
        raise unknown_name("probe", name, PROBES)
    return PROBES[name]


def measure(probes: Sequence[Probe], step: MeasuredStep) -> dict[str, Any]:
    """Return the numbers of all probes on a step.

    Raises:
        ValueError: a name that another probe or the engine has given.
    """
    measured: dict[str, Any] = {}
    for probe in probes:
        numbers = probe(step)
        if repeated := numbers.keys() & (measured.keys() | RECORDED):
            raise ValueError(f"a probe's number has the name {min(repeated)!r}, which is taken")
        measured |= numbers
    return measured


def is_finite(value: Any) -> bool:
    """False for a number of a record that is infinite or no number; lists have None for these."""
    return not isinstance(value, float) or math.isfinite(value)


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
        """Watch the weights of a model."""
        weights = dict(module.named_parameters())
        inputs = [x.to(device) if isinstance(x, Tensor) else x for x in task.audit_inputs()]
        learned = [name for name, x in weights.items() if x.ndim > 1 and x.requires_grad]
        views = _audited(module, task, inputs) if inputs else dict.fromkeys(learned)
        shapes = {name: list(weights[name].shape) for name in views}
        invariant = sum(weights[name].numel() for name, view in views.items() if view is not None)
        return cls(views, shapes, invariant / max(1, sum(x.numel() for x in weights.values())))

    @property
    def channels(self) -> list[str]:
        """The weights that are scale-invariant channel by channel."""
        return [name for name, view in self.views.items() if view == "channel"]

    def copies(self, module: nn.Module) -> dict[str, Tensor]:
        """Copies of the weights, which the next step does not change."""
        return {name: x.clone() for name, x in self.now(module).items()}

    def now(self, module: nn.Module) -> dict[str, Tensor]:
        """Return the weights, which are not copied."""
        weights = dict(module.named_parameters())
        return {name: weights[name].detach() for name in self.views}

    def gradients(self, module: nn.Module) -> dict[str, Tensor]:
        """Return the gradients; zero for a weight without."""
        gradients, weights = {}, dict(module.named_parameters())
        for name in self.views:
            grad = weights[name].grad
            gradients[name] = (torch.zeros_like(weights[name]) if grad is None else grad).detach()
        return gradients

    def mean_norm(self, module: nn.Module) -> float | None:
        """Return the mean norm of the scale-invariant units; None without any."""
        weights = self.now(module)
        norms = [metrics.norm(weights[name], view) for name, view in self.views.items() if view]
        return float(torch.cat(norms).mean()) if norms else None


_AUDITED: dict[Any, dict[str, str | None]] = {}
"""The views of models, by the task and all tensors that they were found for."""


def _audited(module: nn.Module, task: Task, inputs: Sequence[Any]) -> dict[str, str | None]:
    """Return the view of each weight by an audit.

    Runs of a study begin with the same model: this one is audited once.
    """
    digest = hashlib.sha256()
    for x in (*module.state_dict().values(), *module.buffers(), *inputs):
        if isinstance(x, Tensor):
            digest.update(f"{x.dtype} {x.device} {tuple(x.shape)}".encode())
            digest.update(x.detach().cpu().flatten().view(torch.uint8).numpy().data)
    learned = tuple(weight.requires_grad for weight in module.parameters())
    # Options are JSON; a user's task may have no hash.
    key = type(task), repr(task), learned, digest.digest()
    if key not in _AUDITED:
        findings = audit(module, tuple(inputs), views=("channel", "layer"))
        _AUDITED[key] = {finding.name: finding.view for finding in findings}
    return dict(_AUDITED[key])
