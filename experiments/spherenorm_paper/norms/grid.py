"""The vocabulary of the tables of norms: a grid on the digits' network, beside the paper's runs.

A study is its table of the paper's numbers, its arms, and claims that are arithmetic of Series.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd

from spherenorm_experiments.comparison import Arm, Comparison
from spherenorm_experiments.runs import Key, Runs, align_seeds
from spherenorm_experiments.verdict import BEYOND_PAPER, EQUIVALENCE_MARGIN, Claim
from spherenorm_paper.shared.facts import departures
from spherenorm_paper.shared.photographs import on_imagenet
from spherenorm_paper.statements import says

PAIRS = (("SGD", "SGDP"), ("AdamW", "AdamP"))
"""A baseline and its projected optimizer."""

PROJECTED = ("SGDP", "AdamP")

KIND = {
    **dict.fromkeys(("SGD", "SGDP", "SGDG"), "SGD"),
    **dict.fromkeys(("AdamW", "AdamP", "AdamG"), "Adam"),
}

NESTEROV: dict[str, Any] = {"momentum": 0.9, "nesterov": True}
"""The momentum of SGD and SGDP."""

DECAYS = {"SGD": 1e-4, "SGDP": 1e-5, "AdamW": 1e-4, "AdamP": 1e-6}
"""Weight decays of Table 2, with the paper's data."""

SEEDS = {"smoke": 2, "small": 6, "evidence": 12, "full": 12}

RESNET18 = on_imagenet("resnet18", task="classification", epochs=100, batch_size=256)
"""The paper's runs: Table 2's setting."""


class Grid(Comparison):
    """A comparison on the digits' network, whose claims are all its own.

    Args:
        measures: beside the path on the sphere.
        design: other arguments of a comparison.
    """

    def __init__(
        self, name: str, about: str, measures: Mapping[str, tuple[Key, str]] = {}, **design: Any
    ) -> None:
        measures = {**measures, "path on sphere": ("path", ".3g")}
        options: dict[str, Any] = {
            "measures": measures,
            "seeds": SEEDS,
            "departures": departures(name),
        }
        super().__init__(name, about, scored=False, **options, **design)


def arm(
    recipe: str,
    name: str = "",
    rates: Sequence[float] = (),
    against: Sequence[str] = (),
    paper_settings: Mapping[str, Any] | None = None,
    length: float = 1.0,
    **fixed: Any,
) -> Arm:
    """An optimizer; SGD and SGDP have Nesterov's momentum.

    Args:
        rates: that it tries; those of the comparison if there are none.
        paper_settings: hyper-parameters on the paper's data that differ from `fixed`, and from a
            learning rate of 0.1 (SGD's kind) or 0.001.
    """
    settings = {**NESTEROV, **fixed} if recipe in ("SGD", "SGDP") else fixed
    on_theirs = {"lr": 0.1 if KIND[recipe] == "SGD" else 1e-3, **settings, **(paper_settings or {})}
    tune = {"lr": rates} if rates else None
    return Arm(
        name or recipe, tune, settings, against, on_theirs, length=length, recipe=recipe.lower()
    )


def claim(
    name: str, relation: str, of: Callable[[Runs], Any], text: str, cites: str = "", **more: Any
) -> Claim:
    """A claim that cites a statement of the paper by its name; without one it is ours."""
    return Claim(name, relation, of, text, says(cites) if cites else BEYOND_PAPER, **more)


ratio = partial(claim, ratio=True)
points = partial(claim, unit="pp", is_performance=True)


def higher(
    name: str, of: Callable[[Runs], pd.Series], text: str, cites: str = "", **more: Any
) -> Claim:
    """The claim that a difference of scores is positive."""
    return points(name, "> 0", of, text, cites, equivalence_margin=EQUIVALENCE_MARGIN, **more)


def gain(runs: Runs, place: str, projected: str, baseline: str) -> pd.Series:
    """The difference of the test scores of two arms, each at the rate that a seed chooses."""
    return runs.selected(place, projected).test - runs.selected(place, baseline).test


def paths(projected: pd.DataFrame, baseline: pd.DataFrame) -> pd.Series:
    """The ratio of the paths on the sphere."""
    return projected.path / baseline.path


def norm_growth(frame: pd.DataFrame, since: str = "norm_first_epoch") -> pd.Series:
    """The growth of the norm: in the paper's Table 1 from the first epoch to the last."""
    return (frame.norm_last - frame[since]).mask(frame.norm_last == math.inf, math.inf)


def grown_more(projected: pd.DataFrame, baseline: pd.DataFrame) -> pd.Series:
    """The growth of one minus that of another."""
    return norm_growth(projected) - norm_growth(baseline)


def grown_over(
    projected: pd.DataFrame, baseline: pd.DataFrame, since: str = "norm_first_epoch"
) -> pd.Series:
    """The growth of one over that of another, which may shrink; infinite if the first diverged."""
    growth = norm_growth(projected, since)
    return (growth / norm_growth(baseline, since)).mask(growth == math.inf, math.inf)


def spread_of(parts: Iterable[pd.Series], *, ratio: bool = False) -> pd.Series:
    """Largest minus, or over, smallest of several Series."""
    frame = align_seeds(parts)
    return frame.max(axis=1) / frame.min(axis=1) if ratio else frame.max(axis=1) - frame.min(axis=1)


def noted(name: str, parts: Iterable[pd.Series]) -> str:
    """The note by how much the score of a baseline varies."""
    varies = spread_of(parts)
    return f"{name}'s varies by {varies.mean():.2g} pp" if len(varies) else ""
