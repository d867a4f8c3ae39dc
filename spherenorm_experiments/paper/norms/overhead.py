"""The cost of one optimizer's step against another's, measured in turns on one network."""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from spherenorm import Bound, find_recipe, torch_optimizer
from spherenorm_experiments.core import Budget, Measurement, Spec
from spherenorm_experiments.paper.shared.digits import Digits

__all__ = ["Overhead"]

WARM_UP = 3
"""Rounds before the first that counts."""


@dataclass(frozen=True)
class Overhead(Measurement):
    """Milliseconds of the gradient and of the optimizer's step, for a recipe and its baseline.

    The two take turns on copies of one network, so that other work of the machine slows both alike.

    Attributes:
        baseline: the recipe to compare with, at the same hyper-parameters; "torch.SGD" is that
            class of torch.optim.
        width: of the plain digits network.
        batch: images in a batch.
    """

    baseline: str = "sgd"
    width: int = 16
    batch: int = 64

    name = "overhead"
    tiers = {"smoke": Budget(4), "small": Budget(60), "full": Budget(300)}  # noqa: RUF012

    def rehearse(self) -> None:
        self._baseline()
        Digits(width=self.width).rehearse()

    def measure(self, spec: Spec, bound: Bound) -> dict[str, Any]:
        torch.manual_seed(spec.seed)
        digits = Digits(width=self.width)
        batch = digits.first_batch(digits.data().train, self.batch)
        images, labels = (x.to(spec.device) for x in batch)
        classes = {"recipe": torch_optimizer(bound.recipe), "baseline": self._baseline()}
        models = {name: digits.model().to(spec.device) for name in classes}
        with warnings.catch_warnings():  # the time of a step does not depend on the weights
            warnings.simplefilter("ignore", UserWarning)
            optimizers = {
                name: optimizer(models[name].parameters(), **spec.hyper_parameters)
                for name, optimizer in classes.items()
            }
        times: dict[str, list[float]] = {"gradient": [], "recipe": [], "baseline": []}
        for _ in range(spec.epochs + WARM_UP):
            for name, optimizer in optimizers.items():
                gradient = _gradient(models[name], optimizer, images, labels)
                times["gradient"].append(_milliseconds(gradient, spec.device))
                times[name].append(_milliseconds(optimizer.step, spec.device))
        median = {name: statistics.median(values[WARM_UP:]) for name, values in times.items()}
        ratio = (median["gradient"] + median["recipe"]) / (median["gradient"] + median["baseline"])
        return {**{f"{name}_ms": value for name, value in median.items()}, "ratio": ratio}

    def _baseline(self) -> type[torch.optim.Optimizer]:
        package, _, name = self.baseline.rpartition(".")
        if package == "torch":
            return getattr(torch.optim, name)  # type: ignore[no-any-return]
        return torch_optimizer(find_recipe(self.baseline))


def _gradient(
    model: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor
) -> Callable[[], None]:
    def gradient() -> None:
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]

    return gradient


def _milliseconds(action: Callable[[], Any], device: str) -> float:
    began = time.perf_counter()
    action()
    if device != "cpu":
        torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - began)
