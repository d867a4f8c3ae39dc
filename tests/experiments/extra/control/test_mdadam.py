"""Adam with magnitude and direction apart, against a loop of its own."""

import math

import torch

from spherenorm_experiments.extra.control.mdadam import mdadam


def test_gains_and_direction_are_those_of_a_loop_in_float64():
    random = torch.Generator().manual_seed(0)
    moments = {}

    def adam(name, grad, step):
        first, second = moments.get(name, (0.0, 0.0))
        moments[name] = first, second = 0.9 * first + 0.1 * grad, 0.95 * second + 0.05 * grad**2
        return first / (1 - 0.9**step) / ((second / (1 - 0.95**step)) ** 0.5 + 1e-8)

    weight = torch.randn(5, 3, generator=random, dtype=torch.float64)
    rule = mdadam(lr=0.05, gain_ratio=0.2)
    state = rule.init(weight)
    held, radius = weight, weight.norm()
    one = torch.tensor(math.log(math.e - 1), dtype=torch.float64)  # its softplus is 1
    rows, columns = one.expand(5, 1), one.expand(1, 3)
    for step in range(1, 30):
        grad = torch.randn(5, 3, generator=random, dtype=torch.float64)
        weight, state = rule.step(weight, grad, state)
        a, b = (torch.log1p(gain.exp()) for gain in (rows, columns))
        moved = adam("direction", a * b * grad, step)
        slopes = held * b * grad, held * a * grad
        held = held - 0.05 * radius * moved / moved.norm()
        held = radius * held / held.norm()
        rows = rows - 0.01 * adam("a", slopes[0].sum(1, keepdim=True) * rows.sigmoid(), step)
        slope = slopes[1].sum(0, keepdim=True)
        columns = columns - 0.01 * adam("b", slope * columns.sigmoid(), step)
        expected = torch.log1p(rows.exp()) * held * torch.log1p(columns.exp())
        assert (weight - expected).norm() <= 1e-12 * expected.norm()
