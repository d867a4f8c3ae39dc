"""Table 1: norms at the first and the last epoch, and scores, on digits and on music tagging."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd

from spherenorm_experiments.comparison import Arm, Condition, Setup
from spherenorm_experiments.runs import Result, Runs, align_seeds
from spherenorm_experiments.tables import Cell, parse_table, subtract_printed
from spherenorm_experiments.verdict import Claim, slug
from spherenorm_paper.norms import grid
from spherenorm_paper.norms.grid import claim, higher, points, ratio, spread_of

ROWS = parse_table("""
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
TAGGING = Setup(
    {"data_set": "magnatagatune"}, hyper_parameters={"lr": 1e-4},
    fields={"epochs": 100, "batch_size": 16}, task="tagging",
)  # fmt: skip
"""Table 4's setting, with its learning rate."""


def _name(optimizer: str, decay: str = "0", share: float = 0.1) -> str:
    """The name of an arm; without weight decay, the optimizer."""
    if decay == "0":
        return optimizer
    return f"{optimizer}, wd {decay}" + ", wd ratio 1" * (share == 1)


def _arm(optimizer: str, decay: str = "0", share: float = 0.1) -> Arm:
    projected = {"SGDP": _name("SGD", decay), "AdamP": "AdamW"}
    return grid.arm(
        optimizer, _name(optimizer, decay, share), RATES[grid.KIND[optimizer]],
        [projected[optimizer]] if optimizer in projected else [], {"weight_decay": float(decay)},
        weight_decay=DECAY_SCALE * float(decay),
        **({"wd_ratio": share} if optimizer in projected else {}),
    )  # fmt: skip


def _condition(data: str, paper_network: str, large: Setup) -> Condition:
    rows, columns = PAPER[data], {"score": "score", "norm¹": "first", "norm last": "last"}
    paper = {heading: {name: row[column] for name, row in rows.items()}
             for heading, column in columns.items()}  # fmt: skip
    paper["growth"] = {
        name: subtract_printed(row["last"], row["first"]) for name, row in rows.items()
    }
    arms = tuple(rows) if data == "tagging" else ()
    return Condition(
        data, "network", {"data": data}, large, arms=arms, paper_setup=paper_network, paper=paper
    )


def _with(runs: Runs, optimizer: str, decay: str, share: float = 0.1) -> pd.DataFrame:
    """The runs of SGD or SGDP with a decay, at the rate that a seed chooses without."""
    return runs.selected("digits", _name(optimizer, decay, share), rate_chosen_by=optimizer)


def _over_decays(runs: Runs, optimizer: str, key: str, share: float = 0.1) -> Iterator[pd.Series]:
    """A number with each decay that SGD and SGDP share."""
    return (_with(runs, optimizer, decay, share)[key] for decay in SHARED)


def _correlation(runs: Runs) -> pd.Series:
    """Over SGD's decays that of norm and score, by seed; 0 of numbers that do not vary."""
    frames = [_with(runs, "SGD", decay) for decay in DECAYS]
    table = align_seeds([f.norm_last for f in frames] + [f.test for f in frames])

    def correlation(values: pd.Series) -> float:
        pair = values.to_numpy().reshape(2, -1)
        if not np.isfinite(pair).all():
            return np.inf  # a run diverged: it has no size, and counts against
        return float(np.corrcoef(pair)[0, 1]) if (np.ptp(pair, axis=1) > 0).all() else 0.0

    return pd.Series({s: correlation(row) for s, row in table.iterrows()}, dtype=float)


def _of_pair(place: str, baseline: str, projected: str, paper_ratio: str) -> list[Claim]:
    where = "" if place == "digits" else f"{place}: "
    baseline_text, projected_text = where + baseline, where + projected
    pair = (projected, baseline)
    return [
        ratio(f"growth.{slug(projected_text)}", "< 0.5",
              lambda runs: runs.median_over_common_rates(place, pair, number=grid.grown_over),
              f"{projected_text} grows its norm less than half as much as {baseline_text} at equal "
              "rates: the median of the rates", "t1.restrain", paper=paper_ratio, primary=True),
        ratio(f"path.{slug(projected_text)}", "> 1",
              lambda runs: runs.median_over_common_rates(place, pair, number=grid.paths),
              f"{projected_text} travels further on the sphere than {baseline_text} at equal "
              "rates: the median of the rates", "3.steps", primary=True),
    ]  # fmt: skip


def _score(place: str, baseline: str, projected: str, end: str, cites: str = "t1.score") -> Claim:
    rows, where = PAPER[place], "" if place == "digits" else f"{place}: "
    text = f"{where}{projected} scores higher than {where}{baseline}, each at its best rate"
    paper_gap = subtract_printed(rows[projected]["score"], rows[baseline]["score"])
    return higher(
        f"score.{end}", lambda runs: grid.gain(runs, place, projected, baseline), text, cites,
        paper=paper_gap,
    )  # fmt: skip


def _of_ratio(share: float) -> list[Claim]:
    """SGDP under weight decay, of which an invariant weight has this share."""
    pairs, at = [(_name("SGDP", d, share), _name("SGD", d)) for d in SHARED[1:]], "wd ratio"
    return [
        claim(f"growth.sgdp.decay.ratio-{share:g}", "< 0",
              lambda runs: runs.median_over_common_rates("digits", *pairs, number=grid.grown_more),
              "SGDP grows its norm less than SGD with a decay of 1e-6 and 1e-5 at equal rates: the "
              f"median of the rates and decays, {at} {share:g}", "t1.restrain",
              paper="-2.01 and -1.40, of the printed growths"),
        ratio(f"decay.sgdp-norm.ratio-{share:g}", "< 1",
              lambda runs: (spread_of(_over_decays(runs, "SGDP", "norm_last", share), ratio=True)
                            / spread_of(_over_decays(runs, "SGD", "norm_last"), ratio=True)),
              "SGDP's last norm depends less on weight decay than SGD's: largest over smallest "
              f"from 0 to 1e-5, SGDP's relative to SGD's, {at} {share:g}", "t1.stable",
              paper="(2.10 / 1.19) / (4.34 / 2.70) = 1.10",
              note="the paper's own numbers say so of differences, not of ratios"),
        points(f"decay.sgdp-score.ratio-{share:g}", "< 1",
               lambda runs: spread_of(_over_decays(runs, "SGDP", "test", share)),
               f"SGDP's score varies by less than 1 pp from 0 to 1e-5, {at} {share:g}",
               "t1.stable", paper="0.36",
               note=lambda runs: grid.noted("SGD", _over_decays(runs, "SGD", "test"))),
    ]  # fmt: skip


STRONG, NONE = PAPER["digits"]["SGD, wd 1e-4"], PAPER["digits"]["SGD"]
GROWTHS = [subtract_printed(row["last"], row["first"]) for row in (STRONG, NONE)]
NORMS_AND_SCORES = [[float(PAPER["digits"][_name("SGD", decay)][key].value or 0)
                     for decay in DECAYS]
          for key in ("last", "score")]  # fmt: skip
CLAIMS = [
    *_of_pair("digits", "SGD", "SGDP", "0.85 / 2.99 = 0.28"),
    *_of_pair("digits", "AdamW", "AdamP", "1.73 / 8.71 = 0.20"),
    *_of_pair("tagging", "AdamW", "AdamP", "0.32 / 4.21 = 0.08"),
    ratio("growth.tagging.factor", f"< {2 / 13.2!r}",
          lambda runs: runs.median_over_common_rates(
              "tagging", ("AdamP", "AdamW"), number=grid.grown_over),
          "Tagging: Adam's growth is more than 6.6 times AdamP's, half of the paper's factor: "
          "AdamP's over Adam's at equal rates, the median of the rates", "t1.tagging",
          paper="0.32 / 4.21 = 0.08"),
    ratio("growth.adam.steps", "> 2",
          lambda runs: runs.selected("digits", "AdamW").growth_over_moves,
          "Adam's squared norm grows by more than twice the sum of its squared steps",
          "2.nesterov"),
    claim("decay.mitigates", "< 0",
          lambda runs: grid.grown_more(_with(runs, "SGD", "1e-4"), _with(runs, "SGD", "0")),
          "Weight decay mitigates SGD's growth: with 1e-4 minus without, at the rate that a seed "
          "chooses without", "t1.mitigates",
          paper=subtract_printed(*GROWTHS)),
    ratio("decay.sgd-norm", "> 2",
          lambda runs: spread_of((_with(runs, "SGD", decay).norm_last for decay in DECAYS),
                                 ratio=True),
          "SGD's last norm depends on weight decay: largest over smallest of four, above 2",
          "t1.sensitive", paper="4.34 / 1.02 = 4.25"),
    higher("decay.sgd-score",
           lambda runs: _with(runs, "SGD", "1e-4").test - _with(runs, "SGD", "0").test,
           "SGD's score depends on weight decay: 1e-4 minus none, at the rate that a seed chooses "
           "without", "t1.sensitive",
           paper=subtract_printed(STRONG["score"], NONE["score"])),
    claim("decay.smaller-norm", "< 0", _correlation,
          "Across SGD's four weight decays a smaller last norm goes with a higher score: the "
          "correlation", "t1.smaller",
          paper=f"{np.corrcoef(np.array(NORMS_AND_SCORES))[0, 1]:+.3f}",
          limits=(-1.0, 1.0), is_performance=True),
    *(claim_of_share for share in (0.1, 1.0) for claim_of_share in _of_ratio(share)),
    _score("digits", "SGD", "SGDP", "sgdp"),
    _score("digits", "AdamW", "AdamP", "adamp"),
    _score("tagging", "AdamW", "AdamP", "tagging-adamp"),
    _score("digits", "SGD, wd 1e-4", "SGDP, wd 1e-5", "sgdp.best-decay", "t1.tuned"),
]  # fmt: skip


def _growth_of(item: Result) -> float | None:
    last, norm_first_epoch = (item.summary.get(key) for key in ("norm_last", "norm_first_epoch"))
    return None if last is None or norm_first_epoch is None else float(last - norm_first_epoch)


T1 = grid.Grid(
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
    claims=CLAIMS,
    measures={"norm¹": ("norm_first_epoch", ".3g"), "growth": (_growth_of, "+.3f")},
)
