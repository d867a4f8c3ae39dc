"""DCASE 2017, task 4: 10 s from videos each, and which of 17 warning and vehicle sounds are heard.

The clips of the official training and testing lists together are for training, a tenth of each
class is for validation, and the evaluation list is the test, as the authors of Harmonic CNN divide
them. Their tenth is random; ours is every tenth by name.

Source: A. Mesaros et al., *DCASE 2017 Challenge Setup: Tasks, Datasets and Baseline System*, 2017.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from spherenorm_experiments.core import Splits
from spherenorm_experiments.paper.audio._audio import Clips
from spherenorm_experiments.paper.shared.layout import Layout

__all__ = ["EVENTS", "LAYOUT", "dcase2017"]

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


def _list_of(part: str) -> str:
    return f"groundtruth_weak_label_{part}_set.csv"


def _count(folder: Path) -> Mapping[str, int]:
    found = {f"{part} clips": len(_labels(folder, part)) for part in PARTS}
    audio = sum(len(list((folder / name).glob("*.wav"))) for name in PARTS.values())
    events = {e for part in PARTS for labels in _labels(folder, part).values() for e in labels}
    return {**found, "audio files": audio, "events": len(events)}


LAYOUT = Layout(
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
        "training clips": 51_172,
        "testing clips": 488,
        "evaluation clips": 1_103,
        "audio files": 52_763,
        "events": 17,
    },
    count=_count,
    source="dcase.community/challenge2017/task-large-scale-sound-event-detection",
)


def dcase2017(samples: int, chunks: int) -> Splits:
    """The splits, each of (wave, events): the events are 0.0 or 1.0, in the order of `EVENTS`.

    Args:
        samples: of a crop, at 16 kHz.
        chunks: crops of a clip of the validation or test set.

    Raises:
        ValueError: the folder has another layout, lacks a clip, or has an unknown event.
    """
    folder = LAYOUT.folder()
    lists = {part: _labels(folder, part) for part in PARTS}
    held = _tenth_of_each([*lists["training"].items(), *lists["testing"].items()])
    developed = [(p, clip, e) for p in ("training", "testing") for clip, e in lists[p].items()]
    train = [row for row in developed if row[1] not in held]
    validation = [row for row in developed if row[1] in held]
    test = [("evaluation", clip, events) for clip, events in lists["evaluation"].items()]
    return Splits(
        _clips(folder, train, samples, None),
        _clips(folder, validation, samples, chunks),
        _clips(folder, test, samples, chunks),
    )


def _labels(folder: Path, part: str) -> dict[str, set[str]]:
    """The events of each clip of an official list."""
    found: dict[str, set[str]] = {}
    with (folder / _list_of(part)).open(newline="") as file:
        for row in csv.reader(file, delimiter="\t"):
            if len(row) != 4 or row[-1] not in EVENTS:
                raise LAYOUT.error(folder, f"has the line {row} in {_list_of(part)}")
            found.setdefault(row[0], set()).add(row[-1])
    return found


def _tenth_of_each(clips: Iterable[tuple[str, set[str]]]) -> set[str]:
    """Every tenth clip of each event, at least one, in the order of their names."""
    held: set[str] = set()
    ordered = sorted(clips)
    for event in EVENTS:
        having = [clip for clip, events in ordered if event in events]
        held.update(having[::TENTH])
    return held


def _clips(
    folder: Path, rows: Iterable[tuple[str, str, set[str]]], samples: int, chunks: int | None
) -> Clips:
    files, targets = [], []
    for part, clip, events in rows:
        path = folder / PARTS[part] / f"Y{clip}"
        if not path.is_file():
            raise LAYOUT.error(folder, f"lacks {path.relative_to(folder)}")
        files.append(path)
        targets.append(torch.tensor([float(event in events) for event in EVENTS]))
    if not files:
        raise LAYOUT.error(folder, "has an empty list")
    stacked: Tensor = torch.stack(targets)
    return Clips(files, stacked, samples, chunks)
