"""The official data sets of sound: MagnaTagATune, Speech Commands 2, and task 4 of DCASE 2017.

They are divided as the authors of Harmonic CNN divide them.

Source: E. Law et al., *Evaluation of Algorithms Using Games: The Case of Music Tagging*, 2009;
P. Warden, *Speech Commands: A Dataset for Limited-Vocabulary Speech Recognition*, 2018;
A. Mesaros et al., *DCASE 2017 Challenge Setup: Tasks, Datasets and Baseline System*, 2017.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from spherenorm_experiments.paper.audio._audio import Clips
from spherenorm_experiments.paper.shared.layout import Layout, count_files
from spherenorm_experiments.task import Splits


def _clips(
    layout: Layout, names: Sequence[str], targets: Tensor, samples: int, chunks: int | None
) -> Clips:
    """The clips of files of the data set; see `Clips`."""
    folder = layout.folder()
    lost = next((name for name in names if not (folder / name).is_file()), None)
    if lost is not None:
        raise layout.error(folder, f"lacks {lost}")
    if not names:
        raise layout.error(folder, "has a split without a clip")
    return Clips([folder / name for name in names], targets, samples, chunks)


TAGS = 50
ANNOTATIONS = "annotations_final.csv"
FOLDERS = ("0123456789ab", "c", "def")
"""Of the training, validation and test set."""


def magnatagatune(samples: int, chunks: int) -> Splits:
    """Music of 29 s as MP3, and its tags, which are 0.0 or 1.0, the most frequent first.

    The 50 most frequent tags count; clips without any of them are left out.

    Args:
        samples: of a crop, at 16 kHz.
        chunks: crops of a clip of the validation or test set.

    Raises:
        ValueError: the folder has another layout, or lacks a clip.
    """
    folder = MAGNATAGATUNE.folder()
    files, flags = _annotations(folder)
    splits = []
    for number, part in enumerate(FOLDERS):
        chosen = [k for k, path in enumerate(files) if path[0] in part and flags[:, k].any()]
        paths = {k: folder / files[k] for k in chosen}
        # Three of the files that are distributed are empty.
        kept = [k for k, path in paths.items() if not path.is_file() or path.stat().st_size]
        tags = flags[:, kept].T.float()
        names = [files[k] for k in kept]
        splits.append(_clips(MAGNATAGATUNE, names, tags, samples, chunks if number else None))
    return Splits(*splits)


def _annotations(folder: Path) -> tuple[list[str], Tensor]:
    """The paths of all clips, and flags of shape (tags, clips) of the most frequent tags."""
    with (folder / ANNOTATIONS).open(newline="") as file:
        head, *rows = csv.reader(file, delimiter="\t")
    if (head[0], head[-1]) != ("clip_id", "mp3_path"):
        raise MAGNATAGATUNE.error(folder, f"has no clip_id and mp3_path in {ANNOTATIONS}")
    flags = torch.tensor([[int(x) for x in row[1:-1]] for row in rows]).reshape(len(rows), -1).T
    frequent = flags.sum(dim=1).argsort(descending=True, stable=True)[:TAGS]
    return [row[-1] for row in rows], flags[frequent]


MAGNATAGATUNE = Layout(
    name="magnatagatune",
    title="MagnaTagATune",
    tree=f"""
magnatagatune/
  {ANNOTATIONS}    tab separated: clip_id, 188 tags, mp3_path
  0/*.mp3                  (mp3.zip.001 to .003, joined and unpacked)
  ...
  f/*.mp3
""",
    paths=(ANNOTATIONS, *"".join(FOLDERS)),
    # Table E.1's 21k are the clips with one of the 50 tags.
    statistics={
        "clips": (25_863, lambda folder: len(_annotations(folder)[0])),
        "audio files": (25_863, "[0-9a-f]/*.mp3"),
        "tags": (TAGS, lambda folder: len(_annotations(folder)[1])),
    },
    source="mirg.city.ac.uk/codeapps/the-magnatagatune-dataset",
)

WORDS = (
    *("backward", "bed", "bird", "cat", "dog", "down", "eight", "five", "follow", "forward"),
    *("four", "go", "happy", "house", "learn", "left", "marvin", "nine", "no", "off", "on", "one"),
    *("right", "seven", "sheila", "six", "stop", "three", "tree", "two", "up", "visual", "wow"),
    *("yes", "zero"),
)
LISTS = ("validation_list.txt", "testing_list.txt")


def speech_commands(samples: int) -> Splits:
    """One second of a spoken word each, and its place in `WORDS`.

    The official lists name the clips for validation and test; all others are for training.
    Speakers are in one part only.

    Args:
        samples: of a clip, at 16 kHz. The zeros around it are at random in training, equally many
            on both sides else, where waves have the shape (1, samples).

    Raises:
        ValueError: the folder has another layout, or lacks a clip of a list.
    """
    folder = SPEECH_COMMANDS.folder()
    validation, test = (_listed(folder, name) for name in LISTS)
    clips = (path for word in WORDS for path in sorted((folder / word).glob("*.wav")))
    every = [path.relative_to(folder).as_posix() for path in clips]
    listed = {*validation, *test}
    splits: list[Clips] = []
    for names in ([name for name in every if name not in listed], validation, test):
        words = torch.tensor([WORDS.index(name.split("/")[0]) for name in names])
        splits.append(_clips(SPEECH_COMMANDS, names, words, samples, 1 if splits else None))
    return Splits(*splits)


def _listed(folder: Path, name: str) -> list[str]:
    return (folder / name).read_text().split()


SPEECH_COMMANDS = Layout(
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
    paths=(*LISTS, *WORDS),
    statistics={
        "words": (35, lambda folder: sum((folder / word).is_dir() for word in WORDS)),
        "clips": (105_829, lambda folder: count_files(folder, WORDS, "*.wav")),
        "validation clips": (9_981, lambda folder: len(_listed(folder, LISTS[0]))),
        "test clips": (11_005, lambda folder: len(_listed(folder, LISTS[1]))),
    },
    source="download.tensorflow.org/data/speech_commands_v0.02.tar.gz",
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


def dcase2017(samples: int, chunks: int) -> Splits:
    """10 s from videos each, and which of 17 warning and vehicle sounds are heard, 0.0 or 1.0.

    The clips of the official training and testing lists together are for training, a tenth of each
    class is for validation, and the evaluation list is the test. The tenth of the authors of
    Harmonic CNN is random; ours is every tenth by name.

    Args:
        samples: of a crop, at 16 kHz.
        chunks: crops of a clip of the validation or test set.

    Raises:
        ValueError: the folder has another layout, lacks a clip, or has an unknown event.
    """
    folder = DCASE.folder()
    developed = _heard(folder, "training") | _heard(folder, "testing")
    held = _tenth_of_each(developed)
    parts = (
        {name: events for name, events in developed.items() if name not in held},
        {name: events for name, events in developed.items() if name in held},
        _heard(folder, "evaluation"),
    )
    splits: list[Clips] = []
    for heard in parts:
        rows = [[float(event in events) for event in EVENTS] for events in heard.values()]
        splits.append(
            _clips(DCASE, list(heard), torch.tensor(rows), samples, chunks if splits else None)
        )
    return Splits(*splits)


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


def _all_heard(folder: Path) -> set[str]:
    """The events of all lists."""
    return set().union(*(heard for part in PARTS for heard in _heard(folder, part).values()))


def _tenth_of_each(heard: Mapping[str, set[str]]) -> set[str]:
    """Every tenth file of each event, at least one, in the order of the clips' names."""
    ordered = sorted(heard, key=lambda name: name.rpartition("/")[2])
    held: set[str] = set()
    for event in EVENTS:
        held.update([name for name in ordered if event in heard[name]][::TENTH])
    return held


DCASE = Layout(
    name="dcase2017",
    title="DCASE 2017 task 4",
    tree=f"""
dcase2017/
  {_list_of("training")}    tab separated, a line for each event of a clip:
  {_list_of("testing")}     2ceUOv8A3FE_20.000_30.000.wav  20.000  30.000  Train horn
  {_list_of("evaluation")}
  {PARTS["training"]}/Y*.wav
  {PARTS["testing"]}/Y*.wav
  {PARTS["evaluation"]}/Y*.wav
                             (the file of a clip has a Y before the name of the clip)
""",
    paths=(*map(_list_of, PARTS), *PARTS.values()),
    statistics={
        "training clips": (51_172, lambda folder: len(_heard(folder, "training"))),
        "testing clips": (488, lambda folder: len(_heard(folder, "testing"))),
        "evaluation clips": (1_103, lambda folder: len(_heard(folder, "evaluation"))),
        "audio files": (52_763, lambda folder: count_files(folder, PARTS.values(), "*.wav")),
        "events": (17, lambda folder: len(_all_heard(folder))),
    },
    source="dcase.community/challenge2017/task-large-scale-sound-event-detection",
)
