"""Runs of a recipe on digits, and pictures of them in the colors of the page."""

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
"""Steps at the end of a run whose losses are compared."""
BATCH = 64
RATES = (1e-3, 1e-2, 1e-1)
RATES_SHOWN = "1e-3, 1e-2, 1e-1"
WIDTH, HEIGHT, LEFT, BELOW = 330, 170, 52, 26
PREFERRED = {"momentum": 0.9}
"""Hyper-parameters of the pictures where a recipe has them: a default of 0 has no momentum."""


class Course(NamedTuple):
    """A run of a recipe: the norms and effective steps, as means over units."""

    name: str
    lr: float
    norm: list[float]
    effective_step: list[float]


class Problem(NamedTuple):
    """A weight to train.

    Attributes:
        start: with a norm of 1 in each row.
        loss: of the weight, at a step.
    """

    start: torch.Tensor
    loss: Callable[[torch.Tensor, int], torch.Tensor]


@functools.cache
def digits() -> Problem:
    """32 units before a batch normalization, which read 8 x 8 digits; what follows is fixed."""
    images, labels = map(torch.from_numpy, load_digits(return_X_y=True))
    images, head = images / 16, _rows(10, 32) * math.sqrt(32)

    def loss(weight: torch.Tensor, step: int) -> torch.Tensor:
        batch = torch.arange(step * BATCH, (step + 1) * BATCH) % len(images)
        hidden = torch.nn.functional.batch_norm(images[batch] @ weight.T, None, None, training=True)
        return torch.nn.functional.cross_entropy(hidden.relu() @ head.T, labels[batch])

    return Problem(_rows(32, 64), loss)


def _rows(units: int, entries: int) -> torch.Tensor:
    """Random rows of norm 1, in float64."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(units, entries, dtype=torch.float64, generator=generator)
    return weight / weight.norm(dim=1, keepdim=True)


@functools.cache
def train(name: str) -> Course:
    """The run at the learning rate whose mean loss over the last steps is lowest.

    Raises:
        ValueError: the recipe refuses the weight.
    """
    runs = [_run(name, lr, digits()) for lr in RATES]
    return min(runs, key=lambda run: run[0] if math.isfinite(run[0]) else math.inf)[1]


def _run(name: str, lr: float, problem: Problem) -> tuple[float, Course]:
    recipe = sgd if name == "sgd" else find_recipe(name)
    known = bind(recipe).defaults
    given = {key: value for key, value in {**PREFERRED, "lr": lr}.items() if key in known}
    rule, weight = bind(recipe, **given).rule, problem.start
    state = rule.init(weight)
    losses, norms, steps = [], [], []
    for step in range(STEPS):
        grad, loss = torch.func.grad_and_value(problem.loss)(weight, step)
        moved, state = rule.step(weight, grad, state)
        losses.append(loss.item())
        norms.append(metrics.norm(moved).mean().item())
        steps.append(metrics.effective_step(weight, moved).mean().item())
        weight = moved
    return sum(losses[-LAST:]) / LAST, Course(name, lr, norms, steps)


def figure(course: Course, beside: Course) -> str:
    """Norm and effective step over the steps, with another run dashed."""
    panels = (
        _panel("norm", course.norm, beside.norm, log=False),
        _panel("effective step", course.effective_step, beside.effective_step, log=True),
    )
    return f'<div class="curves">{"".join(panels)}</div>'


def _panel(title: str, values: list[float], others: list[float], log: bool) -> str:
    scale = (lambda y: math.log10(max(y, 1e-12))) if log else (lambda y: y)
    shown = [[scale(y) for y in each if math.isfinite(y)] for each in (values, others)]
    known = [y for each in shown for y in each]
    low, high = min(known), max(known)
    pad = 0.06 * ((high - low) or 1.0)
    low, high = low - pad, high + pad

    def path(ys: list[float], kind: str) -> str:
        spots = (f"{_x(i):.1f} {_y(y, low, high):.1f}" for i, y in enumerate(ys))
        return f'<path class="{kind}" d="M{" L".join(spots)}"/>'

    ticks = "".join(
        f'<text x="{LEFT - 6}" y="{_y(y, low, high):.1f}" class="y">{_label(y, log)}</text>'
        for y in (low + pad, high - pad)
    )
    return (
        f'<figure><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">'
        f'<path class="frame" d="M{LEFT} 4 V{HEIGHT - BELOW} H{WIDTH - 4}"/>{ticks}'
        f'<text x="{WIDTH - 4}" y="{HEIGHT - 8}" class="x">step {STEPS}</text>'
        f"{path(shown[1], 'other')}{path(shown[0], 'own')}</svg>"
        f"<figcaption>{title}</figcaption></figure>"
    )


def _label(y: float, log: bool) -> str:
    return f"{10**y:.1e}" if log else f"{y:.3g}"


def _x(index: int) -> float:
    return LEFT + (WIDTH - LEFT - 4) * index / (STEPS - 1)


def _y(value: float, low: float, high: float) -> float:
    return 4 + (HEIGHT - BELOW - 4) * (high - value) / (high - low)
