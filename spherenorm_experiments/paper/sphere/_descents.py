"""The methods that are compared on the sphere of Figure 3, and the settings of the comparison."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from spherenorm_experiments.analysis import Arm
from spherenorm_experiments.report.pictures import DASHES

__all__ = [
    "METHODS",
    "PAPER_MAX_NORM",
    "PAPER_RATES",
    "REFERENCE",
    "SETTINGS",
    "Method",
    "descent_arm",
    "method_of",
    "points",
    "search_arm",
]


@dataclass(frozen=True)
class Method:
    """A recipe, its fixed hyper-parameters, and the weight decays that are searched."""

    recipe: str
    setting: Mapping[str, Any]
    decays: tuple[float, ...] = field(default=(), kw_only=True)

    @property
    def dash(self) -> str:
        """Dashed for a variant: with weight decay, or without clipping."""
        return DASHES[1] if self.decays or self.setting.get("nu", 1.0) is None else DASHES[0]


MOMENTUM, BETAS = {"momentum": 0.9}, {"betas": [0.9, 0.999]}
ADAMG = {"betas": [0.9, 0.99], "alpha": 0.0}
DECAYS = tuple(np.geomspace(1e-4, 1.0, 7).tolist())
METHODS = {
    "GDM": Method("sgd", MOMENTUM),
    "GDM + WD": Method("sgd", MOMENTUM, decays=DECAYS),
    "GDP": Method("sgdp", MOMENTUM),
    "Adam": Method("adam", BETAS),
    "Adam + WD": Method("adamw", BETAS, decays=DECAYS),
    "AdamP": Method("adamp", BETAS),
    "SGDG": Method("sgdg", {**MOMENTUM, "nu": 0.1, "alpha": 0.0}),
    "SGDG, no clip": Method("sgdg", {**MOMENTUM, "nu": None, "alpha": 0.0}),
    "AdamG": Method("adamg", {**ADAMG, "nu": 0.1}),
    "AdamG, no clip": Method("adamg", {**ADAMG, "nu": None}),
}
PAPER_MAX_NORM = {
    "GDM": 3.2,
    "GDM + WD": 2.53,
    "GDP": 1.12,
    "SGDG": 1.0,
    "SGDG, no clip": 1.0,
    "AdamG": 1.0,
    "AdamG, no clip": 1.0,
}
PAPER_RATES = (0.001, 0.1)
RATES = {"smoke": (1e-3, 1e-1, 3), "small": (1e-4, 10.0, 21), "full": (1e-4, 10.0, 101)}
"""The learning rates searched: the paper's range, and beyond it on both sides."""

REFERENCE = (1000, 1e-4)
"""The steps and the scale of the loss at which the norm of GDM is the paper's."""

SETTINGS = tuple((steps, scale) for steps in (1000, 3000) for scale in (1e-5, 1e-4, 1e-3))
"""Neither number is in the paper, so every comparison of speed is made at all of these."""


def search_arm(method: str, steps: int, scale: float) -> Arm:
    settings = {"method": method, "stage": "search", "steps": steps, "scale": scale}
    at = "" if (steps, scale) == REFERENCE else f", {steps} steps, scale {scale:g}"
    return Arm(f"{method}: search{at}", METHODS[method].recipe, settings)


def descent_arm(method: str) -> Arm:
    return Arm(method, METHODS[method].recipe, {"method": method, "stage": "descent"})


def method_of(arm: Arm) -> Method:
    return METHODS[arm.settings["method"]]


def points(method: Method, tier: str) -> dict[str, list[float]]:
    """The searched learning rates, times the weight decays if the method has them."""
    rates = np.geomspace(*RATES[tier])
    if not method.decays:
        return {"lr": rates.tolist()}
    decays = method.decays[:: 3 if tier == "smoke" else 1]
    lr, decay = np.meshgrid(rates, decays, indexing="ij")
    return {"lr": lr.ravel().tolist(), "weight_decay": decay.ravel().tolist()}
