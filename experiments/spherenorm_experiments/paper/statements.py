"""The paper's statements about what the studies cover, in its own words, by a name of ours.

They are data: `statements.json`. Each is claimed by a study or has a written reason why not;
the tests hold that.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from spherenorm.support import unknown_name
from spherenorm_experiments.claims import KINDS, Statement


def _read(path: Path) -> tuple[dict[str, Statement], dict[str, str], tuple[str, ...]]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    topics = {name: topic for topic, names in content["topics"].items() for name in names}
    statements = {
        name: Statement(kind, place, words, topics[name])
        for kind in KINDS
        for place, named in content.get(kind, {}).items()
        for name, words in named.items()
    }
    return statements, content["unclaimed"], tuple(content["topics"])


STATEMENTS, UNCLAIMED, TOPICS = _read(Path(__file__).with_name("statements.json"))
"""The statements by name, the reasons for those without a claim, and what statements are about."""


def says(name: str) -> Statement:
    """The statement that a claim cites.

    Raises:
        ValueError: there is no such statement.
    """
    if name not in STATEMENTS:
        raise unknown_name("statement", name, list(STATEMENTS))
    return STATEMENTS[name]
