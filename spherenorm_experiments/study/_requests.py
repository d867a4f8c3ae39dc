"""Requests: what was asked of a store, and the runs that this came to, in `<root>/plans/`.

`resume` asks for the same again. `report` only reads the runs that are listed, so that it needs
neither the recipes nor their sources.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spherenorm_experiments.analysis import Arm
from spherenorm_experiments.engine import Store
from spherenorm_experiments.study._plan import Plan

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
        ended: its place in the order in which requests first came to their end; infinite for one
            that has not. To repeat a request does not change it: what was seen was seen then.
    """

    studies: Sequence[str]
    plan: Plan
    trials: Mapping[str, Sequence[tuple[Arm, str]]] = field(default_factory=dict)
    ended: float = math.inf

    def save(self, store: Store, *, ended: bool = False) -> None:
        """Write it, in place of an earlier request for the same studies under the same plan.

        Args:
            ended: nothing is left to run.
        """
        asked = {"studies": list(self.studies), "plan": self.plan.to_json()}
        name = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:12]
        trials = {
            study: [[arm.to_json(), run] for arm, run in runs]
            for study, runs in self.trials.items()
        }
        others = _contents(store)
        place = _ended(others.pop(name, {"ended": None}))
        if ended and place is None:
            place = 1 + max((_ended(other) or 0 for other in others.values()), default=0)
        number = 1 + max((_number(other) for other in others.values()), default=0)
        content = {**asked, "number": number, "ended": place, "trials": trials}
        store.write_json(f"plans/{name}.json", content)


def read_requests(store: Store) -> tuple[list[Request], dict[str, str]]:
    """Every request of the store, in the order in which they were asked.

    Returns:
        Those that can be read; and for the others, by file, the reason and what to do.
    """
    folder = store.root / "plans"
    found: list[Request] = []
    unusable: dict[str, str] = {}
    contents = _contents(store)
    for name in sorted(contents, key=lambda name: (_number(contents[name]), name)):
        try:
            found.append(_from_json(contents[name]))
        except (KeyError, TypeError, ValueError) as error:
            unusable[f"{name}.json"] = f"not of this version ({error}); {REPEAT}"
    for path in sorted(folder.glob("*.json*")):
        name = path.name.partition(".json")[0]
        if name not in contents:  # else it is intact, or was repeated since
            unusable[path.name] = f"what was asked is lost; {REPEAT}"
    return found, unusable


def _contents(store: Store) -> dict[str, Any]:
    """The files of all requests, by name, without those that are damaged."""
    paths = sorted((store.root / "plans").glob("*.json"))
    contents = {path.stem: store.read_json(f"plans/{path.name}") for path in paths}
    return {name: content for name, content in contents.items() if content is not None}


def _number(content: Any) -> int:
    """The place in the order of asking; file times would not survive a copy."""
    return content.get("number", 0) if isinstance(content, dict) else 0


def _ended(content: Any) -> int | None:
    """The place in the order of the ends; stores that did not note it have the order of asking."""
    return content.get("ended", _number(content)) if isinstance(content, dict) else None


def _from_json(content: Mapping[str, Any]) -> Request:
    trials = {
        study: [(Arm.from_json(arm), run) for arm, run in runs]
        for study, runs in content["trials"].items()
    }
    ended = _ended(content)
    plan = Plan.from_json(content["plan"])
    return Request(content["studies"], plan, trials, math.inf if ended is None else ended)
