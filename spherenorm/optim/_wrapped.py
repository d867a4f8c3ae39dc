"""The optimizer within the wrappers that trainers put around one."""

from __future__ import annotations

from typing import Any

from torch.optim.optimizer import Optimizer


def unwrap(optimizer: Any) -> Any:
    """The innermost `.optimizer`: of Accelerate's and Lightning's wrappers, and of schedulers.

    A wrapper's class may derive from the wrapped one or from `Optimizer` without being made as
    one, so a wrapper is told by what it holds.

    Args:
        optimizer: an optimizer, a wrapper, or anything else, which is returned as it is.

    Example:
        >>> optimizer = torch.optim.SGD([torch.ones(2)], lr=0.1)
        >>> scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
        >>> unwrap(scheduler) is optimizer
        True
    """
    while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = inner
    return optimizer
