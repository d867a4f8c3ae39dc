"""CUB, Cars-196, In-Shop and SOP: miniatures of the official layouts, and the glyphs' protocols."""

import numpy as np
import pytest
import torch
from miniatures import WRITERS, write_in_shop
from scipy.io import savemat

from spherenorm_experiments.paper.retrieval import glyph_classes
from spherenorm_experiments.paper.retrieval.glyph_classes import BOTH, GALLERY, QUERY
from spherenorm_experiments.paper.retrieval.photos import PARTITION, SOURCES, photos
from spherenorm_experiments.paper.shared import glyphs
from spherenorm_experiments.paper.shared.imagenet import Pictures
from spherenorm_experiments.paper.shared.layout import FOLDER, checked

CLASSES = {
    "cub": ([98, 98, 99, 99], [100, 100, 101, 101]),
    "cars-196": ([96, 96, 97, 97], [98, 98, 99]),
    "in-shop": ([0, 0, 1, 1], [2, 2, 2, 3, 3]),
    "sop": ([0, 0, 1, 1], [11318, 11318, 11319, 11319]),
}
"""Of the miniatures: training and test."""


@pytest.fixture(params=WRITERS)
def miniature(request, tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER, str(tmp_path))
    folder = tmp_path / request.param
    folder.mkdir()
    WRITERS[request.param](folder)
    return request.param, folder


def test_training_and_test_have_the_official_classes(miniature):
    name, folder = miniature
    splits = photos(name, 24)
    assert (splits.train.labels.tolist(), splits.test.labels.tolist()) == CLASSES[name]
    assert splits.validation.labels.tolist() == splits.train.labels.tolist()
    shop = [QUERY, GALLERY, GALLERY, QUERY, GALLERY]
    roles = splits.test.columns[0].tolist()
    assert roles == (shop if name == "in-shop" else [BOTH] * len(roles))
    image, label, role = splits.test[0]
    assert image.shape == (3, 24, 24)
    assert (label, role) == (CLASSES[name][1][0], roles[0])
    torch.manual_seed(0)
    first, second = splits.train[0][0], splits.train[0][0]
    assert not torch.equal(first, second)  # crops are random
    assert torch.equal(splits.test[0][0], image)  # those of the test are not

    found = {key: number for key, (_, number) in checked(SOURCES[name][0], folder).items()}
    assert found["train images"] == 4
    assert sum(x for key, x in found.items() if "images" in key) == 4 + len(splits.test)
    assert (found["train classes"], found["test classes"]) == (2, 2)


def test_official_counts_agree_with_the_known_totals():
    totals = {"cub": 11_788, "cars-196": 16_185, "in-shop": 52_712, "sop": 120_053}
    for name, total in totals.items():
        numbers = SOURCES[name][0].statistics
        assert sum(x for key, x in numbers.items() if "images" in key) == total


def test_a_missing_path_is_named_with_the_tree(miniature):
    name, folder = miniature
    first = SOURCES[name][0].paths[0]
    (folder / first).unlink()
    with pytest.raises(ValueError, match=rf"lacks {first}; expected\n"):
        photos(name, 24)


@pytest.mark.parametrize(
    ("name", "damage", "wrong"),
    [
        ("in-shop", (PARTITION, "9\n", "8\n"), r"has 9 images in Eval/list_eval_partition\.txt"),
        ("in-shop", (PARTITION, "query", "asks"), "has the status 'asks'"),
        ("cub", ("image_class_labels.txt", "2 99\n", ""), "has no class of image 2"),
        ("cars-196", None, "has no annotations of path and class"),
        ("sop", ("Ebay_train.txt", "image_id", "id"), r"has the heading 'id class_id .*Ebay_train"),
    ],
)
def test_lists_that_contradict_themselves_are_refused(name, damage, wrong, tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER, str(tmp_path))
    folder = tmp_path / name
    folder.mkdir()
    WRITERS[name](folder)
    if damage is None:
        savemat(folder / "cars_annos.mat", {"other": 1})
    else:
        file, old, new = damage
        (folder / file).write_text((folder / file).read_text().replace(old, new, 1))
    with pytest.raises(ValueError, match=wrong):
        photos(name, 24)


def test_the_fingerprint_has_the_role_of_each_image(tmp_path):
    write_in_shop(tmp_path)
    rows = [row[:2] for row in SOURCES["in-shop"][1](tmp_path).test]
    roles = [QUERY, GALLERY, GALLERY, QUERY, GALLERY]
    prints = {Pictures(tmp_path, rows, None, x).fingerprint() for x in (roles, roles[::-1])}
    assert len(prints) == 2


@pytest.mark.parametrize("name", glyph_classes.PROTOCOLS)
def test_glyphs_are_divided_as_the_protocol_says(name):
    protocol = glyph_classes.PROTOCOLS[name]
    assert sum(protocol.classes) <= len(glyph_classes.ALPHABET)
    splits = glyph_classes.glyph_classes(name, 8)
    for count, (images, labels, roles) in zip(protocol.classes, splits, strict=True):
        assert images.shape == (count * protocol.images, 3, 8, 8)
        assert labels.bincount().tolist() == [protocol.images] * count
        queries = [int((roles[labels == label] == QUERY).sum()) for label in range(count)]
        assert queries == [protocol.queries] * count
        assert ((roles == BOTH).all()) == (not protocol.queries)


@pytest.mark.parametrize("font", glyph_classes.FONTS)
def test_no_two_characters_of_the_alphabet_look_the_same(font):
    assert len(set(glyph_classes.ALPHABET)) == len(glyph_classes.ALPHABET)
    unknown = glyphs.mask("\U0010fffd", font, 16)
    drawn = [unknown] + [glyphs.mask(c, font, 16) for c in glyph_classes.ALPHABET]
    shapes = {}
    for alpha in drawn:
        for other in shapes.setdefault(alpha.shape, []):
            assert np.abs(alpha - other).mean() > 0.02
        shapes[alpha.shape].append(alpha)
