"""The arms of Table 1, the paper's numbers, and the claims about them."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from functools import partial
from itertools import product

import numpy as np

from spherenorm_experiments.analysis import (
    MARGIN,
    Arm,
    Cell,
    Claim,
    Grid,
    Results,
    Sample,
    Side,
    Values,
    advantage,
    at_best,
    combined,
    derive,
    grid_of,
    paired_values,
    printed,
    slug,
    spread,
    worst_of,
)
from spherenorm_experiments.paper.norms._sweeps import at_rate_of, of_all
from spherenorm_experiments.paper.statements import says

SGD_RATES, ADAM_RATES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0), (3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
DECAY_SCALE = 100
"""Our weight decay per one of the paper's: 240 steps instead of 500,000 would not feel 1e-4."""

DECAYS = {"0": 0.0, "1e-6": 1e-6, "1e-5": 1e-5, "1e-4": 1e-4}
SHARED = ("0", "1e-6", "1e-5")
"""The paper's weight decays, and those that both of its arms have."""

PAIRS = (("SGD", "SGDP"), ("AdamW", "AdamP"), ("tagging: AdamW", "tagging: AdamP"))
ARMS = {
    name: Arm(
        name,
        name.rpartition(" ")[2].lower(),
        {"data": "tagging" if name.startswith("tagging") else "digits"},
    )
    for pair in PAIRS
    for name in pair
}

PAPER = {
    ("SGD", "0"): printed("1.35 4.34 67.94"),
    ("SGD", "1e-6"): printed("1.35 4.08 67.89"),
    ("SGD", "1e-5"): printed("1.33 2.70 69.06"),
    ("SGD", "1e-4"): printed("1.21 1.02 70.43"),
    ("SGDP", "0"): printed("1.25 2.10 70.21"),
    ("SGDP", "1e-6"): printed("1.25 1.96 70.27"),
    ("SGDP", "1e-5"): printed("1.25 1.19 70.57"),
    ("AdamW", "0"): printed("1.70 10.41 68.38"),
    ("AdamP", "0"): printed("1.29 3.02 70.55"),
    ("tagging: AdamW", "0"): printed("7.35 11.56 90.86"),
    ("tagging: AdamP", "0"): printed("7.30 7.62 91.19"),
}
"""Norm after the first epoch, norm after the last, score."""

NORMS = ("norm_last", "norm_first_epoch")
"""Growth is the paper's: from the first epoch to the last."""


def decay_of(name: str) -> float:
    """Ours, of the paper's."""
    return DECAY_SCALE * DECAYS[name]


def growth_of(grid: Grid, index: int | None) -> Sample:
    """The growth of the norm at a point."""
    last, first = (grid.sample(key, index) for key in NORMS)
    return paired_values(last, first)


def ratios_of(results: Results, a: str, b: str, key: str) -> dict[float, Sample]:
    """b over a at every rate without weight decay; of "growth", of that."""
    theirs, ours = (grid_of(results, ARMS[name]) for name in (a, b))
    ratios = {}
    for rate in SGD_RATES if a == "SGD" else ADAM_RATES:
        pair = [(grid, grid.at(lr=rate, weight_decay=0.0)) for grid in (ours, theirs)]
        one, other = (growth_of(g, i) if key == "growth" else g.sample(key, i) for g, i in pair)
        ratios[rate] = advantage(one, other, "ratio")
    return ratios


def claims_of_growth() -> list[Claim]:
    """Of growth, of paths, of weight decay and of scores."""
    return [*_of_norms(), *_of_paths(), *_of_growth_with_decay(), *_of_decay(), *_of_scores()]


def _at_equal_rates(results: Results, pair: tuple[str, str], key: str) -> Sample:
    """The second of a pair over the first without weight decay: the median of the rates."""
    return worst_of(statistics.median, list(ratios_of(results, *pair, key).values()))


def _of_norms() -> Iterator[Claim]:
    quoted = ("0.85 / 2.99 = 0.28", "1.73 / 8.71 = 0.20", "0.32 / 4.21 = 0.08")
    for (a, b), theirs in zip(PAIRS, quoted, strict=True):
        yield Claim(
            f"growth.{slug(b)}",
            f"{b} grows its norm less than half as much as {a} at equal rates: the median of the "
            "rates",
            partial(_at_equal_rates, pair=(a, b), key="growth"), "<", 0.5, how="ratio",
            cites=says("t1.restrain"), paper=theirs, primary=True,
        )  # fmt: skip
    yield Claim(
        "growth.tagging.factor",
        "Tagging: AdamP's growth is less than twice 1 / 13.2 of Adam's at equal rates: the median "
        "of the rates",
        partial(_at_equal_rates, pair=PAIRS[2], key="growth"), "<", 2 / 13.2, how="ratio",
        cites=says("t1.tagging"), paper="0.32 / 4.21 = 0.08",
    )  # fmt: skip
    yield Claim(
        "growth.adam.steps",
        "Adam's squared norm grows by more than twice the sum of its squared steps",
        at_best(ARMS["AdamW"], "growth_over_moves"), ">", 2.0, how="ratio",
        cites=says("2.nesterov"),
    )  # fmt: skip


def _of_growth_with_decay() -> Iterator[Claim]:
    """The paper says that growth is less in all of its experiments, those with decay included."""
    for ratio in (0.1, 1.0):
        yield Claim(
            f"growth.sgdp.decay.ratio-{ratio:g}",
            "SGDP grows its norm less than SGD with a decay of 1e-6 and 1e-5 at equal rates: the "
            f"median of the rates and decays, wd ratio {ratio:g}",
            partial(_less_growth_with_decay, ratio=ratio), "<", 0.0, how="difference",
            cites=says("t1.restrain"), paper="-2.01 and -1.40",
        )  # fmt: skip


def _less_growth_with_decay(results: Results, ratio: float) -> Sample:
    """SGDP's growth minus SGD's."""
    ours, theirs = (grid_of(results, ARMS[name]) for name in ("SGDP", "SGD"))
    gaps = []
    for rate, decay in product(SGD_RATES, SHARED[1:]):
        point = {"lr": rate, "weight_decay": decay_of(decay), "wd_ratio": ratio}
        grown, base = (growth_of(grid, grid.at(**point)) for grid in (ours, theirs))
        gaps.append(advantage(grown, base))
    return worst_of(statistics.median, gaps)


def _of_paths() -> Iterator[Claim]:
    for a, b in PAIRS:
        yield Claim(
            f"path.{slug(b)}",
            f"{b} travels further on the sphere than {a} at equal rates: the median of the rates",
            partial(_at_equal_rates, pair=(a, b), key="path"), ">", 1.0, how="ratio",
            cites=says("3.steps"), primary=True,
        )  # fmt: skip


def _with(arm: str, key: str, decay: str, ratio: float = 0.1) -> Side:
    """A number of SGD or SGDP with a decay, at the rate that is best without."""
    point = {"weight_decay": decay_of(decay), "wd_ratio": ratio if DECAYS[decay] else 0.1}
    return at_rate_of(ARMS[arm], {"weight_decay": 0.0}, key, **point)


def _of_decay() -> Iterator[Claim]:
    strong, none = (
        derive(paired_values, *(_with("SGD", key, decay) for key in NORMS))
        for decay in ("1e-4", "0")
    )
    yield Claim(
        "decay.mitigates", "Weight decay mitigates SGD's growth: with 1e-4 minus without",
        strong, "<", none, cites=says("t1.mitigates"), paper=Cell(-0.19 - 2.99, "+.2f"),
    )  # fmt: skip
    yield Claim(
        "decay.sgd-score", "SGD's score depends on weight decay: 1e-4 minus none",
        _with("SGD", "test", "1e-4"), ">", _with("SGD", "test", "0"), cites=says("t1.sensitive"),
        paper=Cell(70.43 - 67.94, "+.2f"), unit="pp", equivalent=1.0,
    )  # fmt: skip
    theirs = np.array([PAPER["SGD", name][1:] for name in DECAYS], dtype=float)
    yield Claim(
        "decay.smaller-norm",
        "Across SGD's weight decays a smaller last norm goes with a higher score: the "
        "correlation over four decays",
        derive(_correlation, *(_with("SGD", *x) for x in product(("norm_last", "test"), DECAYS))),
        "<", 0.0, cites=says("t1.smaller"), paper=Cell(float(np.corrcoef(theirs.T)[0, 1]), "+.3f"),
        limits=(-1.0, 1.0), performance=True,
    )  # fmt: skip
    sgd = [_with("SGD", "norm_last", decay) for decay in SHARED]
    for ratio in (0.1, 1.0):
        norms, scores = (
            [_with("SGDP", key, decay, ratio) for decay in SHARED] for key in ("norm_last", "test")
        )
        yield Claim(
            f"decay.sgdp-norm.ratio-{ratio:g}",
            "SGDP's last norm depends less on weight decay than SGD's: largest over smallest from "
            f"0 to 1e-5, SGDP's relative to SGD's, wd ratio {ratio:g}",
            of_all(spread, norms, "ratio"), "<", of_all(spread, sgd, "ratio"), how="ratio",
            cites=says("t1.stable"), paper="(2.10 / 1.19) / (4.34 / 2.70) = 1.10",
            caveat="the paper's own numbers say so of differences, not of ratios",
        )  # fmt: skip
        yield Claim(
            f"decay.sgdp-score.ratio-{ratio:g}",
            f"SGDP's score varies by less than 1 pp from 0 to 1e-5, wd ratio {ratio:g}",
            of_all(spread, scores), "<", 1.0, cites=says("t1.stable"), paper="0.36", unit="pp",
        )  # fmt: skip


def _correlation(*arms: Values) -> Sample:
    """The correlation over arms of two numbers, for each seed; 0 of numbers that do not vary.

    Args:
        *arms: the first number of every arm, then the second of every arm.
    """

    def correlation(values: list[float]) -> float:
        pair = np.reshape(values, (2, -1))
        return float(np.corrcoef(pair)[0, 1]) if (np.ptp(pair, axis=1) > 0).all() else 0.0

    return combined(correlation, arms)


def _of_scores() -> Iterator[Claim]:
    decays = (("0", "0"), ("0", "0"), ("0", "0"), ("1e-4", "1e-5"))
    for (a, b), (theirs, ours) in zip((*PAIRS, PAIRS[0]), decays, strict=True):
        tuned = ours != theirs
        left, right = (
            at_best(ARMS[name], weight_decay=decay_of(d), wd_ratio=0.1)
            for name, d in ((b, ours), (a, theirs))
        )
        at = f" (wd {ours} and {theirs})" if tuned else ""
        yield Claim(
            f"score.{slug(b)}{'.best-decay' if tuned else ''}",
            f"{b} scores higher than {a}{at}, each at its best rate", left, ">", right,
            cites=says("t1.tuned" if tuned else "t1.score"), unit="pp", equivalent=MARGIN,
            paper=Cell(PAPER[b, ours][2] - PAPER[a, theirs][2], "+.2f"),
        )  # fmt: skip
