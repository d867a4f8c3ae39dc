"""Caltech-UCSD Birds 200-2011: 200 species, of which the first 100 are for training.

Source: C. Wah et al., *The Caltech-UCSD Birds-200-2011 Dataset*, 2011.
"""

from __future__ import annotations

from pathlib import Path

from spherenorm_experiments.paper.retrieval.listed import BOTH, Listed, class_counts
from spherenorm_experiments.paper.shared.layout import Layout

__all__ = ["LAYOUT", "listed"]

TRAINED = 100
"""Classes of the training set: the first ones."""


def listed(folder: Path) -> Listed:
    """The images, relative to the folder.

    Raises:
        ValueError: an image has no class.
    """
    paths = _columns(folder / "images.txt")
    labels = _columns(folder / "image_class_labels.txt")
    if without := sorted(paths.keys() - labels.keys()):
        raise LAYOUT.error(folder, f"has no class of image {without[0]}")
    images = [(f"images/{path}", int(labels[number]) - 1) for number, path in paths.items()]
    return Listed(
        [(path, label) for path, label in images if label < TRAINED],
        [(path, label, BOTH) for path, label in images if label >= TRAINED],
    )


def _columns(file: Path) -> dict[str, str]:
    """Lines of a number and a word."""
    return dict(line.split() for line in file.read_text().splitlines() if line.strip())


LAYOUT = Layout(
    name="cub",
    title="CUB-200-2011",
    tree="""
cub/                         the content of CUB_200_2011.tgz
  images.txt                 1 001.Black_footed_Albatross/Black_Footed_Albatross_0046_18.jpg
  image_class_labels.txt     1 1
  images/001.Black_footed_Albatross/Black_Footed_Albatross_0046_18.jpg ...
""",
    paths=("images.txt", "image_class_labels.txt", "images"),
    statistics={
        "train classes": 100,
        "test classes": 100,
        "train images": 5_864,
        "test images": 5_924,
    },
    count=lambda folder: class_counts(listed(folder)),
    source="Wah et al. 2011: CUB_200_2011",
)
