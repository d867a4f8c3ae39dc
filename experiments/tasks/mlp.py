"""A network of scale-invariant weights only, as a pure loss: whole grids of it train as one vmap sweep."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn.functional import cross_entropy

from experiments.task import Budget, PureTask, find_task, generator
from spherenorm import metrics
from spherenorm.functional import Sweep

__all__ = ["Mlp"]

UNSEEN, GRADIENT_BATCHES = 2**40, 64
"""A seed that nobody asks for, and how many batches from there on measure the gradients in the end."""

ROUNDING = 1e-12
"""The gradient of a weight on a pixel that never changes is no more than this; Adam's eps keeps such a weight where it is."""

LATE = 0.5
"""The share of the steps, at the end, over which stationary averages are taken."""


@dataclass(frozen=True)
class Mlp(PureTask):
    """Digits through two hidden layers, each normalized over its batch, and a fixed random last layer.

    Every weight that trains is scale-invariant row by row. With `noise`, that share of the labels is random, which keeps
    gradients from vanishing: where weight decay balances them is what the task is for.
    """

    width: int = 24
    noise: float = 0.5
    batch: int = 48

    name = "mlp"
    tiers = {"smoke": Budget(60), "small": Budget(1500), "full": Budget(20000)}  # noqa: RUF012

    def start(self, seeds: Sequence[int]) -> dict[str, Tensor]:
        def weights(inputs: int, layer: str) -> Tensor:
            drawn = [
                torch.randn(
                    self.width,
                    inputs,
                    generator=generator(seed, f"init {layer}"),
                    dtype=torch.float64,
                )
                for seed in seeds
            ]
            return torch.stack(drawn) / math.sqrt(inputs)

        return {"first": weights(64, "first"), "second": weights(self.width, "second")}

    def loss(self, params: dict[str, Tensor], *batch: Any) -> Tensor:
        images, labels = batch[0]
        hidden = torch.relu(_normalize(images @ params["first"].T))
        hidden = torch.relu(_normalize(hidden @ params["second"].T))
        return cross_entropy(hidden @ _last_layer(self.width).to(hidden.device), labels)

    def batches(self, seeds: Sequence[int]) -> Callable[[int], Any]:
        images, labels = (x[:1024] for x in find_task("digits").data().train)  # type: ignore[union-attr]
        images = images.flatten(1).double()

        def batch(step: int) -> tuple[Tensor, Tensor]:
            drawn = []
            for seed in seeds:
                random = generator(seed, "data", step)
                chosen = torch.randint(len(images), (self.batch,), generator=random)
                noisy = torch.rand(self.batch, generator=random) < self.noise
                drawn.append(
                    (
                        images[chosen],
                        torch.where(
                            noisy,
                            torch.randint(10, (self.batch,), generator=random),
                            labels[chosen],
                        ),
                    )
                )
            return torch.stack([x for x, _ in drawn]), torch.stack([y for _, y in drawn])

        return batch

    def record(self, before: dict[str, Tensor], after: dict[str, Tensor]) -> dict[str, Tensor]:
        moved = torch.cat([metrics.effective_step(before[name], after[name]) for name in before])
        norms = torch.cat([metrics.norm(after[name]) for name in after])
        return {
            "squared_step": moved.square().mean(),
            "fourth_power": norms.pow(4).mean(),
            "norm": norms.mean(),
        }

    def gradients(self, params: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Of each point's weights, with a leading dimension: means over all units, and over batches that no run has seen, of
        |g|^2 |w|^2, and of the squared number of a unit's weights that have a gradient at all (some pixels never change)."""
        device = next(iter(params.values())).device
        batches = tuple(
            x.to(device) for x in self.batches(range(UNSEEN, UNSEEN + GRADIENT_BATCHES))(0)
        )
        each = vmap(
            grad(self.loss), in_dims=(None, 0), randomness="same"
        )  # the fixed last layer is drawn in the loss
        grads = vmap(each, in_dims=(0, None), randomness="same")(params, batches)
        sizes = [
            grads[name].square().sum(-1).mean(dim=1) * weight.square().sum(-1)
            for name, weight in params.items()
        ]
        counts = [(grads[name].abs() > ROUNDING).any(dim=1).sum(-1) for name in params]
        return torch.cat(sizes, dim=-1).mean(-1), torch.cat(counts, dim=-1).double().square().mean(
            -1
        )

    def summarize(
        self, start: dict[str, Tensor], swept: Sweep
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        late = int(LATE * len(swept.loss))
        gamma_squared, dimension_squared = self.gradients(
            {name: value[:, 0] for name, value in swept.params.items()}
        )

        def over_late(name: str) -> list[float]:
            return [float(x) for x in swept.records[name][late:, :, 0].mean(dim=0)]

        norm = swept.records["norm"][:, :, 0]
        half = late + (len(norm) - late) // 2
        drift = norm[half:].mean(dim=0) / norm[late:half].mean(dim=0) - 1
        summary = {
            "effective_step_rms": [math.sqrt(x) for x in over_late("squared_step")],
            "norm_late": over_late("norm"),
            "fourth_power_late": over_late("fourth_power"),
            "gamma_squared": [float(x) for x in gamma_squared],
            "dimension_squared": [float(x) for x in dimension_squared],
            "norm_drift": [float(x) for x in drift],
            "loss_late": [float(x) for x in swept.loss[late:, :, 0].mean(dim=0)],
        }
        every = max(1, len(norm) // 200)
        squared = swept.records["squared_step"][:, :, 0]
        return summary, {
            "norm": norm[::every].numpy(),
            "squared_step": squared[::every].numpy(),
            "every": torch.tensor(every).numpy(),
        }

    def fingerprint(self) -> str:
        return find_task("digits").fingerprint()


def _normalize(x: Tensor) -> Tensor:
    centered = x - x.mean(dim=0)
    return centered / (centered.square().mean(dim=0) + 1e-12).sqrt()


def _last_layer(width: int) -> Tensor:
    return torch.randn(
        width, 10, generator=torch.Generator().manual_seed(11), dtype=torch.float64
    ) / math.sqrt(width)
