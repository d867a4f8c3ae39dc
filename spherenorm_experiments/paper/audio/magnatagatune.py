"""MagnaTagATune: 29 s of music each, as MP3, and the tags that players of a game gave them.

The 50 most frequent tags; clips without any of them are left out. Folders 0 to b are for training,
c for validation, d to f for the test, as the authors of Harmonic CNN divide them.

Source: E. Law et al., *Evaluation of Algorithms Using Games: The Case of Music Tagging*, 2009.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

import torch

from spherenorm_experiments.core import Splits
from spherenorm_experiments.paper.audio._audio import Clips
from spherenorm_experiments.paper.shared.layout import Layout

__all__ = ["LAYOUT", "TAGS", "magnatagatune"]

TAGS = 50
ANNOTATIONS = "annotations_final.csv"
FOLDERS = "0123456789abcdef"
PARTS = ("0123456789ab", "c", "def")


def _count(folder: Path) -> Mapping[str, int]:
    files, tags = _annotations(folder)
    audio = sum((folder / path).is_file() for path in files)
    return {"clips": len(files), "audio files": audio, "tags": min(len(tags), TAGS)}


LAYOUT = Layout(
    name="magnatagatune",
    title="MagnaTagATune",
    tree=f"""
magnatagatune/
  {ANNOTATIONS}    tab separated: clip_id, 188 tags, mp3_path
  0/*.mp3                  (mp3.zip.001 to .003, joined and unpacked)
  ...
  f/*.mp3
""",
    paths=(ANNOTATIONS, *FOLDERS),
    # Table E.1's 21k are the clips with one of the 50 tags.
    statistics={"clips": 25_863, "audio files": 25_863, "tags": TAGS},
    count=_count,
    source="mirg.city.ac.uk/codeapps/the-magnatagatune-dataset",
)


def magnatagatune(samples: int, chunks: int) -> Splits:
    """The splits, each of (wave, tags): the tags are 0.0 or 1.0, the most frequent first.

    Args:
        samples: of a crop, at 16 kHz.
        chunks: crops of a clip of the validation or test set.

    Raises:
        ValueError: the folder has another layout, or lacks a clip.
    """
    folder = LAYOUT.folder()
    files, flags = _annotations(folder)
    found = []
    for number, part in enumerate(PARTS):
        chosen = [k for k, path in enumerate(files) if path[0] in part and flags[:, k].any()]
        paths = [folder / files[k] for k in chosen]
        lost = next((path for path in paths if not path.is_file()), None)
        if lost is not None:
            raise LAYOUT.error(folder, f"lacks {lost.relative_to(folder)}")
        # Three of the files that are distributed are empty.
        kept = [k for k, path in enumerate(paths) if path.stat().st_size > 0]
        if not kept:
            raise LAYOUT.error(folder, f"has no clip with a tag in the folders {part}")
        tags = flags[:, [chosen[k] for k in kept]].T.float()
        found.append(Clips([paths[k] for k in kept], tags, samples, None if not number else chunks))
    return Splits(*found)


def _annotations(folder: Path) -> tuple[list[str], torch.Tensor]:
    """The paths of all clips, and flags of shape (tags, clips) of the most frequent tags."""
    with (folder / ANNOTATIONS).open(newline="") as file:
        head, *rows = csv.reader(file, delimiter="\t")
    if (head[0], head[-1]) != ("clip_id", "mp3_path"):
        raise LAYOUT.error(folder, f"has no clip_id and mp3_path in {ANNOTATIONS}")
    flags = torch.tensor([[int(x) for x in row[1:-1]] for row in rows]).reshape(len(rows), -1).T
    frequent = flags.sum(dim=1).argsort(descending=True, stable=True)[:TAGS]
    return [row[-1] for row in rows], flags[frequent]
