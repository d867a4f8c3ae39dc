"""Figures F.1 to F.6: norm and effective step size under weight decay and schedules."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any

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
    Table,
    Trial,
    advantage,
    at_best,
    grid_of,
    paired_values,
    pooled,
    slug,
    spread,
    worst_of,
)
from spherenorm_experiments.paper.norms._sweeps import (
    STEP,
    Curve,
    at_rate_of,
    decayed,
    of_all,
    over_steps,
)
from spherenorm_experiments.paper.statements import says
from spherenorm_experiments.report.pictures import DASHES, Picture, drawn
from spherenorm_experiments.study import Plan, Study

PAIRS = (("SGD", "SGDP"), ("AdamW", "AdamP"))
REFERENCE = {"SGD": 1e-2, "SGDP": 1e-2, "AdamW": 1e-1, "AdamP": 1e-1}
"""The weight decay of each optimizer to which others are relative; recipes have the same names."""
SGD_RATES, ADAM_RATES = (0.03, 0.1, 0.3, 1.0), (3e-3, 1e-2, 3e-2, 1e-1)
LOW, HIGH = (0.0, 0.1, 1.0), (3.0, 10.0)
"""Relative to the reference; high ones with the cosine schedule only, as in the paper."""
RELATIVE = {"step": LOW, "cosine": (*LOW, *HIGH)}
RATIOS = (0.1, 1.0)
"""Of the decay that SGDP and AdamP give an invariant weight: by default, and whole."""
POINTS: dict[str, Any] = {"unit": "pp", "equivalent": MARGIN}


def _arm(optimizer: str, schedule: str) -> Arm:
    settings = {"optimizer": optimizer, "schedule": schedule}
    return Arm(f"{optimizer}, {schedule}", optimizer.lower(), settings)


class WeightDecay(Study):
    """Figures F.1 to F.6: weight decay holds the norm too, but everything then depends on its value

    SGD, SGDP, AdamW and AdamP under the step and the cosine schedule, with weight decay relative to
    a reference: 0, 0.1 and 1 times it, and 3 and 10 times with the cosine (the paper's high weight
    decay). Each optimizer has the rate that is best for it at the reference. By default SGDP and
    AdamP give an invariant weight a tenth of its decay (`wd ratio`), which alone would make them
    depend on it less; so they also run with the whole.
    """

    name = "weight-decay"
    first_seed = 200
    departures = (
        ("data, network", "ImageNet, ResNet-18", "digits, three hidden layers", "a small machine"),
        ("reference", "1e-4, the baseline's best", "1e-2 (SGD), 1e-1 (AdamW)",
         "a run of 240 steps would not feel 1e-4"),
        ("learning rate", "0.1 (SGD), 0.001 (Adam)", "best of four at the reference",
         "equal tuning for every optimizer"),
        ("wd ratio", "0.1, in the released code only", "0.1 and 1", "what holds the norm is the "
         "projection or the smaller decay"),
    )  # fmt: skip

    def trials(self, plan: Plan, results: Results) -> list[Trial]:
        return [
            self.swept(plan, _arm(name, schedule), _points(name, schedule), schedule=schedule)
            for name in REFERENCE
            for schedule in RELATIVE
        ]

    def tables(self, results: Results) -> list[Table]:
        rows: list[Any] = []
        for arm in results.arms:
            grid, name = grid_of(results, arm), arm.settings["optimizer"]
            chosen = grid.tuned(**_decay(name))
            for i in grid.where(lr=chosen.rate) if chosen.index is not None else ():
                point = grid.points[i]
                relative = point.get("weight_decay", 0.0) / REFERENCE[name]
                decays = Cell(round(relative, 6), "g"), Cell(point.get("wd_ratio"), "g", missing="")
                path, score = (grid.cell(key, i, ".2f") for key in ("path", "test"))
                norm = grid.cell("norm_last", i)
                rows.append((arm.label, chosen.cell, *decays, norm, path, score))
        headings = ("arm", "lr", "relative wd", "wd ratio", "last norm", "path on sphere",
                    "accuracy")  # fmt: skip
        note = "The paper shows curves only. Means over seeds ± standard deviation."
        return [Table("Every arm", headings, rows, note)] if rows else []

    def pictures(self, results: Results) -> list[Picture]:
        pictures = []
        combinations = [(pair, schedule) for pair in PAIRS for schedule in RELATIVE]
        for number, (pair, schedule) in enumerate(combinations, 1):
            name = f"Figure F.{number}: {' and '.join(pair)}, {schedule} schedule"
            pictures += _figure(results, pair, schedule, LOW, name)
        for number, pair in enumerate(PAIRS, 5):
            name = f"Figure F.{number}: {' and '.join(pair)} at high weight decay"
            pictures += _figure(results, pair, "cosine", (1.0, *HIGH), name)
        return drawn(pictures)

    @property
    def claims(self) -> Sequence[Claim]:
        steps = product(RELATIVE, PAIRS)
        return [
            *(claim for schedule, pair in steps for claim in _of_steps(pair, schedule)),
            *(claim for pair in PAIRS for claim in _of_curves(*pair)),
            *(claim for pair in PAIRS for claim in _of_dependence(*pair)),
            *(claim for baseline, _ in PAIRS for claim in _of_high(baseline)),
        ]


def _points(name: str, schedule: str) -> dict[str, Any]:
    decays = [(relative * REFERENCE[name], RATIOS[0]) for relative in RELATIVE[schedule]]
    if name.endswith("P"):
        decays += [(decay, RATIOS[1]) for decay, _ in decays if decay]
    return decayed(name, SGD_RATES if name.startswith("SGD") else ADAM_RATES, decays)


def _decay(name: str, relative: float = 1.0, ratio: float = RATIOS[0]) -> dict[str, Any]:
    """The point with a decay relative to the reference; at the reference the rate is chosen."""
    share = ratio if relative else RATIOS[0]
    return {"weight_decay": relative * REFERENCE[name], "wd_ratio": share}


def _of(
    key: str, name: str, relative: float, schedule: str = "cosine", ratio: float = RATIOS[0]
) -> Side:
    """A number of an optimizer with a decay relative to the reference, at its rate."""
    point = _decay(name, relative, ratio)
    return at_rate_of(_arm(name, schedule), _decay(name), key, **point)


def _change(results: Results, name: str, relative: float) -> Sample:
    """The effective step just before the first drop of the rate, over that half-way there."""

    def late_over_early(steps: np.ndarray, values: np.ndarray) -> float:
        done = steps / steps[-1]
        late, early = (
            values[(low <= done) & (done < high)] for low, high in ((0.2, 0.29), (0.1, 0.2))
        )
        if not (len(late) and len(early)):  # of a run of few steps
            return math.nan
        return float(late.mean() / early.mean())

    grid = grid_of(results, _arm(name, "step"))
    index = grid.at(lr=grid.tuned(**_decay(name)).rate, **_decay(name, relative))
    return grid.sample_of_curve(late_over_early, "effective_step", index)


def _at_equal_rates(
    results: Results, pair: tuple[str, str], schedule: str, key: str, decays: Sequence[float]
) -> Sample:
    """The second of a pair over the first: the median of the rates and decays."""
    theirs, ours = (grid_of(results, _arm(name, schedule)) for name in pair)
    ratios = []
    for rate, relative in product(SGD_RATES if pair[0] == "SGD" else ADAM_RATES, decays):
        points = [
            (grid, grid.at(lr=rate, **_decay(name, relative)))
            for grid, name in zip((ours, theirs), pair[::-1], strict=True)
        ]
        one, other = (
            _growth(grid, index) if key == "growth" else grid.sample(key, index)
            for grid, index in points
        )
        ratios.append(advantage(one, other, "ratio"))
    return worst_of(statistics.median, ratios)


def _growth(grid: Grid, index: int | None) -> Sample:
    return paired_values(grid.sample("norm_last", index), grid.sample("norm_start", index))


def _of_steps(pair: tuple[str, str], schedule: str) -> Iterator[Claim]:
    baseline, ours = pair
    sides = {
        key: partial(_at_equal_rates, pair=pair, schedule=schedule, key=key, decays=decays)
        for key, decays in (("growth", LOW[:1]), ("path", LOW))
    }
    yield Claim(
        f"growth.{slug(ours)}.{schedule}",
        f"Without weight decay {ours}'s norm grows less than half as much as {baseline}'s at equal "
        f"rates, {schedule}: the median of the rates",
        sides["growth"], "<", 0.5, how="ratio", cites=says("f.prevent"),
    )  # fmt: skip
    yield Claim(
        f"path.{slug(ours)}.{schedule}",
        f"{ours} keeps larger effective steps than {baseline} at equal rates, {schedule}: ratio of "
        "the paths, the median of the rates and of decays up to the reference",
        sides["path"], ">", 1.0, how="ratio", cites=says("f.prevent"), primary=True,
    )  # fmt: skip


def _of_curves(baseline: str, ours: str) -> Iterator[Claim]:
    rising, falling = (
        partial(_change, name=baseline, relative=relative) for relative in (1.0, 0.0)
    )
    yield Claim(
        f"step-rises.{slug(baseline)}",
        f"At the reference decay {baseline}'s effective step rises before the rate first drops",
        rising, ">", 1.0, how="ratio", cites=says("f.abnormal"),
    )  # fmt: skip
    yield Claim(
        f"step-falls-less.{slug(ours)}",
        f"Without decay {ours}'s effective step falls less than {baseline}'s before that",
        partial(_change, name=ours, relative=0.0), ">", falling, how="ratio",
        cites=says("f.smooth"),
    )  # fmt: skip


def _of_dependence(baseline: str, ours: str) -> Iterator[Claim]:
    higher, lower = (at_best(_arm(name, "cosine"), wd_ratio=RATIOS[0]) for name in (ours, baseline))
    yield Claim(
        f"score.{slug(ours)}",
        f"{ours} scores higher than {baseline}, each at its best rate and decay, cosine",
        higher, ">", lower, cites=says("f.better"), **POINTS,
    )  # fmt: skip
    yield Claim(
        f"score.{slug(baseline)}.decay",
        f"{baseline} scores higher at the reference decay than without",
        _of("test", baseline, 1.0), ">", _of("test", baseline, 0.0), cites=says("f.poor"), **POINTS,
    )  # fmt: skip
    for ratio in RATIOS:
        scores = [_of("test", ours, relative, "cosine", ratio) for relative in LOW]
        yield Claim(
            f"score.{slug(ours)}.varies.ratio-{ratio:g}",
            f"{ours}'s score varies by less than 1 pp from no decay to the reference, "
            f"wd ratio {ratio:g}",
            of_all(spread, scores), "<", 1.0, cites=says("f.insensitive"), unit="pp",
        )  # fmt: skip
        less, more = (
            of_all(spread, [_of("norm_last", n, x, "cosine", share) for x in LOW], "ratio")
            for n, share in ((ours, ratio), (baseline, RATIOS[0]))
        )
        yield Claim(
            f"norm.{slug(ours)}.varies.ratio-{ratio:g}",
            f"{ours}'s last norm depends less on decay than {baseline}'s: largest over smallest, "
            f"relative, wd ratio {ratio:g}",
            less, "<", more, how="ratio", cites=says("f.insensitive"),
        )  # fmt: skip


def _of_high(baseline: str) -> Iterator[Claim]:
    usual, high = (_of("test", baseline, relative) for relative in (1.0, 10.0))
    others = [_of("test", baseline, relative) for relative in (0.0, 0.1, *HIGH)]
    yield Claim(
        f"high-decay.{slug(baseline)}.path",
        f"High decay lengthens {baseline}'s effective steps: 10 times the reference over once",
        _of("path", baseline, 10.0), ">", _of("path", baseline, 1.0), how="ratio",
        cites=says("f.high-step"),
    )  # fmt: skip
    yield Claim(
        f"high-decay.{slug(baseline)}.score",
        f"High decay does not improve {baseline}'s accuracy: reference minus 10 times it",
        usual, ">", high, cites=says("f.high-score"), **POINTS,
    )  # fmt: skip
    yield Claim(
        f"high-decay.{slug(baseline)}.best",
        f"{baseline}: the reference decay scores higher than the mean of the four others",
        usual, ">", of_all(pooled, others), cites=says("f.best"), **POINTS,
    )  # fmt: skip


def _figure(
    results: Results, optimizers: Sequence[str], schedule: str, decays: Sequence[float], name: str
) -> list[Picture]:
    """Draw norm and effective step."""
    curves = []
    for arm in results.arms:
        optimizer = arm.settings["optimizer"]
        if optimizer not in optimizers or arm.settings["schedule"] != schedule:
            continue
        grid = grid_of(results, arm)
        rate = grid.tuned(**_decay(optimizer)).rate
        for relative, dash in zip(decays, DASHES, strict=False):
            index = grid.at(lr=rate, **_decay(optimizer, relative))
            curves.append(Curve(f"{arm.label}, wd × {relative:g}", grid, index, dash))
    steps = f"{name}: effective step size."
    return [
        over_steps(curves, "norm", "norm ‖w‖", f"{name}: norm.", log_y=max(decays) > 1),
        over_steps(curves, "effective_step", STEP, steps, log_y=True),
    ]
