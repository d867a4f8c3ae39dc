"""Miniatures of the official layouts of CUB, Cars-196, In-Shop and SOP."""

import numpy as np
from PIL import Image
from scipy.io import savemat

from spherenorm_experiments.paper.retrieval.photos import PARTITION

RANDOM = np.random.default_rng(0)


def picture(file):
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(RANDOM.integers(0, 255, (30, 40, 3), dtype=np.uint8)).save(file)


def write_cub(folder):
    """Classes 99 to 102, two images each."""
    names = [(n, f"{n:03d}.Bird/Bird_{k}.jpg") for n in (99, 100, 101, 102) for k in range(2)]
    for _, name in names:
        picture(folder / "images" / name)
    lines = [(str(i), name, str(n)) for i, (n, name) in enumerate(names, start=1)]
    (folder / "images.txt").write_text("".join(f"{i} {name}\n" for i, name, _ in lines))
    (folder / "image_class_labels.txt").write_text("".join(f"{i} {n}\n" for i, _, n in lines))


def write_cars(folder):
    """Classes 97 to 100, two images each, with the fields of the official annotations."""
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


def write_in_shop(folder):
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


def write_products(folder):
    number = 0
    for part, classes in (("train", (1, 2)), ("test", (11319, 11320))):
        lines = ["image_id class_id super_class_id path"]
        for label in classes:
            for k in range(2):
                number += 1
                name = f"bicycle_final/{label}_{k}.JPG"
                picture(folder / name)
                lines.append(f"{number} {label} 1 {name}")
        (folder / f"Ebay_{part}.txt").write_text("\n".join(lines) + "\n")


WRITERS = {
    "cub": write_cub,
    "cars-196": write_cars,
    "in-shop": write_in_shop,
    "sop": write_products,
}
