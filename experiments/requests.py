"""Requests: what was asked of a store and the runs that it came to, a file each in `<root>/plans/`.

`resume` asks for the same again. `report` only reads the runs that are listed, so that it needs neither the recipes nor
their sources.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from experiments.store import Store
from experiments.study import Plan

__all__ = ["Request", "RequestWarning", "lost_requests", "read_requests"]


class RequestWarning(UserWarning):
    """A request of the store that cannot be used here."""


@dataclass(frozen=True)
class Request:
    """Studies under a plan.

    Attributes:
        studies: their names, or `module:Class`.
        plan: what of them.
        trials: for each study the arm and the run of each trial, as far as they were known.
    """

    studies: Sequence[str]
    plan: Plan
    trials: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)

    def save(self, store: Store) -> None:
        """Write it, in place of the same studies' under the same plan."""
        asked = {"studies": list(self.studies), "plan": self.plan.to_json()}
        name = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:12]
        store.write_json(f"plans/{name}.json", {**asked, "trials": self.trials})


def read_requests(store: Store) -> list[Request]:
    """Every request of the store, the one asked first first; one that cannot be read is left out with a warning."""
    found = []
    for path in sorted((store.root / "plans").glob("*.json"), key=lambda path: path.stat().st_mtime):
        content = store.read_json(f"plans/{path.name}")
        if content is None:
            continue  # it was set aside, with a warning
        try:
            plan = Plan.from_json(content["plan"])
            found.append(Request(content["studies"], plan, content.get("trials", {})))
        except (KeyError, TypeError, ValueError) as error:
            warnings.warn(f"{path}: no request of this version ({error})", RequestWarning, stacklevel=2)
    return found


def lost_requests(store: Store) -> list[str]:
    """Files of requests that were corrupt and that nobody has repeated since."""
    aside = sorted((store.root / "plans").glob("*.json.corrupt-*"))
    return [path.name for path in aside if not path.with_name(path.name.partition(".corrupt-")[0]).exists()]
