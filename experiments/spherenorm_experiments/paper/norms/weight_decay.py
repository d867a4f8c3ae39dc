"""Figures F.1 to F.6: norm and effective step size under weight decay and schedules."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from itertools import product
from typing import Any

from spherenorm_experiments.claims import MARGIN, Claim, Side, slug
from spherenorm_experiments.comparison import TunedComparison
from spherenorm_experiments.condition import Condition, Contender, Setup
from spherenorm_experiments.paper.norms._network import MEASURES, NESTEROV, SEEDS, of_all, spread_of
from spherenorm_experiments.paper.statements import says
from spherenorm_experiments.results import Key, Result
from spherenorm_experiments.samples import pooled
from spherenorm_experiments.tuning import of_best, of_equal_points, of_point_chosen_by

PAIRS = (("SGD", "SGDP"), ("AdamW", "AdamP"))
REFERENCE = {"SGD": 1e-2, "SGDP": 1e-2, "AdamW": 1e-1, "AdamP": 1e-1}
"""The weight decay of each optimizer to which others are relative."""
SGD_RATES, ADAM_RATES = (0.03, 0.1, 0.3, 1.0), (3e-3, 1e-2, 3e-2, 1e-1)
LOW, HIGH = (0.0, 0.1, 1.0), (3.0, 10.0)
"""Relative to the reference; high ones with the cosine schedule only, as in the paper."""
PARTS = {"step": LOW, "cosine": LOW, "high": (1.0, *HIGH)}
"""The weight decays of a pair of figures."""
RATIOS = (0.1, 1.0)
"""Of the decay that SGDP and AdamP give an invariant weight: by default, and whole."""
POINTS: dict[str, Any] = {"unit": "pp", "equivalent": MARGIN}


def _name(optimizer: str, relative: float, ratio: float = RATIOS[0]) -> str:
    whole = ", wd ratio 1" if ratio == 1 and relative else ""
    return f"{optimizer}, wd × {relative:g}{whole}"


def _place(optimizer: str, part: str) -> str:
    """The condition."""
    family = "SGD" if optimizer.startswith("SGD") else "Adam"
    return f"{family}, {'high decay' if part == 'high' else part}"


def _label(optimizer: str, relative: float, part: str = "cosine", ratio: float = RATIOS[0]) -> str:
    """An arm."""
    return f"{_place(optimizer, part)}: {_name(optimizer, relative, ratio)}"


def _contender(optimizer: str, relative: float, ratio: float = RATIOS[0]) -> Contender:
    sgd, projected = optimizer.startswith("SGD"), optimizer.endswith("P")
    fixed = {**(NESTEROV if sgd else {}), "weight_decay": relative * REFERENCE[optimizer]}
    if projected:
        fixed["wd_ratio"] = ratio
    against = [_name(a, relative) for a, b in PAIRS if b == optimizer]
    name, rates = _name(optimizer, relative, ratio), SGD_RATES if sgd else ADAM_RATES
    return Contender(name, {"lr": rates}, fixed, against, recipe=optimizer.lower())


def _conditions() -> Iterator[Condition]:
    """Those of F.1 to F.6."""
    for pair, part in (*product(PAIRS, ("step", "cosine")), *product(PAIRS, ("high",))):
        names = [_name(optimizer, decay) for optimizer in pair for decay in PARTS[part]]
        if part == "cosine":
            names += [_name(pair[1], decay, RATIOS[1]) for decay in LOW[1:]]
        schedule = Setup(fields={"schedule": "step" if part == "step" else "cosine"})
        yield Condition(_place(pair[0], part), "network", schedule, contenders=tuple(names))


def _of(
    key: Key, optimizer: str, relative: float, part: str = "cosine", ratio: float = RATIOS[0]
) -> Side:
    """A number of an optimizer with a decay, at the rate that a seed chooses at the reference."""
    reference = _label(optimizer, 1.0, part)
    return of_point_chosen_by(reference, _label(optimizer, relative, part, ratio), key)


def late_over_early(item: Result) -> float | None:
    """The effective step just before the first drop of the rate, over that half-way there."""
    curve = item.curve("effective_step")
    last = max(curve, default=0) or 1
    late, early = (
        [size for step, size in curve.items() if low <= step / last < high]
        for low, high in ((0.2, 0.29), (0.1, 0.2))
    )  # fmt: skip
    if not (late and early):  # of a run of few steps
        return None
    return statistics.fmean(late) / statistics.fmean(early)


def grown(item: Result) -> float | None:
    """The growth of the norm from the start on."""
    last, first = (item.summary.get(key) for key in ("norm_last", "norm_start"))
    return None if last is None or first is None else float(last - first)


def _claims() -> Iterator[Claim]:
    for part, pair in product(("step", "cosine"), PAIRS):
        yield from _of_steps(*pair, part)
    for pair in PAIRS:
        yield from _of_curves(*pair)
    for pair in PAIRS:
        yield from _of_dependence(*pair)
    for baseline, _ in PAIRS:
        yield from _of_high(baseline)


def _of_steps(baseline: str, ours: str, part: str) -> Iterator[Claim]:
    pairs = [(_label(ours, decay, part), _label(baseline, decay, part)) for decay in LOW]
    yield Claim(
        f"growth.{slug(ours)}.{part}",
        f"Without weight decay {ours}'s norm grows less than half as much as {baseline}'s at equal "
        f"rates, {part}: the median of the rates",
        of_equal_points(pairs[0], key=grown), "<", 0.5, how="ratio", cites=says("f.prevent"),
    )  # fmt: skip
    yield Claim(
        f"path.{slug(ours)}.{part}",
        f"{ours} keeps larger effective steps than {baseline} at equal rates, {part}: ratio of "
        "the paths, the median of the rates and of decays up to the reference",
        of_equal_points(*pairs, key="path"), ">", 1.0, how="ratio", cites=says("f.prevent"),
        primary=True,
    )  # fmt: skip


def _of_curves(baseline: str, ours: str) -> Iterator[Claim]:
    rising, falling, less = (
        _of(late_over_early, optimizer, relative, "step")
        for optimizer, relative in ((baseline, 1.0), (baseline, 0.0), (ours, 0.0))
    )
    yield Claim(
        f"step-rises.{slug(baseline)}",
        f"At the reference decay {baseline}'s effective step rises before the rate first drops",
        rising, ">", 1.0, how="ratio", cites=says("f.abnormal"),
    )  # fmt: skip
    yield Claim(
        f"step-falls-less.{slug(ours)}",
        f"Without decay {ours}'s effective step falls less than {baseline}'s before that",
        less, ">", falling, how="ratio", cites=says("f.smooth"),
    )  # fmt: skip


def _of_dependence(baseline: str, ours: str) -> Iterator[Claim]:
    higher, lower = (
        of_best(
            *(_label(name, x) for x in LOW), *(_label(name, x, "high") for x in HIGH)
        )
        for name in (ours, baseline)
    )  # fmt: skip
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
            spread_of(scores), "<", 1.0, cites=says("f.insensitive"), unit="pp",
        )  # fmt: skip
        less, more = (
            spread_of([_of("norm_last", n, x, "cosine", share) for x in LOW], "ratio")
            for n, share in ((ours, ratio), (baseline, RATIOS[0]))
        )
        yield Claim(
            f"norm.{slug(ours)}.varies.ratio-{ratio:g}",
            f"{ours}'s last norm depends less on decay than {baseline}'s: largest over smallest, "
            f"relative, wd ratio {ratio:g}",
            less, "<", more, how="ratio", cites=says("f.insensitive"),
        )  # fmt: skip


def _of_high(baseline: str) -> Iterator[Claim]:
    usual, high = (_of("test", baseline, relative, "high") for relative in (1.0, 10.0))
    others = [_of("test", baseline, relative) for relative in LOW[:2]]
    others += [_of("test", baseline, relative, "high") for relative in HIGH]
    yield Claim(
        f"high-decay.{slug(baseline)}.path",
        f"High decay lengthens {baseline}'s effective steps: 10 times the reference over once",
        _of("path", baseline, 10.0, "high"), ">", _of("path", baseline, 1.0, "high"), how="ratio",
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


BASELINE, *CONTENDERS = (
    *(_contender(optimizer, x) for optimizer in REFERENCE for x in (*LOW, *HIGH)),
    *(_contender(optimizer, x, RATIOS[1]) for _, optimizer in PAIRS for x in LOW[1:]),
)

WEIGHT_DECAY = TunedComparison(
    "weight-decay",
    """Figures F.1 to F.6: weight decay holds the norm too, but everything then depends on its value

    SGD, SGDP, AdamW and AdamP under the step and the cosine schedule (Figures F.1 to F.4), with
    weight decay relative to a reference: 0, 0.1 and 1 times it; and 3 and 10 times with the cosine,
    the paper's high weight decay (F.5 and F.6). Where claims compare weight decays, each seed has
    the rate that it chooses at the reference. By default SGDP and AdamP give an invariant weight a
    tenth of its decay (`wd ratio`), which alone would make them depend on it less; so they also run
    with the whole.
    """,
    baseline=BASELINE,
    contenders=CONTENDERS,
    tune={"lr": SGD_RATES},
    on=list(_conditions()),
    claims=list(_claims()),
    scored=False,
    measures=MEASURES,
    first_seed=200,
    seeds=SEEDS,
    departures=(
        ("data, network", "ImageNet, ResNet-18", "digits, three hidden layers", "a small machine"),
        ("reference", "1e-4, the baseline's best", "1e-2 (SGD), 1e-1 (AdamW)",
         "a run of 240 steps would not feel 1e-4"),
        ("learning rate", "0.1 (SGD), 0.001 (Adam)", "tuned, for claims about decay at the "
         "reference", "equal tuning for every optimizer"),
        ("wd ratio", "0.1, in the released code only", "0.1 and 1", "what holds the norm is the "
         "projection or the smaller decay"),
    ),
)  # fmt: skip
