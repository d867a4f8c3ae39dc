"""CUB, Cars-196, In-Shop and SOP: miniatures of the official layouts, and the glyphs' protocols."""

import numpy as np
import pytest
import torch
from miniatures import PHOTOS, write_in_shop

from spherenorm_experiments.paper.retrieval import glyph_classes
from spherenorm_experiments.paper.retrieval.glyph_classes import BOTH, GALLERY, QUERY
from spherenorm_experiments.paper.retrieval.photos import SOURCES, photos
from spherenorm_experiments.paper.shared import glyphs
from spherenorm_experiments.paper.shared.imagenet import Pictures
from spherenorm_experiments.paper.shared.layout import FOLDER

CLASSES = {
    "cub": ([98, 98, 99, 99], [100, 100, 101, 101]),
    "cars-196": ([96, 96, 97, 97], [98, 98, 99]),
    "in-shop": ([0, 0, 1, 1], [2, 2, 2, 3, 3]),
    "sop": ([0, 0, 1, 1], [11318, 11318, 11319, 11319]),
}
"""Of the miniatures: training and test."""


@pytest.mark.parametrize("name", PHOTOS)
def test_training_and_test_have_the_official_classes(name, tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER, str(tmp_path))
    PHOTOS[name](tmp_path)
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


def test_the_fingerprint_has_the_role_of_each_image(tmp_path):
    write_in_shop(tmp_path)
    folder = tmp_path / "in-shop"
    rows = [row[:2] for row in SOURCES["in-shop"][1](folder).test]
    roles = [QUERY, GALLERY, GALLERY, QUERY, GALLERY]
    prints = {Pictures(folder, rows, None, x).fingerprint() for x in (roles, roles[::-1])}
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
