"""CUB, Cars-196, In-Shop and SOP: miniatures of the official layouts, and the glyphs' protocols."""

import numpy as np
import pytest
import torch
from retrieval_folders import WRITERS, write_cub, write_in_shop
from scipy.io import savemat

from spherenorm_experiments.paper.retrieval import cars, cub, glyph_classes, in_shop, products
from spherenorm_experiments.paper.retrieval.listed import BOTH, GALLERY, QUERY, splits_of
from spherenorm_experiments.paper.shared import glyphs
from spherenorm_experiments.paper.shared.layout import checked


@pytest.fixture(params=WRITERS)
def miniature(request, tmp_path):
    source, write = WRITERS[request.param]
    write(tmp_path)
    return source, tmp_path


def test_training_and_test_have_the_official_classes(miniature):
    source, folder = miniature
    found = source.listed(folder)
    expected = {
        cub: ([98, 98, 99, 99], [100, 100, 101, 101]),
        cars: ([96, 96, 97, 97], [98, 98, 99]),
        in_shop: ([0, 0, 1, 1], [2, 2, 2, 3, 3]),
        products: ([0, 0, 1, 1], [11318, 11318, 11319, 11319]),
    }[source]
    assert ([label for _, label in found.train], [label for _, label, _ in found.test]) == expected
    roles = [role for *_, role in found.test]
    shop = [QUERY, GALLERY, GALLERY, QUERY, GALLERY]
    assert roles == (shop if source is in_shop else [BOTH] * len(roles))
    assert all((folder / path).is_file() for path, *_ in [*found.train, *found.test])


def test_items_are_images_with_class_and_role(miniature):
    source, folder = miniature
    splits = splits_of(folder, source.listed(folder), 24, 0)
    image, label, role = splits.test[0]
    assert image.shape == (3, 24, 24)
    assert (label, role) == source.listed(folder).test[0][1:]
    torch.manual_seed(0)
    first, second = splits.train[0][0], splits.train[0][0]
    assert not torch.equal(first, second)  # crops are random
    assert torch.equal(splits.test[0][0], image)  # those of the test are not


def test_counts_are_those_of_the_lists(miniature):
    source, folder = miniature
    found = {name: number for name, (_, number) in checked(source.LAYOUT, folder).items()}
    listed = source.listed(folder)
    assert found["train images"] == len(listed.train) == 4
    assert sum(x for name, x in found.items() if "images" in name) == 4 + len(listed.test)
    assert (found["train classes"], found["test classes"]) == (2, 2)


def test_official_counts_agree_with_the_known_totals():
    totals = {cub: 11_788, cars: 16_185, in_shop: 52_712, products: 120_053}
    for source, total in totals.items():
        numbers = source.LAYOUT.statistics
        assert sum(x for name, x in numbers.items() if "images" in name) == total


def test_a_missing_path_is_named_with_the_tree(miniature):
    source, folder = miniature
    first = folder / source.LAYOUT.paths[0]
    first.unlink()
    with pytest.raises(ValueError, match=rf"lacks {source.LAYOUT.paths[0]}; expected\n"):
        source.LAYOUT.require(folder)


def test_lists_that_contradict_themselves_are_refused(tmp_path):
    write_in_shop(tmp_path)
    file = tmp_path / in_shop.PARTITION
    text = file.read_text()
    file.write_text(text.replace("9\n", "8\n", 1))
    with pytest.raises(ValueError, match=r"has 9 images in Eval/list_eval_partition\.txt"):
        in_shop.listed(tmp_path)
    file.write_text(text.replace("query", "asks"))
    with pytest.raises(ValueError, match="has the status 'asks'"):
        in_shop.listed(tmp_path)


def test_more_contradictions_are_refused(tmp_path):
    write_cub(tmp_path)
    (tmp_path / "image_class_labels.txt").write_text("1 99\n")
    with pytest.raises(ValueError, match="has no class of image 2"):
        cub.listed(tmp_path)
    savemat(tmp_path / "cars_annos.mat", {"other": 1})
    with pytest.raises(ValueError, match="has no annotations of path and class"):
        cars.listed(tmp_path)
    (tmp_path / "Ebay_train.txt").write_text("path\n")
    with pytest.raises(ValueError, match=r"has the heading 'path' in Ebay_train\.txt"):
        products.listed(tmp_path)


def test_validation_classes_are_the_last_of_training(miniature):
    source, folder = miniature
    listed = source.listed(folder)
    labels = sorted({label for _, label in listed.train})
    assert splits_of(folder, listed, 24, 0).validation.labels.tolist() == [
        label for _, label in listed.train
    ]
    if source in (in_shop, products):  # of two classes none can be spared
        with pytest.raises(ValueError, match="held_out must be from 0 to 0 classes, got 1"):
            splits_of(folder, listed, 24, 1)
        return
    train, validation, _ = splits_of(folder, listed, 24, 1)
    assert set(train.labels.tolist()) == {labels[0]}
    assert set(validation.labels.tolist()) == {labels[1]}


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


def test_the_fingerprint_has_the_role_of_each_image(tmp_path):
    write_in_shop(tmp_path)
    listed = in_shop.listed(tmp_path)
    (path, label, _), (other, same, _), *rest = listed.test
    swapped = listed._replace(test=[(path, label, GALLERY), (other, same, QUERY), *rest])
    found = [splits_of(tmp_path, each, 24, 0).test.fingerprint() for each in (listed, swapped)]
    assert found[0] != found[1]
