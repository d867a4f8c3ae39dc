"""Table C.1: the threshold of the scale-invariance test, also where the test errs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from spherenorm_experiments.comparison import Condition
from spherenorm_experiments.runs import RecordedNumber, Result, Runs, align_seeds, number
from spherenorm_experiments.tables import Cell, Heading, Row, Table, paper_columns, parse_table
from spherenorm_experiments.verdict import Claim, slug
from spherenorm_paper.norms import grid
from spherenorm_paper.norms.grid import claim, points
from spherenorm_paper.shared.detection import percent_right, statistics_of
from spherenorm_paper.shared.network import COSINE_BATCHES

ROWS = {float(row["delta"].value): row for row in parse_table("""
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

NETWORKS: dict[str, dict[str, Any]] = {
    "plain": {},
    "wide": {"width": 64},
    "half precision": {"precision": "float16"},
    "prenorm": {"variant": "prenorm"},
}
"""Options of the task."""

SHARE = 99.9
"""Percent of weights and steps that count as all of them."""


def _name(delta: float) -> str:
    return f"δ = {delta:g}"


def _right(item: Result, kind: str) -> float | None:
    """Percent of the weights of a kind and steps that the test gets right.

    By the steps themselves; of a run on batches by the gradients that the probe has seen.
    """
    share: float | None = item.summary.get(f"projected_{kind}")
    if share is None:
        delta = item.spec.hyper_parameters["delta"]
        detected: float | None = percent_right(delta, invariant=kind == "invariant")(item)
        return detected
    return share if kind == "invariant" else 100 - share


def _cosines(run: Result, kind: str) -> list[float]:
    """Return |cos(w, g)| at the end of training: of whole variant weights, of an invariant's rows.

    Six digits are kept.
    """
    cosines: np.ndarray | None = run.arrays.get(f"cosines_{kind}")
    if cosines is None:
        by_weight = []
        for weight in statistics_of(run, invariant=kind == "invariant"):
            shape = run.summary["shapes"][weight.name]
            statistic, size = weight.channels, shape[1:]
            if kind == "variant":
                statistic, size = weight.layer, shape
            largest = statistic[-COSINE_BATCHES:].max(axis=1)
            by_weight.append(largest / math.sqrt(math.prod(size)))
        cosines = np.nan_to_num(np.array(by_weight))
    return [float(f"{cosine:.6g}") for cosine in cosines.flat]


COSINES = {
    kind: RecordedNumber(f"cosines of {kind} weights", partial(_cosines, kind=kind))
    for kind in PAPER_COSINES
}


def _at(runs: Runs, network: str, delta: float) -> pd.DataFrame:
    """The runs at a threshold, at the rate that a seed chooses at 0.1."""
    return runs.selected(network, _name(delta), rate_chosen_by=_name(USUAL))


def _ends(runs: Runs, network: str) -> dict[str, tuple[float, float]]:
    """The range of 99 % of the cosines of each kind at 0.1 and one rate; empty without a run."""
    complete = runs.complete_grid(network, _name(USUAL))
    ranges: dict[str, tuple[float, float]] = {}
    for kind in PAPER_COSINES if len(complete) else ():
        cosines = [COSINES[kind](item) for item in complete.run[complete.lr == complete.lr.min()]]
        low, high = np.quantile(cosines, (0.005, 0.995))
        ranges[kind] = float(low), float(high)
    return ranges


LEFT_ALONE, PROJECTED = "variant left alone (%)", "invariant projected (%)"


def _detects(
    name: str, relation: str, network: str, kind: str, deltas: Sequence[float], text: str,
    cites: str = "", **more: Any,
) -> Claim:  # fmt: skip
    """A claim about the least share that is right over some thresholds."""
    worst = -math.inf if relation[0] == ">" else math.inf
    key, direction = partial(_right, kind=kind), "more" if relation[0] == ">" else "less"

    def least_share(runs: Runs) -> pd.Series:
        return align_seeds(number(_at(runs, network, d), key, worst) for d in deltas).min(axis=1)

    return claim(
        name, relation, least_share,
        f"{text} ({network}; {direction} than {SHARE} % right)", cites, unit="%",
        limits=(0.0, 100.0), **more,
    )  # fmt: skip


def _decades(
    network: str, of: tuple[str, int], over: tuple[str, int] | float
) -> Callable[[Runs], float | None]:
    """log10 of one end of the ranges of cosines over another, or over a number, as a function."""

    def decades(runs: Runs) -> float | None:
        ends = _ends(runs, network)
        above, below = (
            ends.get(end[0], (0.0, 0.0))[end[1]] if isinstance(end, tuple) else end
            for end in (of, over)
        )
        return math.log10(above / below) if above and below else None  # some gradient is left

    return decades


LOWER, UPPER = PAPER_COSINES["variant"][0], PAPER_COSINES["invariant"][1]
BOTH: dict[str, Any] = {"paper": "100 %", "primary": True}
UNSIZED = {"note": "that it errs is tested, not by how much"}
POOLED = "at the end of training, all seeds together"
BEYOND: dict[str, Any] = {
    "decision_margin": 0.5,
    "unit": "decades",
    "note": f"{POOLED}; the ends of the paper's intervals that keep the kinds apart",
}
MISSES = "it misses them with gradients in half precision"
CLAIMS = [
    _detects("detection.invariant.plain", f"> {SHARE}", "plain", "invariant", (0.2, 0.1, 0.05),
             "From δ = 0.05 to 0.2 the test projects every invariant weight",
             "c.discriminates", **BOTH),
    _detects("detection.variant.plain", f"> {SHARE}", "plain", "variant", (0.2, 0.1, 0.05),
             "From δ = 0.05 to 0.2 the test leaves every variant weight alone",
             "c.discriminates", **BOTH),
    _detects("detection.variant.prenorm", f"> {SHARE}", "prenorm", "variant", [USUAL],
             "At δ = 0.1 the test leaves every variant weight alone", "3.delta", paper="100 %"),
    _detects("detection.separates", f"> {SHARE}", "prenorm", "variant", [USUAL],
             "δ = 0.1 separates the two kinds on a network of mostly variant weights",
             "c.suitable"),
    _detects("errors.plain.delta-1", f"< {SHARE}", "plain", "variant", [1.0],
             "At δ = 1 the test takes variant weights for invariant", "c.delta1",
             paper="86.64 %", **UNSIZED),
    _detects("errors.plain.delta-0.01", f"< {SHARE}", "plain", "invariant", [0.01],
             "At δ = 0.01 the test misses invariant weights", "c.delta.01",
             paper="97.73 %", **UNSIZED),
    _detects("errors.wide.delta-0.01", f"< {SHARE}", "wide", "invariant", [0.01],
             "At δ = 0.01 it misses them with more inputs to a row"),
    *(_detects(f"errors.half-precision.delta-{delta}", f"< {SHARE}", "half precision", "invariant",
               [delta], f"At δ = {delta} {MISSES}") for delta in (0.01, 0.1)),
    *(claim(f"cosines-apart.{slug(network)}", "> 0",
            _decades(network, ("variant", 0), ("invariant", 1)),
            "The cosines of the two kinds are apart: log₁₀ of the lower end of the variant over "
            f"the upper end of the invariant ({network})", cites, decision_margin=0.5, paper="2.8",
            note=POOLED) for network, cites in (("plain", "c.cosines"), ("half precision", ""))),
    claim("cosines.variant", "> 0", _decades("plain", ("variant", 0), LOWER),
          "Of 99 % of the cosines the lower end of the scale-variant weights' lies above the "
          f"paper's {LOWER:g} (plain): log₁₀ of ours over it", "c.cosines", **BEYOND),
    claim("cosines.invariant", "< 0", _decades("plain", ("invariant", 1), UPPER),
          "Of 99 % of the cosines the upper end of the scale-invariant weights' lies below the "
          f"paper's {UPPER:g} (plain): log₁₀ of ours over it", "c.cosines", **BEYOND),
    points("accuracy", "< 1",
           lambda runs: grid.spread_of(_at(runs, "plain", delta).test for delta in ROWS),
           "Accuracy hardly depends on δ: its range over the paper's six values is below 1 pp",
           "c.performance", paper="0.17 pp", primary=True),
]  # fmt: skip


def _condition(network: str) -> Condition:
    if network != "plain":
        return Condition(network, "network", NETWORKS[network])
    headings = {"score": "accuracy", LEFT_ALONE: "variant", PROJECTED: "invariant"}
    paper_scores = {heading: {_name(delta): row[name] for delta, row in ROWS.items()}
              for heading, name in headings.items()}  # fmt: skip
    return Condition(
        network,
        "network",
        real=grid.RESNET18,
        paper_setup="ResNet-18, ImageNet",
        paper=paper_scores,
    )


class TableC1(grid.Grid):
    """Table C.1, with the cosines of weights and gradients."""

    def tables(self, runs: Runs) -> list[Table]:
        rows: list[Row] = []
        for network in NETWORKS:
            if ends := _ends(runs, network):
                cells = [Cell(None, ".2g", interval=ends[kind]) for kind in PAPER_COSINES]
                rows.append((network, *cells, "", ""))
        paper_cells = [Cell(None, ".2g", interval=ends) for ends in PAPER_COSINES.values()]
        rows += [("the paper's ResNet-18", "", "", *paper_cells)] if rows else []
        headings: list[Heading] = ["network", "scale-variant", "scale-invariant"]
        headings += paper_columns("variant", "invariant")
        note = (
            "|cos(w, g)| at the end of training: of a whole variant weight, of an invariant's rows."
        )
        cosines = Table("Cosines of weight and gradient, 99 % of them", headings, rows, note)
        return [*super().tables(runs), *([cosines] if rows else [])]


C1 = TableC1(
    "c1",
    """Table C.1: the sensitivity of the scale-invariance test to its threshold

    AdamP trains with ten thresholds on a network whose weights are nearly all scale-invariant, as
    the paper's, and where the test might err: with gradients in half precision, with more inputs to
    a row, and on a network that is normalized before its weights, so that nearly all of them are
    scale-variant (prenorm, which the paper has not). Detection is read off the steps themselves: a
    step that was projected has no radial part. So detection and accuracy are of the same runs. A
    random gradient passes the test's layer view in 2 Phi(delta) - 1 of all steps (8 % at 0.1).
    Claims compare thresholds at the rate that each seed chooses at 0.1.
    """,
    arms=[
        grid.arm(
            "AdamP",
            _name(delta),
            paper_settings={"weight_decay": 1e-6},
            delta=delta,
            weight_decay=0.0,
        )
        for delta in DELTAS
    ],
    tune={"lr": (3e-3, 1e-2, 3e-2)},
    conditions=list(map(_condition, NETWORKS)),
    claims=CLAIMS,
    measures={
        LEFT_ALONE: (partial(_right, kind="variant"), ".2f"),
        PROJECTED: (partial(_right, kind="invariant"), ".2f"),
    },
    first_seed=600,
)
