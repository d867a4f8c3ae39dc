"""The settings in which the studies differ from the paper: data, in `departures.json`."""

from __future__ import annotations

import json
from pathlib import Path

FILE = Path(__file__).parents[1] / "departures.json"


def departures(study: str) -> list[tuple[str, str, str, str]]:
    """The rows of a study: the setting, the paper's, ours, and the reason.

    Example:
        >>> departures("t4")[2][0]
        'learning rate'
    """
    rows: list[list[str]] = json.loads(FILE.read_text(encoding="utf-8"))[study]
    return [(setting, theirs, ours, why) for setting, theirs, ours, why in rows]
