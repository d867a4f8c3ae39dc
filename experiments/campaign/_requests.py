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
        store.write_json(f"plans/{name}.json", {**asked, "trials": trials})


def read_requests(store: Store) -> tuple[list[Request], dict[str, str]]:
    """Every request of the store, in the order in which they were asked.

    Returns:
        Those that can be read; and for the others, by file, the reason and what to do.
    """
    folder = store.root / "plans"
    found: list[Request] = []
    unusable: dict[str, str] = {}
    for path in sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime):
        content = store.read_json(f"plans/{path.name}")
        try:
            if content is not None:  # else it was set aside just now
                found.append(_from_json(content))
        except (KeyError, TypeError, ValueError) as error:
            unusable[path.name] = f"not of this version ({error}); {REPEAT}"
    for path in sorted(folder.glob("*.json.corrupt-*")):
        original = path.with_name(path.name.partition(".corrupt-")[0])
        if not original.exists():  # else it was repeated since
            unusable[path.name] = f"what was asked is lost; {REPEAT}"
    return found, unusable


def _from_json(content: Mapping[str, Any]) -> Request:
    trials = {
        study: [(Arm.from_json(arm), run) for arm, run in runs]
        for study, runs in content["trials"].items()
    }
    return Request(content["studies"], Plan.from_json(content["plan"]), trials)
