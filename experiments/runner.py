"""Train one network with one optimizer and record the norm and the effective step size of its scale-invariant weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from experiments.tasks import digits
from spherenorm import Sphere, metrics, optim
from spherenorm.chain import Chain
from spherenorm.invariance import audit
from spherenorm.registry import find_recipe, reference

__all__ = ["Run", "train"]

EUCLIDEAN_HALF = {"recipe": "sgd", "lr": 0.01, "momentum": 0.9, "nesterov": True}
"""Cho and Lee's choice for what is not on the manifold: biases, gains and the last layer."""


@dataclass
class Run:
    """One training run.

    Attributes:
        optimizer: the recipe's name.
        hyper_parameters: what it was called with.
        seed: of the initial weights and of the data order, which are the same for every optimizer.
        norm: |w| before each step, mean over all scale-invariant units; one entry more than `effective_step`.
        effective_step: |w'/|w'| - w/|w|| of each step, mean over the same units.
        steps_per_epoch: so that the norm after the first epoch is `norm[steps_per_epoch]`.
        score: test accuracy in percent after the last epoch.
        diverged_at: the step whose loss was not finite, which ended the run; None otherwise.
    """

    optimizer: str
    hyper_parameters: dict[str, Any]
    seed: int
    steps_per_epoch: int
    norm: list[float] = field(default_factory=list)
    effective_step: list[float] = field(default_factory=list)
    score: float = math.nan
    diverged_at: int | None = None


def train(optimizer: str, hyper_parameters: Mapping[str, Any], *, seed: int, epochs: int, batch_size: int = 64, device: str = "cpu") -> Run:
    """Train the digits network for `epochs` epochs under a cosine learning-rate schedule (the paper's, Appendix E)."""
    torch.manual_seed(seed)
    model = digits.network().to(device)
    data = digits.data().to(device)
    invariant = _invariant_weights(model, data.train_images[:256])
    opt = _optimizer(optimizer, hyper_parameters, model, invariant)
    steps_per_epoch = math.ceil(len(data.train_images) / batch_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, epochs * steps_per_epoch)
    order = torch.Generator().manual_seed(seed)
    run = Run(optimizer, dict(hyper_parameters), seed, steps_per_epoch, norm=[_mean_over_units(metrics.norm(w) for w in invariant)])
    for _ in range(epochs):
        model.train()
        for batch in torch.split(torch.randperm(len(data.train_images), generator=order), batch_size):
            loss = cross_entropy(model(data.train_images[batch]), data.train_labels[batch])
            if not math.isfinite(loss.item()):
                run.diverged_at = len(run.effective_step)
                return run
            opt.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            before = [weight.detach().clone() for weight in invariant]
            opt.step()
            schedule.step()
            run.norm.append(_mean_over_units(metrics.norm(w) for w in invariant))
            run.effective_step.append(_mean_over_units(metrics.effective_step(b, w) for b, w in zip(before, invariant, strict=True)))
    model.eval()
    with torch.no_grad():
        hits = model(data.test_images).argmax(1) == data.test_labels
    run.score = 100 * hits.float().mean().item()
    return run


def _invariant_weights(model: nn.Module, images: Tensor) -> list[Tensor]:
    parameters = dict(model.named_parameters())
    return [parameters[finding.name] for finding in audit(model, images) if finding.view == "channel"]


def _optimizer(optimizer: str, hyper_parameters: Mapping[str, Any], model: nn.Module, invariant: list[Tensor]) -> optim.RecipeOptimizer:
    recipe = find_recipe(optimizer)
    rule = recipe(**hyper_parameters)
    if not (isinstance(rule, Chain) and isinstance(rule.geometry, Sphere)):
        return optim.torch_optimizer(recipe)(model.parameters(), **hyper_parameters)
    with torch.no_grad():
        for weight in invariant:
            weight.copy_(rule.geometry.normalize(weight))
    on_sphere = {id(weight) for weight in invariant}
    rest = [parameter for parameter in model.parameters() if id(parameter) not in on_sphere]
    groups = [{"params": invariant, "recipe": reference(recipe), **hyper_parameters}, {"params": rest, **EUCLIDEAN_HALF}]
    return optim.SGD(groups)


def _mean_over_units(per_weight: Any) -> float:
    return float(torch.cat([values.detach() for values in per_weight]).mean())
