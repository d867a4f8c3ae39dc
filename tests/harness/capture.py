"""A CUDA graph without a GPU: record a step's operations with their tensors, and replay them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

WAITS = {"_local_scalar_dense", "nonzero", "equal", "masked_select", "is_nonzero"}
"""Operations for which the host waits; a capture refuses them."""


class CapturedStep(TorchDispatchMode):
    """Records the operations inside it; `replay` computes them again into the same memory.

    As in a CUDA graph, nothing that Python does between the operations is repeated.
    """

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = operation(*args, **kwargs)
        self._calls.append((operation, args, kwargs, result))
        return result

    @property
    def waits(self) -> set[str]:
        """The recorded operations for which the host waits."""
        return {call[0].overloadpacket.__name__ for call in self._calls} & WAITS

    @torch.no_grad()
    def replay(self) -> None:
        for operation, args, kwargs, recorded in self._calls:
            if operation.is_view:
                continue  # of memory that has not moved
            result = operation(*args, **kwargs)
            if operation._schema.is_mutable:
                continue
            for old, new in zip(_tensors(recorded), _tensors(result), strict=True):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def _tensors(values: Any) -> Iterator[Tensor]:
    return (x for x in tree_leaves(values) if isinstance(x, Tensor))
