"""The settings in which the studies differ from the paper: data, in `departures.json`."""

from __future__ import annotations

import json
from pathlib import Path

FILE = Path(__file__).parents[1] / "departures.json"


def departures(study: str) -> list[tuple[str, str, str, str]]:
    """The rows of a study: the setting, the paper's, ours, and the reason.

    A row that studies share stands once; the others have its study and its setting alone.

    Example:
        >>> departures("t4")[2][0]
        'learning rate'
    """
    every: dict[str, list[list[str]]] = json.loads(FILE.read_text(encoding="utf-8"))
    own = {(name, row[0]): row for name, rows in every.items() for row in rows}
    whole = (row if len(row) == 4 else own[row[0], row[1]] for row in every[study])
    return [(setting, theirs, ours, why) for setting, theirs, ours, why in whole]
