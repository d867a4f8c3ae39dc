"""Figures F.1 to F.6: norm and effective step size under weight decay and schedules."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import pandas as pd

from spherenorm_experiments.comparison import Arm, Condition, Setup
from spherenorm_experiments.pictures import Picture
from spherenorm_experiments.runs import (
    Key,
    RecordedNumber,
    Result,
    Runs,
    align_seeds,
    mean_over,
    number,
    select_by_validation,
)
from spherenorm_experiments.verdict import Claim
from spherenorm_paper.norms import grid
from spherenorm_paper.norms.grid import claim, higher, points, ratio, spread_of

REFERENCE = {"SGD": 1e-2, "SGDP": 1e-2, "AdamW": 1e-1, "AdamP": 1e-1}
"""The weight decay of each optimizer to which others are relative."""
RATES = {"SGD": (0.03, 0.1, 0.3, 1.0), "Adam": (3e-3, 1e-2, 3e-2, 1e-1)}
LOW, HIGH = (0.0, 0.1, 1.0), (3.0, 10.0)
"""Relative to the reference; high ones with the cosine schedule only, as in the paper."""


def _name(optimizer: str, relative: float, share: float = 0.1) -> str:
    return f"{optimizer}, wd × {relative:g}" + ", wd ratio 1" * (share == 1 and relative > 0)


def _place(optimizer: str, part: str) -> str:
    """The condition: one of the schedules step and cosine, or the high decays."""
    return f"{grid.KIND[optimizer]}, {part}"


def _arm(optimizer: str, relative: float, share: float = 0.1) -> Arm:
    against = [_name(a, relative) for a, b in grid.PAIRS if b == optimizer]
    options = {"wd_ratio": share} if optimizer in grid.PROJECTED else {}
    return grid.arm(
        optimizer, _name(optimizer, relative, share), RATES[grid.KIND[optimizer]], against,
        {"weight_decay": relative * 1e-4}, weight_decay=relative * REFERENCE[optimizer], **options,
    )  # fmt: skip


FIGURE = {"SGD, step": {"norm": "Figure F.1"}}
"""The one of Figures F.1 to F.6 that is drawn."""


def _condition(pair: tuple[str, str], part: str) -> Condition:
    decays = (1.0, *HIGH) if part == "high decay" else LOW
    names = [_name(optimizer, decay) for optimizer in pair for decay in decays]
    if part == "cosine":
        names += [_name(pair[1], decay, 1.0) for decay in LOW[1:]]
    setup = Setup(fields={"schedule": "step" if part == "step" else "cosine"})
    place, large = _place(pair[0], part), grid.RESNET18.updated(setup)
    shows = FIGURE.get(place, {})
    return Condition(place, "network", setup, large, arms=tuple(names), figures=shows)


def _of(
    runs: Runs, key: Key, optimizer: str, relative: float, part: str = "cosine", share: float = 0.1
) -> pd.Series:
    """A number of an optimizer with a decay, at the rate that a seed chooses at the reference."""
    name, reference = _name(optimizer, relative, share), _name(optimizer, 1.0)
    return number(
        runs.selected(_place(optimizer, part), name, rate_chosen_by=reference), key, worst=0.0
    )


def _late_over_early(run: Result) -> float | None:
    """Return the effective step just before the rate first drops, over that half-way there."""
    curve = run.curve("effective_step")
    last = max(curve, default=0) or 1
    late, early = (
        [size for step, size in curve.items() if low <= step / last < high]
        for low, high in ((0.2, 0.29), (0.1, 0.2))
    )
    if not (late and early):  # of a run of few steps
        return None
    return statistics.fmean(late) / statistics.fmean(early)


late_over_early = RecordedNumber("late effective step over early", _late_over_early)


def _best(runs: Runs, optimizer: str) -> pd.Series:
    """The score of each seed at its best rate and decay."""
    pairs = [("cosine", x) for x in LOW] + [("high decay", x) for x in HIGH]
    frames = [runs.complete_grid(_place(optimizer, part), _name(optimizer, x)) for part, x in pairs]
    return select_by_validation(pd.concat(frames)).test


def _of_schedule(part: str, baseline: str, projected: str) -> list[Claim]:
    place, end = _place(projected, part), f"{projected.lower()}.{part}"
    pairs = [(_name(projected, x), _name(baseline, x)) for x in LOW]
    over = partial(grid.grown_over, since="norm_start")

    def at_each(runs: Runs, number: Callable[..., pd.Series]) -> pd.DataFrame:
        return align_seeds(
            runs.median_over_common_rates(place, pair, number=number) for pair in pairs
        )

    return [
        ratio(f"growth.{end}", "< 0.5",
              lambda runs: runs.median_over_common_rates(place, pairs[0], number=over),
              f"Without weight decay {projected}'s norm grows less than half as much as "
              f"{baseline}'s at equal rates, {part}: the median of the rates", "f.prevent"),
        claim(f"growth.{end}.decay", "< 0",
              lambda runs: at_each(runs, grid.grown_more).max(axis=1),
              f"At every decay up to the reference {projected}'s norm grows less than "
              f"{baseline}'s, {part}: the difference since the first epoch, at equal rates, "
              "the median of the rates, the largest of the decays", "f.prevent"),
        ratio(f"path.{end}", "> 1", lambda runs: at_each(runs, grid.paths).min(axis=1),
              f"At every decay up to the reference {projected} keeps larger effective steps than "
              f"{baseline}, {part}: ratio of the paths at equal rates, the median of the rates, "
              "the least of the decays", "f.prevent", primary=True),
    ]  # fmt: skip


def _of_pair(baseline: str, projected: str) -> list[Claim]:
    baseline_slug, projected_slug = baseline.lower(), projected.lower()

    def late(runs: Runs, optimizer: str, relative: float) -> pd.Series:
        return _of(runs, late_over_early, optimizer, relative, "step")

    return [
        ratio(f"step-rises.{baseline_slug}", "> 1", lambda runs: late(runs, baseline, 1.0),
              f"At the reference decay {baseline}'s effective step rises before the rate first "
              "drops", "f.abnormal", note="of three multiples, one"),
        ratio(f"step-falls-less.{projected_slug}", "> 1",
              lambda runs: late(runs, projected, 0.0) / late(runs, baseline, 0.0),
              f"Without decay {projected}'s effective step falls less than {baseline}'s before "
              "that",
              "f.smooth"),
        higher(f"score.{projected_slug}",
               lambda runs: _best(runs, projected) - _best(runs, baseline),
               f"{projected} scores higher than {baseline}, each at its best rate and decay, "
               "cosine",
               "f.better"),
        higher(f"score.{baseline_slug}.decay",
               lambda runs: _of(runs, "test", baseline, 1.0) - _of(runs, "test", baseline, 0.0),
               f"{baseline} scores higher at the reference decay than without", "f.poor"),
    ]  # fmt: skip


def _of_dependence(baseline: str, projected: str, share: float) -> list[Claim]:
    """Return the claims on an optimizer that gives an invariant weight this share of its decay."""

    def over_decays(runs: Runs, key: Key, name: str, share: float = 0.1) -> Iterator[pd.Series]:
        return (_of(runs, key, name, relative, share=share) for relative in LOW)

    return [
        points(f"score.{projected.lower()}.varies.ratio-{share:g}", "< 1",
               lambda runs: spread_of(over_decays(runs, "test", projected, share)),
               f"{projected}'s score varies by less than 1 pp from no decay to the reference, "
               f"wd ratio {share:g}", "f.insensitive",
               note=lambda runs: grid.noted(baseline, over_decays(runs, "test", baseline))),
        ratio(f"norm.{projected.lower()}.varies.ratio-{share:g}", "< 1",
              lambda runs: (spread_of(over_decays(runs, "norm_last", projected, share), ratio=True)
                            / spread_of(over_decays(runs, "norm_last", baseline), ratio=True)),
              f"{projected}'s last norm depends less on decay than {baseline}'s: largest over "
              f"smallest, relative, wd ratio {share:g}", "f.insensitive"),
    ]  # fmt: skip


def _of_high(baseline: str) -> list[Claim]:
    def at(runs: Runs, key: Key, relative: float) -> pd.Series:
        return _of(runs, key, baseline, relative, "high decay")

    def mean_of_others(runs: Runs) -> pd.Series:
        """The mean score with the four decays that are not the reference."""
        low = (_of(runs, "test", baseline, relative) for relative in LOW[:2])
        return mean_over([*low, *(at(runs, "test", relative) for relative in HIGH)])

    return [
        ratio(f"high-decay.{baseline.lower()}.path", "> 1",
              lambda runs: at(runs, "path", 10.0) / at(runs, "path", 1.0),
              f"High decay lengthens {baseline}'s effective steps: 10 times the reference over "
              "once", "f.high-step"),
        points(f"high-decay.{baseline.lower()}.score", "> -1",
               lambda runs: at(runs, "test", 1.0) - at(runs, "test", 10.0),
               f"High decay does not improve {baseline}'s accuracy by 1 pp, at the rate that a "
               "seed chooses at the reference: that minus 10 times it", "f.high-score"),
        higher(f"high-decay.{baseline.lower()}.best",
               lambda runs: at(runs, "test", 1.0) - mean_of_others(runs),
               f"{baseline}: the reference decay scores higher than the mean of the four others",
               note="the paper says so of its 1e-4; our reference is another, which nobody tuned"),
    ]  # fmt: skip


class WeightDecay(grid.Grid):
    """The figures of Appendix F, of which one is drawn: the others have the same curves."""

    def pictures(self, runs: Runs) -> list[Picture]:
        return [picture for picture in super().pictures(runs) if picture.shows]


WEIGHT_DECAY = WeightDecay(
    "weight-decay",
    """Figures F.1 to F.6: norms, effective steps and scores under weight decay

    SGD, SGDP, AdamW and AdamP under the step and the cosine schedule (Figures F.1 to F.4), with
    weight decay relative to a reference: 0, 0.1 and 1 times it; and 3 and 10 times with the cosine,
    the paper's high weight decay (F.5 and F.6). Where claims compare weight decays, each seed has
    the rate that it chooses at the reference. By default SGDP and AdamP give an invariant weight a
    tenth of its decay (`wd ratio`), which alone would make them depend on it less; so they also run
    with a ratio of 1.
    """,
    arms=[
        *(_arm(optimizer, x) for optimizer in REFERENCE for x in (*LOW, *HIGH)),
        *(_arm(optimizer, x, 1.0) for optimizer in grid.PROJECTED for x in LOW[1:]),
    ],
    tune={"lr": RATES["SGD"]},
    conditions=[
        *(_condition(pair, part) for pair in grid.PAIRS for part in ("step", "cosine")),
        *(_condition(pair, "high decay") for pair in grid.PAIRS),
    ],
    claims=[
        *(row for part, pair in product(("step", "cosine"), grid.PAIRS)
          for row in _of_schedule(part, *pair)),
        *(row for pair in grid.PAIRS for row in _of_pair(*pair)),
        *(row for pair, share in product(grid.PAIRS, (0.1, 1.0))
          for row in _of_dependence(*pair, share)),
        *(row for baseline, _ in grid.PAIRS for row in _of_high(baseline)),
    ],
    first_seed=200,
)  # fmt: skip
