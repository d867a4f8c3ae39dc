"""Train a recipe on digits, and draw the norms and effective steps as SVG."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from sklearn.datasets import load_digits

from spherenorm import bind, find_recipe, metrics
from spherenorm.recipes import sgd

STEPS = 50
LAST = 20
"""Steps at the end of a run, over which the loss is averaged to choose the learning rate."""
BATCH = 64
RATES = (1e-3, 1e-2, 1e-1)
RATES_SHOWN = "1e-3, 1e-2, 1e-1"
WIDTH, HEIGHT, LEFT_MARGIN, BOTTOM_MARGIN = 330, 170, 52, 26
PREFERRED = {"momentum": 0.9}
"""Hyper-parameters of all recipes that have them, in the place of their defaults."""


class Run(NamedTuple):
    """A run of a recipe: norms and effective steps at each step, as means over units."""

    name: str
    lr: float
    norm: list[float]
    effective_step: list[float]


class Problem(NamedTuple):
    """A weight to train.

    Attributes:
        start: the initial weight, whose rows have norm 1.
        loss: a function from the weight and the number of a step to the loss.
    """

    start: torch.Tensor
    loss: Callable[[torch.Tensor, int], torch.Tensor]


@functools.cache
def digits() -> Problem:
    """Return a problem with 32 units on 8 x 8 digits, a batch normalization and a fixed head."""
    images, labels = map(torch.from_numpy, load_digits(return_X_y=True))
    images, head = images / 16, _rows(10, 32) * math.sqrt(32)

    def loss(weight: torch.Tensor, step: int) -> torch.Tensor:
        batch = torch.arange(step * BATCH, (step + 1) * BATCH) % len(images)
        activations = torch.nn.functional.batch_norm(
            images[batch] @ weight.T, None, None, training=True
        )
        return torch.nn.functional.cross_entropy(activations.relu() @ head.T, labels[batch])

    return Problem(_rows(32, 64), loss)


def _rows(units: int, entries: int) -> torch.Tensor:
    """Return random rows of norm 1 in float64."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(units, entries, dtype=torch.float64, generator=generator)
    return weight / weight.norm(dim=1, keepdim=True)


@functools.cache
def train(name: str) -> Run:
    """Return the run at the learning rate whose mean loss over the last steps is lowest.

    Raises:
        ValueError: the recipe refuses the weight.
    """
    runs = [_run(name, lr, digits()) for lr in RATES]
    return min(runs, key=lambda run: run[0] if math.isfinite(run[0]) else math.inf)[1]


def _run(name: str, lr: float, problem: Problem) -> tuple[float, Run]:
    recipe = sgd if name == "sgd" else find_recipe(name)
    defaults = bind(recipe).defaults
    settings = {key: value for key, value in {**PREFERRED, "lr": lr}.items() if key in defaults}
    rule, weight = bind(recipe, **settings).rule, problem.start
    state = rule.init(weight)
    losses, norms, steps = [], [], []
    for step in range(STEPS):
        grad, loss = torch.func.grad_and_value(problem.loss)(weight, step)
        new_weight, state = rule.step(weight, grad, state)
        losses.append(loss.item())
        norms.append(metrics.norm(new_weight).mean().item())
        steps.append(metrics.effective_step(weight, new_weight).mean().item())
        weight = new_weight
    return sum(losses[-LAST:]) / LAST, Run(name, lr, norms, steps)


def figure(run: Run, baseline: Run) -> str:
    """Draw norm and effective step over the steps, with the baseline dashed."""
    panels = (
        _panel("norm", run.norm, baseline.norm, log=False),
        _panel("effective step", run.effective_step, baseline.effective_step, log=True),
    )
    return f'<div class="curves">{"".join(panels)}</div>'


def thumbnail(run: Run, baseline: Run) -> str:
    """Draw the effective step on a log scale without axes, with the baseline dashed."""
    heights = [math.log10(max(y, 1e-12)) for y in run.effective_step if math.isfinite(y)]
    baseline_heights = [math.log10(max(y, 1e-12)) for y in baseline.effective_step]
    low, high = min(heights + baseline_heights), max(heights + baseline_heights)
    width, height = 96, 32

    def path(ys: list[float], kind: str) -> str:
        spots = (
            f"{width * i / (STEPS - 1):.0f} {1 + (height - 2) * (high - y) / (high - low):.0f}"
            for i, y in enumerate(ys)
        )
        return f'<path class="{kind}" d="M{" L".join(spots)}"/>'

    return (
        f'<svg class="thumbnail" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="effective step">{path(baseline_heights, "other")}{path(heights, "own")}</svg>'
    )


def _panel(title: str, values: list[float], baseline: list[float], log: bool) -> str:
    scale = (lambda y: math.log10(max(y, 1e-12))) if log else (lambda y: y)
    heights = [scale(y) for y in values if math.isfinite(y)]
    baseline_heights = [scale(y) for y in baseline if math.isfinite(y)]
    low, high = min(heights + baseline_heights), max(heights + baseline_heights)
    pad = 0.06 * ((high - low) or 1.0)
    low, high = low - pad, high + pad

    def path(ys: list[float], kind: str) -> str:
        spots = (f"{_x(i):.1f} {_y(y, low, high):.1f}" for i, y in enumerate(ys))
        return f'<path class="{kind}" d="M{" L".join(spots)}"/>'

    ticks = "".join(
        f'<text x="{LEFT_MARGIN - 6}" y="{_y(y, low, high):.1f}" class="y">{_label(y, log)}</text>'
        for y in (low + pad, high - pad)
    )
    return (
        f'<figure><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">'
        f'<path class="frame" d="M{LEFT_MARGIN} 4 V{HEIGHT - BOTTOM_MARGIN} H{WIDTH - 4}"/>{ticks}'
        f'<text x="{WIDTH - 4}" y="{HEIGHT - 8}" class="x">step {STEPS}</text>'
        f"{path(baseline_heights, 'other')}{path(heights, 'own')}</svg>"
        f"<figcaption>{title}</figcaption></figure>"
    )


def _label(y: float, log: bool) -> str:
    return f"{10**y:.1e}" if log else f"{y:.3g}"


def _x(index: int) -> float:
    return LEFT_MARGIN + (WIDTH - LEFT_MARGIN - 4) * index / (STEPS - 1)


def _y(value: float, low: float, high: float) -> float:
    return 4 + (HEIGHT - BOTTOM_MARGIN - 4) * (high - value) / (high - low)
