"""The official layouts of the audio benchmarks, in miniature."""

import pytest
import torch
from miniatures import write_dcase2017, write_magnatagatune, write_speech_commands

from spherenorm_experiments.paper.audio.recordings import (
    WORDS,
    dcase2017,
    magnatagatune,
    speech_commands,
)
from spherenorm_experiments.paper.shared.layout import FOLDER


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER, str(tmp_path))
    return tmp_path


def test_magnatagatune_is_divided_by_folder_and_has_the_most_frequent_tags(root):
    folder = write_magnatagatune(root, seconds=0.5)
    (folder / "3" / "clip-3.mp3").write_bytes(b"")  # as three of the distributed files are
    train, validation, test = magnatagatune(4000, chunks=3)
    # Clip 16, in folder 0, has no tag; clip 17 is the second of folder 1; clip 3 is empty.
    names = [path.relative_to(folder).as_posix() for path in train.files]
    expected = [0, 1, 2, *range(4, 12), 17]
    assert names == [f"{k % 16:x}/clip-{k}.mp3" for k in expected]
    assert [path.parent.name for path in (*validation.files, *test.files)] == [*"cdef"]
    wave, tags = train[0]
    assert wave.shape == (4000,)
    assert tags.shape == (50,)
    assert tags.sum() == 17  # of clip 0: every third of the 50, in the order of their frequency
    assert test[0][0].shape == (3, 4000)
    assert all(train.targets.sum(0) > 0)


def test_speech_commands_follow_the_official_lists(root):
    write_speech_commands(root)
    train, validation, test = speech_commands(16_384)
    for speaker, part in enumerate((train, validation, test)):
        assert [path.name for path in part.files] == [f"{speaker:08x}_nohash_0.wav"] * 35
        assert [path.parent.name for path in part.files] == [*WORDS]
        assert part.targets.tolist() == [*range(35)]
    assert train[4][0].shape == (16_384,)
    assert test[4][0].shape == (1, 16_384)


def test_dcase_holds_out_a_tenth_of_each_event(root):
    write_dcase2017(root, seconds=0.2, training=17 * 11)
    train, validation, test = dcase2017(3200, chunks=2)
    assert len(train) + len(validation) == 17 * 11 + 1
    assert len(test) == 2
    assert set(train.files).isdisjoint(validation.files)
    events = torch.cat([train.targets, validation.targets]).sum(0)
    assert torch.all(validation.targets.sum(0) >= events / 10)
    # 22 clips of each event, and each of the 17 holds out three of them.
    assert len(validation) <= 17 * 3
    wave, targets = train[0]
    assert wave.shape == (3200,)
    assert targets.shape == (17,)
    assert test[1][1].tolist() == [float(k == 1) for k in range(17)]
