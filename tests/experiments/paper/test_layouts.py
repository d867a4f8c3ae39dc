"""Data sets on disk, one row each: what of a miniature is read, missing, damaged."""

import os
import shutil
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from miniatures import (
    BOXES,
    SYNSETS_OF_IMAGENET,
    WRITERS,
    random_cifar10,
    write_mnist,
)

from spherenorm_experiments.lookup import FOLDER, find_task, layouts
from spherenorm_experiments.task import Splits, fingerprint_of
from spherenorm_paper.adversarial.adversarial import read_cifar10
from spherenorm_paper.audio.recordings import PARTS, WORDS
from spherenorm_paper.debiasing.biased import SYNSETS, read_mnist
from spherenorm_paper.detection import coco
from spherenorm_paper.retrieval.images import BOTH, GALLERY, QUERY
from spherenorm_paper.shared.imagenet import imagenet
from tests.harness import refuses


def written(content):
    return lambda path: path.write_bytes(content)


def added(text):
    return lambda path: path.write_text(path.read_text() + text)


def lost(path):
    path.unlink()


def read_photos(train, test, roles=()):
    """Classes of training and test, and the roles of test images."""

    def read(splits, _):
        assert (splits.train.labels.tolist(), splits.test.labels.tolist()) == (train, test)
        assert splits.validation.labels.tolist() == train
        assert splits.test.columns[2].tolist() == (roles or [BOTH] * len(test))
        image, label, _ = splits.test[0]
        assert (image.shape, label) == ((3, 24, 24), test[0])
        assert torch.equal(splits.test[0][0], image)
        assert torch.equal(splits.validation[0][0], splits.validation[0][0])
        assert not torch.equal(splits.train[0][0], splits.train[0][0])  # crops are random

    return read


def read_cifar(_, folder):
    """Records are a class and a red, a green and a blue plane."""
    images, labels = map(torch.from_numpy, random_cifar10(4))
    for train, part in ((True, slice(0, 5)), (False, slice(5, 6))):
        found, classes = read_cifar10(folder, train)
        assert torch.equal(found, images[part].reshape(-1, 3, 32, 32))
        assert torch.equal(classes.long(), labels[part].flatten())


def read_digits(_, folder):
    for zipped in (False, True):
        root = folder.parent / f"zipped {zipped}"
        found = write_mnist(root, zipped=zipped)
        for part, train in (("train", True), ("t10k", False)):
            images, labels = read_mnist(root / "mnist", train)
            assert torch.equal(images.long(), torch.from_numpy(found[part][0]))
            assert labels.tolist() == found[part][1].tolist()


def read_coco(splits, _):
    """Classes are the places of the categories' numbers, in any order."""
    chosen = [part.columns[1].tolist() for part in splits]
    assert sorted([*chosen[0], *chosen[1]]) == list(range(20))
    for name, pictures in zip(coco.PARTS, (chosen[0], chosen[2]), strict=True):
        for n in pictures:
            objects = torch.from_numpy(coco.annotated(name)[1][n])
            objects = objects[objects[:, 4].argsort()]
            boxes = [[x, y, x + w, y + h] for x, y, w, h in BOXES[n % 4]]
            torch.testing.assert_close(objects[:, :4], torch.tensor(boxes).reshape(-1, 4))
            assert objects[:, 4].tolist() == [n + k for k in range(len(boxes))]


def read_dcase(splits, _):
    """A tenth of each event is held out."""
    train, validation, test = splits
    assert set(train.columns[0]).isdisjoint(validation.columns[0])
    events = torch.cat([train.columns[1], validation.columns[1]]).sum(0)
    assert torch.all(validation.columns[1].sum(0) >= events / 10)
    names, heard = validation.columns
    every = sorted(zip([*names, *train.columns[0]], [*heard, *train.columns[1]], strict=True),
                   key=lambda row: row[0].rpartition(b"/")[2])  # fmt: skip
    for event in range(17):  # the first by name is held out
        assert next(name for name, flags in every if flags[event]) in names
    assert (train[0][0].shape, test[0][0].shape) == ((80_000,), (16, 80_000))
    assert test[1][1].tolist() == [float(k == 1) for k in range(17)]


def read_imagenet(splits, folder):
    """Classes are the synsets in order; at most half of the files, and ten, are held out."""
    train, validation, test = splits
    for part in splits:
        assert part.labels.tolist() == list(range(1000))
    assert not set(train.files) & set(validation.files)
    image, label = test[5]  # which has the picture of number 5 % 4
    assert (image.shape, label) == ((3, 8, 8), 5)
    assert image[0].mean().item() == pytest.approx((60 / 255 - 0.485) / 0.229, abs=0.05)
    for k in range(100):
        os.link(folder / "pictures/0.jpg", folder / f"train/{SYNSETS_OF_IMAGENET[3]}/{k}.JPEG")
    train, validation, _ = imagenet(16)
    assert [int((part.labels == 3).sum()) for part in (train, validation)] == [92, 10]


def read_tags(splits, _):
    """Folders divide the clips; tags are the 50 most frequent; empty files are left out."""
    train, validation, test = splits
    # Clip 16, in folder 0, has no tag; clip 17 is the second of folder 1; clip 3 is empty.
    names = [name.decode() for name in train.columns[0]]
    assert names == [f"{k % 16:x}/clip-{k}.mp3" for k in [0, 1, 2, *range(4, 12), 17]]
    assert b"".join(n[:1] for n in (*validation.columns[0], *test.columns[0])) == b"cdef"
    wave, tags = train[0]
    assert (wave.shape, tags.shape, test[0][0].shape) == ((80_000,), (50,), (16, 80_000))
    assert tags.sum() == 17  # every third of the 50
    assert all(train.columns[1].sum(0) > 0)


def read_nine(splits, _):
    train, validation, test = splits
    assert not set(train.files) & set(validation.files)
    items = [test[index] for index in range(18)]
    synsets = [group.split()[0] for group in SYNSETS.values()]
    assert [label for _, label, *_ in items] == [
        *range(9),
        *sorted(range(9), key=synsets.__getitem__),
    ]
    assert [part for _, _, part, _ in items] == [0] * 9 + [1] * 9
    assert [clusters.tolist() for *_, clusters in items[:9]] == [[k, 0, 0] for k in range(9)]
    assert {validation[k][2] for k in (0, 41)} == {2}


def read_words(splits, _):
    """The official lists divide the speakers."""
    for speaker, part in enumerate(splits):
        paths = [part.path(k) for k in range(len(part))]
        assert [path.name for path in paths] == [f"{speaker:08x}_nohash_0.wav"] * 35
        assert [path.parent.name for path in paths] == [*WORDS]
        assert part.columns[1].tolist() == [*range(35)]
        assert part[4][0].shape == ((1, 16_384) if speaker else (16_384,))


class OnDisk(NamedTuple):
    """A data set's miniature: a task that reads it, sizes of the splits, a test file.

    `read` asserts what was read, of the splits and the folder. A damage is a file, what is done to
    it, and what the error names.
    """

    task: str
    sizes: tuple
    tested: str
    options: dict | None = None
    read: Callable = lambda splits, folder: None
    damages: tuple = ()


PHOTOS = {"task": "retrieval", "options": {"side": 24}}
SHOP = [QUERY, GALLERY, GALLERY, QUERY, GALLERY]
TESTED = f"{PARTS['testing']}/Yte00_30.000_40.000.wav"
SEVENTH = SYNSETS_OF_IMAGENET[7]
CLUSTERS = "9class_imagenet_val.csv"
OBJECTS = "annotations/instances_train2017.json"

ROWS = {
    "cars-196": OnDisk(
        **PHOTOS, sizes=(4, 4, 3),
        read=read_photos([96, 96, 97, 97], [98, 98, 99]), tested="car_ims/000005.jpg",
    ),
    "cub": OnDisk(
        **PHOTOS, sizes=(4, 4, 4),
        read=read_photos([98, 98, 99, 99], [100, 100, 101, 101]),
        tested="images/101.Bird/Bird_0.jpg",
    ),
    "in-shop": OnDisk(
        **PHOTOS, sizes=(4, 4, 5),
        read=read_photos([0, 0, 1, 1], [2, 2, 2, 3, 3], SHOP),
        tested="Img/img/WOMEN/Tees/id_00000007/00_front.jpg",
    ),
    "sop": OnDisk(
        **PHOTOS, sizes=(4, 4, 4),
        read=read_photos([0, 0, 1, 1], [11318, 11318, 11319, 11319]),
        tested="bicycle_final/11319_0.JPG",
    ),
    "cifar10": OnDisk(
        task="adversarial",
        sizes=(10, 10, 4), read=read_cifar, tested="cifar-10-batches-bin/test_batch.bin",
        damages=(("cifar-10-batches-bin/data_batch_2.bin", written(bytes(3072)), ("3073",)),),
    ),
    "coco": OnDisk(
        task="detection", options={"side": 32}, sizes=(18, 2, 4), read=read_coco,
        tested="val2017/000000000001.jpg",
        damages=(("train2017/000000000002.jpg", lost, ("000000000002.jpg", OBJECTS)),),
    ),
    "dcase2017": OnDisk(
        task="events", sizes=(18, 17, 2), read=read_dcase,
        tested=f"{PARTS['evaluation']}/Yev00_30.000_40.000.wav",
        damages=((TESTED, lost, (TESTED,)),),
    ),
    "imagenet": OnDisk(
        task="classification", options={"side": 8}, sizes=(1000,) * 3, read=read_imagenet,
        tested=f"val/{SYNSETS_OF_IMAGENET[0]}/{SYNSETS_OF_IMAGENET[0]}_1.JPEG",
        damages=((f"val/{SEVENTH}/{SEVENTH}_1.JPEG", lost, (f"val/{SEVENTH}",)),),
    ),
    "magnatagatune": OnDisk(
        task="tagging", sizes=(12, 1, 3),
        read=read_tags, tested="d/clip-13.mp3",
        damages=(("b/clip-11.mp3", lost, ("b/clip-11.mp3",)),),
    ),
    "mnist": OnDisk(
        task="debiasing", options={"data_set": "biased-mnist"}, sizes=(15, 30, 20),
        read=read_digits, tested="t10k-images-idx3-ubyte",
    ),
    "nine-class": OnDisk(
        task="debiasing", sizes=(84, 42, 18), read=read_nine,
        tested="../imagenet/val/n02085620/ILSVRC2012_val_00000000.JPEG",
        damages=((CLUSTERS, added("n02123045/none.JPEG,cat,0,0,0\n"), ("none.JPEG", CLUSTERS)),),
    ),
    "speech_commands": OnDisk(
        task="keywords", sizes=(35,) * 3, read=read_words,
        tested="backward/00000002_nohash_0.wav",
        damages=(("zero/00000002_nohash_0.wav", lost, ("zero/00000002_nohash_0.wav",)),),
    ),
    "wikitext-103": OnDisk(
        task="language", options={"segment": 20, "memory": 20}, sizes=(41, 13, 13),
        tested="wiki.test.tokens",
    ),
}  # fmt: skip


def touched(path):
    """Change a byte of a file that is nothing but data, else its length."""
    *before, last = content = path.read_bytes()
    raw = path.suffix == ".bin" or path.name.endswith("ubyte")
    path.write_bytes(bytes([*before, last ^ 1]) if raw else content + b" 1 \n")


@pytest.mark.parametrize("name", layouts())
def test_a_data_set_is_read_as_it_lies_on_disk(name, tmp_path, monkeypatch):
    layout, row, folder = layouts()[name], ROWS[name], tmp_path / name
    task = find_task(row.task, {"data_set": name, **(row.options or {})})
    with refuses(layout.title, "--data"):
        task.data()
    monkeypatch.setenv(FOLDER, str(tmp_path))
    WRITERS[name](tmp_path)
    for path in layout.paths:
        there = folder / path.partition(" or ")[0]
        there.rename(tmp_path / "aside")
        with refuses(path, f"{name}/"):
            task.data()
        (tmp_path / "aside").rename(there)
    for file, damage, named in row.damages:
        shutil.copy(folder / file, tmp_path / "kept")
        damage(folder / file)
        with refuses(*named):
            task.data()
        shutil.move(tmp_path / "kept", folder / file)

    splits = task.data()
    lengths = [len(part[0]) if isinstance(part, tuple) else len(part) for part in splits]
    assert lengths == list(row.sizes)

    shutil.copytree(tmp_path, tmp_path / "elsewhere")
    touched(tmp_path / "elsewhere" / name / row.tested)
    before = [fingerprint_of(Splits(part, part, part)) for part in splits]
    monkeypatch.setenv(FOLDER, str(tmp_path / "elsewhere"))
    after = [fingerprint_of(Splits(part, part, part)) for part in task.data()]
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, True, False]
    monkeypatch.setenv(FOLDER, str(tmp_path))
    row.read(splits, folder)
