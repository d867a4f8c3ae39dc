"""Averages of the weight, to evaluate with; the steps stay as they are."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spherenorm.fields import hyper
from spherenorm.numerics import Scalar, ema
from spherenorm.rule import STEP_KEY, Rule, State, Update


@dataclass(frozen=True)
class WeightAverage(Rule):
    """The average to evaluate with: a_1 = w_1, a_t = d_t a_{t-1} + (1 - d_t) w_t.

    d_t is `decay`; with a decay of 1 it is (t - 1) / t, and a is the mean of all weights. Steps up
    to `start` do not count, so that a decay of 1 averages the tail of a run. The direction stays.

    The state holds the average up to the weight before the last step: a rule sees a step before the
    manifold has moved the weight. `eval_weight` adds the weight as it is.

    Args:
        decay: d, in [0, 1].
        start: steps before the first that counts, in [0, inf).

    Example:
        >>> rule = sn.chain(sn.rules.StepSize(1.0), WeightAverage(decay=1))
        >>> weight, state = torch.tensor([0.0]), rule.init(torch.tensor([0.0]))
        >>> for _ in range(3):
        ...     weight, state = rule.step(weight, torch.tensor([-1.0]), state)
        >>> weight, rule.eval_weight(weight, state)
        (tensor([3.]), tensor([2.]))

    Source: Polyak & Juditsky 1992; Izmailov et al. 2018 (SWA), arXiv:1803.05407.
    """

    decay: Scalar = hyper("[0, 1]", 0.999)
    start: Scalar = hyper("[0, inf)", 0)

    @property
    def state_names(self) -> tuple[str, ...]:
        return (STEP_KEY, "average")

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        past, seen = state["average"], state[STEP_KEY] - 1
        return update, {"average": self._after(past, update.weight, seen)}

    def eval_weight(self, weight: Tensor, state: State) -> Tensor:
        return self._after(state["average"], weight, state[STEP_KEY])

    def restart_averages(self, weight: Tensor, state: State) -> State:
        return {**state, "average": weight}

    def _after(self, past: Tensor, weight: Tensor, step: Tensor) -> Tensor:
        """The average after a step that left this weight; the weight itself until one counts."""
        number = (step - self.start).clamp(min=1)
        mean, decay = (number - 1) / number, 0 * number + self.decay
        share = torch.where(decay == 1, mean, torch.where(number > 1, decay, 0 * decay))
        return ema(past, weight, share)
