"""The rate of false positives against a count of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from spherenorm import Update
from spherenorm import rules as r
from spherenorm_theory.laws import false_positive_rate


@dataclass(frozen=True)
class CountCheck:
    """A predicted rate, and the count that tests it."""

    predicted: float
    count: int
    trials: int

    @property
    def measured(self) -> float:
        """The counted rate."""
        return self.count / self.trials

    @property
    def deviations(self) -> float:
        """The difference in standard deviations of the count.

        The count is binomial. Its deviation is taken as at least one count, where none is expected.
        """
        spread = max((self.predicted * (1 - self.predicted) * self.trials) ** 0.5, 1.0)
        return float(abs(self.count - self.predicted * self.trials) / spread)

    @property
    def passed(self) -> bool:
        """True within 4 standard deviations: a true law fails this once in 16000 seeds."""
        return self.deviations <= 4

    def __str__(self) -> str:
        return (
            f"predicted {self.predicted:.4%}, measured {self.measured:.4%} of {self.trials} "
            f"({self.deviations:.1f} sigma)"
        )


def count_false_positives(
    delta: float = 0.1,
    dimension: int = 64,
    channels: int = 1,
    view: str = "channel",
    trials: int = 20_000,
    seed: int = 0,
) -> CountCheck:
    """Count how often the test flags a weight for a Gaussian gradient, in one view.

    Args:
        delta: the threshold of the test.
        dimension, channels: the weight has shape (channels, dimension).
        view: "channel" or "layer".
        trials: gradients.
        seed: of the weight and the gradients.
    """
    generator = torch.Generator().manual_seed(seed)
    weight, grads = (
        torch.randn(*shape, dtype=torch.float64, generator=generator)
        for shape in ((channels, dimension), (trials, channels, dimension))
    )
    test = r.ScaleInvarianceTest(delta, views=(view,))

    def flag(grad: torch.Tensor) -> torch.Tensor:
        update, _ = test.update(Update(weight, grad, grad), {})
        assert update.invariance is not None
        return update.invariance.flags[0].any()

    count = int(torch.func.vmap(flag)(grads).sum())
    if view == "layer":
        return CountCheck(false_positive_rate(delta, channels * dimension), count, trials)
    return CountCheck(false_positive_rate(delta, dimension, channels), count, trials)
