"""Miniatures of the official files of CIFAR-10, MNIST and the 9-Class ImageNet."""

import gzip
import struct

import numpy as np
from PIL import Image

from spherenorm_experiments.paper.adversarial import cifar
from spherenorm_experiments.paper.debiasing.nine_class import CLASS, SYNSETS


def write_cifar10(folder, images, labels):
    """The binary form: images of shape (6, n, 3072), the last sixth for the test."""
    folder = folder / cifar.FOLDER
    folder.mkdir(parents=True)
    for name, pixels, classes in zip((*cifar.TRAIN, *cifar.TEST), images, labels, strict=True):
        records = np.concatenate([classes[:, None].astype(np.uint8), pixels], axis=1)
        (folder / name).write_bytes(records.tobytes())


def random_cifar10(count):
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (6, count, 3072), dtype=np.uint8)
    return images, random.integers(0, 10, (6, count))


NAMES = ("images-idx3-ubyte", "labels-idx1-ubyte")


def idx(array):
    head = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.astype(np.uint8).tobytes()


def write_mnist(folder, train=30, test=10, zipped=False):
    """Returns images and labels of each part."""
    random, found = np.random.default_rng(0), {}
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", train), ("t10k", test)):
        images = random.integers(0, 256, (count, 28, 28)) * (random.random((count, 28, 28)) < 0.3)
        found[part] = images, np.arange(count) % 10
        for name, array in zip(
            ("images-idx3-ubyte", "labels-idx1-ubyte"), found[part], strict=True
        ):
            path = folder / f"{part}-{name}"
            if zipped:
                path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(idx(array)))
            else:
                path.write_bytes(idx(array))
    return found


def write_nine_class(root, each=3, per_class=1):
    """`each` training images of a synset, `per_class` validation images in a cluster of a class."""
    random = np.random.default_rng(0)

    def picture(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (8, 10, 3), dtype=np.uint8)).save(path, "JPEG")

    rows = ["path,category,cluster1,cluster2,cluster3"]
    for synset in CLASS:
        for k in range(each):
            picture(root / "imagenet" / "train" / synset / f"{synset}_{k}.JPEG")
    for number, (name, group) in enumerate(SYNSETS.items()):
        synset = group.split()[0]
        for k in range(per_class):
            file = f"ILSVRC2012_val_{number:04}{k:04}.JPEG"
            picture(root / "imagenet" / "val" / synset / file)
            rows.append(f"{synset}/{file},{name},{number},{k % 2},0")
        picture(root / "nine-class" / "imagenet-a" / synset / f"0.00_{name}.jpg")
    (root / "imagenet" / "train" / "n00000000").mkdir()  # a synset that is none of the nine
    (root / "nine-class" / "9class_imagenet_val.csv").write_text("\n".join(rows) + "\n")
