"""`Plan`: the part of a command that every study takes alike."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from spherenorm.support import unknown_name

__all__ = ["TIERS", "Plan", "Range", "ranges_of"]

Range = tuple[float, float]

TIERS = ("smoke", "small", "full")


@dataclass(frozen=True)
class Plan:
    """A command's choices, for all of its studies.

    Attributes:
        tier: smoke | small | full.
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
        listed = ",".join(self.optimizers or ())
        if (self.search or self.like) and not listed:
            raise ValueError("--search and --like are of the contenders that --optimizers adds")
        for name in self.search:
            owner = name.rpartition(":")[0]
            if owner and owner not in (self.optimizers or ()):
                raise ValueError(f"--search {name!r}: {owner!r} is none of --optimizers {listed!r}")

    @property
    def common(self) -> Plan:
        """The plan without its choice of optimizers and seeds.

        Results of plans that have this in common belong together.
        """
        return replace(self, seeds=None, optimizers=None, search={}, like="")

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
        lists = {name: content[name] for name in ("seeds", "optimizers")}
        tuples = {name: None if found is None else tuple(found) for name, found in lists.items()}
        search = {name: (low, high) for name, (low, high) in content["search"].items()}
        return cls(**{**content, **tuples, "search": search})


def ranges_of(search: Mapping[str, Range], optimizer: str) -> dict[str, Range]:
    """The ranges in which an optimizer is tuned: the common ones, or its own in their place.

    >>> ranges_of({"lr": (0.1, 1.0), "sgd:lr": (1.0, 2.0), "adam:eps": (0.1, 0.2)}, "sgd")
    {'lr': (1.0, 2.0)}
    """
    split = [(name.rpartition(":"), bounds) for name, bounds in search.items()]
    common = {name: bounds for (owner, _, name), bounds in split if not owner}
    return common | {name: bounds for (owner, _, name), bounds in split if owner == optimizer}
