"""Boxes: (left, top, right, bottom) along the last dimension."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["centered", "cornered", "overlaps"]


def cornered(boxes: Tensor) -> Tensor:
    """(x, y, width, height) with the center (x, y), as (left, top, right, bottom)."""
    center, size = boxes.chunk(2, dim=-1)
    return torch.cat([center - size / 2, center + size / 2], dim=-1)


def centered(boxes: Tensor) -> Tensor:
    """The inverse of `cornered`."""
    low, high = boxes.chunk(2, dim=-1)
    return torch.cat([(low + high) / 2, high - low], dim=-1)


def overlaps(first: Tensor, second: Tensor) -> Tensor:
    """The intersection over union of each pair of boxes; 0 for two empty boxes.

    Args:
        first: shape (..., m, 4).
        second: shape (..., n, 4).

    Returns:
        Shape (..., m, n).

    Example:
        >>> overlaps(torch.tensor([[0.0, 0, 2, 2]]), torch.tensor([[1.0, 0, 3, 2], [4, 4, 5, 5]]))
        tensor([[0.3333, 0.0000]])
    """
    a, b = first[..., :, None, :], second[..., None, :, :]
    low, high = torch.maximum(a[..., :2], b[..., :2]), torch.minimum(a[..., 2:], b[..., 2:])
    common = (high - low).clamp(min=0).prod(-1)
    either = _areas(a) + _areas(b) - common
    return torch.where(either > 0, common / either.clamp(min=1e-12), 0.0)


def _areas(boxes: Tensor) -> Tensor:
    return (boxes[..., 2:] - boxes[..., :2]).clamp(min=0).prod(-1)
