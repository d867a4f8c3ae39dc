"""Table C.1: the threshold of the scale-invariance test, also where the test errs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from spherenorm_experiments.claims import OURS, Claim, slug
from spherenorm_experiments.comparison import Condition
from spherenorm_experiments.paper.norms import grid
from spherenorm_experiments.paper.statements import says
from spherenorm_experiments.pictures import Picture, lines
from spherenorm_experiments.runs import Result, Runs, across, number
from spherenorm_experiments.tables import Cell, Heading, Row, Table, paper, table_of

ROWS = {float(row["delta"].value): row for row in table_of("""
    delta  variant  invariant  accuracy
    1      86.64    100        70.74
    0.2    100      100        70.83
    0.1    100      100        70.81
    0.05   100      100        70.78
    0.02   100      99.94      70.81
    0.01   100      97.73      70.66
""")}  # fmt: skip
"""Percent of scale-variant and of scale-invariant weights detected, and accuracy. By source order
the table is B.1; the compiled appendix calls it C.1."""

PAPER_COSINES = {"variant": (0.0028, 0.5660), "invariant": (5.5e-10, 4.4e-6)}

USUAL = 0.1
DELTAS = (USUAL, *(delta for delta in ROWS if delta != USUAL), 1e-3, 1e-4, 1e-5, 1e-6)
RATES = (3e-3, 1e-2, 3e-2)

NETWORKS: dict[str, dict[str, Any]] = {
    "plain": {},
    "wide": {"width": 64},
    "half precision": {"precision": "float16"},
    "prenorm": {"variant": "prenorm"},
}
"""Options of the task."""

COLORS = dict(zip(NETWORKS, ("#4c78a8", "#1b9e9e", "#e4572e", "#2e8b57"), strict=True))

SHARE = 99.9
"""Percent of weights and steps that count as all of them."""


def _name(delta: float) -> str:
    return f"δ = {delta:g}"


def _at(runs: Runs, network: str, delta: float) -> pd.DataFrame:
    """The runs at a threshold, at the rate that a seed chooses at 0.1."""
    return runs.best(network, _name(delta), by=_name(USUAL))


def _right(item: Result, kind: str) -> float | None:
    """Percent of the weights of a kind and steps that the test gets right."""
    share: float | None = item.summary.get(f"projected_{kind}")
    return share if share is None or kind == "invariant" else 100 - share


def _least(runs: Runs, network: str, kind: str, deltas: Iterable[float]) -> pd.Series:
    """The least share that is right over some thresholds."""
    key = partial(_right, kind=kind)
    return across(number(_at(runs, network, d), key, -math.inf) for d in deltas).min(axis=1)


def _ends(runs: Runs, network: str) -> dict[str, tuple[float, float]]:
    """The range of 99 % of the cosines of each kind at 0.1 and one rate; empty without a run."""
    own = runs.of(network, _name(USUAL))
    found: dict[str, tuple[float, float]] = {}
    for kind in PAPER_COSINES if len(own) else ():
        cosines = [item.arrays[f"cosines_{kind}"] for item in own.run[own.lr == own.lr.min()]]
        low, high = np.quantile(cosines, (0.005, 0.995))
        found[kind] = float(low), float(high)
    return found


def _decades(above: float | None, below: float | None) -> float | None:
    """log10 of a ratio; None without a run, or if no gradient is left."""
    return math.log10(above / below) if above and below else None


LEFT_ALONE, PROJECTED = "variant left alone (%)", "invariant projected (%)"
PERCENT: dict[str, Any] = {"unit": "%", "limits": (0.0, 100.0)}


def _detects(network: str, kind: str, said: str) -> Claim:
    cites = says("c.discriminates" if network == "plain" else "3.delta")
    return Claim(
        f"detection.{kind}.{network}", f"> {SHARE}",
        lambda runs: _least(runs, network, kind, (0.2, 0.1, 0.05)),
        f"From δ = 0.05 to 0.2 the test {said} ({network}; more than {SHARE} % right)", cites,
        paper="100 %", primary=network == "plain", **PERCENT,
    )  # fmt: skip


def _errs(text: str, network: str, delta: float, kind: str = "invariant", **more: Any) -> Claim:
    """The claim that the test errs on a network at a threshold."""
    key = partial(_right, kind=kind)
    return Claim(
        f"errors.{slug(network)}.delta-{delta:g}", f"< {SHARE}",
        lambda runs: number(_at(runs, network, delta), key, math.inf),
        f"{text}: less than {SHARE} % right ({network})", **more, **PERCENT,
    )  # fmt: skip


def _apart(network: str, **more: Any) -> Claim:
    """The claim that the cosines of the two kinds do not overlap."""

    def decades(runs: Runs) -> float | None:
        ends = _ends(runs, network)
        return _decades(ends["variant"][0], ends["invariant"][1]) if ends else None

    return Claim(
        f"cosines-apart.{slug(network)}", "> 0", decades,
        "The cosines of the two kinds are apart: log₁₀ of the lower end of the variant over "
        f"the upper end of the invariant ({network})", margin=0.5, paper="2.8", **more,
    )  # fmt: skip


def _beyond(kind: str, relation: str, end: int, words: str) -> Claim:
    """The claim about an end of the range of cosines against the paper's."""
    bound = PAPER_COSINES[kind][end]
    return Claim(
        f"cosines.{kind}", relation,
        lambda runs: _decades(_ends(runs, "plain").get(kind, (0.0, 0.0))[end], bound),
        f"Of 99 % of the cosines the {words} {bound:g} (plain): log₁₀ of ours over it",
        says("c.cosines"), margin=0.5, unit="decades",
        note="the ends of the paper's intervals that keep the kinds apart",
    )  # fmt: skip


CLAIMS = [
    *(_detects(network, "invariant", "projects every invariant weight")
      for network in ("plain", "prenorm")),
    *(_detects(network, "variant", "leaves every variant weight alone")
      for network in ("plain", "prenorm")),
    Claim("detection.separates", f"> {SHARE}",
          lambda runs: _least(runs, "prenorm", "variant", [USUAL]),
          "δ = 0.1 separates the two kinds on a network of mostly variant weights "
          f"({SHARE} %)", says("c.suitable"), **PERCENT),
    _errs("At δ = 1 the test takes variant weights for invariant", "plain", 1.0, "variant",
          cites=says("c.delta1"), paper="86.64 %"),
    _errs("At δ = 0.01 the test misses invariant weights", "plain", 0.01,
          cites=says("c.delta.01"), paper="97.73 %"),
    _errs("At δ = 0.01 it misses them with more inputs to a row", "wide", 0.01),
    _errs("At δ = 0.01 it misses them with gradients in half precision", "half precision", 0.01),
    _errs("At δ = 0.1 it misses them with gradients in half precision", "half precision", 0.1),
    _apart("plain", cites=says("c.cosines")),
    _apart("half precision", cites=OURS),
    _beyond("variant", "> 0", 0,
            "lower end of the scale-variant weights' lies above the paper's"),
    _beyond("invariant", "< 0", 1,
            "upper end of the scale-invariant weights' lies below the paper's"),
    Claim("accuracy", "< 1",
          lambda runs: grid.spread_of(_at(runs, "plain", delta).test for delta in ROWS),
          "Accuracy hardly depends on δ: its range over the paper's six values is below 1 pp",
          says("c.performance"), paper="0.17 pp", unit="pp", primary=True, score=True),
]  # fmt: skip


def _condition(network: str) -> Condition:
    if network != "plain":
        return Condition(network, "network", NETWORKS[network])
    headings = {"score": "accuracy", LEFT_ALONE: "variant", PROJECTED: "invariant"}
    theirs = {heading: {_name(delta): row[name] for delta, row in ROWS.items()}
              for heading, name in headings.items()}  # fmt: skip
    return Condition(
        network, "network", real=grid.RESNET18, theirs="ResNet-18, ImageNet", paper=theirs
    )


class TableC1(grid.Grid):
    """Table C.1, with the cosines of weights and gradients, and a picture of the test's errors."""

    def tables(self, runs: Runs) -> list[Table]:
        rows: list[Row] = []
        for network in NETWORKS:
            if ends := _ends(runs, network):
                cells = [Cell(None, ".2g", interval=ends[kind]) for kind in PAPER_COSINES]
                rows.append((network, *cells, "", ""))
        theirs = [Cell(None, ".2g", interval=ends) for ends in PAPER_COSINES.values()]
        rows += [("the paper's ResNet-18", "", "", *theirs)] if rows else []
        headings: list[Heading] = ["network", "scale-variant", "scale-invariant"]
        headings += paper("variant", "invariant")
        note = (
            "|cos(w, g)| at the end of training: of a whole variant weight, of an invariant's rows."
        )
        cosines = Table("Cosines of weight and gradient, 99 % of them", headings, rows, note)
        return [*super().tables(runs), *([cosines] if rows else [])]

    def pictures(self, runs: Runs) -> list[Picture]:
        from spherenorm_theory import false_positive_rate  # sympy takes a second to import

        law, thresholds = "law: 2 Φ(δ) - 1", np.geomspace(1e-3, 1, 25)
        series = {law: (thresholds.tolist(), [false_positive_rate(d) for d in thresholds])}
        colors, dashes = {law: "#888888"}, {law: "dash"}
        for network, kind in itertools.product(NETWORKS, PAPER_COSINES):
            shares = {d: number(_at(runs, network, d), f"projected_{kind}").mean() / 100
                      for d in sorted(DELTAS)}  # fmt: skip
            known = {delta: share for delta, share in shares.items() if share > 0}
            name = f"{network}, {kind}"
            series[name] = list(known), list(known.values())
            colors[name], dashes[name] = COLORS[network], "dot" if kind == "variant" else "solid"
        caption = (
            "The share of weights and steps that are projected: of scale-invariant weights (solid) "
            "all should be, of the others (dotted) none; and the law for random gradients."
        )
        words = "threshold δ", "taken for invariant"
        return [lines(series, *words, caption, colors, log_x=True, log_y=True, dashes=dashes)]


C1 = TableC1(
    "c1",
    """Table C.1: the sensitivity of the scale-invariance test to its threshold

    AdamP trains with ten thresholds on networks where the test is easy, as the paper's, and where
    it errs: with gradients in half precision, with more inputs to a row, and with weights before a
    normalization that nearly all are scale-variant. Detection is read off the steps themselves: a
    step that was projected has no radial part. So detection and accuracy are of the same runs. A
    random gradient passes the test's layer view in 2 Phi(delta) - 1 of all steps (8 % at 0.1).
    Claims compare thresholds at the rate that each seed chooses at 0.1.
    """,
    arms=[
        grid.arm(
            "AdamP", _name(delta), theirs={"weight_decay": 1e-6}, delta=delta, weight_decay=0.0
        )
        for delta in DELTAS
    ],
    tune={"lr": RATES},
    conditions=list(map(_condition, NETWORKS)),
    claims=CLAIMS,
    measures={
        LEFT_ALONE: (partial(_right, kind="variant"), ".2f"),
        PROJECTED: (partial(_right, kind="invariant"), ".2f"),
    },
    first_seed=600,
)
