"""The official data sets of sound: MagnaTagATune, Speech Commands 2, and task 4 of DCASE 2017.

They are divided as the authors of Harmonic CNN divide them.

Source: E. Law et al., *Evaluation of Algorithms Using Games: The Case of Music Tagging*, 2009;
P. Warden, *Speech Commands: A Dataset for Limited-Vocabulary Speech Recognition*, 2018;
A. Mesaros et al., *DCASE 2017 Challenge Setup: Tasks, Datasets and Baseline System*, 2017.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from spherenorm_experiments.lookup import Layout, require_extra
from spherenorm_experiments.task import Splits
from spherenorm_paper.shared.facts import layout
from spherenorm_paper.shared.items import Items

RATE = 16_000
"""Samples a second."""


def read_wave(path: Path) -> Tensor:
    """Read WAV, FLAC, OGG or MP3: the mean of its channels at 16 kHz, of shape (samples,).

    Another rate is resampled by a polyphase filter.
    """
    audio = require_extra("soundfile", "reading audio")
    samples, rate = audio.read(path, dtype="float32", always_2d=True)
    wave = samples.mean(axis=1)
    if rate != RATE:
        from scipy.signal import resample_poly

        common = math.gcd(RATE, rate)
        wave = resample_poly(wave, RATE // common, rate // common)
    return torch.from_numpy(wave).float()


def crop(wave: Tensor, samples: int, chunks: int | None) -> Tensor:
    """A part of a wave at a random place, or several; a shorter wave has zeros around it.

    Args:
        samples: of a crop.
        chunks: None for one of shape (samples,) at random; else this many, of shape (chunks,
            samples), at multiples of floor((length - samples) / chunks), as the authors of Harmonic
            CNN have them; the zeros are then equally many on both sides.
    """
    room = len(wave) - samples
    place = abs(room) // 2 if chunks else int(torch.randint(abs(room) + 1, ()))
    if room < 0:
        wave, room, place = F.pad(wave, (place, -room - place)), 0, 0
    if chunks is None:
        return wave[place : place + samples]
    hop = room // chunks
    return torch.stack([wave[i * hop : i * hop + samples] for i in range(chunks)])


def recordings(data_set: str) -> Splits:
    """Random crops for training, chunks for validation and test.

    Args:
        data_set: a key of `SOURCES`.

    Raises:
        ValueError: no folder was given, it has another layout, or lacks a clip.
    """
    official, divided, samples, chunks = SOURCES[data_set]
    folder, splits = official.folder(), list[Items]()
    for names, targets in divided(folder):
        missing = next((name for name in names if not (folder / name).is_file()), None)
        if missing is not None:
            raise official.error(folder, f"lacks {missing}")
        form = (samples, chunks if splits else None)
        load = functools.partial(_load, *form)
        splits.append(Items(load, names, targets, folder=folder, form=form))
    return Splits(*splits)


def _load(samples: int, chunks: int | None, path: Path, target: Tensor) -> tuple[Tensor, Tensor]:
    return crop(read_wave(path), samples, chunks), target


Part = tuple[list[str], Tensor]
"""The files of a split, relative to the folder, and their targets."""

TAGS = 50
FOLDERS = ("0123456789ab", "c", "def")
"""First characters of the folders of the training, validation and test set."""


def _annotations(folder: Path) -> pd.DataFrame:
    """The most frequent tags, the first most often, by the path of a clip: 0 or 1."""
    table = pd.read_csv(folder / "annotations_final.csv", sep="\t", index_col="mp3_path")
    tags = table.drop(columns="clip_id")
    return tags[tags.sum().sort_values(ascending=False, kind="stable").index[:TAGS]]


def _music(folder: Path) -> Iterator[Part]:
    """Clips of 29 s with some of the tags. Three of the files that are distributed are empty."""
    tags = _annotations(folder)
    tags = tags[tags.any(axis=1)]
    paths = [folder / name for name in tags.index]
    tags = tags[[not path.is_file() or path.stat().st_size > 0 for path in paths]]
    for part in FOLDERS:
        part_tags = tags[tags.index.str[0].isin([*part])]
        yield [*part_tags.index], torch.tensor(part_tags.to_numpy(dtype=np.float32))


MAGNATAGATUNE = layout("magnatagatune")

WORDS = (
    *("backward", "bed", "bird", "cat", "dog", "down", "eight", "five", "follow", "forward"),
    *("four", "go", "happy", "house", "learn", "left", "marvin", "nine", "no", "off", "on", "one"),
    *("right", "seven", "sheila", "six", "stop", "three", "tree", "two", "up", "visual", "wow"),
    *("yes", "zero"),
)
LISTS = ("validation_list.txt", "testing_list.txt")


def _listed(folder: Path, name: str) -> list[str]:
    return (folder / name).read_text(encoding="utf-8").split()


def _words(folder: Path) -> Iterator[Part]:
    """Clips of a second. The official lists are validation and test; speakers are in one part."""
    validation, test = (_listed(folder, name) for name in LISTS)
    listed = {*validation, *test}
    paths = (path for word in WORDS for path in sorted((folder / word).glob("*.wav")))
    files = (path.relative_to(folder).as_posix() for path in paths)
    for names in ([name for name in files if name not in listed], validation, test):
        yield names, torch.tensor([WORDS.index(name.split("/")[0]) for name in names])


SPEECH_COMMANDS = layout("speech_commands", paths=(*LISTS, *WORDS))

EVENTS = (
    *("Train horn", "Air horn, truck horn", "Car alarm", "Reversing beeps", "Ambulance (siren)"),
    *("Police car (siren)", "Fire engine, fire truck (siren)", "Civil defense siren", "Screaming"),
    *("Bicycle", "Skateboard", "Car", "Car passing by", "Bus", "Truck", "Motorcycle", "Train"),
)
CROPPED = "_audio_formatted_and_segmented_downloads"
PARTS = {
    "training": f"unbalanced_train_segments_training_set{CROPPED}",
    "testing": f"unbalanced_train_segments_testing_set{CROPPED}",
    "evaluation": "evaluation_set_formatted_audio_segments",
}
"""The official folders of audio, by the name of the list."""


def _heard(folder: Path, *lists: str) -> pd.DataFrame:
    """Which events are heard in each file of official lists; False or True."""
    rows = []
    for part in lists:
        path = folder / f"groundtruth_weak_label_{part}_set.csv"
        annotations = pd.read_csv(path, sep="\t", names=["file", "start", "end", "event"])
        rows.append(annotations.set_index(f"{PARTS[part]}/Y" + annotations.file).event)
    flags = pd.get_dummies(pd.concat(rows)).groupby(level=0, sort=False).any()
    return flags.reindex(columns=EVENTS, fill_value=False)


def _sounds(folder: Path) -> Iterator[Part]:
    """Clips of 10 s and which of 17 events are heard, 0.0 or 1.0; the evaluation list is the test.

    Of the official training and testing lists every tenth clip of each event, by name, is for
    validation (a random tenth for the authors of Harmonic CNN), the others for training.
    """
    heard = _heard(folder, "training", "testing")
    by_name = heard.loc[sorted(heard.index, key=lambda name: name.rpartition("/")[2])]
    tenths = [by_name.index[by_name[event]][::10] for event in EVENTS]
    is_validation = heard.index.isin(np.concatenate(tenths))
    for part in (heard[~is_validation], heard[is_validation], _heard(folder, "evaluation")):
        yield [*part.index], torch.tensor(part.to_numpy(dtype=np.float32))


DCASE = layout("dcase2017")

SOURCES: dict[str, tuple[Layout, Callable[[Path], Iterator[Part]], int, int]] = {
    "magnatagatune": (MAGNATAGATUNE, _music, 80_000, 16),
    "speech_commands": (SPEECH_COMMANDS, _words, 16_384, 1),
    "dcase2017": (DCASE, _sounds, 80_000, 16),
}
"""The layout, the reader, samples of a crop at 16 kHz and crops of a clip that are averaged in
evaluation: the authors' 5 s. Of a word's 16,000 samples the six poolings by two leave no frame."""
