"""The paper's toys: pure losses of one scale-invariant vector in the plane and in space.

Their losses depend on the direction w / |w| alone, as that of a normalized network does on a
weight.

Source: the paper's Figures 1 and 3 and Appendix B.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spherenorm.functional import Sweep
from spherenorm_experiments.task import Budget, PureTask, generator

JITTER = 0.01
"""The distance of the other starts from the paper's, on average and in each coordinate."""

STRETCH = 1.5
"""The angles of the sphere are multiplied by this before they enter the valley."""


def cosine(w: Tensor) -> Tensor:
    """The loss -cos(w, w*) of a vector in the plane, with w* = (0, -1).

    The paper prints the opposite sign, by which its starting point (0.001, 1) were the optimum.

    Args:
        w: of shape (2,).
    """
    loss: Tensor = w[1] / torch.linalg.vector_norm(w)
    return loss


def rosenbrock(w: Tensor) -> Tensor:
    """The Rosenbrock function of the two angles of a vector in space.

        h(c psi, c phi),  psi = atan2(x, z),  phi = asin(y / |w|),  c = 1.5

    The paper prints psi = arccos(x / z), which is no angle.

    Args:
        w: of shape (3,).
    """
    x, y, z = w.unbind(-1)
    psi, phi = torch.atan2(x, z), torch.asin(y / torch.linalg.vector_norm(w))
    loss: Tensor = valley(STRETCH * psi, STRETCH * phi)
    return loss


def valley(a: Any, b: Any) -> Any:
    """The Rosenbrock function h(a, b) = (1 - a)^2 + 300 (b - a^2)^2, which is 0 at (1, 1).

    Args:
        a, b: numbers, arrays or tensors.
    """
    return (1 - a) ** 2 + 300 * (b - a**2) ** 2


def sphere_point(a: float, b: float) -> list[float]:
    """The point of the unit sphere with the stretched angles a = c psi and b = c phi."""
    psi, phi = a / STRETCH, b / STRETCH
    return [math.cos(phi) * math.sin(psi), math.sin(phi), math.cos(phi) * math.cos(psi)]


class _Vector(PureTask):
    """A loss of one vector, a weight of shape (1, n), with its norm and its gap to the optimum.

    The seed is that of the start: 0 for the paper's, another one for a start at its side.

    Attributes:
        begin, optimum: the paper's start, and the smallest loss.
        scale: the loss is multiplied by this, and the gap divided.
        levels: gaps whose first step is reported.
        path: True to keep the weight, its norm and its gap at every step.
    """

    begin: list[float]
    optimum: float
    scale: float
    levels: tuple[float, ...]
    path: bool

    def value(self, w: Tensor) -> Tensor:
        """The loss of a vector of shape (n,)."""
        raise NotImplementedError

    def start(self, seed: int) -> dict[str, Tensor]:
        begin = torch.tensor(self.begin, dtype=torch.float64)
        if seed == 0:
            return {"w": begin[None]}
        random = generator(seed, "start")
        starts = begin + JITTER * torch.randn(len(begin), generator=random, dtype=torch.float64)
        return {"w": (starts * begin.norm() / starts.norm())[None]}

    def loss(self, params: dict[str, Tensor], *batch: Any) -> Tensor:
        return self.value(params["w"][0])

    def record(self, before: dict[str, Tensor], after: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"w": after["w"][0], "after": self.loss(after)}

    def summarize(
        self, seeds: Sequence[int], start: dict[str, Tensor], swept: Sweep
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        w = swept.records["w"]
        first_weights = start["w"][None, None, :, 0].expand(1, w.shape[1], -1, -1)
        w = torch.cat([first_weights, w])
        loss = torch.cat([swept.loss[:1], swept.records["after"]])
        gap = (loss - self.optimum) / self.scale
        norm = w.norm(dim=-1)
        finite = torch.isfinite(gap).all(dim=0) & torch.isfinite(norm).all(dim=0)
        ends = {"final_gap": gap[-1], "max_norm": norm.max(dim=0).values, "last_norm": norm[-1]}
        numbers = {name: torch.where(finite, x, torch.nan) for name, x in ends.items()}
        numbers |= {f"steps_to_{level:g}": _first_below(gap, level) for level in self.levels}
        curves = {"w": w, "gap": gap, "norm": norm} if self.path else {}
        return numbers, {name: curve.movedim(0, 2) for name, curve in curves.items()}


def _first_below(gap: Tensor, level: float) -> Tensor:
    """The first step from which on the gap stays below the level; nan if it ends above."""
    above = ~(gap < level)
    last = above.shape[0] - above.flip(0).int().argmax(dim=0)
    steps = torch.where(above.any(dim=0), last, 0).double()
    return torch.where(steps < gap.shape[0], steps, torch.nan)


@dataclass(frozen=True)
class Cosine(_Vector):
    """Figure 1's toy: minimize `cosine` from (0.001, 1)."""

    path: bool = False

    name = "cosine"
    tiers = {"smoke": Budget(6), "small": Budget(2000), "full": Budget(2000)}  # noqa: RUF012
    begin = [0.001, 1.0]  # noqa: RUF012
    optimum, scale, levels = -1.0, 1.0, (1e-1, 1e-2, 1e-3)

    def value(self, w: Tensor) -> Tensor:
        return cosine(w)


@dataclass(frozen=True)
class Rosenbrock(_Vector):
    """Figure 3's toy: minimize `rosenbrock` times `scale`.

    It starts on the unit sphere at the stretched angles (-2, 2); the minimum is at (1, 1).

    Attributes:
        scale: of the loss. The paper does not mention one, but its learning rates of 0.001 to 0.1
            explode without: the gradient at the start is 3e4 long.
    """

    scale: float = 1e-4
    path: bool = False

    name = "rosenbrock"
    tiers = {"smoke": Budget(6), "small": Budget(1000), "full": Budget(1000)}  # noqa: RUF012
    begin = sphere_point(-2.0, 2.0)
    optimum, levels = 0.0, (10.0, 1.0, 0.1)

    def value(self, w: Tensor) -> Tensor:
        return self.scale * rosenbrock(w)
