"""The claims about Table 1."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from spherenorm_experiments.analysis import (
    MARGIN,
    Cell,
    Claim,
    Results,
    Sample,
    Side,
    Values,
    at_best,
    combined,
    derive,
    grid_of,
    paired_values,
    slug,
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
    ratios_of,
)
from spherenorm_experiments.paper.statements import says

__all__ = ["claims_of_growth"]


def claims_of_growth() -> Iterator[Claim]:
    """Of growth, of paths, of weight decay and of scores."""
    yield from _of_norms()
    yield from _of_paths()
    yield from _of_growth_with_decay()
    yield from _of_decay()
    yield from _of_scores()


def _growth(arm: str, **how: Any) -> Side:
    """From the first epoch to the last, as in the paper's table, at the best rate."""
    last, first = (at_best(ARMS[arm], key, **how) for key in ("norm_last", "norm_first_epoch"))
    return derive(paired_values, last, first)


def _worst_ratio(results: Results, pair: tuple[str, str], key: str) -> Sample:
    worst = max if key == "growth" else min
    return worst_of(worst, list(ratios_of(results, *pair, key).values()))


def _of_norms() -> Iterator[Claim]:
    quoted = ("0.85 / 2.99 = 0.28", "1.73 / 8.71 = 0.20", "0.32 / 4.21 = 0.08")
    for (a, b), theirs in zip(PAIRS, quoted, strict=True):
        less = f"{b} grows its norm less than half as much as {a}"
        yield Claim(
            f"growth.{slug(b)}.worst-rate", f"{less}, at the rate that is worst for it",
            partial(_worst_ratio, pair=(a, b), key="growth"), "<", 0.5, how="ratio",
            cites=says("t1.restrain"), paper=theirs,
        )  # fmt: skip
        yield Claim(
            f"growth.{slug(b)}.best-rate", f"{less}, each at its best rate",
            _growth(b, weight_decay=0.0), "<", _growth(a, weight_decay=0.0), how="ratio",
            bound=0.5, cites=says("t1.restrain"), paper=theirs, primary=True,
        )  # fmt: skip
    adam, adamp = PAIRS[2]
    yield Claim(
        "growth.tagging.factor",
        "Tagging: Adam's growth is more than half of 13.2 times AdamP's, each at its best rate",
        _growth(adam), ">", _growth(adamp), how="ratio", bound=6.6, behind="left",
        cites=says("t1.tagging"), paper="13.2",
    )  # fmt: skip
    yield Claim(
        "growth.adam.steps",
        "Adam's squared norm grows by more than twice the sum of its squared steps",
        at_best(ARMS["AdamW"], "growth_over_moves"), ">", 2.0, how="ratio",
        cites=says("2.nesterov"),
    )  # fmt: skip


def _of_growth_with_decay() -> Iterator[Claim]:
    """The paper says that growth is less in all of its experiments, those with decay included."""
    quoted = {"1e-6": "0.72 - 2.73 = -2.01", "1e-5": "-0.04 - 1.36 = -1.40"}
    for (name, theirs), ratio in product(quoted.items(), (0.1, 1.0)):
        point = {"weight_decay": decay_of(name), "wd_ratio": ratio}
        yield Claim(
            f"growth.sgdp.decay-{name}.ratio-{ratio:g}",
            f"SGDP grows its norm less than SGD with a decay of {name}, each at its best rate, "
            f"wd ratio {ratio:g}",
            _growth("SGDP", **point), "<", _growth("SGD", **point), cites=says("t1.restrain"),
            paper=theirs,
        )  # fmt: skip


def _of_paths() -> Iterator[Claim]:
    for a, b in PAIRS:
        further = f"{b} travels further on the sphere than {a}"
        yield Claim(
            f"path.{slug(b)}.worst-rate", f"{further}, at the rate that is worst for it",
            partial(_worst_ratio, pair=(a, b), key="path"), ">", 1.0, how="ratio",
            cites=says("3.steps"), primary=True,
        )  # fmt: skip
        ours, baseline = (at_best(ARMS[name], "path", weight_decay=0.0) for name in (b, a))
        yield Claim(
            f"path.{slug(b)}.best-rate", f"{further}, each at its best rate",
            ours, ">", baseline, how="ratio", cites=says("3.steps"),
        )  # fmt: skip


def _over(arm: str, key: str, decay: str, ratio: float = 0.1) -> Side:
    """A number of SGD or SGDP with a decay, at the rate that is best without."""

    def side(results: Results) -> Sample:
        grid = grid_of(results, ARMS[arm])
        rate = grid.tuned(weight_decay=0.0).rate
        share = ratio if DECAYS[decay] else 0.1
        return grid.sample(key, grid.at(lr=rate, weight_decay=decay_of(decay), wd_ratio=share))

    return side


def _of_decay() -> Iterator[Claim]:
    strong, none = (
        derive(paired_values, *(_over("SGD", key, d) for key in ("norm_last", "norm_first_epoch")))
        for d in ("1e-4", "0")
    )
    yield Claim(
        "decay.mitigates", "Weight decay mitigates SGD's growth: with 1e-4 minus without",
        strong, "<", none, cites=says("t1.mitigates"), paper=Cell(-0.19 - 2.99, "+.2f"),
    )  # fmt: skip
    yield Claim(
        "decay.sgd-score", "SGD's score depends on weight decay: 1e-4 minus none",
        _over("SGD", "test", "1e-4"), ">", _over("SGD", "test", "0"), cites=says("t1.sensitive"),
        paper=Cell(70.43 - 67.94, "+.2f"), unit="pp", equivalent=1.0,
    )  # fmt: skip
    theirs = np.array([PAPER["SGD", name][1:] for name in DECAYS], dtype=float)
    numbers = (_over("SGD", key, name) for key in ("norm_last", "test") for name in DECAYS)
    yield Claim(
        "decay.smaller-norm",
        "Across SGD's weight decays a smaller last norm goes with a higher score: the "
        "correlation over four decays",
        derive(_correlation, *numbers), "<", 0.0, cites=says("t1.smaller"),
        paper=Cell(float(np.corrcoef(theirs.T)[0, 1]), "+.3f"), limits=(-1.0, 1.0),
        performance=True,
    )  # fmt: skip
    for ratio in (0.1, 1.0):
        sgdp, sgd = (
            derive(lambda *parts: spread(parts, "ratio"),
                   *(_over(arm, "norm_last", d, share) for d in SHARED))
            for arm, share in (("SGDP", ratio), ("SGD", 0.1))
        )  # fmt: skip
        yield Claim(
            f"decay.sgdp-norm.ratio-{ratio:g}",
            "SGDP's last norm depends less on weight decay than SGD's: largest over smallest from "
            f"0 to 1e-5, SGDP's relative to SGD's, wd ratio {ratio:g}",
            sgdp, "<", sgd, how="ratio", cites=says("t1.stable"),
            paper="(2.10 / 1.19) / (4.34 / 2.70) = 1.10",
            caveat="the paper's own numbers say so of differences, not of ratios",
        )  # fmt: skip
        scores = (_over("SGDP", "test", d, ratio) for d in SHARED)
        yield Claim(
            f"decay.sgdp-score.ratio-{ratio:g}",
            f"SGDP's score varies by less than 1 pp from 0 to 1e-5, wd ratio {ratio:g}",
            derive(lambda *parts: spread(parts), *scores), "<", 1.0, cites=says("t1.stable"),
            paper="0.36", unit="pp",
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
