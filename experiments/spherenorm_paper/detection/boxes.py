"""Boxes, (left, top, right, bottom) along the last dimension, detections, and their score.

Of a batch, `boxes` have the shape (images, n, 4) and `labels`, their classes, (images, n), below 0
where there is no object. A model's `maps` are what it returns, `side` is the images' in pixels.

Source: T.-Y. Lin et al., *Microsoft COCO: Common Objects in Context*, ECCV 2014, and the
evaluation code that belongs to it, as faster-coco-eval has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from spherenorm_experiments.lookup import require_extra

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


def overlaps(boxes: Tensor, targets: Tensor) -> Tensor:
    """The intersection over union of each pair of boxes; 0 for two empty boxes.

    Args:
        boxes: shape (..., m, 4).
        targets: shape (..., n, 4).

    Returns:
        Shape (..., m, n).

    Example:
        >>> overlaps(torch.tensor([[0.0, 0, 2, 2]]), torch.tensor([[1.0, 0, 3, 2], [4, 4, 5, 5]]))
        tensor([[0.3333, 0.0000]])
    """
    a, b = boxes[..., :, None, :], targets[..., None, :, :]
    low, high = torch.maximum(a[..., :2], b[..., :2]), torch.minimum(a[..., 2:], b[..., 2:])
    common = (high - low).clamp(min=0).prod(-1)
    first_area, second_area = ((x[..., 2:] - x[..., :2]).clamp(min=0).prod(-1) for x in (a, b))
    either = first_area + second_area - common
    return torch.where(either > 0, common / either.clamp(min=1e-12), 0.0)


def suppressed(boxes: Tensor, threshold: float) -> Tensor:
    """Non-maximum suppression: which boxes a better one overlaps.

    A box is suppressed if one that is not, and stands before it, overlaps it by more than the
    threshold. That rule is solved by iteration: after k rounds the first k boxes are right, and
    what a round leaves as it was is the only solution.

    Args:
        boxes: shape (..., n, 4), from the best score to the worst.
        threshold: on the intersection over union, in [0, 1].

    Returns:
        Shape (..., n), True for a suppressed box.
    """
    better = (overlaps(boxes, boxes) > threshold).triu(1)
    suppressed = torch.zeros_like(boxes[..., 0], dtype=torch.bool)
    while not torch.equal(now := (better & ~suppressed[..., :, None]).any(-2), suppressed):
        suppressed = now
    return suppressed


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
    return [row[selected][:DETECTED] for row, selected in pairs]


def average_precision(detected: Sequence[Tensor], truth: Sequence[Tensor]) -> float:
    """The mean over classes of the area under the curve of precision over recall, in per cent.

    It is the mean over detections counting as right from an overlap of 0.5, 0.55, ..., 0.95 on.
    Classes without an object do not count; an image's 100 best detections do. Detections of
    objects that are crowds are neither right nor wrong.

    Args:
        detected: of each image, shape (K, 6): left, top, right, bottom, score, class.
        truth: of each image, objects of shape (M, 6): left, top, right, bottom, class, and 1 for a
            crowd.

    Returns:
        nan if no image has an object.

    Example:
        >>> detected = [torch.tensor([[0.0, 0.0, 9.0, 9.0, 0.8, 1.0]]), torch.zeros(0, 6)]
        >>> truth = [torch.tensor([[0.0, 0.0, 9.0, 10.0, 1.0, 0.0]]), torch.zeros(0, 6)]
        >>> round(average_precision(detected, truth))
        90
    """
    library = require_extra("faster_coco_eval", "COCO's average precision")
    classes = sorted({int(label) for rows in truth for label in rows[:, 4]})
    if not classes:
        return float("nan")
    if not any(len(rows) for rows in detected):
        return 0.0  # faster_coco_eval loads no empty results before 1.8
    images, categories = ([{"id": k} for k in ids] for ids in (range(len(truth)), classes))
    empty = library.COCO({"images": images, "annotations": [], "categories": categories})
    truth_api, detected_api = _loaded(empty, truth, 5, 4), _loaded(empty, detected, 4, 5)
    for entry in truth_api.dataset["annotations"]:
        entry["iscrowd"] = int(entry["score"])
    evaluation = library.COCOeval_faster(
        truth_api, detected_api, "bbox", print_function=lambda *_: None
    )
    evaluation.evaluate()
    evaluation.accumulate()
    precision = evaluation.eval["precision"][..., 0, -1]  # all areas, 100 detections
    return 100 * float(precision[precision > -1].mean())


def _loaded(empty: Any, images: Sequence[Tensor], score: int, label: int) -> Any:
    """COCO's entries of the boxes of images; of a row two places are score and class."""
    rows = torch.cat(list(images)).detach().double()
    image = torch.repeat_interleave(torch.tensor([len(rows) for rows in images]))[:, None]
    boxes = torch.cat([rows[:, :2], rows[:, 2:4] - rows[:, :2]], 1)
    return empty.loadRes(torch.cat([image, boxes, rows[:, [score, label]]], 1).numpy())
