"""Facts about the benchmarks that are data: departures from the paper, layouts of data sets."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from spherenorm_experiments.paper.shared.layout import Count, Layout

FOLDER = Path(__file__).parents[1]


def _read(file: str) -> dict[str, Any]:
    return json.loads((FOLDER / file).read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def departures(study: str) -> list[tuple[str, str, str, str]]:
    """The settings in which a study differs from the paper; see `departures.json`.

    Returns:
        Rows of the setting, the paper's, ours, and the reason.

    Example:
        >>> departures("t4")[2][0]
        'learning rate'
    """
    rows: list[list[str]] = _read("departures.json")[study]
    return [(setting, theirs, ours, why) for setting, theirs, ours, why in rows]


def layout(name: str, counted: Mapping[str, Count], paths: Sequence[str] | None = None) -> Layout:
    """The official layout of a data set, with its counts; see `layouts.json`.

    Args:
        name: of its folder.
        counted: of each count the pattern of the files, or a function that reads it off a folder.
        paths: files and folders that must be there, if the file does not list them.

    Example:
        >>> counts = dict.fromkeys(["classes", "training images", "test images"], "*")
        >>> layout("cifar10", counts).statistics["test images"]
        (10000, '*')
    """
    facts = _read("layouts.json")[name]
    return Layout(
        name=name,
        title=facts["title"],
        tree="\n".join(facts["tree"]),
        paths=tuple(facts["paths"] if paths is None else paths),
        statistics={each: (count, counted[each]) for each, count in facts["counts"].items()},
        source=facts["source"],
    )


def of_labels(read: Callable[[Path, bool], tuple[Tensor, Tensor]]) -> dict[str, Count]:
    """The counts of images in classes.

    Args:
        read: images and labels of a folder, True for those of training.
    """

    def classes(folder: Path) -> int:
        return len({label for part in (True, False) for label in read(folder, part)[1].tolist()})

    return {
        "training images": lambda folder: len(read(folder, True)[1]),
        "test images": lambda folder: len(read(folder, False)[1]),
        "classes": classes,
    }
