"""Data sets that are drawn: sizes, classes, seeds; no split shares a source with another."""

import math

import numpy as np
import pytest
import torch

from spherenorm_experiments.lookup import find_task, find_task_class
from spherenorm_experiments.task import splits_of
from spherenorm_paper.audio import synthetic
from spherenorm_paper.debiasing import biased
from spherenorm_paper.detection.detection import OBJECTS, glyph_scenes
from spherenorm_paper.language import language
from spherenorm_paper.retrieval import images
from spherenorm_paper.retrieval.images import BOTH, QUERY
from spherenorm_paper.shared import glyphs
from tests.harness.tables import mostly_long


def windows_of_library():
    """Return the numbers of segments of 48 tokens; the text differs between Python's versions."""
    texts = language.source_corpus()[1]
    train, *others = (len(texts[part]) - 1 for part in language.PARTS)
    return train // 48, *(math.ceil(targets / 48) for targets in others)


# Items of training, validation and test, and the shape of one.
ROWS = {
    "adversarial": ((640, 200, 400), (3, 12, 12)),
    "classification": ((1920, 480, 960), (3, 12, 12)),
    "debiasing": ((1100, 2 * 258, 2 * 382), (3, 8, 8)),
    "detection": ((1024, 128, 384), (3, 32, 32)),
    "digits": ((1150, 287, 360), (1, 8, 8)),
    "events": ((768, 192, 320), (4096,)),
    "keywords": ((600, 180, 300), (4096,)),
    "language": (windows_of_library, (32 + 48 + 1,)),
    "tagging": ((1024, 288, 288), (2048,)),
}


def apart(sources):
    return all(not a & b for i, a in enumerate(sources) for b in sources[:i])


@pytest.mark.parametrize("name", mostly_long(ROWS, kept=4))
def test_splits_have_their_sizes_and_no_label_is_rare(name):
    sizes, shape = ROWS[name]
    sizes = sizes() if callable(sizes) else sizes
    splits = splits_of(find_task_class(name)())
    assert tuple(len(split[0]) for split in splits) == sizes
    for items, *targets in splits:
        assert items.shape[1:] == shape
        assert items.isfinite().all()
        if name in ("language", "detection"):
            continue
        labels = targets[0]
        if labels.ndim == 1:
            counts = torch.bincount(labels)
            written = {"digits": 8, "debiasing": 20}  # in the proportions of the data
            assert counts.max() - counts.min() <= written.get(name, 1)
        else:
            assert labels.sum(0).min() >= 10
            assert labels.sum(1).min() >= 1


@pytest.mark.parametrize(
    "draw",
    [
        lambda seed: glyphs.glyph_images(20, seed, size=16),
        lambda seed: glyph_scenes(6, seed),
        lambda seed: [biased.stripe_strokes(torch.zeros(4, 32, 32), torch.arange(4), seed)],
        lambda seed: [biased.draw_grounds(torch.arange(100) % 10, 0.5, seed)],
    ],
    ids=["glyphs", "scenes", "stripes", "grounds"],
)
def test_a_seed_gives_the_same_bytes_and_another_seed_others(draw):
    first, again, other = (draw(seed) for seed in (3, 3, 4))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[0], other[0])


@pytest.mark.parametrize("draw", [synthetic.spoken_words, synthetic.street_sounds])
def test_sounds_are_the_same_each_time(draw):
    for first, again in zip(draw(), draw.__wrapped__(), strict=True):
        assert all(map(torch.equal, first, again))


def test_each_split_of_glyphs_has_fonts_of_its_own():
    used = []

    def noted(count, seed, *, fonts, size):
        used.append(set(fonts))
        return glyphs.glyph_images(count, seed, fonts=fonts, size=size)

    glyphs.by_fonts(noted, (2, 2, 2), size=8)
    assert [*map(set, glyphs.FONTS)] == used
    assert apart(used)


@pytest.mark.parametrize("name", images.PROTOCOLS)
def test_each_split_of_a_retrieval_has_classes_of_its_own(monkeypatch, name):
    protocol, used, whole = images.PROTOCOLS[name], [], images.glyph_images

    def noted(count, seed, *, characters, **how):
        used.append(set(characters))
        return whole(count, seed, characters=characters, **how)

    monkeypatch.setattr(images, "glyph_images", noted)
    splits = images.glyph_classes.__wrapped__(name, 8)
    assert [len(each) for each in used] == list(protocol.classes)
    assert apart(used)
    for count, (pictures, labels, roles) in zip(protocol.classes, splits, strict=True):
        assert pictures.shape == (count * protocol.images, 3, 8, 8)
        assert labels.bincount().tolist() == [protocol.images] * count
        queries = [int((roles[labels == label] == QUERY).sum()) for label in range(count)]
        assert queries == [protocol.queries] * count
        assert ((roles == BOTH).all()) == (not protocol.queries)


def test_speakers_and_modules_are_in_one_split():
    clips = [len(part[0]) for part in synthetic.spoken_words()]
    assert clips == [len(synthetic.WORDS) * people for people in synthetic.SPEAKERS]  # one by one
    assert apart([set(modules) for modules, _ in language.LIBRARY.values()])


def test_no_writer_is_in_two_parts():
    """Each writer has filled in a form, which begins with 0 to 9, twice; the labels are in order.

    So a part begins with a form, but for the rest of a form that no part has.
    """
    _, labels = biased.handwritten_digits()
    forms = [k for k in range(len(labels) - 20) if labels[k : k + 20].tolist() == [*range(10)] * 2]
    ends = [part.indices(len(labels))[:2] for part in biased.PARTS]
    assert apart(
        [
            {max(k for k in forms if k <= digit) for digit in range(first, last)}
            for first, last in ends
        ]
    )


def test_boxes_of_scenes_are_inside_apart_and_of_the_size_that_is_asked():
    images, objects = glyph_scenes(60, 0, size=40)
    assert images.shape == (60, 3, 40, 40)
    assert set(objects[..., 4].flatten().tolist()) == {-1, *range(len(OBJECTS))}
    for rows in objects:
        real = rows[rows[:, 4] >= 0]
        assert len(real)
        assert (rows[len(real) :] == -1).all()
        assert ((real[:, :4] >= 0) & (real[:, :4] <= 40)).all()
        assert (real[:, 5] == 0).all()
        longer = (real[:, 2:4] - real[:, :2]).max(1)
        assert ((longer >= 11) & (longer <= 24)).all()
        for i, a in enumerate(real):
            for b in real[i + 1 :]:
                assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]


def test_digits_are_stratified_and_standardized():
    splits = find_task("digits").data()
    shares = np.array([torch.bincount(y, minlength=10).numpy() / len(y) for _, y in splits])
    assert np.ptp(shares, axis=0).max() < 0.01
    assert splits.train[0].mean().abs() < 1e-5
    assert abs(splits.train[0].std() - 1) < 1e-5


# Parameters of the small networks, by task and options.
SMALL = [
    ("adversarial", {}, 19_858),
    ("classification", {"network": "mobilenetv2"}, 7_370),
    ("classification", {"network": "resnet18"}, 19_954),
    ("classification", {"network": "resnet50"}, 8_974),
    ("classification", {"network": "efficientnet-b0"}, 4_134),
    ("classification", {"network": "efficientnet-b3"}, 12_343),
    ("classification", {"network": "rexnet-1.0"}, 11_758),
    ("classification", {"network": "rexnet-1.3"}, 18_384),
    ("debiasing", {"data_set": "digits"}, 11_188),
    ("debiasing", {"data_set": "stripes"}, 6_876),
    ("detection", {"detector": "centernet"}, 155_922),
    ("detection", {"detector": "ssd"}, 105_264),
    ("events", {}, 7_865),
    ("keywords", {}, 7_933),
    ("language", {}, 74_882),
    ("language", {"weight_norm": True}, 75_906),
    ("retrieval", {}, 11_964),
    ("retrieval", {"objective": "proxy-anchor", "data_set": "few-images"}, 13_884),
    ("tagging", {}, 7_899),
]


@pytest.mark.parametrize(("name", "options", "parameters"), SMALL)
def test_a_small_network_has_its_size(name, options, parameters):
    model = find_task(name, options).model()
    if name == "language":  # the characters that Python's version has used
        parameters += 65 * language.source_corpus()[0]
    assert sum(weight.numel() for weight in model.parameters()) == parameters
