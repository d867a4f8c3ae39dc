"""Facts about the benchmarks that are data: departures from the paper, layouts of data sets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spherenorm_experiments.lookup import Layout


def _read_json(file: str) -> dict[str, Any]:
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
    all_rows: dict[str, list[list[str]]] = _read_json("departures.json")
    by_setting = {(name, row[0]): row for name, rows in all_rows.items() for row in rows}
    rows = (row if len(row) == 4 else by_setting[row[0], row[1]] for row in all_rows[study])
    return [tuple(row) for row in rows]  # type: ignore[misc]


def layout(name: str, paths: Sequence[str] | None = None) -> Layout:
    """Return the official layout of a data set; see `layouts.json`.

    Args:
        name: of its folder.
        paths: files and folders that must be there, if the file does not list them.

    Example:
        >>> layout("cifar10").title
        'CIFAR-10'
    """
    facts = _read_json("layouts.json")[name]
    tree, needed = "\n".join(facts["tree"]), tuple(facts["paths"] if paths is None else paths)
    return Layout(name, facts["title"], tree, needed, facts["source"])
