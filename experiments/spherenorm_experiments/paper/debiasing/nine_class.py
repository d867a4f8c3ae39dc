"""The 9-Class ImageNet: 42 synsets of ImageNet in nine animals, and the same of ImageNet-A.

The unbiased accuracy needs to know which validation images have similar textures: the clusters that
were released with ReBias.

Source: H. Bahng et al., *Learning De-biased Representations with Biased Representations*, 2020;
D. Hendrycks et al., *Natural Adversarial Examples*, 2021.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from torch.utils.data import ConcatDataset

from spherenorm_experiments.paper.shared import imagenet
from spherenorm_experiments.paper.shared.augmentation import central, varied
from spherenorm_experiments.paper.shared.facts import layout
from spherenorm_experiments.paper.shared.imagenet import JPEG, Pictures, jpeg_files
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

CLUSTERS = "9class_imagenet_val.csv"
IMAGENET, IMAGENET_A, HELD_OUT = 0, 1, 2
"""The part that an item to be judged belongs to."""

HELD_OUT_EACH = 10
"""Training files of each synset, at most half, on which hyper-parameters are chosen."""


def _clustered(folder: Path) -> pd.DataFrame:
    """The paths of the validation images, and the cluster of each in three clusterings."""
    table = pd.read_csv(folder / CLUSTERS, index_col="path")
    return table[["cluster1", "cluster2", "cluster3"]]


def _hard(folder: Path) -> list[str]:
    """The files of ImageNet-A of these synsets."""
    paths = (p for synset in sorted(CLASS) for p in sorted(folder.glob(f"imagenet-a/{synset}/*")))
    return [path.relative_to(folder).as_posix() for path in paths if path.suffix.lower() in JPEG]


LAYOUT = layout(
    "nine-class",
    {
        "classes": lambda _: len(SYNSETS),
        "validation images": lambda folder: len(_clustered(folder)),
        "ImageNet-A images": lambda folder: len(_hard(folder)),
    },
)


@LAYOUT.reader
def nine_class(folder: Path, side: int = 224) -> Splits:
    """Training images, a held-out part of them, and the validation images with ImageNet-A.

    Items are (image, class); in validation and test (image, class, part, clusters), the cluster in
    each of three clusterings, which only validation images of ImageNet have.

    Args:
        side: pixels of an image's side.

    Raises:
        ValueError: no folder was given, or a data set has another layout.
    """
    whole = imagenet.LAYOUT.folder()
    train, held = list[str](), list[str]()
    for synset in sorted(CLASS):
        names = jpeg_files(whole, f"train/{synset}")
        out = min(HELD_OUT_EACH, len(names) // 2)
        train += names[out:]
        held += names[:out]
    clusters = _clustered(folder)
    tested = [f"val/{path}" for path in clusters.index]
    lost = next((name for name in tested if not (whole / name).is_file()), None)
    if lost is not None:
        raise imagenet.LAYOUT.error(whole, f"lacks {lost}, which {CLUSTERS} lists")

    def labeled(names: list[str]) -> list[tuple[str, int]]:
        return [(name, CLASS[name.split("/")[1]]) for name in names]

    def judged(root: Path, names: list[str], part: int) -> Pictures:
        found = clusters.to_numpy() if part == IMAGENET else np.zeros((len(names), 3), dtype=int)
        return Pictures(root, labeled(names), central(side), [part] * len(names), found)

    parts = judged(whole, tested, IMAGENET), judged(folder, _hard(folder), IMAGENET_A)
    return Splits(
        Pictures(whole, labeled(train), varied(side)),
        judged(whole, held, HELD_OUT),
        ConcatDataset(parts),  # type: ignore[arg-type]
    )
