"""The 9-Class ImageNet: 42 synsets of ImageNet in nine animals, and the same of ImageNet-A.

The unbiased accuracy needs to know which validation images have similar textures: the clusters that
were released with ReBias.

Source: H. Bahng et al., *Learning De-biased Representations with Biased Representations*, 2020;
D. Hendrycks et al., *Natural Adversarial Examples*, 2021.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import ConcatDataset

from spherenorm_experiments.paper.shared import imagenet
from spherenorm_experiments.paper.shared.augmentation import central, varied
from spherenorm_experiments.paper.shared.imagenet import JPEG, Pictures, jpeg_files
from spherenorm_experiments.paper.shared.layout import Layout
from spherenorm_experiments.task import Splits

SYNSETS = {
    "dog": "n02085620 n02099601 n02106550 n02106662 n02110958",
    "cat": "n02123045 n02123159 n02123394 n02123597 n02124075",
    "frog": "n01641577 n01644373 n01644900",
    "turtle": "n01664065 n01665541 n01667114 n01667778 n01669191",
    "bird": "n01819313 n01820546 n01833805 n01843383 n01847000",
    "monkey": "n02486410 n02487347 n02488291 n02488702 n02492035",
    "fish": "n02607072 n02640242 n02641379 n02643566 n02655020",
    "crab": "n01978287 n01978455 n01980166 n01981276",
    "insect": "n02174001 n02177972 n02190166 n02206856 n02219486",
}
"""The synsets of each class, as released with ReBias; the classes are in its order."""

CLASS = {s: k for k, group in enumerate(SYNSETS.values()) for s in group.split()}
"""The class of each synset."""

CLUSTERS, FOLDER_A, CLUSTERINGS = "9class_imagenet_val.csv", "imagenet-a", 3
IMAGENET, IMAGENET_A, HELD_OUT = 0, 1, 2
"""The part that an item to be judged belongs to."""

HELD_OUT_EACH = 10
"""Training files of each synset, at most half, on which hyper-parameters are chosen."""

LAYOUT = Layout(
    name="nine-class",
    title="9-Class ImageNet",
    tree="""
nine-class/
  9class_imagenet_val.csv             clusters/ of github.com/clovaai/rebias
  imagenet-a/n01641577/*.jpg ...      a folder for each synset
imagenet/                             beside it, with train and val
""",
    paths=(CLUSTERS, FOLDER_A),
    statistics={
        "classes": (9, lambda _: len(SYNSETS)),
        "validation images": (2100, lambda folder: len(_rows(folder))),
        "ImageNet-A images": (617, lambda folder: len(_hard(folder))),
    },
    source="https://github.com/clovaai/rebias and https://github.com/hendrycks/natural-adv-examples",
)


@LAYOUT.reader
def nine_class(folder: Path, side: int = 224) -> Splits:
    """Training images, a held-out part of them, and the validation images with ImageNet-A.

    Items are (image, class); in validation and test (image, class, part, cluster in each
    clustering).

    Args:
        side: pixels of an image's side.

    Raises:
        ValueError: no folder was given, or a data set has another layout.
    """
    whole = imagenet.LAYOUT.folder()
    train: list[tuple[str, int]] = []
    held: list[tuple[str, int]] = []
    for synset, label in sorted(CLASS.items()):
        names = jpeg_files(whole, f"train/{synset}")
        out = min(HELD_OUT_EACH, len(names) // 2)
        train += [(name, label) for name in names[out:]]
        held += [(name, label) for name in names[:out]]
    test, clusters = _validation_files(folder, whole)
    hard = _hard(folder)
    unknown = torch.zeros(max(len(held), len(hard)), CLUSTERINGS, dtype=torch.long)

    def judged(root: Path, named: list[tuple[str, int]], part: int, groups: Tensor) -> Any:
        return Pictures(root, named, central(side), [part] * len(named), groups[: len(named)])

    parts = judged(whole, test, IMAGENET, clusters), judged(folder, hard, IMAGENET_A, unknown)
    return Splits(
        Pictures(whole, train, varied(side)),
        judged(whole, held, HELD_OUT, unknown),
        ConcatDataset(parts),
    )


def _validation_files(folder: Path, whole: Path) -> tuple[list[tuple[str, int]], Tensor]:
    """Files relative to ImageNet's folder with their classes; and their clusters, one row each."""
    labeled, clusters = [], []
    for row in _rows(folder):
        synset = row["path"].partition("/")[0]
        labeled.append((f"val/{row['path']}", CLASS[synset]))
        clusters.append([int(row[f"cluster{k}"]) for k in range(1, CLUSTERINGS + 1)])
    missing = next((name for name, _ in labeled if not (whole / name).is_file()), None)
    if missing is not None:
        raise imagenet.LAYOUT.error(whole, f"lacks {missing}, which {CLUSTERS} lists")
    return labeled, torch.tensor(clusters)


def _rows(folder: Path) -> list[dict[str, str]]:
    with (folder / CLUSTERS).open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        if row.get("path", "").partition("/")[0] not in CLASS or "cluster3" not in row:
            raise LAYOUT.error(folder, f"has a row in {CLUSTERS} that it should not have: {row}")
    return rows


def _hard(folder: Path) -> list[tuple[str, int]]:
    """The files of ImageNet-A of these synsets, with their classes."""
    paths = sorted(folder.glob(f"{FOLDER_A}/*/*"))
    return [
        (path.relative_to(folder).as_posix(), CLASS[path.parent.name])
        for path in paths
        if path.parent.name in CLASS and path.suffix.lower() in JPEG
    ]
