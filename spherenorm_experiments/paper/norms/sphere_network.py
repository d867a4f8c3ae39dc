"""The small network as optimizers on the sphere expect it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from spherenorm_experiments.paper.shared.network import Network

__all__ = ["SphereNetwork"]


@dataclass(frozen=True)
class SphereNetwork(Network):
    """The small network whose scale-invariant rows start at norm 1, in the same directions.

    Learning rates and clipping of optimizers on the sphere are meant for rows of norm 1: at another
    norm r a gradient is 1 / r times as long, and a step turns the row 1 / r times as far.
    """

    name = "sphere-network"

    def start(self, seed: int) -> dict[str, Tensor]:
        return {
            name: w / w.norm(dim=-1, keepdim=True) if name.startswith("unit") else w
            for name, w in super().start(seed).items()
        }
