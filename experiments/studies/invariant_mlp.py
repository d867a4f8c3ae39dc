"""A network of scale-invariant weights only, as a pure loss: grids of it train as one sweep.

The study `equilibrium.py` trains it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn.functional import cross_entropy

from spherenorm import metrics
from spherenorm.functional import Sweep
from spherenorm_experiments.streams import generator
from spherenorm_experiments.task import Budget, PureTask
from spherenorm_paper.shared.digits import Digits
from spherenorm_paper.shared.network import normalize

WIDTH, BATCH = 24, 48
"""Units of a hidden layer, and images in a batch."""

NOISE = 0.5
"""The share of the labels that is random."""

UNSEEN = 2**40
"""The first seed of the batches that measure gradients at the end; no run has one so large."""

GRADIENT_BATCHES = 64

ROUNDING = 1e-12
"""The gradient of a weight on a pixel that never changes is at most this.

Adam's eps keeps such a weight in its place.
"""

LATE = 0.5
"""The share of the steps, at the end, over which stationary averages are taken."""


@dataclass(frozen=True)
class Mlp(PureTask):
    """Digits through two hidden layers, each normalized over its batch, and a fixed last layer.

    Every weight that trains is scale-invariant row by row. Random labels keep gradients from
    vanishing: the task is to find where weight decay balances them.
    """

    name = "mlp"
    tiers = {"smoke": Budget(6), "small": Budget(1500), "full": Budget(20000)}  # noqa: RUF012

    def start(self, seed: int) -> dict[str, Tensor]:
        return {
            name: _drawn(WIDTH, size, generator(seed, f"init {name}")) / math.sqrt(size)
            for name, size in (("first", 64), ("second", WIDTH))
        }

    def loss(self, params: dict[str, Tensor], *batch: Any) -> Tensor:
        images, labels, last_layer = batch[0]
        activations = torch.relu(normalize(images @ params["first"].T))
        activations = torch.relu(normalize(activations @ params["second"].T))
        return cross_entropy(activations @ last_layer, labels)

    def batches(self, seed: int) -> Callable[[int], tuple[Tensor, ...]]:
        images, labels = Digits().first_batch(Digits().data().train, 1024)
        last_layer = _drawn(WIDTH, 10, torch.Generator().manual_seed(11)) / math.sqrt(WIDTH)
        images = images.flatten(1).double()

        def batch(step: int) -> tuple[Tensor, ...]:
            random = generator(seed, "data", step)
            chosen = torch.randint(len(images), (BATCH,), generator=random)
            noisy = torch.rand(BATCH, generator=random) < NOISE
            random_labels = torch.randint(10, (BATCH,), generator=random)
            return images[chosen], torch.where(noisy, random_labels, labels[chosen]), last_layer

        return batch

    def record(self, before: dict[str, Tensor], after: dict[str, Tensor]) -> dict[str, Tensor]:
        steps = torch.cat([metrics.effective_step(before[name], after[name]) for name in before])
        norms = torch.cat([metrics.norm(after[name]) for name in after])
        return {
            "squared_step": steps.square().mean(),
            "fourth_power": norms.pow(4).mean(),
            "norm": norms.mean(),
        }

    def gradients(self, params: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Sizes of the gradients at weights that have a leading dimension of points.

        Returns:
            Of shape (points,), means over all units and over batches that no run has seen: of
            |g|^2 |w|^2, and of the squared number of a unit's weights that have a gradient at all
            (some pixels never change).
        """
        device = next(iter(params.values())).device
        drawn = [self.batches(UNSEEN + i)(0) for i in range(GRADIENT_BATCHES)]
        unseen = [torch.stack(part) for part in zip(*drawn, strict=True)]
        per_batch = vmap(grad(self.loss), in_dims=(None, 0))
        per_point = vmap(per_batch, in_dims=(0, None))
        grads = per_point(params, tuple(x.to(device) for x in unseen))
        sizes = [
            grads[name].square().sum(-1).mean(dim=1) * weight.square().sum(-1)
            for name, weight in params.items()
        ]
        counts = [(grads[name].abs() > ROUNDING).any(dim=1).sum(-1) for name in params]
        squared = torch.cat(counts, dim=-1).double().square()
        return torch.cat(sizes, dim=-1).mean(-1), squared.mean(-1)

    def summarize(
        self, seeds: Sequence[int], start: dict[str, Tensor], swept: Sweep
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        sizes = [
            self.gradients({name: value[:, i] for name, value in swept.params.items()})
            for i in range(len(seeds))
        ]
        gamma, dimension = (torch.stack(part, dim=1) for part in zip(*sizes, strict=True))
        records, norm = swept.records, swept.records["norm"]
        late = int(LATE * len(norm))
        half = late + (len(norm) - late) // 2
        numbers = {
            "effective_step_rms": records["squared_step"][late:].mean(dim=0).sqrt(),
            "fourth_power_late": records["fourth_power"][late:].mean(dim=0),
            "gamma_squared": gamma,
            "dimension_squared": dimension,
            "norm_drift": norm[half:].mean(dim=0) / norm[late:half].mean(dim=0) - 1,
        }
        return numbers, {}

    def fingerprint(self) -> str:
        return Digits().fingerprint()


def _drawn(rows: int, columns: int, random: torch.Generator) -> Tensor:
    return torch.randn(rows, columns, generator=random, dtype=torch.float64)
