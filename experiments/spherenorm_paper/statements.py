"""The paper's statements about what the studies cover, in its own words, by a name of ours.

They are data: `statements.json`. Each is claimed by a study or has a written reason why not;
the tests hold that. The file also says which of them speak of every case.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from spherenorm.support import unknown_name
from spherenorm_experiments.verdict import KINDS, Statement

CONTENT: dict[str, Any] = json.loads(
    Path(__file__).with_name("statements.json").read_text(encoding="utf-8")
)


def _statements(content: dict[str, Any]) -> dict[str, Statement]:
    topics = {name: topic for topic, names in content["topics"].items() for name in names}
    return {
        name: Statement(kind, place, words, topics[name])
        for kind in KINDS
        for place, named in content.get(kind, {}).items()
        for name, words in named.items()
    }


STATEMENTS = _statements(CONTENT)
"""The statements by name."""

TOPICS: tuple[str, ...] = tuple(CONTENT["topics"])
"""The subjects of statements."""

UNCLAIMED: dict[str, str] = CONTENT["unclaimed"]
"""The reasons for those without a claim."""

UNIVERSAL = frozenset(CONTENT["every"])
"""Names of the statements about every one of several cases, as "all" or "uniform".

One case does not carry them.
"""


def says(name: str) -> Statement:
    """The statement that a claim cites.

    Raises:
        ValueError: there is no such statement.
    """
    if name not in STATEMENTS:
        raise unknown_name("statement", name, list(STATEMENTS))
    return STATEMENTS[name]
