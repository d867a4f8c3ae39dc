"""The paper's toys: pure losses of one scale-invariant vector, in two and in three dimensions (paper, Appendix B)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.task import Budget, PureTask
from spherenorm.functional import Sweep

__all__ = ["Cosine", "Rosenbrock"]

KEPT_CURVES = 16
"""A sweep of more points keeps numbers only, no trajectories."""


class _Vector(PureTask):
    """A weight of shape (1, n): one unit. Everything of a sweep that one wants to know of such a vector."""

    optimum: float
    """The smallest loss."""

    scale: float
    """The gap to the optimum is reported before the loss was multiplied by this."""

    levels: tuple[float, ...]
    """Gaps to time."""

    def begin(self) -> list[float]:
        raise NotImplementedError

    def value(self, w: Tensor) -> Tensor:
        """The loss of a vector of shape (n,)."""
        raise NotImplementedError

    def start(self, seeds: Sequence[int]) -> dict[str, Tensor]:
        return {"w": torch.tensor([[self.begin()]] * len(seeds), dtype=torch.float64)}

    def loss(self, params: dict[str, Tensor], *batch: Any) -> Tensor:
        return self.value(params["w"][0])

    def record(self, before: dict[str, Tensor], after: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"w": after["w"][0], "after": self.loss(after)}

    def summarize(
        self, start: dict[str, Tensor], swept: Sweep
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        w = swept.records["w"][:, :, 0]
        w = torch.cat([start["w"][None, :1, 0].expand(1, w.shape[1], -1), w])
        gap = (
            torch.cat([swept.loss[:1, :, 0], swept.records["after"][:, :, 0]]) - self.optimum
        ) / self.scale
        norm = w.norm(dim=-1)
        finite = torch.isfinite(gap).all(dim=0) & torch.isfinite(norm).all(dim=0)

        def numbers(values: Tensor) -> list[float | None]:
            return [float(x) if ok else None for x, ok in zip(values, finite, strict=True)]

        summary = {
            "final_gap": numbers(gap[-1]),
            "max_norm": numbers(norm.max(dim=0).values),
            "last_norm": numbers(norm[-1]),
            **{f"steps_to_{level:g}": _first_below(gap, level) for level in self.levels},
        }
        arrays = {"points": np.arange(w.shape[1])}
        if w.shape[1] <= KEPT_CURVES:
            arrays |= {"w": w.numpy(), "gap": gap.numpy(), "norm": norm.numpy()}
        return summary, arrays


def _first_below(gap: Tensor, level: float) -> list[int | None]:
    """The first step after which the gap stays below the level; None if it does not in the end."""
    above = ~(gap < level)
    last = above.shape[0] - above.flip(0).int().argmax(dim=0)
    steps = torch.where(above.any(dim=0), last, 0)
    return [int(step) if step < gap.shape[0] else None for step in steps]


@dataclass(frozen=True)
class Cosine(_Vector):
    """Figure 1's toy: minimize -cos(w, w*) over w in the plane, w* = (0, -1), from (0.001, 1).

    The paper prints the opposite sign, which would make the starting point the optimum.
    """

    name = "cosine"
    tiers = {"smoke": Budget(250), "small": Budget(2000), "full": Budget(2000)}  # noqa: RUF012
    optimum, scale, levels = -1.0, 1.0, (1e-1, 1e-2, 1e-3)

    def begin(self) -> list[float]:
        return [0.001, 1.0]

    def value(self, w: Tensor) -> Tensor:
        loss: Tensor = w[1] / torch.linalg.vector_norm(w)
        return loss


@dataclass(frozen=True)
class Rosenbrock(_Vector):
    """Figure 3's toy: the Rosenbrock function of two angles of a vector in space, times `scale`.

    h = (1 - c psi)^2 + 300 (c phi - (c psi)^2)^2 with psi = atan2(x, z), phi = asin(y / r), c = 1.5, from (c psi, c phi) =
    (-2, 2) on the unit sphere; the minimum is at (1, 1). The paper prints psi = arccos(x / z), which is no angle.

    Attributes:
        scale: of the loss. The paper does not mention one, but its learning rates of 0.001 to 0.1 explode without: the
            gradient at the start is 3e4 long.
    """

    scale: float = 1e-4

    name = "rosenbrock"
    tiers = {"smoke": Budget(60), "small": Budget(1000), "full": Budget(1000)}  # noqa: RUF012
    optimum, levels = 0.0, (10.0, 1.0, 0.1)
    c = 1.5

    def begin(self) -> list[float]:
        return [float(x) for x in self.point(-2.0, 2.0)]

    def point(self, c_psi: float, c_phi: float) -> np.ndarray:
        """The point of the unit sphere with these scaled angles."""
        psi, phi = c_psi / self.c, c_phi / self.c
        return np.array(
            [math.cos(phi) * math.sin(psi), math.sin(phi), math.cos(phi) * math.cos(psi)]
        )

    def angles(self, w: Any) -> tuple[Any, Any]:
        """(c psi, c phi) of vectors of shape (..., 3)."""
        return self.c * np.arctan2(w[..., 0], w[..., 2]), self.c * np.arcsin(
            w[..., 1] / np.linalg.norm(w, axis=-1)
        )

    def value(self, w: Tensor) -> Tensor:
        psi = self.c * torch.atan2(w[0], w[2])
        phi = self.c * torch.asin(w[1] / torch.linalg.vector_norm(w))
        return self.scale * ((1 - psi) ** 2 + 300 * (phi - psi**2) ** 2)
