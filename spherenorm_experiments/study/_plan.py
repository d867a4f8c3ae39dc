"""`Plan`: the part of a command that every study takes alike."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from spherenorm.support import unknown_name

__all__ = ["TIERS", "Plan"]

TIERS = ("smoke", "small", "full")


@dataclass(frozen=True)
class Plan:
    """A command's choices, for all of its studies.

    Attributes:
        tier: smoke | small | full.
        seeds: None for the study's own.
        optimizers: only these recipes; None for the study's own. One that the study does not have
            substitutes for one that it has.
        device: a torch device.
        real: the paper's data sets and settings, in place of embedded data; for the studies that
            have them.
        settings: `--set`: values for fields of `Spec`, options of the task and hyper-parameters of
            the recipes.

    Raises:
        ValueError: an unknown tier.
    """

    tier: str = "small"
    seeds: tuple[int, ...] | None = None
    optimizers: tuple[str, ...] | None = None
    device: str = "cpu"
    real: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.tier not in TIERS:
            raise unknown_name("tier", self.tier, TIERS)

    @property
    def setting(self) -> Plan:
        """The plan without its choice of optimizers and seeds.

        Results of plans with one setting belong together.
        """
        return replace(self, seeds=None, optimizers=None)

    @property
    def departures(self) -> list[str]:
        """The parts of the setting that are not the default, as a reader sees them."""
        parts = [] if self.tier == Plan.tier else [self.tier]
        parts += [] if self.device == Plan.device else [self.device]
        parts += ["the paper's data"] if self.real else []
        return parts + [
            f"{name}={value if isinstance(value, str) else json.dumps(value)}"
            for name, value in sorted(self.settings.items())
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
        return cls(**{**content, **tuples})
