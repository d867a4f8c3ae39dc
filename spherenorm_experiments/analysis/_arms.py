"""Arms and trials: the things that a study compares, as records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from spherenorm_experiments.core import Spec

__all__ = ["Arm", "Trial"]


@dataclass(frozen=True)
class Arm:
    """One line of a comparison: a recipe under some settings. The seeds of a study share it.

        Arm("SGDP (wd 1e-5)", "sgdp", {"weight_decay": 1e-3})

    Attributes:
        label: its name in tables and legends.
        recipe: a recipe's name, or `module:function`.
        settings: what tells this arm from the study's others, such as a momentum, a network or the
            stage of a search; JSON numbers and strings, by name.
        substitutes_for: the study's own arm whose settings this recipe takes over; None for an arm
            of the study's own.
    """

    label: str
    recipe: str
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)
    substitutes_for: Arm | None = None

    def __str__(self) -> str:
        return self.label

    def has(self, **settings: Any) -> bool:
        """True if the arm has all of these settings."""
        return all(
            name in self.settings and self.settings[name] == value
            for name, value in settings.items()
        )

    def substitute(self, recipe: str) -> Arm:
        """The arm of a recipe that takes over the settings of this one."""
        return Arm(f"{recipe} as {self.label}", recipe, self.settings, substitutes_for=self)

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON content."""
        own = self.substitutes_for
        return {
            "label": self.label,
            "recipe": self.recipe,
            "settings": dict(self.settings),
            "substitutes_for": None if own is None else own.to_json(),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Arm:
        """The inverse of `to_json`.

        Raises:
            KeyError, TypeError: the content is of something else.
        """
        own = content["substitutes_for"]
        return cls(
            content["label"],
            content["recipe"],
            content["settings"],
            None if own is None else cls.from_json(own),
        )


@dataclass(frozen=True)
class Trial:
    """One run in a study."""

    arm: Arm
    spec: Spec

    def substitute(self, recipe: str) -> Trial:
        """The trial of another recipe with the settings of this one.

        Hyper-parameters that the other recipe does not have are dropped when the plan is applied.
        """
        return Trial(self.arm.substitute(recipe), replace(self.spec, recipe=recipe))
