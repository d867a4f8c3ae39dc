"""Metrics that add up over batches: each batch has its share, and all shares make one number.

    Mean(100.0 * (logits.argmax(1) == labels))       # accuracy
    Mean(token_losses, then=math.exp)                # perplexity
    Collected(roc_auc_score, tags, scores)           # ROC-AUC, average precision, recall@1

A process sends only the state of a share to the others. The number is made of the states of all
batches in the order of the data, so that it does not depend on the number of processes.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

Better = Literal["higher", "lower"]
"""The direction in which a metric improves."""

FALLING = re.compile(
    r"loss|error|perplexity|entropy|deviance|distance|regret|mse\b"
    r"|\b(?:bits per|bpb|bpc|cer|cost|err|fid|kl|mad|mae|mape|nll|ppl|ter|wer)\b"
)
"""Words of metrics that fall as a model improves."""

NEGATED = re.compile(r"\b(?:minus|neg|negated|negative)\b")


def falls(name: str) -> bool:
    """Return True if a metric is lower for a better model, as far as its name says.

    >>> [falls(name) for name in ("loss", "val_rmse", "CrossEntropy", "perplexity")]
    [True, True, True, True]
    >>> [falls(name) for name in ("accuracy (%)", "R2", "minus loss", "-mse")]
    [False, False, False, False]
    >>> [falls(name) for name in ("log-likelihood", "negative log-likelihood")]
    [False, True]
    """
    words = re.sub(r"[\W_]+", " ", name.lower())
    negated = name.lstrip().startswith(("-", "−")) or NEGATED.search(words) is not None
    if "likelihood" in words:
        return negated
    return FALLING.search(words) is not None and not negated


class Statistic(ABC):
    """One batch's share of a metric.

    Attributes:
        state: what is sent to the other processes: tensors on the CPU, numbers.
    """

    state: tuple[Any, ...]

    @abstractmethod
    def value(self, states: Sequence[Any]) -> float:
        """The metric of the batches with these states, in the order of the data."""


class Mean(Statistic):
    """then(sum of the values / their number), in float64.

    Args:
        values: a number for each item, of any shape.
        then: applied to the mean, such as `math.exp` for a perplexity.

    Example:
        >>> Mean(torch.tensor([1.0, 3.0])).value([(4.0, 2.0), (5.0, 1.0)])
        3.0
    """

    def __init__(self, values: Tensor, then: Callable[[float], float] = float) -> None:
        self.then = then
        self.state = float(values.detach().double().sum()), float(values.numel())

    def value(self, states: Sequence[tuple[float, float]]) -> float:
        total, count = (sum(column) for column in zip(*states, strict=True))
        try:
            return float(self.then(total / count if count else math.nan))
        except OverflowError:  # math.exp raises it where torch.exp is infinite
            return math.inf


class Collected(Statistic):
    """A function of the columns of the whole split: function(column, ...).

    Args:
        function: of as many columns as are given.
        columns: for each a tensor with one row per item, or a list with one entry per item. Tensors
            arrive on the CPU and joined along their first dimension, those of half precision in
            float32; lists arrive joined.

    Example:
        >>> share = Collected(lambda x: x.max(), torch.tensor([1.0, 5.0]))
        >>> share.value([share.state, (torch.tensor([7.0]),)])
        7.0
    """

    def __init__(self, function: Callable[..., Any], *columns: Tensor | list[Any]) -> None:
        self.function = function
        self.state = tuple(
            _whole_precision(x) if isinstance(x, Tensor) else list(x) for x in columns
        )

    def value(self, states: Sequence[tuple[Any, ...]]) -> float:
        return float(self.function(*(_joined(parts) for parts in zip(*states, strict=True))))


def _whole_precision(x: Tensor) -> Tensor:
    """On the CPU, and float32 for a half precision: NumPy has no bfloat16."""
    half = x.dtype in (torch.bfloat16, torch.float16)
    return (x.float() if half else x).detach().cpu()


def _joined(parts: Sequence[Any]) -> Any:
    if isinstance(parts[0], Tensor):
        return torch.cat(list(parts))
    return [entry for part in parts for entry in part]
