"""Table 1: norms at the first and the last epoch, and scores, on digits and on music tagging."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from spherenorm_experiments.claims import MARGIN, Claim, slug
from spherenorm_experiments.comparison import Arm, Condition, Setup
from spherenorm_experiments.paper.norms import grid
from spherenorm_experiments.paper.statements import says
from spherenorm_experiments.pictures import Line, Picture, curves, drawn
from spherenorm_experiments.runs import Result, Runs, across
from spherenorm_experiments.tables import Cell, Row, Table, gap, mean_of, table_of

ROWS = table_of("""
    data     arm            first  last   score
    digits   SGD            1.35   4.34   67.94
    digits   SGD, wd 1e-6   1.35   4.08   67.89
    digits   SGD, wd 1e-5   1.33   2.70   69.06
    digits   SGD, wd 1e-4   1.21   1.02   70.43
    digits   SGDP           1.25   2.10   70.21
    digits   SGDP, wd 1e-6  1.25   1.96   70.27
    digits   SGDP, wd 1e-5  1.25   1.19   70.57
    digits   AdamW          1.70   10.41  68.38
    digits   AdamP          1.29   3.02   70.55
    tagging  AdamW          7.35   11.56  90.86
    tagging  AdamP          7.30   7.62   91.19
""")
"""Norm after the first epoch, norm after the last, score; of ResNet-18 on ImageNet and of music
tagging. "The same setting" has 70.47 and 70.70 in Table 2, and 91.12 and 91.35 in Table 4."""

PAPER: dict[str, dict[str, Mapping[str, Cell]]] = {
    data: {row["arm"]: row for row in ROWS if row["data"] == data} for data in ("digits", "tagging")
}
DECAYS, SHARED = ("0", "1e-6", "1e-5", "1e-4"), ("0", "1e-6", "1e-5")
"""The paper's weight decays of SGD, and of both SGD and SGDP."""

DECAY_SCALE = 100
"""Our weight decay per one of the paper's: 240 steps instead of 500,000 would not feel 1e-4."""

RATES = {
    "SGD": (0.01, 0.03, 0.1, 0.3, 1.0, 3.0),
    "Adam": (3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1),
}
OPTIMIZERS = ("SGD", "SGDP", "AdamW", "AdamP")
RATIOS = (0.1, 1.0)
"""Of the decay that SGDP gives an invariant weight: by default, and whole."""


def _name(optimizer: str, decay: str = "0", ratio: float = 0.1) -> str:
    """The name of an arm; without weight decay, the optimizer."""
    if decay == "0":
        return optimizer
    return f"{optimizer}, wd {decay}" + ", wd ratio 1" * (ratio == 1)


def _arm(optimizer: str, decay: str = "0", ratio: float = 0.1) -> Arm:
    projected, value = optimizer in grid.PROJECTED, float(decay)
    baseline = _name("SGD", decay) if optimizer == "SGDP" else "AdamW"
    return grid.arm(
        optimizer, _name(optimizer, decay, ratio), RATES[grid.KIND[optimizer]],
        (baseline,) if projected else (), {"weight_decay": value},
        weight_decay=DECAY_SCALE * value, **({"wd_ratio": ratio} if projected else {}),
    )  # fmt: skip


def _condition(data: str, theirs: str, large: Setup) -> Condition:
    rows = PAPER[data]
    numbers = {"score": "score", "norm¹": "first", "norm last": "last"}
    paper = {heading: {name: row[key] for name, row in rows.items()}
             for heading, key in numbers.items()}  # fmt: skip
    paper["growth"] = {name: gap(row["last"], row["first"]) for name, row in rows.items()}
    arms = tuple(rows) if data == "tagging" else ()
    return Condition(data, "network", {"data": data}, large, arms=arms, theirs=theirs, paper=paper)


TAGGING = Setup(
    {"data_set": "magnatagatune"}, hyper_parameters={"lr": 1e-4},
    fields={"epochs": 100, "batch_size": 16}, task="tagging",
)  # fmt: skip
"""Table 4's setting, with its learning rate."""


def _with(runs: Runs, optimizer: str, decay: str, ratio: float = 0.1) -> pd.DataFrame:
    """The runs of SGD or SGDP with a decay, at the rate that a seed chooses without."""
    return runs.best("digits", _name(optimizer, decay, ratio), by=optimizer)


def _correlation(runs: Runs) -> pd.Series:
    """Over SGD's decays that of norm and score, by seed; 0 of numbers that do not vary."""
    frames = [_with(runs, "SGD", decay) for decay in DECAYS]
    table = across([f.norm_last for f in frames] + [f.test for f in frames])

    def correlation(values: pd.Series) -> float:
        pair = values.to_numpy().reshape(2, -1)
        if not np.isfinite(pair).all():
            return np.inf  # a run diverged: it has no size, and counts against
        return float(np.corrcoef(pair)[0, 1]) if (np.ptp(pair, axis=1) > 0).all() else 0.0

    return pd.Series({s: correlation(row) for s, row in table.iterrows()}, dtype=float)


def _claims() -> list[Claim]:
    return [
        *_of_pair("digits", "SGD", "SGDP", "0.85 / 2.99 = 0.28"),
        *_of_pair("digits", "AdamW", "AdamP", "1.73 / 8.71 = 0.20"),
        *_of_pair("tagging", "AdamW", "AdamP", "0.32 / 4.21 = 0.08"),
        Claim("growth.tagging.factor", f"< {2 / 13.2!r}",
              lambda runs: runs.equal("tagging", ("AdamP", "AdamW"), number=grid.grown_over),
              "Tagging: Adam's growth is more than 6.6 times AdamP's, half of the paper's factor: "
              "AdamP's over Adam's at equal rates, the median of the rates", says("t1.tagging"),
              ratio=True, paper="0.32 / 4.21 = 0.08"),
        Claim("growth.adam.steps", "> 2",
              lambda runs: runs.best("digits", "AdamW").growth_over_moves,
              "Adam's squared norm grows by more than twice the sum of its squared steps",
              says("2.nesterov"), ratio=True),
        *_of_decay(),
        *(claim for ratio in RATIOS for claim in _of_ratio(ratio)),
        _score("digits", "SGD", "SGDP", "sgdp"),
        _score("digits", "AdamW", "AdamP", "adamp"),
        _score("tagging", "AdamW", "AdamP", "tagging-adamp"),
        _score("digits", "SGD, wd 1e-4", "SGDP, wd 1e-5", "sgdp.best-decay", "t1.tuned"),
    ]  # fmt: skip


def _of_pair(place: str, baseline: str, ours: str, theirs: str) -> list[Claim]:
    where = "" if place == "digits" else f"{place}: "
    first, second = where + baseline, where + ours
    return [
        Claim(f"growth.{slug(second)}", "< 0.5",
              lambda runs: runs.equal(place, (ours, baseline), number=grid.grown_over),
              f"{second} grows its norm less than half as much as {first} at equal rates: the "
              "median of the rates", says("t1.restrain"), ratio=True, paper=theirs, primary=True),
        Claim(f"path.{slug(second)}", "> 1",
              lambda runs: runs.equal(place, (ours, baseline), number=grid.paths),
              f"{second} travels further on the sphere than {first} at equal rates: the median of "
              "the rates", says("3.steps"), ratio=True, primary=True),
    ]  # fmt: skip


def _score(place: str, first: str, second: str, end: str, cites: str = "t1.score") -> Claim:
    rows, where = PAPER[place], "" if place == "digits" else f"{place}: "
    return Claim(
        f"score.{end}", "> 0", lambda runs: grid.gain(runs, place, second, first),
        f"{where}{second} scores higher than {where}{first}, each at its best rate", says(cites),
        unit="pp", margin=MARGIN, score=True, paper=gap(rows[second]["score"],
                                                        rows[first]["score"]),
    )  # fmt: skip


def _of_decay() -> list[Claim]:
    rows = PAPER["digits"]
    strong, none = rows["SGD, wd 1e-4"], rows["SGD"]
    theirs = [[float(rows[_name("SGD", decay)][key].value or 0) for decay in DECAYS]
              for key in ("last", "score")]  # fmt: skip
    return [
        Claim("decay.mitigates", "< 0",
              lambda runs: grid.grown_more(_with(runs, "SGD", "1e-4"), _with(runs, "SGD", "0")),
              "Weight decay mitigates SGD's growth: with 1e-4 minus without", says("t1.mitigates"),
              paper=gap(gap(strong["last"], strong["first"]), gap(none["last"], none["first"]))),
        Claim("decay.sgd-norm", "> 2",
              lambda runs: grid.spread_of((_with(runs, "SGD", decay).norm_last for decay in DECAYS),
                                          ratio=True),
              "SGD's last norm depends on weight decay: largest over smallest of four, above 2",
              says("t1.sensitive"), ratio=True, paper="4.34 / 1.02 = 4.25"),
        Claim("decay.sgd-score", "> 0",
              lambda runs: _with(runs, "SGD", "1e-4").test - _with(runs, "SGD", "0").test,
              "SGD's score depends on weight decay: 1e-4 minus none", says("t1.sensitive"),
              paper=gap(strong["score"], none["score"]), unit="pp", margin=1.0, score=True),
        Claim("decay.smaller-norm", "< 0", _correlation,
              "Across SGD's four weight decays a smaller last norm goes with a higher score: the "
              "correlation", says("t1.smaller"),
              paper=f"{np.corrcoef(np.array(theirs))[0, 1]:+.3f}", limits=(-1.0, 1.0), score=True),
    ]  # fmt: skip


def _of_ratio(ratio: float) -> list[Claim]:
    """SGDP under weight decay, of which an invariant weight has this share."""
    pairs = [(_name("SGDP", decay, ratio), _name("SGD", decay)) for decay in SHARED[1:]]

    def norms(runs: Runs, name: str, share: float = 0.1) -> pd.Series:
        norms = (_with(runs, name, decay, share).norm_last for decay in SHARED)
        return grid.spread_of(norms, ratio=True)

    return [
        Claim(f"growth.sgdp.decay.ratio-{ratio:g}", "< 0",
              lambda runs: runs.equal("digits", *pairs, number=grid.grown_more),
              "SGDP grows its norm less than SGD with a decay of 1e-6 and 1e-5 at equal rates: the "
              f"median of the rates and decays, wd ratio {ratio:g}", says("t1.restrain"),
              paper="-2.01 and -1.40, of the printed growths"),
        Claim(f"decay.sgdp-norm.ratio-{ratio:g}", "< 1",
              lambda runs: norms(runs, "SGDP", ratio) / norms(runs, "SGD"),
              "SGDP's last norm depends less on weight decay than SGD's: largest over smallest "
              f"from 0 to 1e-5, SGDP's relative to SGD's, wd ratio {ratio:g}", says("t1.stable"),
              ratio=True, paper="(2.10 / 1.19) / (4.34 / 2.70) = 1.10",
              note="the paper's own numbers say so of differences, not of ratios"),
        Claim(f"decay.sgdp-score.ratio-{ratio:g}", "< 1",
              lambda runs: grid.spread_of(_with(runs, "SGDP", d, ratio).test for d in SHARED),
              f"SGDP's score varies by less than 1 pp from 0 to 1e-5, wd ratio {ratio:g}",
              says("t1.stable"), paper="0.36", unit="pp", score=True,
              note=_sgd_varies),
    ]  # fmt: skip


def _sgd_varies(runs: Runs) -> str:
    range_ = grid.spread_of(_with(runs, "SGD", decay).test for decay in SHARED)
    return f"SGD's varies by {range_.mean():.2g} pp" if len(range_) else ""


def _growth_of(item: Result) -> float | None:
    last, first = (item.summary.get(key) for key in ("norm_last", "norm_first_epoch"))
    return None if last is None or first is None else float(last - first)


class Table1(grid.Grid):
    """Table 1, with a table for the terminal, and two pictures at one rate."""

    def pictures(self, runs: Runs) -> list[Picture]:
        at_one_rate = [
            Line(name, name.lower(), list((at if len(at) else runs.best("digits", name)).run))
            for name, rate in zip(OPTIMIZERS, (0.1, 0.1, 0.01, 0.01), strict=True)
            for at in [runs.at("digits", name, lr=rate)]
        ]
        norm = "Without weight decay at one rate: norm of the scale-invariant rows."
        step = "The effective step sizes of the same runs."
        first = [
            curves(at_one_rate, "norm", "norm ‖w‖", norm),
            curves(at_one_rate, "effective_step", "effective step ‖Δŵ‖", step, log_y=True),
        ]
        return drawn([*first, *super().pictures(runs)])

    def headline(self, runs: Runs) -> Table:
        """The optimizers on digits, without weight decay."""
        shown = {"norm¹": "norm_first_epoch", "norm last": "norm_last", "score": "test",
                 "path on sphere": "path"}  # fmt: skip
        rows: list[Row] = [
            (name, *(mean_of(runs.best("digits", name)[key], ".3f") for key in shown.values()))
            for name in OPTIMIZERS
        ]
        title = "Without weight decay, each seed at its best rate"
        return Table(title, ("optimizer", *shown), rows)


T1 = Table1(
    "t1",
    """Table 1: momentum makes norms grow, the projection holds them

    Norms and paths of two optimizers are compared at every learning rate that both have; scores at
    the rate that each seed's validation set chooses. Growth is the paper's: from the first epoch to
    the last. By default SGDP's decay of an invariant weight is a tenth of that of others, which is
    over 1 - momentum: lr wd a step at 0.9. `wd ratio 1` makes it 10 lr wd, as that of others.
    Weight decays are named as the paper's.
    """,
    arms=[
        *(_arm("SGD", decay) for decay in DECAYS),
        *(_arm("SGDP", decay) for decay in SHARED),
        *(_arm("SGDP", decay, 1.0) for decay in SHARED[1:]),
        *map(_arm, ("AdamW", "AdamP")),
    ],
    tune={"lr": RATES["SGD"]},
    conditions=[
        _condition("digits", "ResNet-18, ImageNet", grid.RESNET18),
        _condition("tagging", "Harmonic CNN, MagnaTagATune", TAGGING),
    ],
    claims=_claims(),
    measures={
        "norm¹": ("norm_first_epoch", ".3g"),
        "growth": (_growth_of, "+.3f"),
    },
)
