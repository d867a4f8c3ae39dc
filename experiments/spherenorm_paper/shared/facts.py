"""Facts about the benchmarks that are data: departures from the paper, layouts of data sets."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from spherenorm_experiments.layouts import Count, Layout


def _read(file: str) -> dict[str, Any]:
    text = (Path(__file__).parents[1] / file).read_text(encoding="utf-8")
    return json.loads(text)  # type: ignore[no-any-return]


def departures(study: str) -> list[tuple[str, str, str, str]]:
    """The settings in which a study differs from the paper; see `departures.json`.

    A row that studies share stands once; the others have its study and its setting alone.

    Returns:
        Rows of the setting, the paper's, ours, and the reason.

    Example:
        >>> departures("t4")[2][0]
        'learning rate'
    """
    every: dict[str, list[list[str]]] = _read("departures.json")
    own = {(name, row[0]): row for name, rows in every.items() for row in rows}
    whole = (row if len(row) == 4 else own[row[0], row[1]] for row in every[study])
    return [tuple(row) for row in whole]  # type: ignore[misc]


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
    statistics = {each: (count, counted[each]) for each, count in facts["counts"].items()}
    tree, needed = "\n".join(facts["tree"]), tuple(facts["paths"] if paths is None else paths)
    return Layout(name, facts["title"], tree, needed, statistics, facts["source"])


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
