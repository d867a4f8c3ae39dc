"""Boxes, (left, top, right, bottom) along the last dimension, and detections: boxes with scores."""

from __future__ import annotations

import torch
from torch import Tensor

DETECTED = 100
"""Detections of an image that count, those with the highest scores: COCO's rule."""


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


def suppressed(boxes: Tensor, classes: Tensor, threshold: float) -> Tensor:
    """Non-maximum suppression: which boxes a better one of their class overlaps.

    A box is suppressed if one that is not, and stands before it, overlaps it by more than the
    threshold. That rule is solved by iteration: after k rounds the first k boxes are right, and
    what a round leaves as it was is the only solution.

    Args:
        boxes: shape (..., n, 4), from the best score to the worst.
        classes: shape (..., n).
        threshold: on the intersection over union, in [0, 1].

    Returns:
        Shape (..., n), True for a suppressed box.
    """
    rivals = (overlaps(boxes, boxes) > threshold) & (classes[..., :, None] == classes[..., None, :])
    better = rivals.triu(1)
    gone = torch.zeros_like(classes, dtype=torch.bool)
    while True:
        now = (better & ~gone[..., :, None]).any(-2)
        if torch.equal(now, gone):
            return gone
        gone = now


def detections(boxes: Tensor, scores: Tensor, classes: Tensor, keep: Tensor) -> list[Tensor]:
    """The best detections of each image, at most `DETECTED`.

    Args:
        boxes: shape (images, n, 4), from the best score to the worst.
        scores, classes, keep: shape (images, n); only what is to keep is a detection.

    Returns:
        For each image a tensor of shape (K, 6) on the CPU: boxes, scores, classes.
    """
    rows = torch.cat([boxes, scores[..., None], classes[..., None].to(boxes.dtype)], dim=-1)
    pairs = zip(rows.float().cpu(), keep.cpu(), strict=True)
    return [row[kept][:DETECTED] for row, kept in pairs]
