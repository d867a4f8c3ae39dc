"""Effective steps that a run takes from another one (`Regime.steps_of`), weight by weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from spherenorm import View, as_view
from spherenorm_experiments.engine._run import Run
from spherenorm_experiments.engine._weights import Watched


class GivenSteps:
    """The effective steps of the run that `Regime.steps_of` names, as lengths of this run's steps.

    A change d = w' - w of a weight becomes c d, with one factor c >= 0 for all of its units u:

        mean over u of |(w + c d)_u / |(w + c d)_u| - w_u / |w_u|| = the other run's at this step.

    Raises:
        ValueError: that run has not ended in this store, or has no such step at every step of each
            scale-invariant weight; or this run's weights lie in parts on several processes.
    """

    def __init__(self, run: Run, watched: Watched, parallel: str | None) -> None:
        self.name, self.watched = run.spec.regime.steps_of or "", watched
        if parallel == "fsdp":
            raise ValueError("steps_of needs whole weights, which fsdp divides; use ddp")
        self._steps = self._read(run)

    def scale(self, step: int, before: Mapping[str, Tensor], module: nn.Module) -> None:
        """Scale the changes that a step has made.

        Args:
            step: its number, from 0.
            before: the weights before it.

        Raises:
            ValueError: a weight cannot turn as far along its change.
        """
        weights = dict(module.named_parameters())
        for name, effective_step in self._steps[step].items():
            view, old = as_view(self.watched.views[name] or "layer"), before[name].double()
            change = weights[name].detach().double() - old
            along = view.radial_coefficient(old, change)
            norm = view.norm(old)
            across = torch.where(norm > 0, view.norm(change - along * old) / norm, 0)
            if not across.any():  # no unit turns: a frozen weight, or no gradient
                continue
            try:
                factor = find_factor(_units(view, along), _units(view, across), effective_step)
            except ValueError as error:
                raise ValueError(
                    f"steps_of {self.name!r}: {name}, step {step + 1}: {error}"
                ) from None
            with torch.no_grad():
                weights[name].copy_(old + factor * change)

    def _read(self, run: Run) -> Sequence[Mapping[str, float]]:
        folder = run.store.folder(self.name)
        if folder.summary() is None:
            raise ValueError(f"steps_of {self.name!r}: no run of this name has ended in the store")
        steps = [record["steps"] for record in folder.metrics.read(("steps",)) if record]
        lack = f"steps_of {self.name!r}: that run has"
        if len(steps) < run.steps:
            need = "run it to its end, with the probe steps and probe_every=1"
            raise ValueError(f"{lack} {len(steps)} measured steps, not {run.steps}; {need}")
        own = {name for name, view in self.watched.views.items() if view is not None}
        if other := own.symmetric_difference(steps[0]):
            raise ValueError(f"{lack} other scale-invariant weights, such as {min(other)}")
        return steps


def _units(view: View, per_unit: Tensor) -> np.ndarray:
    units: np.ndarray = view.units(per_unit).cpu().numpy()
    return units


def find_factor(along: np.ndarray, across: np.ndarray, effective_step: float) -> float:
    """The factor c of a weight's change at which the mean effective step of its units is this one.

    With a and t the radial and the tangent part of the change over |w|, a unit turns by the angle
    theta(c) = atan2(c t, 1 + c a), and its effective step is 2 sin(theta / 2).

    Args:
        along: a of each unit.
        across: t of each unit, some above 0.

    Raises:
        ValueError: there is no such factor.

    Example:
        >>> round(find_factor(np.zeros(1), np.ones(1), 2**0.5 / 2), 6)  # 2 arcsin(0.35) in tan
        0.881917
    """
    from scipy.optimize import newton

    def miss(factor: float) -> float:
        half = np.arctan2(factor * across, 1 + factor * along) / 2
        return float(np.mean(2 * np.sin(half))) - effective_step

    def slope(factor: float) -> float:
        ahead, aside = 1 + factor * along, factor * across
        squared = ahead**2 + aside**2
        return float(np.mean(np.cos(np.arctan2(aside, ahead) / 2) * across / squared))

    if effective_step == 0:
        return 0.0
    start = effective_step / slope(0.0)
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            factor = float(newton(miss, start, slope, tol=1e-13 * start))
    except RuntimeError:  # it has not converged
        factor = np.nan
    if not (factor >= 0 and abs(miss(factor)) <= 1e-9 * effective_step):
        raise ValueError(f"no multiple of its change is an effective step of {effective_step:.3g}")
    return factor
