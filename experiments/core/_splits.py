"""The data of a task: tensors that fit in memory, or map-style data sets of items."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, TypeGuard, runtime_checkable

from torch import Tensor

__all__ = ["Batch", "MapStyle", "Split", "Splits", "are_tensors", "length"]


@runtime_checkable
class MapStyle(Protocol):
    """A map-style data set: any `torch.utils.data.Dataset` with a length, or a list.

    Python's, NumPy's and torch's global random states are seeded before each item, by (seed, epoch,
    index): random augmentation needs no generator of its own.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


Split = tuple[Tensor, ...] | MapStyle
"""Tensors with one common leading length, inputs first, targets last; or a map-style data set."""

Batch = Any
"""The tensors of a split at some items; of a data set, its items as `Task.collate` joins them."""


class Splits(NamedTuple):
    """The data. Hyper-parameters are chosen on `validation`; `test` is only reported."""

    train: Split
    validation: Split
    test: Split


def are_tensors(split: Split) -> TypeGuard[tuple[Tensor, ...]]:
    """True if a split is a tuple of tensors."""
    return isinstance(split, tuple) and all(isinstance(x, Tensor) for x in split)


def length(split: Split) -> int:
    """The number of items."""
    return len(split[0]) if are_tensors(split) else len(split)
