"""Probes: what a training run measures on its weights at each step, beside the loss.

A probe is a function of one `StepView`; the names of its numbers are its keys in `metrics.jsonl`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spherenorm import metrics
from spherenorm.views import as_view

__all__ = ["PROBES", "StepView"]


@dataclass(frozen=True)
class StepView:
    """One optimizer step: weights before and after it and their raw gradients, by name, and the view (or None) in which
    the audit found each of two or more dimensions scale-invariant."""

    before: Mapping[str, Tensor]
    after: Mapping[str, Tensor]
    grad: Mapping[str, Tensor]
    views: Mapping[str, str | None]

    def invariant(self) -> list[tuple[str, str]]:
        return [(name, view) for name, view in self.views.items() if view is not None]


def norms(step: StepView) -> dict[str, float]:
    """Of the scale-invariant weights: after the step the norm of a unit, mean and root mean square over all units, and of
    all of them together; of the step the effective step size and the angle in radians, mean over all units.

    The paper does not define the norm in its tables; `norm`, the mean over units, is what ours show.
    """
    invariant = step.invariant()
    if not invariant:
        return {}
    norm = _units(metrics.norm(step.after[name], view) for name, view in invariant)
    moved = _units(
        metrics.effective_step(step.before[name], step.after[name], view)
        for name, view in invariant
    )
    angle = 2 * torch.asin((moved / 2).clamp(max=1))
    squared = norm.square()
    return {
        "norm": float(norm.mean()),
        "norm_rms": float(squared.mean().sqrt()),
        "norm_total": float(squared.sum().sqrt()),
        "effective_step": float(moved.mean()),
        "angular_update": float(angle.mean()),
        "angular_update_rms": float(angle.square().mean().sqrt()),
    }


def detection(step: StepView) -> dict[str, Any]:
    """For each weight of two or more dimensions the test statistic sqrt(dim) |cos(w, g)| of every unit, channels first and
    then the layer: the scale-invariance test asks whether it is below delta. None where there is no gradient."""
    return {
        "statistic": {
            name: [_statistic(step, name, "channel"), _statistic(step, name, "layer")]
            for name in step.views
        }
    }


def _statistic(step: StepView, name: str, view: str) -> list[float | None]:
    weight = step.before[name]
    cosine = metrics.cosine(weight, step.grad[name], view).abs() * math.sqrt(
        as_view(view).size(weight)
    )
    return [float(f"{x:.4g}") if math.isfinite(x) else None for x in cosine.tolist()]


def _units(per_weight: Any) -> Tensor:
    return torch.cat(list(per_weight))


PROBES: dict[str, Callable[[StepView], dict[str, Any]]] = {"norms": norms, "detection": detection}
