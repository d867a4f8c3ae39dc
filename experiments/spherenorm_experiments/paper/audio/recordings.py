"""The official data sets of sound: MagnaTagATune, Speech Commands 2, and task 4 of DCASE 2017.

They are divided as the authors of Harmonic CNN divide them.

Source: E. Law et al., *Evaluation of Algorithms Using Games: The Case of Music Tagging*, 2009;
P. Warden, *Speech Commands: A Dataset for Limited-Vocabulary Speech Recognition*, 2018;
A. Mesaros et al., *DCASE 2017 Challenge Setup: Tasks, Datasets and Baseline System*, 2017.
"""

from __future__ import annotations

import csv
import functools
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from spherenorm_experiments.errors import require_extra
from spherenorm_experiments.paper.shared.facts import layout
from spherenorm_experiments.paper.shared.items import Items
from spherenorm_experiments.paper.shared.layout import Layout, count_files
from spherenorm_experiments.task import Splits

RATE = 16_000
"""Samples a second."""


def read_wave(path: Path) -> Tensor:
    """Read WAV, FLAC, OGG or MP3: the mean of its channels at 16 kHz, of shape (samples,).

    Another rate is resampled by a polyphase filter.

    Raises:
        ValueError: the file cannot be decoded.
    """
    audio = require_extra("soundfile", "reading audio")
    try:
        found, rate = audio.read(path, dtype="float32", always_2d=True)
    except audio.LibsndfileError as error:
        raise ValueError(f"{path} cannot be decoded: {error}") from error
    wave = found.mean(axis=1)
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
    starts = [i * (room // chunks) for i in range(chunks)] if chunks else [place]
    parts = torch.stack([wave[start : start + samples] for start in starts])
    return parts if chunks else parts[0]


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
        lost = next((name for name in names if not (folder / name).is_file()), None)
        if lost is not None:
            raise official.error(folder, f"lacks {lost}")
        form = (samples, chunks if splits else None)
        load = functools.partial(_load, *form)
        splits.append(Items(load, names, targets, folder=folder, form=form))
    return Splits(*splits)


def _load(samples: int, chunks: int | None, path: Path, target: Tensor) -> tuple[Tensor, Tensor]:
    return crop(read_wave(path), samples, chunks), target


Part = tuple[list[str], Tensor]
"""The files of a split, relative to the folder, and their targets."""

TAGS, ANNOTATIONS = 50, "annotations_final.csv"
FOLDERS = ("0123456789ab", "c", "def")
"""Of the training, validation and test set."""


def _music(folder: Path) -> Iterator[Part]:
    """Clips of 29 s with some of the 50 most frequent tags; the most frequent tag is first."""
    files, flags = _annotations(folder)
    for part in FOLDERS:
        names, tags = [], []
        for name, own in zip(files, flags, strict=True):
            path = folder / name
            # Three of the files that are distributed are empty.
            if name[0] in part and own.any() and not (path.is_file() and not path.stat().st_size):
                names.append(name)
                tags.append(own.float())
        yield names, torch.stack(tags) if tags else torch.zeros(0, TAGS)


def _annotations(folder: Path) -> Part:
    """The paths of all clips, and flags of shape (clips, tags) of the most frequent tags."""
    with (folder / ANNOTATIONS).open(newline="") as file:
        _, *rows = csv.reader(file, delimiter="\t")
    flags = torch.tensor([[int(x) for x in row[1:-1]] for row in rows]).reshape(len(rows), -1)
    frequent = flags.sum(dim=0).argsort(descending=True, stable=True)[:TAGS]
    return [row[-1] for row in rows], flags[:, frequent]


MAGNATAGATUNE = layout(
    "magnatagatune",
    {
        "clips": lambda folder: len(_annotations(folder)[0]),  # of which 21k have one of the tags
        "audio files": "[0-9a-f]/*.mp3",
        "tags": lambda folder: _annotations(folder)[1].shape[1],
    },
)

WORDS = (
    *("backward", "bed", "bird", "cat", "dog", "down", "eight", "five", "follow", "forward"),
    *("four", "go", "happy", "house", "learn", "left", "marvin", "nine", "no", "off", "on", "one"),
    *("right", "seven", "sheila", "six", "stop", "three", "tree", "two", "up", "visual", "wow"),
    *("yes", "zero"),
)
LISTS = ("validation_list.txt", "testing_list.txt")


def _words(folder: Path) -> Iterator[Part]:
    """Clips of a second. The official lists are validation and test; speakers are in one part."""
    clips = (path for word in WORDS for path in sorted((folder / word).glob("*.wav")))
    listed = [_listed(folder, name) for name in LISTS]
    others = {name for part in listed for name in part}
    every = (path.relative_to(folder).as_posix() for path in clips)
    for names in ([name for name in every if name not in others], *listed):
        yield names, torch.tensor([WORDS.index(name.split("/")[0]) for name in names])


def _listed(folder: Path, name: str) -> list[str]:
    return (folder / name).read_text().split()


SPEECH_COMMANDS = layout(
    "speech_commands",
    {
        "words": lambda folder: sum((folder / word).is_dir() for word in WORDS),
        "clips": lambda folder: count_files(folder, WORDS, "*.wav"),
        "validation clips": lambda folder: len(_listed(folder, LISTS[0])),
        "test clips": lambda folder: len(_listed(folder, LISTS[1])),
    },
    paths=(*LISTS, *WORDS),
)

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
TENTH = 10


def _sounds(folder: Path) -> Iterator[Part]:
    """Clips of 10 s and which of 17 events are heard, 0.0 or 1.0; the evaluation list is the test.

    Of the official training and testing lists every tenth clip of each event, by name, is for
    validation (a random tenth for the authors of Harmonic CNN), the others for training.
    """
    developed = _heard(folder, "training") | _heard(folder, "testing")
    ordered = sorted(developed, key=lambda name: name.rpartition("/")[2])
    tenths = ([name for name in ordered if e in developed[name]][::TENTH] for e in EVENTS)
    held = {name for tenth in tenths for name in tenth}
    for heard in (
        {name: events for name, events in developed.items() if name not in held},
        {name: events for name, events in developed.items() if name in held},
        _heard(folder, "evaluation"),
    ):
        flags = [[float(event in events) for event in EVENTS] for events in heard.values()]
        yield list(heard), torch.tensor(flags)


def _list_of(part: str) -> str:
    return f"groundtruth_weak_label_{part}_set.csv"


def _heard(folder: Path, part: str) -> dict[str, set[str]]:
    """The events of each file of an official list."""
    found: dict[str, set[str]] = {}
    with (folder / _list_of(part)).open(newline="") as file:
        for row in csv.reader(file, delimiter="\t"):
            if len(row) != 4 or row[-1] not in EVENTS:
                raise DCASE.error(folder, f"has the line {row} in {_list_of(part)}")
            found.setdefault(f"{PARTS[part]}/Y{row[0]}", set()).add(row[-1])
    return found


def _events(folder: Path) -> int:
    return len(set().union(*(heard for part in PARTS for heard in _heard(folder, part).values())))


DCASE = layout(
    "dcase2017",
    {
        "training clips": lambda folder: len(_heard(folder, "training")),
        "testing clips": lambda folder: len(_heard(folder, "testing")),
        "evaluation clips": lambda folder: len(_heard(folder, "evaluation")),
        "audio files": lambda folder: count_files(folder, PARTS.values(), "*.wav"),
        "events": _events,
    },
)

SOURCES: dict[str, tuple[Layout, Callable[[Path], Iterator[Part]], int, int]] = {
    "magnatagatune": (MAGNATAGATUNE, _music, 80_000, 16),
    "speech_commands": (SPEECH_COMMANDS, _words, 16_384, 1),
    "dcase2017": (DCASE, _sounds, 80_000, 16),
}
"""The layout, the reader, samples of a crop at 16 kHz and crops of a clip that are averaged in
evaluation: the authors' 5 s. Of a word's 16,000 samples the six poolings by two leave no frame."""
