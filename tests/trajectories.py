"""Run two optimizers on the same gradients and compare their weights."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tests.gradients import gradient

SHAPES = ((6, 5), (4, 3, 3, 3), (7,))
Make = Callable[[list[Tensor]], torch.optim.Optimizer]


def largest_difference(make_ours: Make, make_theirs: Make, *, family: str = "random", scale: float = 1.0, steps: int = 30) -> float:
    """The largest |w_ours - w_theirs| / max|w_theirs| over all steps and weights; both see gradients computed at their own weights."""
    generator = torch.Generator().manual_seed(1)
    start = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES]
    sides = []
    for make in (make_ours, make_theirs):
        weights = [w.clone().requires_grad_() for w in start]
        sides.append((weights, make(weights)))
    worst = 0.0
    for step in range(steps):
        for weights, optimizer in sides:
            noise = torch.Generator().manual_seed(100 + step)
            for weight in weights:
                weight.grad = scale * gradient(family, weight.detach(), noise, step)
            optimizer.step()
        for ours, theirs in zip(sides[0][0], sides[1][0], strict=True):
            worst = max(worst, ((ours - theirs).abs().max() / theirs.abs().max()).item())
    return worst
