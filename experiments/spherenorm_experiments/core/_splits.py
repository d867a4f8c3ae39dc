"""The data of a task: tensors that fit in memory, or map-style data sets of items."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, TypeGuard, runtime_checkable

import numpy as np
from torch import Tensor


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


def require_splits(found: Any, source: str) -> Splits:
    """The splits, if they can be read in one way only.

    Args:
        source: the method that has made them, for the errors.

    Raises:
        ValueError: no `Splits`, a split that is neither a tuple of tensors nor a map-style data
            set, tensors of unequal length, or a split without items.
    """
    if not isinstance(found, Splits):
        need = f"{source} must return Splits(train, validation, test)"
        raise ValueError(f"{need}, got {_kind(found)}")
    for name, split in found._asdict().items():
        _require_split(split, f"{source}: the {name} split")
    return found


def _require_split(split: Any, name: str) -> None:
    if are_tensors(split):
        sizes = [len(x) if x.ndim else None for x in split]
        if None in sizes or len(set(sizes)) > 1:
            shapes = ", ".join(str(tuple(x.shape)) for x in split)
            raise ValueError(f"{name} has tensors without a common first dimension: {shapes}")
    elif not _is_map_style(split):
        need = f"{name} must be a tuple of tensors, such as (x, y), or a map-style data set"
        raise ValueError(f"{need} of items, got {_kind(split)}")
    if not len(split) or not length(split):
        raise ValueError(f"{name} is empty")


def _is_map_style(split: Any) -> bool:
    """True for items by number; a list of bare tensors may also be meant as columns."""
    if isinstance(split, list):
        return not split or not all(isinstance(x, Tensor | np.ndarray) for x in split)
    return isinstance(split, MapStyle) and not isinstance(split, tuple | Mapping | str)


def _kind(found: Any) -> str:
    inner = {type(x).__name__: None for x in found} if isinstance(found, tuple | list) else {}
    return f"a {type(found).__name__}{' of ' * bool(inner)}{', '.join(inner)}"
