"""Metrics that add up over batches: each batch has its share, and all shares make one number.

Three cover the usual ones:

    Mean(100.0 * (logits.argmax(1) == labels))       # accuracy
    Mean(token_losses, then=math.exp)                # perplexity
    Sums(f1, hits, false_alarms, misses)             # F1
    Collected(roc_auc_score, tags, scores)           # ROC-AUC, average precision, recall@1

A process sends only the state of a share to the others. The number is made of the states of all
batches in the order of the data, so that it does not depend on the number of processes.

The cross-entropy with the label smoothing that the run asks for.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812


class Statistic(ABC):
    """One batch's share of a metric."""

    @property
    @abstractmethod
    def state(self) -> Any:
        """The share, to be pickled: tensors on the CPU, numbers."""

    @abstractmethod
    def value(self, states: Sequence[Any]) -> float:
        """The metric of the batches with these states, in the order of the data."""


class Sums(Statistic):
    """A function of sums over all items: function(sum of x, sum of y, ...).

    Args:
        function: of as many numbers as there are tensors.
        tensors: of any shape; all their entries add up, in float64.

    Example:
        >>> share = Sums(lambda hit, all_: hit / all_, torch.tensor([1, 0]), torch.ones(2))
        >>> share.value([share.state, share.state])
        0.5
    """

    def __init__(self, function: Callable[..., Any], *tensors: Tensor) -> None:
        self.function = function
        self._sums = tuple(float(x.detach().double().sum()) for x in tensors)

    @property
    def state(self) -> tuple[float, ...]:
        return self._sums

    def value(self, states: Sequence[tuple[float, ...]]) -> float:
        sums = [sum(column) for column in zip(*states, strict=True)]
        try:
            return float(self.function(*sums))
        except OverflowError:  # math.exp raises it where torch.exp is infinite
            return math.inf


class Mean(Sums):
    """then(sum of the values / their number).

    Args:
        values: a number for each item, of any shape.
        then: applied to the mean, such as `math.exp` for a perplexity.

    Example:
        >>> Mean(torch.tensor([1.0, 3.0])).value([(4.0, 2.0), (5.0, 1.0)])
        3.0
    """

    def __init__(self, values: Tensor, then: Callable[[float], float] = float) -> None:
        values = values.detach()
        count = torch.tensor(float(values.numel()))
        super().__init__(lambda total, n: then(total / n if n else float("nan")), values, count)


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
        self._columns = tuple(
            _whole_precision(x) if isinstance(x, Tensor) else list(x) for x in columns
        )

    @property
    def state(self) -> tuple[Any, ...]:
        return self._columns

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


class Smoothing:
    """The label smoothing of a run, while it computes a loss.

    Attributes:
        amount: the share of the target that is spread over all classes.
        used: True after a loss has read the amount.
    """

    def __init__(self, amount: float) -> None:
        self.amount, self.used = amount, False

    @contextmanager
    def active(self) -> Iterator[None]:
        """Hold for every `cross_entropy` inside."""
        token = _active.set(self)
        try:
            yield
        finally:
            _active.reset(token)


_active: ContextVar[Smoothing | None] = ContextVar("smoothing", default=None)


def cross_entropy(logits: Tensor, targets: Tensor, **options: Any) -> Tensor:
    """torch's cross-entropy, with the `label_smoothing` of the run's regime.

    Outside of a run there is no smoothing.

    Args:
        logits: shape (items, classes, ...).
        targets: classes, or probabilities of the logits' shape.
        **options: of `torch.nn.functional.cross_entropy`.

    Example:
        >>> cross_entropy(torch.zeros(1, 2), torch.tensor([0]))
        tensor(0.6931)
    """
    smoothing = _active.get()
    if smoothing is not None:
        smoothing.used |= "label_smoothing" not in options  # the task's own goes before the run's
        options = {"label_smoothing": smoothing.amount, **options}
    return F.cross_entropy(logits, targets, **options)
