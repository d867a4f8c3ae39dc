"""Run two optimizers on the same gradients and compare their weights."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tests.harness.gradients import gradient

SHAPES = ((6, 5), (4, 3, 3, 3), (7,))
Make = Callable[[list[Tensor]], torch.optim.Optimizer]


def largest_difference(
    make_ours: Make,
    make_theirs: Make,
    *,
    family: str = "random",
    scale: float = 1.0,
    steps: int = 30,
) -> float:
    """The largest max|w_ours - w_theirs| of all steps and weights, relative to max|w_theirs - w_0|.

    Relative to the way they went, not to the weights, which short steps hardly change. Both see
    gradients computed at their own weights. Settings should make the steps visible: lr / scale (and
    a weight decay times scale) where they grow with it.
    """
    generator = torch.Generator().manual_seed(1)
    start = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES]
    sides = []
    for make in (make_ours, make_theirs):
        weights = [w.clone().requires_grad_() for w in start]
        sides.append((weights, make(weights)))
    worst, furthest = [0.0] * len(start), [0.0] * len(start)
    for step in range(steps):
        for weights, optimizer in sides:
            noise = torch.Generator().manual_seed(100 + step)
            for weight in weights:
                weight.grad = scale * gradient(family, weight.detach(), noise, step)
            optimizer.step()
        for i, (ours, theirs) in enumerate(zip(sides[0][0], sides[1][0], strict=True)):
            worst[i] = max(worst[i], (ours - theirs).abs().max().item())
            furthest[i] = max(furthest[i], (theirs - start[i]).abs().max().item())
    return max(difference / way for difference, way in zip(worst, furthest, strict=True))
