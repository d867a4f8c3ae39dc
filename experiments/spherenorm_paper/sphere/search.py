"""The descents of Figures 3, H.1, G.1 and G.2: methods, settings, and numbers of their searches."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from spherenorm_experiments.pictures import DASHES
from spherenorm_experiments.runs import Place, Runs
from spherenorm_experiments.verdict import mean
from spherenorm_paper.shared import starts


class Method(NamedTuple):
    """A recipe, its fixed hyper-parameters, and the weight decays that are searched."""

    recipe: str
    setting: Mapping[str, Any]
    decays: tuple[float, ...] = ()

    @property
    def dash(self) -> str:
        """Dashed for a variant: with weight decay, or without clipping."""
        return DASHES[1] if self.decays or self.setting.get("nu", 1.0) is None else DASHES[0]


MOMENTUM, BETAS = {"momentum": 0.9}, {"betas": [0.9, 0.999]}
ADAMG = {"betas": [0.9, 0.99], "alpha": 0.0}
DECAYS = tuple(np.geomspace(1e-4, 1.0, 7).tolist())
METHODS = {
    "GDM": Method("sgd", MOMENTUM),
    "GDM + WD": Method("sgd", MOMENTUM, DECAYS),
    "GDP": Method("sgdp", MOMENTUM),
    "Adam": Method("adam", BETAS),
    "Adam + WD": Method("adamw", BETAS, DECAYS),
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
    **dict.fromkeys(("SGDG", "SGDG, no clip", "AdamG", "AdamG, no clip"), 1.0),
}
PAPER_RATES = (0.001, 0.1)
RATES = {"smoke": (1e-3, 1e-1, 3), "small": (1e-4, 10.0, 21), "full": (1e-4, 10.0, 101)}
"""The learning rates searched: the paper's range, and beyond it on both sides."""

Setting = tuple[int, float]
"""Steps, and the scale of the loss."""

REFERENCE = (1000, 1e-4)
"""The setting at which the norm of GDM is the paper's."""

SETTINGS = tuple((steps, scale) for steps in (1000, 3000) for scale in (1e-5, 1e-4, 1e-3))
"""Neither number is in the paper, so every comparison of speed is made at all of these."""

FLOOR = 1e-12
"""A gap below this is rounding."""


def place(method: str, setting: Setting = REFERENCE) -> Place:
    """The search of a method."""
    steps, scale = setting
    return Place(f"{steps} steps, scale {scale:g}", method)


def points(method: Method, tier: str) -> dict[str, list[float]]:
    """The searched learning rates, times the weight decays if the method has them."""
    rates = np.geomspace(*RATES[tier])
    if not method.decays:
        return {"lr": rates.tolist()}
    decays = method.decays[:: 3 if tier == "smoke" else 1]
    lr, decay = np.meshgrid(rates, decays, indexing="ij")
    return {"lr": lr.ravel().tolist(), "weight_decay": decay.ravel().tolist()}


def searched(runs: Runs, method: str, setting: Setting = REFERENCE) -> pd.DataFrame:
    """All runs of the search of a method."""
    return runs.all_runs(*place(method, setting))


def at_best_gap(
    runs: Runs, method: str, setting: Setting = REFERENCE, *, papers_rates: bool = False
) -> pd.DataFrame:
    """The runs at the point with the lowest final gap from the paper's start."""
    rates = PAPER_RATES if papers_rates else (0.0, math.inf)
    return starts.at_best(searched(runs, method, setting), "final_gap", rates)


def known_settings(runs: Runs) -> list[Setting]:
    """The settings of which there are runs; the reference without any."""
    ran = {place.condition for place in runs.places}
    return [s for s in SETTINGS if place("", s).condition in ran] or [REFERENCE]


def gaps(runs: Runs, method: str, *, papers_rates: bool = False) -> list[pd.Series]:
    """log10 of the final gap at the best rate, by start, in each setting.

    Args:
        papers_rates: only these, in the settings of the reference's scale, at which they mean
            something.
    """
    settings = [setting for setting in known_settings(runs)
                if not papers_rates or setting[1] == REFERENCE[1]]  # fmt: skip
    frames = (at_best_gap(runs, method, setting, papers_rates=papers_rates) for setting in settings)
    return [np.log10(starts.beside(best, "final_gap").clip(lower=FLOOR)) for best in frames]


def peak(runs: Runs, method: str) -> pd.Series:
    """The largest norm by start, at the best one of the paper's rates."""
    return starts.beside(at_best_gap(runs, method, papers_rates=True), "max_norm")


class Pair(NamedTuple):
    """Two methods that are compared, and the statement behind it.

    Attributes:
        papers_rates: True to compare them at the best of the paper's rates: of the Grassmann
            optimizers it says what its pictures at these show, and rates up to 10 show another
            order.
    """

    behind: str
    ahead: str
    statement: str = ""
    primary: bool = False
    papers_rates: bool = False

    def gains(self, runs: Runs) -> list[pd.Series]:
        """By how much the second is closer than the first, by start, in each setting."""
        baseline, projected = (
            gaps(runs, name, papers_rates=self.papers_rates) for name in self[:2]
        )
        return [
            baseline_gap - projected_gap
            for baseline_gap, projected_gap in zip(baseline, projected, strict=True)
        ]

    def means(self, runs: Runs) -> list[float]:
        """The mean gain in each setting where there is one."""
        finite_gains = [gain[np.isfinite(gain)] for gain in self.gains(runs)]
        return [mean(gain.tolist()) for gain in finite_gains if len(gain)]


PAIRS = (
    Pair("GDM", "GDP", "3.2.faster", primary=True),
    Pair("GDM + WD", "GDP", "3.2.faster", primary=True),
    Pair("GDM", "GDM + WD", "3.2.wd"),
    Pair("Adam", "AdamP", "h.mitigate", primary=True),
    Pair("Adam", "Adam + WD", "h.mitigate"),
    Pair("Adam + WD", "AdamP"),
    Pair("SGDG", "GDP", "g.slower", papers_rates=True),
    Pair("AdamG", "AdamP", "g.slower", papers_rates=True),
    Pair("SGDG", "SGDG, no clip", "g.clip", papers_rates=True),
    Pair("AdamG", "AdamG, no clip", "g.clip", papers_rates=True),
)
