"""Speech Commands, version 2: one second of a spoken word each; 35 words.

The official lists name the clips for validation and test; all others are for training. Speakers are
in one part only.

Source: P. Warden, *Speech Commands: A Dataset for Limited-Vocabulary Speech Recognition*, 2018.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from spherenorm_experiments.core import Splits
from spherenorm_experiments.paper.audio._audio import Clips
from spherenorm_experiments.paper.shared.layout import Layout

__all__ = ["LAYOUT", "WORDS", "speech_commands"]

WORDS = (
    *("backward", "bed", "bird", "cat", "dog", "down", "eight", "five", "follow", "forward"),
    *("four", "go", "happy", "house", "learn", "left", "marvin", "nine", "no", "off", "on", "one"),
    *("right", "seven", "sheila", "six", "stop", "three", "tree", "two", "up", "visual", "wow"),
    *("yes", "zero"),
)
VALIDATION, TEST = "validation_list.txt", "testing_list.txt"


def _count(folder: Path) -> Mapping[str, int]:
    clips = sum(len(list((folder / word).glob("*.wav"))) for word in WORDS)
    listed = {name: len(_listed(folder, name)) for name in (VALIDATION, TEST)}
    words = sum((folder / word).is_dir() for word in WORDS)
    found = {"words": words, "clips": clips}
    return {**found, "validation clips": listed[VALIDATION], "test clips": listed[TEST]}


LAYOUT = Layout(
    name="speech_commands",
    title="Speech Commands v0.02",
    tree="""
speech_commands/           (speech_commands_v0.02.tar.gz, unpacked)
  validation_list.txt      a clip a line: bed/026290a7_nohash_0.wav
  testing_list.txt
  _background_noise_/*.wav (not used)
  backward/*.wav           a folder for each of the 35 words
  ...
  zero/*.wav
""",
    paths=(VALIDATION, TEST, *WORDS),
    statistics={
        "words": 35,
        "clips": 105_829,
        "validation clips": 9_981,
        "test clips": 11_005,
    },
    count=_count,
    source="download.tensorflow.org/data/speech_commands_v0.02.tar.gz",
)


def speech_commands(samples: int) -> Splits:
    """The splits, each of (wave, word): the word is its place in `WORDS`.

    Args:
        samples: of a clip, at 16 kHz. The zeros around it are at random in training, equally many
            on both sides else, where waves have the shape (1, samples).

    Raises:
        ValueError: the folder has another layout, or lacks a clip of a list.
    """
    folder = LAYOUT.folder()
    validation, test = _listed(folder, VALIDATION), _listed(folder, TEST)
    for name in (*validation, *test):
        if not (folder / name).is_file():
            raise LAYOUT.error(folder, f"lacks {name}")
    clips = (path for word in WORDS for path in sorted((folder / word).glob("*.wav")))
    every = [path.relative_to(folder).as_posix() for path in clips]
    listed = {*validation, *test}
    parts = [[name for name in every if name not in listed], validation, test]
    return Splits(*(_part(folder, names, samples, k > 0) for k, names in enumerate(parts)))


def _part(folder: Path, names: Sequence[str], samples: int, evaluated: bool) -> Clips:
    words = torch.tensor([WORDS.index(name.split("/")[0]) for name in names])
    return Clips([folder / name for name in names], words, samples, 1 if evaluated else None)


def _listed(folder: Path, name: str) -> list[str]:
    return (folder / name).read_text().split()
