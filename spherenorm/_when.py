"""`when`: work that a rule does at some steps only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

T = TypeVar("T")


def when(condition: Tensor, fresh: Callable[[], T], kept: T) -> T:
    """`fresh()` where `condition` holds, `kept` where it does not.

    For work that is worth while every k steps, such as the roots of Shampoo. A step that runs as it
    is written reads the condition and does the work only if it holds (on a GPU, reading waits for
    the device). Under vmap over the condition, torch.compile and a recorder, whose steps hold for
    other values too, both are computed and one is chosen: the numbers are the same.

    Args:
        condition: 0-dim truth value, such as `update.step % 10 == 1`.
        fresh: computes tensors, in any nesting of lists, tuples and dicts.
        kept: tensors of the same nesting, shapes and dtypes.

    Raises:
        ValueError: `condition` is not 0-dim.

    Example:
        >>> when(torch.tensor(7.0) % 10 == 1, lambda: torch.ones(2), torch.zeros(2))
        tensor([0., 0.])
    """
    if not isinstance(condition, Tensor) or condition.ndim:
        shape = tuple(condition.shape) if isinstance(condition, Tensor) else repr(condition)
        raise ValueError(f"when: condition must be a 0-dim tensor, got {shape}")
    if _is_readable(condition):
        return fresh() if condition else kept
    chosen: T = pytree.tree_map(lambda new, old: torch.where(condition, new, old), fresh(), kept)
    return chosen


def _is_readable(condition: Tensor) -> bool:
    """True if the value may decide what runs: it is one, and no recorder is at work."""
    if torch.compiler.is_compiling() or condition.is_meta or _get_current_dispatch_mode_stack():
        return False
    functorch: Any = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(condition):
        if functorch.is_batchedtensor(condition):
            return False
        condition = functorch.get_unwrapped(condition)
    return True
