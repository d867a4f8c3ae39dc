"""The cross-entropy with the label smoothing that the run asks for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor
from torch.nn import functional as F  # noqa: N812


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
