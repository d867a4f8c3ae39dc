"""In-Shop Clothes Retrieval of DeepFashion: test images ask for items in a gallery.

Source: Z. Liu et al., *DeepFashion: Powering Robust Clothes Recognition and Retrieval with Rich
Annotations*, 2016.
"""

from __future__ import annotations

from pathlib import Path

from spherenorm_experiments.paper.retrieval.listed import GALLERY, QUERY, Listed, class_counts
from spherenorm_experiments.paper.shared.layout import Layout

__all__ = ["LAYOUT", "listed"]

PARTITION = "Eval/list_eval_partition.txt"
ROLES = {"query": QUERY, "gallery": GALLERY}


def listed(folder: Path) -> Listed:
    """The images, relative to the folder; the classes are the items, in the order of the list.

    Raises:
        ValueError: the partition has another number of lines than it says, or unknown statuses.
    """
    first, _, *lines = (folder / PARTITION).read_text().splitlines()
    rows = [line.split() for line in lines if line.strip()]
    if len(rows) != int(first):
        raise LAYOUT.error(folder, f"has {len(rows)} images in {PARTITION}, which says {first}")
    train, test = [], []
    items: dict[str, int] = {}
    for path, item, status in rows:
        if status == "train":
            train.append((f"Img/{path}", items.setdefault(item, len(items))))
    for path, item, status in rows:
        if status in ROLES:
            label = items.setdefault(item, len(items))
            test.append((f"Img/{path}", label, ROLES[status]))
        elif status != "train":
            raise LAYOUT.error(folder, f"has the status {status!r} in {PARTITION}")
    return Listed(train, test)


def _count(folder: Path) -> dict[str, int]:
    found = listed(folder)
    counts, roles = class_counts(found), [role for *_, role in found.test]
    del counts["test images"]
    return {
        **counts,
        "query images": roles.count(QUERY),
        "gallery images": roles.count(GALLERY),
    }


LAYOUT = Layout(
    name="in-shop",
    title="In-Shop Clothes",
    tree="""
in-shop/
  Eval/list_eval_partition.txt        the number of images, a heading, and for each image its
                                      path, item and status: train, query or gallery
  Img/img/WOMEN/Dresses/id_00000002/02_1_front.jpg ...
""",
    paths=(PARTITION, "Img/img"),
    statistics={
        "train classes": 3_997,
        "test classes": 3_985,
        "train images": 25_882,
        "query images": 14_218,
        "gallery images": 12_612,
    },
    count=_count,
    source="Liu et al. 2016: the In-shop Clothes Retrieval Benchmark of DeepFashion",
)
