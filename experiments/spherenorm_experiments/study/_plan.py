"""`Plan`, the part of a command that all studies take alike; `Request`, what a store was asked.

Requests lie in `<root>/plans/`. `resume` asks for the same again. `report` only reads the runs that
are listed, so that it needs neither the recipes nor their sources.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from spherenorm.support import unknown_name
from spherenorm_experiments.analysis import Arm
from spherenorm_experiments.engine import Store
from spherenorm_experiments.files import LOST_REQUEST, REPEAT, read_documents

Range = tuple[float, float]

TIERS = ("smoke", "small", "evidence", "full")


@dataclass(frozen=True)
class Plan:
    """A command's choices, for all of its studies.

    Attributes:
        tier: smoke | small | evidence | full.
        seeds: None for the study's own.
        optimizers: recipes that a tuned comparison has as contenders, beside its own; None for
            none.
        search: their logarithmic ranges, by hyper-parameter; one that is named `optimizer:name` is
            that optimizer's own.
        like: the contender as which those without a range are searched.
        device: a torch device.
        real: the paper's data sets and settings, in place of embedded data; for the studies that
            have them.
        overrides: `--set`: values for fields of `Spec`, options of the task and hyper-parameters of
            the recipes.

    Raises:
        ValueError: an unknown tier, or a search of an optimizer that is not added.
    """

    tier: str = "small"
    seeds: tuple[int, ...] | None = None
    optimizers: tuple[str, ...] | None = None
    device: str = "cpu"
    real: bool = False
    overrides: Mapping[str, Any] = field(default_factory=dict)
    search: Mapping[str, Range] = field(default_factory=dict)
    like: str = ""

    def __post_init__(self) -> None:
        if self.tier not in TIERS:
            raise unknown_name("tier", self.tier, TIERS)
        if (self.search or self.like) and not self.optimizers:
            raise ValueError("--search and --like are of the contenders that --optimizers adds")
        require_owners("search", self.search, self.optimizers or ())

    @property
    def common(self) -> Plan:
        """The plan without its choice of optimizers and seeds.

        Results of plans that have this in common belong together.
        """
        return replace(self, seeds=None, optimizers=None, search={}, like="")

    @property
    def budgets(self) -> str:
        """The tier whose budgets runs have: that of evidence has more seeds, not longer runs."""
        return "small" if self.tier == "evidence" else self.tier

    @property
    def departures(self) -> list[str]:
        """The parts in common that are not the default, as a reader sees them."""
        parts = [] if self.tier == Plan.tier else [self.tier]
        parts += [] if self.device == Plan.device else [self.device]
        parts += ["the paper's data"] if self.real else []
        return parts + [
            f"{name}={value if isinstance(value, str) else json.dumps(value)}"
            for name, value in sorted(self.overrides.items())
        ]

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON content."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Plan:
        """The inverse of `to_json`.

        Raises:
            KeyError, TypeError, ValueError: the content is of something else.
        """
        seeds, names = content["seeds"], content["optimizers"]
        return cls(
            **{
                **content,
                "seeds": None if seeds is None else tuple(seeds),
                "optimizers": None if names is None else tuple(names),
                "search": {name: (low, high) for name, (low, high) in content["search"].items()},
            }
        )


def ranges_of(search: Mapping[str, Range], optimizer: str) -> dict[str, Range]:
    """The ranges in which an optimizer is tuned: the common ones, or its own in their place.

    >>> ranges_of({"lr": (0.1, 1.0), "sgd:lr": (1.0, 2.0), "adam:eps": (0.1, 0.2)}, "sgd")
    {'lr': (1.0, 2.0)}
    """
    split = [(name.rpartition(":"), bounds) for name, bounds in search.items()]
    common = {name: bounds for (owner, _, name), bounds in split if not owner}
    return common | {name: bounds for (owner, _, name), bounds in split if owner == optimizer}


def require_owners(option: str, names: Mapping[str, Any], optimizers: Sequence[str]) -> None:
    """Refuse an entry named `optimizer:name` of an optimizer that is not among these."""
    for name in names:
        owner, listed = name.rpartition(":")[0], ",".join(optimizers)
        if owner and owner not in optimizers:
            raise ValueError(f"--{option} {name!r}: {owner!r} is none of --optimizers {listed!r}")


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
            study: [[asdict(arm), run] for arm, run in runs] for study, runs in self.trials.items()
        }
        others, _ = read_documents(store.root / "plans")
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
    requests: list[Request] = []
    unusable: dict[str, str] = {}
    contents, lost = read_documents(store.root / "plans")
    for name in sorted(contents, key=lambda name: (_number(contents[name]), name)):
        try:
            requests.append(_request(contents[name]))
        except (KeyError, TypeError, ValueError) as error:
            unusable[f"{name}.json"] = f"not of this version ({error}); {REPEAT}"
    return requests, unusable | dict.fromkeys(lost, LOST_REQUEST)


def _number(content: Any) -> int:
    """The place in the order of asking; file times would not survive a copy."""
    return content.get("number", 0) if isinstance(content, dict) else 0


def _ended(content: Any) -> int | None:
    """The place in the order of the ends; stores that did not note it have the order of asking."""
    return content.get("ended", _number(content)) if isinstance(content, dict) else None


def _request(content: Mapping[str, Any]) -> Request:
    trials = {
        study: [(Arm(arm["label"], arm["recipe"], arm["settings"]), run) for arm, run in runs]
        for study, runs in content["trials"].items()
    }
    ended = _ended(content)
    plan = Plan.from_json(content["plan"])
    return Request(content["studies"], plan, trials, math.inf if ended is None else ended)
