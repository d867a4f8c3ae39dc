"""Cars-196: 196 models of cars, of which the first 98 are for training.

Source: J. Krause et al., *3D Object Representations for Fine-Grained Categorization*, 2013.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spherenorm_experiments.paper.retrieval.listed import BOTH, Listed, class_counts
from spherenorm_experiments.paper.shared.layout import Layout

__all__ = ["LAYOUT", "listed"]

TRAINED = 98
"""Classes of the training set: the first ones."""


def listed(folder: Path) -> Listed:
    """The images, relative to the folder.

    Raises:
        ValueError: the annotations have no paths and classes.
    """
    from scipy.io import loadmat

    found: Any = loadmat(folder / "cars_annos.mat", squeeze_me=True).get("annotations")
    if found is None or not {"relative_im_path", "class"} <= set(found.dtype.names or ()):
        raise LAYOUT.error(folder, "has no annotations of path and class in cars_annos.mat")
    rows = zip(found["relative_im_path"], found["class"], strict=True)
    images = [(str(path), int(label) - 1) for path, label in rows]
    return Listed(
        [(path, label) for path, label in images if label < TRAINED],
        [(path, label, BOTH) for path, label in images if label >= TRAINED],
    )


LAYOUT = Layout(
    name="cars-196",
    title="Cars-196",
    tree="""
cars-196/
  cars_annos.mat                      annotations of all images: relative_im_path, class, ...
  car_ims/000001.jpg ...
""",
    paths=("cars_annos.mat", "car_ims"),
    statistics={
        "train classes": 98,
        "test classes": 98,
        "train images": 8_054,
        "test images": 8_131,
    },
    count=lambda folder: class_counts(listed(folder)),
    source="Krause et al. 2013: car_ims.tgz and cars_annos.mat",
)
