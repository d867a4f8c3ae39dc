"""Validation is drawn as the test is: neither shares a source with the other or with training."""

import hashlib

import pytest

from spherenorm_experiments.core import find_task_class, splits_of
from spherenorm_experiments.paper.adversarial import adversarial
from spherenorm_experiments.paper.audio import spoken
from spherenorm_experiments.paper.debiasing import biased
from spherenorm_experiments.paper.detection import detection
from spherenorm_experiments.paper.imagenet import classification
from spherenorm_experiments.paper.language import texts
from spherenorm_experiments.paper.retrieval import glyph_classes
from spherenorm_experiments.paper.shared import glyphs

FONTS = (set(glyphs.TRAIN_FONTS), set(glyphs.VALIDATION_FONTS), set(glyphs.TEST_FONTS))


def _apart(sources):
    return all(not a & b for i, a in enumerate(sources) for b in sources[:i])


@pytest.mark.parametrize(
    ("module", "draw", "splits"),
    [
        (adversarial.glyphs, "glyph_images", adversarial._glyphs.__wrapped__),
        (classification, "glyph_images", lambda: classification._drawn.__wrapped__(12)),
        (detection, "glyph_scenes", lambda: detection._scenes.__wrapped__(16)),
    ],
    ids=["adversarial", "classification", "detection"],
)
def test_each_split_of_glyphs_has_fonts_of_its_own(monkeypatch, module, draw, splits):
    used, whole = [], getattr(module, draw)

    def noted(count, seed, *, fonts, **how):
        used.append(set(fonts))
        return whole(4, seed, fonts=fonts, **how)

    monkeypatch.setattr(module, draw, noted)
    splits()
    assert tuple(used) == FONTS
    assert _apart(used)


@pytest.mark.parametrize("name", glyph_classes.PROTOCOLS)
def test_each_split_of_a_retrieval_has_classes_of_its_own(monkeypatch, name):
    used, whole = [], glyph_classes.glyph_images

    def noted(count, seed, *, characters, **how):
        used.append(set(characters))
        return whole(4, seed, characters=characters, **how)

    monkeypatch.setattr(glyph_classes, "glyph_images", noted)
    glyph_classes.glyph_classes.__wrapped__(name, 16)
    assert [len(each) for each in used] == list(glyph_classes.PROTOCOLS[name].classes)
    assert _apart(used)


def test_speakers_writers_and_modules_are_in_one_split():
    clips = [len(part[0]) for part in spoken.spoken_words()]
    assert clips == [len(spoken.WORDS) * people for people in spoken.SPEAKERS]  # one by one
    borders = (1157, 1287, 1415)  # where writers change
    assert [part.start for part in biased.PARTS[1:]] == [borders[0], borders[2]]
    assert _apart([set(modules) for modules in texts.MODULES.values()])


@pytest.mark.parametrize("task", ["tagging", "keywords", "events", "digits"])
def test_no_item_is_in_two_splits(task):
    splits = splits_of(find_task_class(task)())
    assert _apart([{hashlib.sha256(x.numpy().tobytes()).digest() for x in part[0]}
                   for part in splits])  # fmt: skip
