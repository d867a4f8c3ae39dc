"""Table 1: norms at the first and the last epoch, and scores, on digits and on music tagging."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from decimal import Decimal
from itertools import product

import numpy as np

from spherenorm_experiments.claims import MARGIN, Claim, Side, derive, slug
from spherenorm_experiments.comparison import TunedComparison
from spherenorm_experiments.condition import Condition, Contender
from spherenorm_experiments.paper.norms._network import MEASURES, NESTEROV, SEEDS, grown, spread_of
from spherenorm_experiments.paper.statements import says
from spherenorm_experiments.pictures import Picture, curves, drawn
from spherenorm_experiments.results import Arm, Key, Result, Results
from spherenorm_experiments.samples import Sample, Values, combined
from spherenorm_experiments.tables import Cell, Row, Table, printed
from spherenorm_experiments.tuning import (
    TUNED,
    of_best,
    of_equal_points,
    of_point_chosen_by,
    tried_of,
    with_tuned,
)

SGD_RATES, ADAM_RATES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0), (3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
DECAY_SCALE = 100
"""Our weight decay per one of the paper's: 240 steps instead of 500,000 would not feel 1e-4."""

DECAYS = {"0": 0.0, "1e-6": 1e-6, "1e-5": 1e-5, "1e-4": 1e-4}
SHARED = ("0", "1e-6", "1e-5")
"""The paper's weight decays, and those that both of its arms have."""

OPTIMIZERS = ("SGD", "SGDP", "AdamW", "AdamP")
PAIRS = (
    ("digits: SGD", "digits: SGDP"),
    ("digits: AdamW", "digits: AdamP"),
    ("tagging: AdamW", "tagging: AdamP"),
)


def name_of(optimizer: str, decay: str = "0", ratio: float = 0.1) -> str:
    """A contender; without weight decay, the optimizer."""
    parts = [f"wd {decay}"] if decay != "0" else []
    return ", ".join([optimizer, *parts, *(["wd ratio 1"] if ratio == 1 else [])])


PAPER = {
    "digits": {
        name_of("SGD"): printed("1.35 4.34 67.94"),
        name_of("SGD", "1e-6"): printed("1.35 4.08 67.89"),
        name_of("SGD", "1e-5"): printed("1.33 2.70 69.06"),
        name_of("SGD", "1e-4"): printed("1.21 1.02 70.43"),
        name_of("SGDP"): printed("1.25 2.10 70.21"),
        name_of("SGDP", "1e-6"): printed("1.25 1.96 70.27"),
        name_of("SGDP", "1e-5"): printed("1.25 1.19 70.57"),
        name_of("AdamW"): printed("1.70 10.41 68.38"),
        name_of("AdamP"): printed("1.29 3.02 70.55"),
    },
    "tagging": {"AdamW": printed("7.35 11.56 90.86"), "AdamP": printed("7.30 7.62 91.19")},
}
"""Norm after the first epoch, norm after the last, score."""


def _condition(data: str, theirs: str) -> Condition:
    rows = PAPER[data]
    columns = zip(*rows.values(), strict=True)
    first, last, score = (dict(zip(rows, column, strict=True)) for column in columns)
    growth: Mapping[str, Decimal] = {name: last[name] - first[name] for name in rows}
    numbers = {"score": score, "norm¹": first, "norm last": last, "growth": growth}
    contenders = tuple(rows) if data == "tagging" else ()
    return Condition(
        data, "network", {"data": data}, contenders=contenders, theirs=theirs, paper=numbers
    )


def _contender(optimizer: str, decay: str = "0", ratio: float = 0.1) -> Contender:
    fixed = {**(NESTEROV if optimizer.startswith("SGD") else {}),
             "weight_decay": DECAY_SCALE * DECAYS[decay]}  # fmt: skip
    if optimizer.endswith("P"):
        fixed["wd_ratio"] = ratio
    rates = SGD_RATES if optimizer.startswith("SGD") else ADAM_RATES
    baseline = name_of("SGD", decay) if optimizer == "SGDP" else "AdamW"
    against = (baseline,) if optimizer.endswith("P") else ()
    name = name_of(optimizer, decay, ratio)
    return Contender(name, {"lr": rates}, fixed, against, recipe=optimizer.lower())


def _claims() -> Iterator[Claim]:
    yield from _of_norms()
    for pair in PAIRS:
        ours = slug(_short(pair[1]))
        yield Claim(
            f"path.{ours}",
            f"{_short(pair[1])} travels further on the sphere than {_short(pair[0])} at equal "
            "rates: the median of the rates",
            of_equal_points(pair[::-1], key="path"), ">", 1.0, how="ratio",
            cites=says("3.steps"), primary=True,
        )  # fmt: skip
    yield from _of_decay()
    yield from _of_scores()


def _short(label: str) -> str:
    """An arm on digits without its condition."""
    return label.removeprefix("digits: ")


def _of_norms() -> Iterator[Claim]:
    quoted = ("0.85 / 2.99 = 0.28", "1.73 / 8.71 = 0.20", "0.32 / 4.21 = 0.08")
    for (a, b), theirs in zip(PAIRS, quoted, strict=True):
        yield Claim(
            f"growth.{slug(_short(b))}",
            f"{_short(b)} grows its norm less than half as much as {_short(a)} at equal rates: the "
            "median of the rates",
            of_equal_points((b, a), key=grown), "<", 0.5, how="ratio",
            cites=says("t1.restrain"), paper=theirs, primary=True,
        )  # fmt: skip
    yield Claim(
        "growth.tagging.factor",
        "Tagging: AdamP's growth is less than twice 1 / 13.2 of Adam's at equal rates: the median "
        "of the rates",
        of_equal_points(PAIRS[2][::-1], key=grown), "<", 2 / 13.2, how="ratio",
        cites=says("t1.tagging"), paper="0.32 / 4.21 = 0.08",
    )  # fmt: skip
    yield Claim(
        "growth.adam.steps",
        "Adam's squared norm grows by more than twice the sum of its squared steps",
        of_best("digits: AdamW", key="growth_over_moves"), ">", 2.0, how="ratio",
        cites=says("2.nesterov"),
    )  # fmt: skip
    for ratio in (0.1, 1.0):  # the paper says so of all of its experiments
        pairs = [(_label("SGDP", decay, ratio), _label("SGD", decay)) for decay in SHARED[1:]]
        yield Claim(
            f"growth.sgdp.decay.ratio-{ratio:g}",
            "SGDP grows its norm less than SGD with a decay of 1e-6 and 1e-5 at equal rates: the "
            f"median of the rates and decays, wd ratio {ratio:g}",
            of_equal_points(*pairs, key=grown, how="difference"), "<", 0.0, how="difference",
            cites=says("t1.restrain"), paper="-2.01 and -1.40",
        )  # fmt: skip


def _label(optimizer: str, decay: str = "0", ratio: float = 0.1) -> str:
    return f"digits: {name_of(optimizer, decay, ratio)}"


def _with(optimizer: str, key: str, decay: str, ratio: float = 0.1) -> Side:
    """A number of SGD or SGDP with a decay, at the rate that a seed chooses without."""
    ours = _label(optimizer, decay, ratio if decay != "0" else 0.1)
    return of_point_chosen_by(_label(optimizer), ours, key)


def _of_decay() -> Iterator[Claim]:
    strong, none = (
        of_point_chosen_by(_label("SGD"), _label("SGD", decay), grown) for decay in ("1e-4", "0")
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
    theirs = np.array([PAPER["digits"][name_of("SGD", d)][1:] for d in DECAYS], dtype=float)
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
        sgdp, scores = (
            [_with("SGDP", key, decay, ratio) for decay in SHARED] for key in ("norm_last", "test")
        )
        yield Claim(
            f"decay.sgdp-norm.ratio-{ratio:g}",
            "SGDP's last norm depends less on weight decay than SGD's: largest over smallest from "
            f"0 to 1e-5, SGDP's relative to SGD's, wd ratio {ratio:g}",
            spread_of(sgdp, "ratio"), "<", spread_of(sgd, "ratio"), how="ratio",
            cites=says("t1.stable"), paper="(2.10 / 1.19) / (4.34 / 2.70) = 1.10",
            caveat="the paper's own numbers say so of differences, not of ratios",
        )  # fmt: skip
        yield Claim(
            f"decay.sgdp-score.ratio-{ratio:g}",
            f"SGDP's score varies by less than 1 pp from 0 to 1e-5, wd ratio {ratio:g}",
            spread_of(scores), "<", 1.0, cites=says("t1.stable"), paper="0.36", unit="pp",
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
    tuned = (_label("SGD", "1e-4"), _label("SGDP", "1e-5"))
    for a, b in (*PAIRS, tuned):
        theirs, ours = (
            PAPER[data][name][2] for data, _, name in (x.partition(": ") for x in (a, b))
        )
        best = (a, b) == tuned
        at = " (wd 1e-5 and 1e-4)" if best else ""
        first, second = ("SGD", "SGDP") if best else (_short(a), _short(b))
        yield Claim(
            f"score.{slug(second)}{'.best-decay' if best else ''}",
            f"{second} scores higher than {first}{at}, each at its best rate",
            of_best(b), ">", of_best(a), cites=says("t1.tuned" if best else "t1.score"),
            unit="pp", equivalent=MARGIN, paper=Cell(ours - theirs, "+.2f"),
        )  # fmt: skip


def _at_one_rate(results: Results, optimizer: str) -> list[Result]:
    """The runs on digits without weight decay at the rate that is drawn."""
    tried, rate = tried_of(results, _label(optimizer)), 0.1 if optimizer.startswith("SGD") else 0.01
    found = [of for point, of in zip(tried.points, tried.runs, strict=True) if point["lr"] == rate]
    return [item for of in found for item in of.values()]


class Table1(TunedComparison):
    """Table 1, with a table for the terminal, and two pictures at one rate."""

    def pictures(self, results: Results) -> list[Picture]:
        runs = Results(
            [
                replace(item, arm=Arm(name, item.arm.recipe))
                for name in OPTIMIZERS
                for item in _at_one_rate(results, name)
            ]
        )
        norm = "Digits without weight decay at one rate: norm of the scale-invariant rows."
        step = "The effective step sizes of the same runs."
        first = [
            curves(runs, "norm", "norm ‖w‖", norm),
            curves(runs, "effective_step", "effective step ‖Δŵ‖", step, log_y=True),
        ]
        return drawn([*first, *super().pictures(results)])

    def headline(self, results: Results) -> Table:
        """The optimizers on digits, without weight decay."""
        chosen = with_tuned(results).having(stage=TUNED)
        shown: dict[str, tuple[Key, str]] = {
            "norm¹": ("norm_first_epoch", ".3f"), "norm last": ("norm_last", ".3f"),
            "growth": (grown, "+.3f"), "score": ("test", ".2f"), "path on sphere": ("path", ".2f"),
        }  # fmt: skip
        rows: list[Row] = []
        for name in OPTIMIZERS:
            runs = chosen.arm(_label(name))
            cells = (runs.cell(k, form, spread=k == "test") for k, form in shown.values())
            rows.append((name, *cells))
        title = "Without weight decay, each seed at its best rate"
        return Table(title, ("optimizer", *shown), rows)


T1 = Table1(
    "t1",
    """Table 1: momentum makes norms grow, the projection holds them

    Norms and paths of two optimizers are compared at every learning rate that both have; scores at
    the rate that each seed's validation set chooses. Growth is the paper's: from the first epoch to
    the last. SGDP's decay of an invariant weight is a tenth of what it is given, by default; `wd
    ratio 1` gives it the whole. Weight decays are named as the paper's.
    """,
    baseline=_contender("SGD"),
    contenders=[
        *(_contender("SGD", decay) for decay in DECAYS if decay != "0"),
        *(_contender("SGDP", decay) for decay in SHARED),
        *(_contender("SGDP", decay, 1.0) for decay in SHARED[1:]),
        _contender("AdamW"),
        _contender("AdamP"),
    ],
    tune={"lr": SGD_RATES},
    on=[
        _condition("digits", "ResNet-18, ImageNet"),
        _condition("tagging", "Harmonic CNN, MagnaTagATune"),
    ],
    claims=list(_claims()),
    scored=False,
    measures={"norm¹": ("norm_first_epoch", ".3g"), "growth": (grown, "+.3f"), **MEASURES},
    seeds=SEEDS,
    departures=(
        ("data", "ImageNet; MagnaTagATune", "1,797 digits of 8 x 8 pixels; synthetic clips",
         "a small machine"),
        ("network", "ResNet-18; Harmonic CNN", "three hidden layers with BatchNorm",
         "all rates and seeds train as one sweep"),
        ("learning rate", "0.1 (SGD), 0.001 (Adam)", "tuned", "equal tuning for every optimizer"),
        ("batch, length", "256, 100 epochs", "64, 15 epochs", "the data are a thousandth"),
        ("weight decay", "1e-6 to 1e-4", "100 times that", "a run is 2000 times shorter"),
        ("norm", "not defined", "mean of the 2-norms of all scale-invariant rows", ""),
    ),
)  # fmt: skip
