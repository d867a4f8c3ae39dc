"""Probes: measurements of the weights at each step of a training run, beside the loss.

A probe is a function of one `MeasuredStep`; the names of its numbers are its keys in
the records. `norms` is on by default; `steps` records the effective step of each weight, and
`detection` the scale-invariance test.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spherenorm import as_view, metrics
from spherenorm.support import look_up, unknown_name
from spherenorm_experiments.errors import users_code

RECORDED = {"step", "loss", "grad_norm", "validation"}
"""Names in a record that the engine gives itself."""

MOST_CHANNELS = 4096
"""Of all weights together; `detection` records each of so many."""


@dataclass(frozen=True)
class MeasuredStep:
    """One optimizer step, of the weights of two or more dimensions, by name.

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
        """The scale-invariant weights with their views."""
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


def steps(step: MeasuredStep) -> dict[str, Any]:
    """The mean effective step of the units of each scale-invariant weight, by its name."""
    return {"steps": {name: mean_effective_step(step, name) for name, _ in step.invariant()}}


def mean_effective_step(step: MeasuredStep, name: str) -> float:
    """The mean over the units of one weight, in which it is scale-invariant."""
    view = step.views[name]
    assert view is not None
    units = metrics.effective_step(step.before[name], step.after[name], view)
    return float(units.double().mean())


def detection(step: MeasuredStep) -> dict[str, Any]:
    """The statistic sqrt(dim) |cos(w, g)| of every unit of every weight: channels, then the layer.

    The scale-invariance test passes where it is below delta. None where there is no gradient.

    A model of more than `MOST_CHANNELS` channels (ResNet-50 has 26,560) has only the largest of
    each weight's channels, which decides the test of a single step as all of them do: it passes if
    every channel does.
    """
    channels = sum(len(weight) for weight in step.before.values())
    only_largest = channels > MOST_CHANNELS
    return {
        "statistic": {
            name: [
                _statistic(step, name, "channel", only_largest=only_largest),
                _statistic(step, name, "layer"),
            ]
            for name in step.views
        }
    }


def _statistic(
    step: MeasuredStep, name: str, view: str, *, only_largest: bool = False
) -> list[float | None]:
    weight = step.before[name]
    scale = math.sqrt(as_view(view).size(weight))
    statistic = metrics.cosine(weight, step.grad[name], view).abs() * scale
    if only_largest:  # of those that have a gradient
        known = statistic[statistic.isfinite()]
        statistic = known.max().reshape(1) if len(known) else statistic[:1]
    return [float(f"{x:.4g}") if math.isfinite(x) else None for x in statistic.tolist()]


def _units(per_weight: Any) -> Tensor:
    return torch.cat(list(per_weight))


Probe = Callable[[MeasuredStep], dict[str, Any]]

PROBES: dict[str, Probe] = {"norms": norms, "steps": steps, "detection": detection}


def find_probe(name: str) -> Probe:
    """The probe called `name`, a key of `PROBES` or `module:function`.

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
    """The numbers of all probes on a step.

    Raises:
        ValueError: a name that another probe or the engine has given.
    """
    measured: dict[str, Any] = {}
    for probe in probes:
        found = probe(step)
        if taken := found.keys() & (measured.keys() | RECORDED):
            raise ValueError(f"a probe's number has the name {min(taken)!r}, which is taken")
        measured |= found
    return measured


def is_finite(value: Any) -> bool:
    """False for a number of a record that is infinite or no number; lists have None for these."""
    return not isinstance(value, float) or math.isfinite(value)
