"""The photographs of CUB, Cars-196, In-Shop and SOP; classes of the test are not in training.

Source: C. Wah et al., *The Caltech-UCSD Birds-200-2011 Dataset*, 2011; J. Krause et al., *3D Object
Representations for Fine-Grained Categorization*, 2013; Z. Liu et al., *DeepFashion*, 2016; H. Song
et al., *Deep Metric Learning via Lifted Structured Feature Embedding*, 2016.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from spherenorm_experiments.paper.retrieval.glyph_classes import BOTH, GALLERY, QUERY
from spherenorm_experiments.paper.shared.augmentation import central, varied
from spherenorm_experiments.paper.shared.imagenet import Pictures
from spherenorm_experiments.paper.shared.layout import Count, Layout
from spherenorm_experiments.task import Splits

SHARE = 224 / 256
"""The share of the shorter side that a central crop keeps."""

SHOWN = 5_000
"""Training images that are the validation set: they show no more than that the loss works."""


class Listed(NamedTuple):
    """The images of a data set.

    Attributes:
        train: paths relative to its folder, and classes, which are numbered from 0.
        test: paths, classes and roles.
    """

    train: Sequence[tuple[str, int]]
    test: Sequence[tuple[str, int, int]]


def photos(data_set: str, side: int) -> Splits:
    """Random crops of the training images, flipped or not; central crops of the others.

    Args:
        data_set: a key of `SOURCES`.
        side: pixels of an image's side.

    Raises:
        ValueError: no folder was given, it has another layout, or its lists contradict themselves.
    """
    return _splits(SOURCES[data_set][0].folder(), data_set, side)


@functools.lru_cache(maxsize=8)
def _splits(folder: Path, data_set: str, side: int) -> Splits:
    listed = SOURCES[data_set][1](folder)
    train, both = listed.train, [BOTH] * len(listed.train)
    test, roles = [row[:2] for row in listed.test], [role for *_, role in listed.test]
    return Splits(
        Pictures(folder, train, varied(side), both),
        Pictures(folder, train[:SHOWN], central(side, SHARE), both[:SHOWN]),
        Pictures(folder, test, central(side, SHARE), roles),
    )


def _divided(images: Sequence[tuple[str, int]], trained: int) -> Listed:
    """The first `trained` classes are for training; of the others every image is both."""
    return Listed(
        [(path, label) for path, label in images if label < trained],
        [(path, label, BOTH) for path, label in images if label >= trained],
    )


def _cub(folder: Path) -> Listed:
    def columns(name: str) -> dict[str, str]:
        lines = (folder / name).read_text().splitlines()
        return dict(line.split() for line in lines if line.strip())

    paths, labels = columns("images.txt"), columns("image_class_labels.txt")
    if without := sorted(paths.keys() - labels.keys()):
        raise CUB.error(folder, f"has no class of image {without[0]}")
    images = [(f"images/{path}", int(labels[number]) - 1) for number, path in paths.items()]
    return _divided(images, 100)


def _cars(folder: Path) -> Listed:
    from scipy.io import loadmat

    rows: Any = loadmat(folder / "cars_annos.mat", squeeze_me=True).get("annotations")
    if rows is None or not {"relative_im_path", "class"} <= set(rows.dtype.names or ()):
        raise CARS.error(folder, "has no annotations of path and class in cars_annos.mat")
    columns = zip(rows["relative_im_path"], rows["class"], strict=True)
    return _divided([(str(path), int(label) - 1) for path, label in columns], 98)


PARTITION = "Eval/list_eval_partition.txt"
ROLES = {"query": QUERY, "gallery": GALLERY}


def _in_shop(folder: Path) -> Listed:
    """The classes are the items, in the order of the list; those of training come first."""
    first, _, *lines = (folder / PARTITION).read_text().splitlines()
    rows = [line.split() for line in lines if line.strip()]
    if len(rows) != int(first):
        raise IN_SHOP.error(folder, f"has {len(rows)} images in {PARTITION}, which says {first}")
    for *_, status in rows:
        if status not in ("train", *ROLES):
            raise IN_SHOP.error(folder, f"has the status {status!r} in {PARTITION}")
    items: dict[str, int] = {}
    rows.sort(key=lambda row: row[2] != "train")
    images = [(f"Img/{path}", items.setdefault(item, len(items)), s) for path, item, s in rows]
    return Listed(
        [(path, label) for path, label, status in images if status == "train"],
        [(path, label, ROLES[status]) for path, label, status in images if status in ROLES],
    )


def _products(folder: Path) -> Listed:
    def rows(name: str) -> list[tuple[str, int]]:
        heading, *lines = (folder / name).read_text().splitlines()
        if heading.split() != ["image_id", "class_id", "super_class_id", "path"]:
            raise PRODUCTS.error(folder, f"has the heading {heading!r} in {name}")
        columns = (line.split() for line in lines if line.strip())
        return [(path, int(label) - 1) for _, label, _, path in columns]

    return Listed(rows("Ebay_train.txt"), [(*row, BOTH) for row in rows("Ebay_test.txt")])


def _statistics(
    listing: Callable[[Path], Listed],
    train_classes: int,
    test_classes: int,
    train_images: int,
    **test_images: int,
) -> dict[str, tuple[int, Count]]:
    """The numbers of classes and images in a list; of the test's images those of each role."""

    def classes(rows: Sequence[tuple[Any, ...]]) -> int:
        return len({label for _, label, *_ in rows})

    def of_role(role: int) -> Callable[[Path], int]:
        return lambda folder: sum(row[2] == role for row in listing(folder).test)

    roles = {"test": BOTH, **ROLES}
    return {
        "train classes": (train_classes, lambda folder: classes(listing(folder).train)),
        "test classes": (test_classes, lambda folder: classes(listing(folder).test)),
        "train images": (train_images, lambda folder: len(listing(folder).train)),
        **{f"{name} images": (x, of_role(roles[name])) for name, x in test_images.items()},
    }


CUB = Layout(
    name="cub",
    title="CUB-200-2011",
    tree="""
cub/                         the content of CUB_200_2011.tgz
  images.txt                 1 001.Black_footed_Albatross/Black_Footed_Albatross_0046_18.jpg
  image_class_labels.txt     1 1
  images/001.Black_footed_Albatross/Black_Footed_Albatross_0046_18.jpg ...
""",
    paths=("images.txt", "image_class_labels.txt", "images"),
    statistics=_statistics(_cub, 100, 100, 5_864, test=5_924),
    source="Wah et al. 2011: CUB_200_2011",
)

CARS = Layout(
    name="cars-196",
    title="Cars-196",
    tree="""
cars-196/
  cars_annos.mat                      annotations of all images: relative_im_path, class, ...
  car_ims/000001.jpg ...
""",
    paths=("cars_annos.mat", "car_ims"),
    statistics=_statistics(_cars, 98, 98, 8_054, test=8_131),
    source="Krause et al. 2013: car_ims.tgz and cars_annos.mat",
)

IN_SHOP = Layout(
    name="in-shop",
    title="In-Shop Clothes",
    tree="""
in-shop/
  Eval/list_eval_partition.txt        the number of images, a heading, and for each image its
                                      path, item and status: train, query or gallery
  Img/img/WOMEN/Dresses/id_00000002/02_1_front.jpg ...
""",
    paths=(PARTITION, "Img/img"),
    statistics=_statistics(_in_shop, 3_997, 3_985, 25_882, query=14_218, gallery=12_612),
    source="Liu et al. 2016: the In-shop Clothes Retrieval Benchmark of DeepFashion",
)

PRODUCTS = Layout(
    name="sop",
    title="Stanford Online Products",
    tree="""
sop/                                  the content of Stanford_Online_Products.zip
  Ebay_train.txt                      image_id class_id super_class_id path
  Ebay_test.txt
  bicycle_final/111085122871_0.JPG ...
""",
    paths=("Ebay_train.txt", "Ebay_test.txt"),
    statistics=_statistics(_products, 11_318, 11_316, 59_551, test=60_502),
    source="Song et al. 2016: Stanford_Online_Products",
)

SOURCES: dict[str, tuple[Layout, Callable[[Path], Listed]]] = {
    "cub": (CUB, _cub),
    "cars-196": (CARS, _cars),
    "in-shop": (IN_SHOP, _in_shop),
    "sop": (PRODUCTS, _products),
}
"""The layout of each data set, and the reader of its lists."""
