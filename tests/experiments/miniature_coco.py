"""A miniature of MS-COCO's official layout: JPEG files, and annotations with the real numbers."""

import json

from PIL import Image, ImageDraw

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


def write_coco(folder, train=20, val=4):
    """Write pictures; object k of picture n is of category n + k, and every fifth is a crowd."""
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
            "categories": [{"id": k, "name": f"category {k}"} for k in CATEGORIES],
        }
        (folder / f"annotations/instances_{part}.json").write_text(json.dumps(content))
