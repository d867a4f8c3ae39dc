"""COCO's average precision, by faster-coco-eval.

Source: T.-Y. Lin et al., *Microsoft COCO: Common Objects in Context*, ECCV 2014, and the
evaluation code that belongs to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from spherenorm_experiments.core import require_extra

__all__ = ["average_precision"]


def average_precision(
    found: Sequence[Tensor], truth: Sequence[Tensor], threshold: float | None = None
) -> float:
    """The mean over classes of the area under the curve of precision over recall, in per cent.

    Classes without an object do not count; an image's 100 best detections do. Detections of
    objects that are crowds are neither right nor wrong.

    Args:
        found: of each image, detections of shape (K, 6): left, top, right, bottom, score, class.
        truth: of each image, objects of shape (M, 6): left, top, right, bottom, class, and 1 for a
            crowd.
        threshold: the overlap of a detection that is right; None takes the mean over 0.5, 0.55,
            ..., 0.95, which is COCO's AP.

    Returns:
        nan if no image has an object.

    Example:
        >>> import torch
        >>> box = [[0.0, 0.0, 9.0, 9.0]]
        >>> found = [torch.tensor([[0.0, 0.0, 9.0, 9.0, 0.8, 1.0]]), torch.zeros(0, 6)]
        >>> truth = [torch.tensor([[0.0, 0.0, 9.0, 10.0, 1.0, 0.0]]), torch.zeros(0, 6)]
        >>> round(average_precision(found, truth)), round(average_precision(found, truth, 0.95))
        (90, 0)
    """
    if len(found) != len(truth):
        raise ValueError(f"found and truth are of {len(found)} and {len(truth)} images")
    library = require_extra("faster_coco_eval", "COCO's average precision")
    objects = _objects(truth)
    if not objects:
        return float("nan")
    classes = sorted({each["category_id"] for each in objects})
    known = library.COCO(
        {
            "images": [{"id": image} for image in range(len(truth))],
            "annotations": objects,
            "categories": [{"id": each} for each in classes],
        }
    )
    results = library.COCO.loadRes(known, _results(found))
    evaluation = library.COCOeval_faster(known, results, "bbox", print_function=_silent)
    if threshold is not None:
        import numpy as np

        evaluation.params.iouThrs = np.array([threshold])
    evaluation.evaluate()
    evaluation.accumulate()
    precision = evaluation.eval["precision"][..., 0, -1]  # all areas, 100 detections
    return 100 * float(precision[precision > -1].mean())


def _objects(truth: Sequence[Tensor]) -> list[dict[str, Any]]:
    rows = ((image, row) for image, part in enumerate(truth) for row in part.tolist())
    objects = []
    for number, (image, (left, top, right, bottom, label, crowd)) in enumerate(rows, 1):
        size = [right - left, bottom - top]
        objects.append(
            {
                **{"id": number, "image_id": image, "category_id": int(label)},
                **{"bbox": [left, top, *size], "area": size[0] * size[1], "iscrowd": int(crowd)},
            }
        )
    return objects


def _results(found: Sequence[Tensor]) -> list[dict[str, Any]]:
    return [
        {
            **{"image_id": image, "category_id": int(label), "score": score},
            "bbox": [left, top, right - left, bottom - top],
        }
        for image, part in enumerate(found)
        for left, top, right, bottom, score, label in part.tolist()
    ]


def _silent(*_: object) -> None:
    """In place of the library's prints."""
