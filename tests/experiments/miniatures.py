"""Miniatures of the official layouts of the paper's data sets, in the folder of `--data`."""

import csv
import gzip
import json
import math
import os
import struct

import numpy as np
import soundfile
import torch
from PIL import Image, ImageDraw
from scipy.io import savemat

from spherenorm_paper.adversarial import adversarial as cifar
from spherenorm_paper.audio.recordings import EVENTS, PARTS, WORDS
from spherenorm_paper.debiasing.biased import CLASS, SYNSETS
from spherenorm_paper.retrieval.images import PARTITION

CATEGORIES = [k for k in range(1, 91) if k not in (12, 26, 29, 30, 45, 66, 68, 69, 71, 83)]
"""The numbers of the 80 categories."""

SIZE = 96, 64
COLORS = ((250, 20, 20), (20, 250, 20), (20, 20, 250))

BOXES = (
    ((4.5, 8.0, 30.0, 40.0), (50.0, 10.0, 40.0, 30.0)),
    ((10.0, 4.0, 76.0, 50.0),),
    (),
    ((60.0, 30.0, 36.0, 34.0), (2.0, 2.0, 20.0, 20.0), (30.0, 40.0, 12.0, 0.4)),
)
"""(left, top, width, height) of the objects of each picture; pictures repeat after four."""


def write_coco(root, train=20, val=4):
    """Write pictures; object k of picture n is of category n + k, and every fifth is a crowd."""
    folder = root / "coco"
    (folder / "annotations").mkdir(parents=True)
    number = 0
    for part, count in (("train2017", train), ("val2017", val)):
        (folder / part).mkdir()
        images, annotations = [], []
        for n in range(count):
            name = f"{n + 1:012d}.jpg"
            picture = Image.new("RGB", SIZE, (120, 120, 120))
            for k, (x, y, w, h) in enumerate(BOXES[n % 4]):
                ImageDraw.Draw(picture).rectangle([x, y, x + w, y + h], fill=COLORS[k])
                number += 1
                annotations.append(
                    {
                        **{"id": number, "image_id": n + 1, "bbox": [x, y, w, h], "area": w * h},
                        "category_id": CATEGORIES[(n + k) % 80],
                        "iscrowd": int(number % 5 == 0),
                    }
                )
            picture.save(folder / part / name, quality=95)
            images.append({"id": n + 1, "file_name": name, "width": SIZE[0], "height": SIZE[1]})
        content = {
            "images": images[::-1],  # in no order
            "annotations": annotations[::-1],
            "categories": [{"id": k, "name": f"category {k}"} for k in CATEGORIES[::-1]],
        }
        (folder / f"annotations/instances_{part}.json").write_text(json.dumps(content))


def tone(hz, seconds, rate):
    """A quiet sine."""
    return 0.5 * np.sin(2 * math.pi * hz * np.arange(round(seconds * rate)) / rate)


def write(path, wave, rate):
    """An audio file, of the kind that its name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, wave, rate)


def write_magnatagatune(root, seconds=6.0, clips=18):
    """A clip or two in each folder; 52 tags, of which two never hold; one clip without a tag."""
    folder = root / "magnatagatune"
    tags = ["never", *(f"tag {k}" for k in range(50)), "not once"]
    rows = []
    for k in range(clips):
        name = f"{k % 16:x}/clip-{k}.mp3"
        flags = [0, *(int((k + t) % 3 == 0) for t in range(50)), 0]
        rows.append([str(k), *map(str, flags if k != 16 else [0] * 52), name])
        write(folder / name, tone(200 + 20 * k, seconds, 16_000), 16_000)
    (folder / "3" / "clip-3.mp3").write_bytes(b"")  # as three of the distributed files are
    with (folder / "annotations_final.csv").open("w", newline="") as file:
        writer = csv.writer(file, delimiter="\t", quoting=csv.QUOTE_ALL)
        writer.writerows([["clip_id", *tags, "mp3_path"], *rows])
    return folder


def write_speech_commands(root, speakers=3):
    """A clip of each word and speaker; two speakers are in a list each."""
    folder = root / "speech_commands"
    for k, word in enumerate(WORDS):
        for speaker in range(speakers):
            wave = tone(200 + 50 * k + 7 * speaker, 0.9 + 0.1 * (speaker > 0), 16_000)
            write(folder / word / f"{speaker:08x}_nohash_0.wav", wave, 16_000)
    write(folder / "_background_noise_" / "hum.wav", tone(50, 1, 16_000), 16_000)
    for speaker, name in ((1, "validation_list.txt"), (2, "testing_list.txt")):
        lines = [f"{word}/{speaker:08x}_nohash_0.wav" for word in WORDS]
        (folder / name).write_text("\n".join(lines) + "\n")
    return folder


def write_dcase2017(root, seconds=3.0, training=34):
    """Two training clips of each event, a testing and two evaluation clips, at 44.1 kHz."""
    folder = root / "dcase2017"
    for part, count in (("training", training), ("testing", 1), ("evaluation", 2)):
        lines = []
        for k in range(count):
            clip = f"{part[:2]}{k:02d}_30.000_40.000.wav"
            events = {EVENTS[k % 17], EVENTS[(k + k // 17) % 17]}
            lines += [f"{clip}\t30.000\t40.000\t{event}" for event in sorted(events)]
            write(folder / PARTS[part] / f"Y{clip}", tone(300 + 40 * k, seconds, 44_100), 44_100)
        ends = "\n" if part == "training" else "\r\n"  # as those of the official lists
        path = folder / f"groundtruth_weak_label_{part}_set.csv"
        path.write_bytes((ends.join(lines) + ends).encode())
    return folder


RANDOM = np.random.default_rng(0)


def picture(file):
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(RANDOM.integers(0, 255, (30, 40, 3), dtype=np.uint8)).save(file)


def write_cub(root):
    """Classes 99 to 102, two images each."""
    folder = root / "cub"
    names = [(n, f"{n:03d}.Bird/Bird_{k}.jpg") for n in (99, 100, 101, 102) for k in range(2)]
    for _, name in names:
        picture(folder / "images" / name)
    lines = [(str(i), name, str(n)) for i, (n, name) in enumerate(names, start=1)]
    (folder / "images.txt").write_text("".join(f"{i} {name}\n" for i, name, _ in lines))
    (folder / "image_class_labels.txt").write_text("".join(f"{i} {n}\n" for i, _, n in lines))


def write_cars(root):
    """Classes 97 to 100, two images each, with the fields of the official annotations."""
    folder = root / "cars-196"
    rows = [
        (f"car_ims/{i:06d}.jpg", label) for i, label in enumerate([97, 97, 98, 98, 99, 99, 100])
    ]
    for name, _ in rows:
        picture(folder / name)
    fields = ("relative_im_path", "bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2", "class", "test")
    found = np.zeros((1, len(rows)), dtype=[(name, object) for name in fields])
    for k, (name, label) in enumerate(rows):
        found[0, k] = (name, 1, 1, 9, 9, np.uint8(label), 0)
    savemat(folder / "cars_annos.mat", {"annotations": found, "class_names": np.array(["a", "b"])})


def write_in_shop(root):
    folder = root / "in-shop"
    rows = [
        (f"img/WOMEN/Tees/id_{item:08d}/0{k}_front.jpg", f"id_{item:08d}", status)
        for item, statuses in (
            (1, ["train"] * 2),
            (7, ["query", "gallery", "gallery"]),
            (9, ["train"] * 2),
            (4, ["query", "gallery"]),
        )
        for k, status in enumerate(statuses)
    ]
    for name, *_ in rows:
        picture(folder / "Img" / name)
    (folder / "Eval").mkdir()
    lines = [str(len(rows)), "image_name item_id evaluation_status"]
    lines += [f"{name}    {item}  {status}" for name, item, status in rows]
    (folder / PARTITION).write_text("\n".join(lines) + "\n")


def write_products(root):
    folder, number = root / "sop", 0
    for part, classes in (("train", (1, 2)), ("test", (11319, 11320))):
        lines = ["image_id class_id super_class_id path"]
        for label in classes:
            for k in range(2):
                number += 1
                name = f"bicycle_final/{label}_{k}.JPG"
                picture(folder / name)
                lines.append(f"{number} {label} 1 {name}")
        (folder / f"Ebay_{part}.txt").write_text("\n".join(lines) + "\n")


def write_cifar10(root, images, labels):
    """The binary form: images of shape (6, n, 3072), the last sixth for the test."""
    folder = root / "cifar10" / cifar.FOLDER
    folder.mkdir(parents=True)
    for name, pixels, classes in zip((*cifar.TRAIN, *cifar.TEST), images, labels, strict=True):
        records = np.concatenate([classes[:, None].astype(np.uint8), pixels], axis=1)
        (folder / name).write_bytes(records.tobytes())


def random_cifar10(count):
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (6, count, 3072), dtype=np.uint8)
    return images, random.integers(0, 10, (6, count))


def idx(array):
    head = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.astype(np.uint8).tobytes()


def write_mnist(root, train=30, test=10, zipped=False):
    """Returns images and labels of each part."""
    folder, random, found = root / "mnist", np.random.default_rng(0), {}
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


def write_wikitext(root):
    """Forty lines and less; the vocabulary has the words 0 to 99."""
    folder, random = root / "wikitext-103", torch.Generator().manual_seed(0)
    folder.mkdir()
    for part, lines in (("train", 40), ("valid", 12), ("test", 12)):
        words = torch.randint(100, (lines, 20), generator=random).tolist()
        text = "".join(f" {' '.join(map(str, line))} \n" for line in words)
        (folder / f"wiki.{part}.tokens").write_text(text)


SYNSETS_OF_IMAGENET = [f"n{10_000_000 + 7 * k}" for k in range(1000)]


FLAT = [np.full((16, 20, 3), (60 * k, 15 * k, 128), np.uint8) for k in range(4)]


def write_imagenet(root, images=FLAT):
    """In training two files for each synset, in val one; few different pictures."""
    folder = root / "imagenet"
    (folder / "pictures").mkdir(parents=True)
    for k, image in enumerate(images):
        Image.fromarray(image).save(folder / "pictures" / f"{k}.jpg", quality=95)
    for number, synset in enumerate(SYNSETS_OF_IMAGENET):
        for part, names in (("train", "12"), ("val", "1")):
            place = folder / part / synset
            place.mkdir(parents=True)
            for name in names:
                source = folder / "pictures" / f"{number % len(images)}.jpg"
                os.link(source, place / f"{synset}_{name}.JPEG")


PHOTOS = {
    "cub": write_cub,
    "cars-196": write_cars,
    "in-shop": write_in_shop,
    "sop": write_products,
}

WRITERS = {
    **PHOTOS,
    "cifar10": lambda root: write_cifar10(root, *random_cifar10(4)),
    "coco": write_coco,
    "dcase2017": lambda root: write_dcase2017(root, seconds=0.2),
    "imagenet": write_imagenet,
    "magnatagatune": lambda root: write_magnatagatune(root, seconds=0.5),
    "mnist": write_mnist,
    "nine-class": write_nine_class,
    "speech_commands": write_speech_commands,
    "wikitext-103": write_wikitext,
}
"""Of each layout, by its name."""
