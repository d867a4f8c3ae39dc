"""What a step of one optimizer costs against another's, measured in turns on one network."""

from __future__ import annotations

import statistics
import time
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from experiments.spec import Spec
from experiments.task import Budget, Measurement, find_task
from spherenorm.optim import torch_optimizer
from spherenorm.registry import find_recipe

__all__ = ["Overhead"]

WARM_UP = 3


@dataclass(frozen=True)
class Overhead(Measurement):
    """Milliseconds of forward and backward pass, and of the optimizer's step, for a recipe and its baseline.

    The two take turns on copies of one network, so that whatever else the machine does hits both alike.

    Attributes:
        baseline: the recipe to compare with; it takes those of the hyper-parameters that it knows.
        width: of the plain digits network.
        batch: images in a batch.
    """

    baseline: str = "sgd"
    width: int = 16
    batch: int = 64

    name = "overhead"
    tiers = {"smoke": Budget(4), "small": Budget(60), "full": Budget(300)}  # noqa: RUF012

    def check(self) -> None:
        find_recipe(self.baseline)
        find_task("digits", {"width": self.width}).check()

    def measure(self, spec: Spec) -> dict[str, Any]:
        digits = find_task("digits", {"width": self.width})
        torch.manual_seed(spec.seed)
        images, labels = (x[: self.batch].to(spec.device) for x in digits.data().train)  # type: ignore[union-attr]
        models: list[nn.Module] = [digits.model().to(spec.device) for _ in range(2)]  # type: ignore[union-attr]
        recipes = (spec.recipe, self.baseline)
        with warnings.catch_warnings():  # what a step costs does not hang on where the weights are
            warnings.simplefilter("ignore", UserWarning)
            hypers, pairs = spec.hyper_parameters, zip(recipes, models, strict=True)
            optimizers = [torch_optimizer(name)(m.parameters(), **hypers) for name, m in pairs]
        times: dict[str, list[float]] = {"gradient": [], "recipe": [], "baseline": []}

        def timed(name: str, action: Any) -> None:
            began = time.perf_counter()
            action()
            if spec.device != "cpu":
                torch.cuda.synchronize()
            times[name].append(1e3 * (time.perf_counter() - began))

        for _ in range(spec.epochs + WARM_UP):
            for model, optimizer, name in zip(
                models, optimizers, ("recipe", "baseline"), strict=True
            ):

                def gradient(
                    model: nn.Module = model, optimizer: torch.optim.Optimizer = optimizer
                ) -> None:
                    optimizer.zero_grad()
                    cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]

                timed("gradient", gradient)
                timed(name, optimizer.step)
        median = {name: statistics.median(values[WARM_UP:]) for name, values in times.items()}
        ratio = (median["gradient"] + median["recipe"]) / (median["gradient"] + median["baseline"])
        return {**{f"{name}_ms": value for name, value in median.items()}, "ratio": ratio}
