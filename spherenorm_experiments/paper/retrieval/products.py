"""Stanford Online Products: 22,634 products, divided by the official lists.

Source: H. Song et al., *Deep Metric Learning via Lifted Structured Feature Embedding*, 2016.
"""

from __future__ import annotations

from pathlib import Path

from spherenorm_experiments.paper.retrieval.listed import BOTH, Listed, class_counts
from spherenorm_experiments.paper.shared.layout import Layout

__all__ = ["LAYOUT", "listed"]


def listed(folder: Path) -> Listed:
    """The images, relative to the folder.

    Raises:
        ValueError: a list has another heading.
    """
    return Listed(_rows(folder, "train"), [(*row, BOTH) for row in _rows(folder, "test")])


def _rows(folder: Path, part: str) -> list[tuple[str, int]]:
    """Paths and classes, which the training list numbers from 1."""
    heading, *lines = (folder / f"Ebay_{part}.txt").read_text().splitlines()
    if heading.split() != ["image_id", "class_id", "super_class_id", "path"]:
        raise LAYOUT.error(folder, f"has the heading {heading!r} in Ebay_{part}.txt")
    rows = [line.split() for line in lines if line.strip()]
    return [(path, int(label) - 1) for _, label, _, path in rows]


LAYOUT = Layout(
    name="sop",
    title="Stanford Online Products",
    tree="""
sop/                                  the content of Stanford_Online_Products.zip
  Ebay_train.txt                      image_id class_id super_class_id path
  Ebay_test.txt
  bicycle_final/111085122871_0.JPG ...
""",
    paths=("Ebay_train.txt", "Ebay_test.txt"),
    statistics={
        "train classes": 11_318,
        "test classes": 11_316,
        "train images": 59_551,
        "test images": 60_502,
    },
    count=lambda folder: class_counts(listed(folder)),
    source="Song et al. 2016: Stanford_Online_Products",
)
