"""Arms and trials: the things that a study compares, as records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from spherenorm_experiments.core import Spec


@dataclass(frozen=True)
class Arm:
    """One line of a comparison: a recipe under some settings. The seeds of a study share it.

        Arm("SGDP (wd 1e-5)", "sgdp", {"weight_decay": 1e-3})

    Attributes:
        label: its name in tables and legends.
        recipe: a recipe's name, or `module:function`.
        settings: what tells this arm from the study's others, such as a momentum, a network or the
            stage of a search; JSON numbers and strings, by name.
    """

    label: str
    recipe: str
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        return self.label

    def has(self, **settings: Any) -> bool:
        """True if the arm has all of these settings."""
        return all(
            name in self.settings and self.settings[name] == value
            for name, value in settings.items()
        )


@dataclass(frozen=True)
class Trial:
    """One run in a study."""

    arm: Arm
    spec: Spec
