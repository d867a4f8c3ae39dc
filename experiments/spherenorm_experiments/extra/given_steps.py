"""Effective steps that a run takes from another one, weight by weight."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from spherenorm import View, as_view
from spherenorm_experiments.paper.adversarial.adversarial import Adversarial
from spherenorm_experiments.paper.audio.tasks import Keywords
from spherenorm_experiments.paper.debiasing.debiasing import Debiasing
from spherenorm_experiments.store import RunFolder
from spherenorm_experiments.task import Task
from spherenorm_experiments.train import Training


@dataclass(frozen=True)
class GivenSteps(Task):
    """A task whose weights turn as far as in another run, each in the direction of its own step.

    A step that turns unit u of a weight by the angle theta_u turns it by c theta_u, in the same
    direction, with one factor c >= 0 for all units of the weight:

        mean over u of 2 sin(c theta_u / 2) = the other run's mean effective step of this weight.

    The norm of each unit is that of this run's own step. (If the whole step were scaled, its radial
    part would be, too: Adam's norms then grow until no multiple of its step turns far enough.)

    Attributes:
        steps_of: the name of the other run, of the same store, with the probe `steps` at every
            step.
    """

    steps_of: str = ""

    @contextmanager
    def around_step(self, training: Training, step: int) -> Iterator[None]:
        """Turn the scale-invariant weights as far as the other run does.

        Raises:
            ValueError: that run has no such step at every step of each scale-invariant weight, the
                units of a weight cannot turn as far, or weights lie in parts on several processes.
        """
        views = training.watched.views
        own = frozenset(name for name, view in views.items() if view is not None)
        folder = training.run.store.folder(self.steps_of)
        given = _read_steps(folder.path, training.run.steps, own)[step]
        if training.ranks.parallel == "fsdp":
            raise ValueError("steps_of needs whole weights, which fsdp divides; use ddp")
        before = training.watched.copies(training.module)
        yield
        weights = dict(training.module.named_parameters())
        for name, effective_step in given.items():
            view, weight = as_view(views[name] or "layer"), weights[name].detach()
            try:
                turned = turn_by(view, before[name].double(), weight.double(), effective_step)
            except ValueError as error:
                where = f"steps_of {self.steps_of!r}: {name}, step {step + 1}"
                raise ValueError(f"{where}: {error}") from None
            weight.copy_(turned)


@dataclass(frozen=True)
class GivenAdversarial(GivenSteps, Adversarial):
    name = "adversarial-given-steps"


@dataclass(frozen=True)
class GivenDebiasing(GivenSteps, Debiasing):
    name = "debiasing-given-steps"


@dataclass(frozen=True)
class GivenKeywords(GivenSteps, Keywords):
    name = "keywords-given-steps"


@functools.lru_cache(maxsize=2)
def _read_steps(folder: Path, steps: int, own: frozenset[str]) -> Sequence[Mapping[str, float]]:
    """The effective steps of each weight of a run that has ended, step by step."""
    records = RunFolder(folder).records(("step", "steps"))
    found = [each["steps"] for each in records if "steps" in each and each["step"] <= steps]
    lack = f"steps_of {folder.name!r}: that run has"
    if len(found) < steps:
        need = "run it to its end, with the probe steps and probe_every=1"
        raise ValueError(f"{lack} {len(found)} measured steps, not {steps}; {need}")
    if other := own.symmetric_difference(found[0]):
        raise ValueError(f"{lack} other scale-invariant weights, such as {min(other)}")
    return found


def turn_by(view: View, before: Tensor, after: Tensor, effective_step: float) -> Tensor:
    """The weight after a step whose turns have this mean effective step; see `GivenSteps`.

    A unit that did not turn only takes its new norm.

    Args:
        view: splits the weight into units.
        before, after: the weight before and after the step as it was.

    Raises:
        ValueError: there is no such weight.

    Example:
        >>> before, after = torch.tensor([[1.0, 0.0]]), torch.tensor([[2.0, 2.0]])
        >>> turn_by(as_view("channel"), before, after, 1.0)  # by 60 degrees
        tensor([[1.4142, 2.4495]])
    """
    norm, length = view.norm(before), view.norm(after)
    along = view.radial_coefficient(before, after)
    tangent = after - along * before
    across = view.norm(tangent)
    angle = torch.atan2(across, along * norm)
    turns = (norm > 0) & (across > 0)
    if not turns.any():  # a frozen weight, or no gradient
        return after
    angles = view.units(torch.where(turns, angle, 0.0))
    turned = find_factor(angles.double().cpu().numpy(), effective_step) * angle
    ahead, aside = (
        x / torch.where(turns, size, 1) for x, size in ((before, norm), (tangent, across))
    )
    new = length * (torch.cos(turned) * ahead + torch.sin(turned) * aside)
    return torch.where(turns, new, after)


def find_factor(angles: np.ndarray, effective_step: float) -> float:
    """The factor c at which the mean of 2 sin(c theta_u / 2) is this effective step.

    Args:
        angles: theta of each unit, some above 0.

    Raises:
        ValueError: there is none at which all units turn by less than pi.

    Example:
        >>> round(find_factor(np.array([0.2]), 1.0), 6)  # by 60 degrees
        5.235988
    """
    from scipy.optimize import newton

    def miss(factor: float) -> float:
        return float(np.mean(2 * np.sin(factor * angles / 2))) - effective_step

    def slope(factor: float) -> float:
        return float(np.mean(angles * np.cos(factor * angles / 2)))

    if effective_step == 0:
        return 0.0
    start = effective_step / slope(0.0)  # below the factor: from there Newton's steps only rise
    factor, _ = newton(miss, start, slope, tol=1e-13 * start, full_output=True, disp=False)
    if not (factor * angles.max() < np.pi and abs(miss(factor)) <= 1e-9 * effective_step):
        raise ValueError(f"its units cannot turn by an effective step of {effective_step:.3g}")
    return float(factor)
