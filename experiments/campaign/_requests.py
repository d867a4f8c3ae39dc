"""Requests: what was asked of a store, and the runs that this came to, in `<root>/plans/`.

`resume` asks for the same again. `report` only reads the runs that are listed, so that it needs
neither the recipes nor their sources.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from experiments.engine import Store
from experiments.results import Arm
from experiments.studies import Plan

__all__ = ["Request", "RequestWarning", "read_requests"]

REPEAT = "repeat its `run` command: what has finished is kept and not run again"


class RequestWarning(UserWarning):
    """A part of a request that cannot be shown here."""


@dataclass(frozen=True)
class Request:
    """Studies under a plan.

    Attributes:
        studies: their names, or `module:Class`.
        plan: the choices for all of them.
        trials: for each study the arm and the run of each trial, as far as they were known.
    """

    studies: Sequence[str]
    plan: Plan
    trials: Mapping[str, Sequence[tuple[Arm, str]]] = field(default_factory=dict)

    def save(self, store: Store) -> None:
        """Write it, in place of an earlier request for the same studies under the same plan."""
        asked = {"studies": list(self.studies), "plan": self.plan.to_json()}
        name = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:12]
        trials = {
            study: [[arm.to_json(), run] for arm, run in runs]
            for study, runs in self.trials.items()
        }
        number = 1 + max((n for other, n in _numbers(store).items() if other != name), default=0)
        store.write_json(f"plans/{name}.json", {**asked, "number": number, "trials": trials})


def read_requests(store: Store) -> tuple[list[Request], dict[str, str]]:
    """Every request of the store, in the order in which they were asked.

    Returns:
        Those that can be read; and for the others, by file, the reason and what to do.
    """
    folder = store.root / "plans"
    found: list[Request] = []
    unusable: dict[str, str] = {}
    numbers = _numbers(store)
    for name in sorted(numbers, key=lambda name: (numbers[name], name)):
        content = store.read_json(f"plans/{name}.json")
        try:
            if content is not None:
                found.append(_from_json(content))
        except (KeyError, TypeError, ValueError) as error:
            unusable[f"{name}.json"] = f"not of this version ({error}); {REPEAT}"
    for path in sorted(folder.glob("*.json*")):
        name = path.name.partition(".json")[0]
        if name not in numbers:  # else it is intact, or was repeated since
            unusable[path.name] = f"what was asked is lost; {REPEAT}"
    return found, unusable


def _numbers(store: Store) -> dict[str, int]:
    """The place of each request in the order of asking; file times would not survive a copy."""
    paths = sorted((store.root / "plans").glob("*.json"))
    contents = {path.stem: store.read_json(f"plans/{path.name}") for path in paths}
    return {
        name: content.get("number", 0) if isinstance(content, dict) else 0
        for name, content in contents.items()
        if content is not None  # else it was set aside just now
    }


def _from_json(content: Mapping[str, Any]) -> Request:
    trials = {
        study: [(Arm.from_json(arm), run) for arm, run in runs]
        for study, runs in content["trials"].items()
    }
    return Request(content["studies"], Plan.from_json(content["plan"]), trials)
