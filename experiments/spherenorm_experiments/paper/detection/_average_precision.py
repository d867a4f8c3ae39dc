"""COCO's average precision, by faster-coco-eval.

Source: T.-Y. Lin et al., *Microsoft COCO: Common Objects in Context*, ECCV 2014, and the
evaluation code that belongs to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from spherenorm_experiments.errors import require_extra


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
        >>> import torch
        >>> detected = [torch.tensor([[0.0, 0.0, 9.0, 9.0, 0.8, 1.0]]), torch.zeros(0, 6)]
        >>> truth = [torch.tensor([[0.0, 0.0, 9.0, 10.0, 1.0, 0.0]]), torch.zeros(0, 6)]
        >>> round(average_precision(detected, truth))
        90
    """
    library = require_extra("faster_coco_eval", "COCO's average precision")
    objects: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for image, (true, told) in enumerate(zip(truth, detected, strict=True)):
        for left, top, right, bottom, label, crowd in true.tolist():
            width, height = right - left, bottom - top
            objects.append(
                {
                    **{"id": len(objects) + 1, "image_id": image, "category_id": int(label)},
                    **{"bbox": [left, top, width, height], "area": width * height},
                    "iscrowd": int(crowd),
                }
            )
        for left, top, right, bottom, score, label in told.tolist():
            box = [left, top, right - left, bottom - top]
            results.append(
                {"image_id": image, "category_id": int(label), "score": score, "bbox": box}
            )
    if not objects:
        return float("nan")
    known = library.COCO(
        {
            "images": [{"id": image} for image in range(len(truth))],
            "annotations": objects,
            "categories": [{"id": k} for k in sorted({each["category_id"] for each in objects})],
        }
    )
    told = library.COCO.loadRes(known, results)
    evaluation = library.COCOeval_faster(known, told, "bbox", print_function=lambda *_: None)
    evaluation.evaluate()
    evaluation.accumulate()
    precision = evaluation.eval["precision"][..., 0, -1]  # all areas, 100 detections
    return 100 * float(precision[precision > -1].mean())
