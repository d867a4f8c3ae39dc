"""Audit of a model: which of its weights are scale-invariant, and in which view."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from spherenorm.views import ViewLike, as_view

__all__ = ["Finding", "audit"]


@dataclass(frozen=True)
class Finding:
    """What the audit found of one weight.

    Attributes:
        name: the parameter's name.
        shape: its shape.
        deviation: for each view tested, the largest relative change of the model's output when the units were scaled.
        view: the first view whose deviation is within the tolerance; None if the weight is not scale-invariant.
    """

    name: str
    shape: tuple[int, ...]
    deviation: dict[str, float]
    view: str | None


def audit(
    model: nn.Module,
    *inputs: Any,
    views: Sequence[ViewLike] = ("channel", "layer"),
    tolerance: float = 1e-3,
    seed: int = 0,
) -> list[Finding]:
    """Test f(c w) = f(w) on a batch, for each weight of two or more dimensions that takes a gradient.

    Each unit of a view is scaled by a factor of its own, drawn from [1/2, 2]. The model is evaluated in float64, in its
    present mode (train or eval), on a copy. Invariance is not exact where a normalization layer adds eps to a variance.

    Args:
        model: returns a tensor.
        inputs: a batch, large enough that batch statistics vary.
        views: tried in order; the first that holds is reported.
        tolerance: of the output's change, relative to its largest entry.

    Raises:
        ValueError: an output that is 0 or not finite, which tells nothing.
    """
    double = copy.deepcopy(model).double()
    arguments = tuple(
        x.double() if isinstance(x, Tensor) and x.is_floating_point() else x for x in inputs
    )
    buffers = dict(double.named_buffers())
    generator = torch.Generator().manual_seed(seed)

    def output(replaced: dict[str, Tensor]) -> Tensor:
        fresh = {name: buffer.clone() for name, buffer in buffers.items()}
        # The same dropout masks every time, and the caller's random state untouched.
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(seed)
            result: Tensor = functional_call(double, {**fresh, **replaced}, arguments)
        return result

    reference = output({})
    scale = reference.abs().max()
    if not (torch.isfinite(scale) and scale > 0):
        raise ValueError(
            f"the model's output on this batch has maximum {scale.item()}; the audit needs a finite, nonzero one"
        )
    findings = []
    for name, weight in double.named_parameters():
        if weight.ndim < 2 or not weight.requires_grad:
            continue
        deviation = {}
        for view in map(as_view, views):
            sums = view.units(view.total(weight.detach()))
            factors = 2 ** (
                2 * torch.rand(len(sums), generator=generator, dtype=torch.float64) - 1
            ).to(weight.device)
            scaled = view.from_rows(view.rows(weight.detach()) * factors[:, None], weight)
            deviation[str(view)] = ((output({name: scaled}) - reference).abs().max() / scale).item()
        found = next((view for view, change in deviation.items() if change <= tolerance), None)
        findings.append(Finding(name, tuple(weight.shape), deviation, found))
    return findings
