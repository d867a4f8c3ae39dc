"""The claims about Table 1."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from spherenorm_experiments.analysis import (
    Cell,
    Claim,
    Grid,
    Results,
    Sample,
    combined,
    grid_of,
    paired,
    paired_values,
    performance,
    sample,
    spread,
    worst_of,
)
from spherenorm_experiments.paper.norms._growth import (
    ARMS,
    DECAYS,
    PAIRS,
    PAPER,
    SHARED,
    decay_of,
    growth_of,
    ratios_of,
)
from spherenorm_experiments.paper.statements import says

__all__ = ["claims_of_growth"]


def claims_of_growth(results: Results) -> list[Claim]:
    """Of growth, of paths, of weight decay and of scores."""
    grids = {name: grid_of(results, arm) for name, arm in ARMS.items()}
    return [
        *_claims_of_norms(results, grids),
        *_claims_of_path(results, grids),
        *_claims_of_growth_with_decay(grids),
        *_claims_of_decay(grids),
        *_claims_of_score(grids),
    ]


def _claims_of_norms(results: Results, grids: Mapping[str, Grid]) -> list[Claim]:
    quoted = ("0.85 / 2.99 = 0.28", "1.73 / 8.71 = 0.20", "0.32 / 4.21 = 0.08")
    claims = []
    for (a, b), theirs in zip(PAIRS, quoted, strict=True):
        worst = worst_of(max, list(ratios_of(results, a, b, "growth").values()))
        text = f"{b} grows its norm less than half as much as {a}, at the rate that is worst for it"
        source = says("t1.restrain")
        claims.append(sample(text, worst, "<", 0.5, source=source, paper=theirs, of="ratio"))
        ours, baseline = (
            growth_of(grids[n], grids[n].tuned(weight_decay=0.0).index) for n in (b, a)
        )
        text = f"{b} grows its norm less than half as much as {a}, each at its best rate"
        claims.append(paired(text, ours, baseline, "<", how="ratio", bound=0.5, source=source,
                             paper=theirs, primary=True))  # fmt: skip
    a, b = PAIRS[2]
    adam, adamp = (growth_of(grids[name], grids[name].tuned().index) for name in (a, b))
    text = "Tagging: Adam's growth is more than half of 13.2 times AdamP's, each at its best rate"
    claims.append(
        paired(
            text,
            adam,
            adamp,
            ">",
            how="ratio",
            bound=6.6,
            behind="a",
            source=says("t1.tagging"),
            paper="13.2",
        )
    )
    index = grids["AdamW"].tuned().index
    factor = grids["AdamW"].sample("growth_over_moves", index)
    text = "Adam's squared norm grows by more than twice the sum of its squared steps"
    return [*claims, sample(text, factor, ">", 2.0, source=says("2.nesterov"), of="ratio")]


def _claims_of_growth_with_decay(grids: Mapping[str, Grid]) -> list[Claim]:
    """The paper says that growth is less in all of its experiments, those with decay included."""
    quoted = {"1e-6": "0.72 - 2.73 = -2.01", "1e-5": "-0.04 - 1.36 = -1.40"}
    claims = []
    for (name, theirs), ratio in itertools.product(quoted.items(), (0.1, 1.0)):
        decay = decay_of(name)
        ours, baseline = (
            growth_of(grids[n], grids[n].tuned(weight_decay=decay, wd_ratio=ratio).index)
            for n in ("SGDP", "SGD")
        )
        text = f"SGDP grows its norm less than SGD with a decay of {name}, each at its best rate"
        source = says("t1.restrain")
        text = f"{text}, wd ratio {ratio:g}"
        claims.append(paired(text, ours, baseline, "<", source=source, paper=theirs))
    return claims


def _claims_of_path(results: Results, grids: Mapping[str, Grid]) -> list[Claim]:
    claims = []
    for a, b in PAIRS:
        every = list(ratios_of(results, a, b, "path").values())
        source, least = says("3.steps"), worst_of(min, every)
        text = f"{b} travels further on the sphere than {a}, at the rate that is worst for it"
        claims.append(sample(text, least, ">", 1.0, source=source, of="ratio", primary=True))
        long, other = (
            grids[name].sample("path", grids[name].tuned(weight_decay=0.0).index) for name in (b, a)
        )
        text = f"{b} travels further on the sphere than {a}, each at its best rate"
        claims.append(paired(text, long, other, ">", how="ratio", source=source))
    return claims


def _claims_of_decay(grids: Mapping[str, Grid]) -> list[Claim]:
    rate = {name: grids[name].tuned(weight_decay=0.0).rate for name in ("SGD", "SGDP")}

    def over(name: str, key: str, decays: tuple[str, ...] = SHARED, ratio: float = 0.1) -> Any:
        grid = grids[name]
        return [
            grid.sample(key, grid.at(lr=rate[name], weight_decay=decay_of(d),
                                     wd_ratio=ratio if DECAYS[d] else 0.1))
            for d in decays
        ]  # fmt: skip

    every = tuple(DECAYS)
    norms, scores = (over("SGD", key, every) for key in ("norm_last", "test"))
    grown = [paired_values(*pair) for pair in zip(norms, over("SGD", "norm_first_epoch", every),
                                                   strict=True)]  # fmt: skip
    theirs = np.array([PAPER["SGD", name][1:] for name in every], dtype=float)
    quoted = float(np.corrcoef(theirs.T)[0, 1])
    claims = [
        paired("Weight decay mitigates SGD's growth: with 1e-4 minus without",
               grown[3], grown[0], "<", source=says("t1.mitigates"),
               paper=Cell(-0.19 - 2.99, "+.2f")),
        paired("SGD's score depends on weight decay: 1e-4 minus none", scores[3], scores[0], ">",
               equivalence=1.0, source=says("t1.sensitive"), paper=Cell(70.43 - 67.94, "+.2f"),
               unit="pp", detail="equivalent means within ±1 pp"),
        sample("Across SGD's weight decays a smaller last norm goes with a higher score: the "
               "correlation over four decays", _correlation(norms, scores), "<", 0.0,
               source=says("t1.smaller"), paper=Cell(quoted, "+.3f"), limits=(-1.0, 1.0),
               performance=True),
    ]  # fmt: skip
    for ratio in (0.1, 1.0):
        text = (
            "SGDP's last norm depends less on weight decay than SGD's: largest over smallest from "
            f"0 to 1e-5, SGDP's relative to SGD's, wd ratio {ratio:g}"
        )
        pair = spread(over("SGDP", "norm_last", SHARED, ratio), "ratio"), spread(norms[:3], "ratio")
        claims.append(
            paired(text, *pair, "<", how="ratio", source=says("t1.stable"),
                   paper="(2.10 / 1.19) / (4.34 / 2.70) = 1.10",
                   detail="the paper's own numbers say so of differences, not of ratios")
        )  # fmt: skip
        text = f"SGDP's score varies by less than 1 pp from 0 to 1e-5, wd ratio {ratio:g}"
        values = spread(over("SGDP", "test", SHARED, ratio))
        claims.append(
            sample(text, values, "<", 1.0, source=says("t1.stable"), paper="0.36", unit="pp")
        )
    return claims


def _correlation(xs: list[Sample], ys: list[Sample]) -> Sample:
    """The correlation over arms of two numbers, for each seed; 0 of numbers that do not vary."""

    def correlation(values: list[float]) -> float:
        pair = np.reshape(values, (2, -1))
        return float(np.corrcoef(pair)[0, 1]) if (np.ptp(pair, axis=1) > 0).all() else 0.0

    return replace(combined(correlation, [*xs, *ys]), performance=True)


def _claims_of_score(grids: Mapping[str, Grid]) -> list[Claim]:
    claims = []
    decays = (("0", "0"), ("0", "0"), ("0", "0"), ("1e-4", "1e-5"))
    for (a, b), (theirs, ours) in zip((*PAIRS, PAIRS[0]), decays, strict=True):
        pair = [
            grids[name].sample(
                "test", grids[name].tuned(weight_decay=decay_of(d), wd_ratio=0.1).index
            )
            for name, d in ((b, ours), (a, theirs))
        ]
        quoted = Cell(PAPER[b, ours][2] - PAPER[a, theirs][2], "+.2f")
        source = says("t1.score" if ours == theirs else "t1.tuned")
        at = "" if ours == theirs else f" (wd {ours} and {theirs})"
        text = f"{b} scores higher than {a}{at}, each at its best rate"
        claims.append(performance(text, *pair, source=source, paper=quoted))
    return claims
