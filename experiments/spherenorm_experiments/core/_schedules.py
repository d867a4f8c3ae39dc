"""Schedules: the factor on the learning rate as a function of progress in [0, 1).

Cosine and step are the paper's on ImageNet, linear its toys', halving its retrieval's; the other
steps, named by their milestones in percent, are those of its adversarial training, of Biased
MNIST and of object detection.
"""

from __future__ import annotations

import math
from collections.abc import Callable

HALVINGS = 12


def constant(progress: float) -> float:
    """1."""
    return 1.0


def cosine(progress: float) -> float:
    """(1 + cos(pi progress)) / 2."""
    return 0.5 * (1 + math.cos(math.pi * progress))


def linear(progress: float) -> float:
    """1 - progress."""
    return 1 - progress


def step(progress: float) -> float:
    """A tenth of the factor before, from each milestone on."""
    return _tenths(progress, 0.3, 0.6, 0.9)


def step_50_75(progress: float) -> float:
    """A tenth of the factor before, from one half and from three quarters on."""
    return _tenths(progress, 0.5, 0.75)


def step_25_50_75(progress: float) -> float:
    """A tenth of the factor before, from each quarter on."""
    return _tenths(progress, 0.25, 0.5, 0.75)


def step_70_90(progress: float) -> float:
    """A tenth of the factor before, from 70 % and from 90 % on."""
    return _tenths(progress, 0.7, 0.9)


def _tenths(progress: float, *milestones: float) -> float:
    return 0.1 ** sum(progress >= milestone for milestone in milestones)


def halving(progress: float) -> float:
    """Half the factor before, from each twelfth on: every 5 of 60 epochs."""
    return 0.5 ** int(HALVINGS * progress)


SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": constant,
    "cosine": cosine,
    "halving": halving,
    "linear": linear,
    "step": step,
    "step-50-75": step_50_75,
    "step-25-50-75": step_25_50_75,
    "step-70-90": step_70_90,
}
