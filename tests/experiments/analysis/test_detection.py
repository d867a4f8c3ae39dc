"""The tests on recorded statistics decide as the rules do."""

import math

import numpy as np
import pytest
import torch

from spherenorm import Update, metrics
from spherenorm import rules as r
from spherenorm_experiments.analysis import WeightStatistic, accumulated, single_step


def recorded(rows, size, steps, scale):
    """A weight, its gradients, and the statistics that a run would have recorded of them."""
    weight = torch.randn(rows, size, dtype=torch.float64)
    free = torch.randn(steps, rows, size, dtype=torch.float64)
    unit = weight / weight.norm(dim=1, keepdim=True)
    grads = free - (1 - scale) * (free * unit).sum(2, keepdim=True) * unit
    grads[torch.rand(steps, rows) < 0.5] = 0

    def statistic(grad, view):
        n = size if view == "channel" else rows * size
        return (metrics.cosine(weight, grad, view).abs() * math.sqrt(n)).tolist()

    channels, layer = (
        np.array([statistic(grad, view) for grad in grads]) for view in ("channel", "layer")
    )
    return weight, grads, WeightStatistic("w", None, channels, layer)


@pytest.mark.parametrize("rows", [1, 2, 6])
@pytest.mark.parametrize("scale", [0.003, 0.03, 0.2])
@pytest.mark.parametrize("memory", [0.0, 0.9])
def test_they_decide_as_the_rules_do(rows, scale, memory):
    weight, grads, statistic = recorded(rows, 30, 60, scale)
    accumulating = r.AccumulatedInvarianceTest(memory=memory)
    for rule, decided in (
        (r.ScaleInvarianceTest(), single_step(statistic, 0.1)),
        (accumulating, accumulated(statistic, 0.1, memory)),
    ):
        state, verdicts = rule.init(weight), []
        for grad in grads:
            update, state = rule.update(Update(weight, grad, grad), state)
            verdicts.append(any(bool(flag.any()) for flag in update.invariance.flags))
        assert decided.tolist() == verdicts
