"""The descents of Figures 3, H.1, G.1 and G.2: methods, settings, and the claims about them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from spherenorm_experiments.claims import OURS, Claim, Decision, Statement, slug
from spherenorm_experiments.paper.shared.starts import PAPERS_START, Choice, Descents
from spherenorm_experiments.paper.statements import says
from spherenorm_experiments.pictures import DASHES
from spherenorm_experiments.runs import Place, Runs, across, mean_over
from spherenorm_experiments.stats import mean
from spherenorm_experiments.tables import Cell


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

REFERENCE = (1000, 1e-4)
"""The steps and the scale of the loss at which the norm of GDM is the paper's."""

SETTINGS = tuple((steps, scale) for steps in (1000, 3000) for scale in (1e-5, 1e-4, 1e-3))
"""Neither number is in the paper, so every comparison of speed is made at all of these."""


Setting = tuple[int, float]
"""Steps, and the scale of the loss."""

SHOWN = "descent"
"""The condition of the best descents, whose paths are kept."""


def search_place(method: str, setting: Setting = REFERENCE) -> Place:
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


FLOOR = 1e-12
"""A gap below this is rounding."""


class Pair(NamedTuple):
    """Two methods that are compared.

    Attributes:
        papers_rates: True to compare them at the best of the paper's rates, which mean something at
            the reference's scale of the loss alone: of the Grassmann optimizers the paper says what
            its pictures at these rates show, and rates up to 10 show another order.
    """

    behind: str
    ahead: str
    cites: Statement
    primary: bool = False
    papers_rates: bool = False


PAIRS = (
    Pair("GDM", "GDP", says("3.2.faster"), primary=True),
    Pair("GDM + WD", "GDP", says("3.2.faster"), primary=True),
    Pair("GDM", "GDM + WD", says("3.2.wd")),
    Pair("Adam", "AdamP", says("h.mitigate"), primary=True),
    Pair("Adam", "Adam + WD", says("h.mitigate")),
    Pair("Adam + WD", "AdamP", OURS),
    Pair("SGDG", "GDP", says("g.slower"), papers_rates=True),
    Pair("AdamG", "AdamP", says("g.slower"), papers_rates=True),
    Pair("SGDG", "SGDG, no clip", says("g.clip"), papers_rates=True),
    Pair("AdamG", "AdamG, no clip", says("g.clip"), papers_rates=True),
)

EQUAL = (("GDP", "SGDG, no clip"), ("AdamP", "AdamG, no clip"))
"""Pairs that the paper calls alike, at its rates."""

PEAKS = {"GDM": "3.2.gdm-norm", "GDP": "3.2.subdues"}

NORMS = (
    ("GDM", "GDP", says("3.2.subdues")),
    ("GDM", "GDM + WD", says("3.2.wd")),
    ("Adam", "AdamP", says("h.mitigate")),
    ("Adam", "Adam + WD", says("h.mitigate")),
)
"""The method with the larger norm, the one with the smaller, and the statement."""


def searched(runs: Runs, method: str, setting: Setting = REFERENCE) -> Descents:
    """The search of a method."""
    return Descents(runs, *search_place(method, setting))


def best_of_search(descents: Descents, rates: tuple[float, float] = (0.0, math.inf)) -> Choice:
    """The point with the lowest final gap from the paper's start."""
    return descents.best("final_gap", rates)


def known_settings(runs: Runs) -> list[Setting]:
    """The settings of which there are runs; the reference without any."""
    ran = {place.condition for place in runs.places}
    return [s for s in SETTINGS if search_place("", s).condition in ran] or [REFERENCE]


def _all_gaps(runs: Runs, method: str, *, papers_rates: bool = False) -> list[pd.Series]:
    """log10 of the final gap at the best rate, by start, in each setting.

    Args:
        papers_rates: only these, in the settings of the reference's scale.
    """
    settings, rates = known_settings(runs), (0.0, math.inf)
    if papers_rates:
        settings = [each for each in settings if each[1] == REFERENCE[1]]
        rates = PAPER_RATES
    every = [searched(runs, method, setting) for setting in settings]
    gaps = [each.values("final_gap", best_of_search(each, rates).point) for each in every]
    return [np.log10(gap.clip(lower=FLOOR)) for gap in gaps]


def _gains(runs: Runs, pair: Pair) -> list[pd.Series]:
    """By how much one method is closer than another, by start, in each setting."""
    theirs, ours = (
        _all_gaps(runs, name, papers_rates=pair.papers_rates) for name in (pair.behind, pair.ahead)
    )
    return [first - second for first, second in zip(theirs, ours, strict=True)]


def claims_of_norms() -> Iterator[Claim]:
    """Largest norms at the reference, at the best rate of the paper's range."""
    for method, source in PEAKS.items():
        theirs = PAPER_MAX_NORM[method]
        yield Claim(
            f"largest-norm.{slug(method)}", f"= {theirs} ± {0.05 * theirs:.4g}",
            partial(_first_peak, method=method),
            f"The largest norm under {method} from the paper's start is {theirs}",
            says(source), format=".4g", paper=Cell(theirs, "g"),
        )  # fmt: skip
    yield Claim(
        "surge.gdm-wd", "> 1", _surge,
        "No weight decay of the search keeps GDM's norm as small as GDP's, at the paper's highest "
        "rate, at which both end closest: the least of the largest norms over GDP's",
        says("3.2.surge"), ratio=True, primary=True, paper="2.53 / 1.12 = 2.26",
        note=_every_peak, deterministic=True,
    )  # fmt: skip
    for large, small, cites in NORMS:
        yield Claim(
            f"norms.{slug(large)}.{slug(small)}", "> 1",
            partial(_peaks_over, large=large, small=small),
            f"{large} grows its norm to more than {small} does: ratio of the largest norms",
            cites, ratio=True, primary=True, deterministic=True,
        )  # fmt: skip
    for method in ("SGDG", "AdamG"):
        yield Claim(
            f"keeps-norm.{slug(method)}", "< 1e-6", partial(_off_the_sphere, method=method),
            f"{method} keeps the norm: |largest / first - 1| below 1e-6", says("g.norm"),
            deterministic=True,
        )  # fmt: skip


def _peak(runs: Runs, method: str) -> pd.Series:
    """The largest norm by start."""
    own = searched(runs, method)
    return own.values("max_norm", best_of_search(own, PAPER_RATES).point)


def _peaks_over(runs: Runs, large: str, small: str) -> pd.Series:
    return _peak(runs, large) / _peak(runs, small)


def _off_the_sphere(runs: Runs, method: str) -> pd.Series:
    return (_peak(runs, method) - 1).abs()


def _first_peak(runs: Runs, method: str) -> float | None:
    """The largest norm from the paper's start; None if it diverged."""
    own = searched(runs, method)
    item = own.start(best_of_search(own, PAPER_RATES).point)
    return None if item is None else item.summary["max_norm"]


def _of_each_decay(runs: Runs) -> pd.DataFrame:
    """GDM's descents with each decay at the paper's highest rate; infinite norms if it diverged."""
    every = searched(runs, "GDM + WD").frame
    near = np.isclose(every.lr.astype(float), PAPER_RATES[1], rtol=1e-6, atol=0)
    return every[near].assign(max_norm=every[near].max_norm.astype(float).fillna(math.inf))


def _surge(runs: Runs) -> pd.Series:
    """The least largest norm over GDP's, by start."""
    gdp, gdm = searched(runs, "GDP"), _of_each_decay(runs)
    theirs = gdp.values("max_norm", gdp.at(PAPER_RATES[1]))
    return gdm[gdm.seed != PAPERS_START].groupby("seed").max_norm.min() / theirs


def _every_peak(runs: Runs) -> str:
    """The largest norms from the paper's start, with each weight decay."""
    own = _of_each_decay(runs)
    own = own[own.seed == PAPERS_START]
    peaks = zip(own.max_norm, own.get("weight_decay", ()), strict=True)
    shown = ", ".join(f"{norm:.2f} (wd {decay:.2g})" for norm, decay in peaks)
    return f"from the paper's start, where it has 2.53: {shown}" if shown else ""


def claims_of_speed() -> Iterator[Claim]:
    """Final gaps in every setting, and the speed at the beginning at the reference."""
    given: dict[str, Any] = {"score": True, "deterministic": True}
    for pair in PAIRS:
        at = ", at the paper's rates" if pair.papers_rates else ""
        yield Claim(
            _closer(pair), "> 0", partial(_mean_gain, pair=pair),
            f"{pair.ahead} ends closer to the optimum than {pair.behind}{at}: log₁₀ of the ratio "
            "of the gaps", pair.cites, unit="decades", primary=pair.primary, **given,
        )  # fmt: skip
    for a, b in EQUAL:
        yield Claim(
            f"equally-close.{slug(b)}.{slug(a)}", f"< {math.log10(2)!r}",
            partial(_largest_difference, a=a, b=b),
            f"{b} ends as close to the optimum as {a}, at the paper's rates: gaps within a "
            "factor of 2 everywhere",
            says("g.quickly"), unit="decades", **given,
        )  # fmt: skip
    for other in ("GDM", "GDM + WD"):
        yield Claim(
            f"sooner.gdp.{slug(other)}", "< 1", partial(_early, ours="GDP", theirs=other),
            f"GDP is sooner below a gap of 1 than {other}: ratio of steps, at the reference",
            says("3.2.faster"), ratio=True, **given,
        )  # fmt: skip
    yield Claim(
        "momentum-does-not-arrive", "> -1",
        lambda runs: across(_all_gaps(runs, "GDM")).min(axis=1),
        "GDM does not arrive: its final gap is above 0.1 in every setting (log₁₀ above -1)",
        says("3.2.gdm"), unit="decades", **given,
    )  # fmt: skip


def _closer(pair: Pair) -> str:
    return f"closer.{slug(pair.ahead)}.{slug(pair.behind)}"


def _mean_gain(runs: Runs, pair: Pair) -> pd.Series:
    """Over the settings, by start."""
    return mean_over(_gains(runs, pair))


def _largest_difference(runs: Runs, a: str, b: str) -> pd.Series:
    """Over the settings, by start."""
    pair = Pair(b, a, says("g.quickly"), papers_rates=True)
    return across(gain.abs() for gain in _gains(runs, pair)).max(axis=1)


def _early(runs: Runs, ours: str, theirs: str) -> pd.Series:
    """The steps of one over those of another, each at its best rate."""
    every = [searched(runs, name) for name in (ours, theirs)]
    first, second = (each.values("steps_to_1", best_of_search(each).point) for each in every)
    return first / second


def in_every_setting(decision: Decision, runs: Runs) -> Decision:
    """A mean over the settings decides only if each of them has the same sign."""
    pairs = {_closer(pair): pair for pair in PAIRS}
    if decision.claim.name not in pairs or not decision.has_results:
        return decision
    every = [gain[np.isfinite(gain)] for gain in _gains(runs, pairs[decision.claim.name])]
    means = [mean(gain.tolist()) for gain in every if len(gain)]
    if not means:
        return decision
    count = sum(value > 0 for value in means)
    ends = [Cell(end(means), "+.2f") for end in (min, max)]
    said = f"ahead in {count} of {len(means)} settings"
    one_way = count in (0, len(means))  # else it depends on what the paper leaves open
    return replace(
        decision,
        numbers=[*decision.numbers, *ends],
        ours=f"{decision.ours} over the settings, from {ends[0]} to {ends[1]}",
        detail="; ".join(filter(None, [decision.detail, said])),
        p=decision.p if one_way else None,
    )
