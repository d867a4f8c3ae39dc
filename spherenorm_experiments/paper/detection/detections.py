"""Detections of one image: a tensor of shape (K, 6) of boxes, scores and classes."""

from __future__ import annotations

import torch
from torch import Tensor

from spherenorm_experiments.paper.detection.boxes import overlaps

__all__ = ["DETECTED", "detections", "suppressed"]

DETECTED = 100
"""Detections of an image that count, those with the highest scores: COCO's rule."""


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
    if not 0 <= threshold <= 1:
        raise ValueError(f"threshold must be in [0, 1], got {threshold}")
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
        For each image a tensor of shape (K, 6) on the CPU.
    """
    found = torch.cat([boxes, scores[..., None], classes[..., None].to(boxes.dtype)], dim=-1)
    rows = zip(found.float().cpu(), keep.cpu(), strict=True)
    return [row[kept][:DETECTED] for row, kept in rows]
