"""Table C.1: the threshold of the scale-invariance test, also where the test errs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from spherenorm_experiments.claims import OURS, Claim, Statement, slug
from spherenorm_experiments.comparison import Arm, Comparison, Condition
from spherenorm_experiments.paper.norms._network import MEASURES, RESNET18, SEEDS, spread_of
from spherenorm_experiments.paper.statements import says
from spherenorm_experiments.pictures import Picture, drawn, empty_figure, rounded
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

DELTAS = (*ROWS, 1e-3, 1e-4, 1e-5, 1e-6)
USUAL = 0.1
RATES = (3e-3, 1e-2, 3e-2)

PAPER_COSINES = {"variant": (0.0028, 0.5660), "invariant": (5.5e-10, 4.4e-6)}

SHARE = 99.9
"""Percent of weights and steps that count as all of them."""

NETWORKS: dict[str, dict[str, Any]] = {
    "plain": {},
    "wide": {"width": 64},
    "half precision": {"precision": "float16"},
    "prenorm": {"variant": "prenorm"},
}
"""Options of the task."""

COLORS = dict(zip(NETWORKS, ("#4c78a8", "#1b9e9e", "#e4572e", "#2e8b57"), strict=True))

LEFT_ALONE, PROJECTED = "variant left alone (%)", "invariant projected (%)"


def _name(delta: float) -> str:
    return f"δ = {delta:g}"


def _condition(network: str) -> Condition:
    if network != "plain":
        return Condition(network, "network", NETWORKS[network])
    headings = {"score": "accuracy", LEFT_ALONE: "variant", PROJECTED: "invariant"}
    theirs = {heading: {_name(delta): row[name] for delta, row in ROWS.items()}
              for heading, name in headings.items()}  # fmt: skip
    return Condition(network, "network", real=RESNET18, theirs="ResNet-18, ImageNet", paper=theirs)


def _right(item: Result, kind: str) -> float | None:
    """Percent of the weights of a kind and steps that the test gets right."""
    share: float | None = item.summary.get(f"projected_{kind}")
    return share if share is None or kind == "invariant" else 100 - share


def _of(runs: Runs, network: str, delta: float, kind: str, worst: float = -math.inf) -> pd.Series:
    """The same at a threshold, at the rate that a seed chooses at 0.1."""
    frame = runs.best(network, _name(delta), by=_name(USUAL))
    return number(frame, partial(_right, kind=kind), worst)


def _least(runs: Runs, network: str, kind: str) -> pd.Series:
    """The least over the middle thresholds."""
    return across(_of(runs, network, delta, kind) for delta in (0.2, 0.1, 0.05)).min(axis=1)


PERCENT: dict[str, Any] = {"unit": "%", "limits": (0.0, 100.0)}


def _claims() -> Iterator[Claim]:
    for kind, said in (("invariant", "projects every invariant weight"),
                       ("variant", "leaves every variant weight alone")):  # fmt: skip
        for name in ("plain", "prenorm"):
            yield Claim(
                f"detection.{kind}.{name}", f"> {SHARE}",
                partial(_least, network=name, kind=kind),
                f"From δ = 0.05 to 0.2 the test {said} ({name}; more than {SHARE} % right)",
                says("c.discriminates" if name == "plain" else "3.delta"), paper="100 %",
                primary=name == "plain", **PERCENT,
            )  # fmt: skip
    yield Claim(
        "detection.separates", f"> {SHARE}",
        partial(_of, network="prenorm", delta=USUAL, kind="variant"),
        f"δ = 0.1 separates the two kinds on a network of mostly variant weights ({SHARE} %)",
        says("c.suitable"), **PERCENT,
    )  # fmt: skip
    for text, name, delta, kind, source, theirs in ERRORS:
        yield Claim(
            f"errors.{slug(name)}.delta-{delta:g}", f"< {SHARE}",
            partial(_of, network=name, delta=delta, kind=kind, worst=math.inf),
            f"{text}: less than {SHARE} % right ({name})", source, paper=theirs, **PERCENT,
        )  # fmt: skip
    for name, source in (("plain", says("c.cosines")), ("half precision", OURS)):
        yield Claim(
            f"cosines-apart.{slug(name)}", "> 0", partial(_decades_apart, network=name),
            "The cosines of the two kinds are apart: log₁₀ of the lower end of the variant over "
            f"the upper end of the invariant ({name})", source, margin=0.5, paper="2.8",
        )  # fmt: skip
    for kind, relation, end, words in (
        ("variant", "> 0", 0, "lower end of the scale-variant weights' lies above the paper's"),
        ("invariant", "< 0", 1, "upper end of the scale-invariant weights' lies below the paper's"),
    ):
        bound = PAPER_COSINES[kind][end]
        yield Claim(
            f"cosines.{kind}", relation, partial(_decades_beyond, kind=kind, end=end),
            f"Of 99 % of the cosines the {words} {bound:g} (plain): log₁₀ of ours over it",
            says("c.cosines"), margin=0.5, unit="decades",
            note="the ends of the paper's intervals that keep the kinds apart",
        )  # fmt: skip
    accuracies = [float(row["accuracy"].value) for row in ROWS.values()]
    yield Claim(
        "accuracy", "< 1",
        lambda runs: spread_of(
            runs.best("plain", _name(delta), by=_name(USUAL)).test for delta in ROWS
        ),
        "Accuracy hardly depends on δ: its range over the paper's six values is below 1 pp",
        says("c.performance"), paper=f"{max(accuracies) - min(accuracies):.2f} pp", unit="pp",
        primary=True, score=True,
    )  # fmt: skip


class Error(NamedTuple):
    """A claim that the test errs on a network at a threshold."""

    text: str
    network: str
    delta: float
    kind: str = "invariant"
    cites: Statement = OURS
    paper: str = ""


ERRORS = (
    Error("At δ = 1 the test takes variant weights for invariant", "plain", 1.0, "variant",
          says("c.delta1"), "86.64 %"),
    Error("At δ = 0.01 the test misses invariant weights", "plain", 0.01, "invariant",
          says("c.delta.01"), "97.73 %"),
    Error("At δ = 0.01 it misses them with more inputs to a row", "wide", 0.01),
    Error("At δ = 0.01 it misses them with gradients in half precision", "half precision", 0.01),
    Error("At δ = 0.1 it misses them with gradients in half precision", "half precision", 0.1),
)  # fmt: skip


def _ends(runs: Runs, network: str) -> dict[str, tuple[float, float]]:
    """The range of 99 % of the cosines of each kind at 0.1 and one rate; empty without a run."""
    own = runs.of(network, _name(USUAL))
    found: dict[str, tuple[float, float]] = {}
    for kind in PAPER_COSINES if len(own) else ():
        first = own.run[own.lr == own.lr.min()]
        cosines = [item.arrays[f"cosines_{kind}"] for item in first]
        low, high = np.quantile(cosines, (0.005, 0.995))
        found[kind] = float(low), float(high)
    return found


def _decades_apart(runs: Runs, network: str) -> float | None:
    """None if no gradient is left."""
    ends = _ends(runs, network)
    if not ends or min(ends["variant"][0], ends["invariant"][1]) <= 0:
        return None
    return math.log10(ends["variant"][0] / ends["invariant"][1])


def _decades_beyond(runs: Runs, kind: str, end: int) -> float | None:
    """log10 of an end of our interval over that of the paper's; None if no gradient is left."""
    ours = _ends(runs, "plain").get(kind, (0.0, 0.0))[end]
    return math.log10(ours / PAPER_COSINES[kind][end]) if ours > 0 else None


def _false_positives(delta: float) -> float:
    """The share of random gradients that pass the layer view: 2 Phi(delta) - 1, by a law."""
    from spherenorm_theory import false_positive_rate  # sympy takes a second to import

    return false_positive_rate(delta)


class TableC1(Comparison):
    """Table C.1, with the cosines of weights and gradients, and a picture of the test's errors."""

    def tables(self, runs: Runs) -> list[Table]:
        rows: list[Row] = []
        for network in NETWORKS:
            if ends := _ends(runs, network):
                cells = [Cell(None, ".2g", interval=ends[kind]) for kind in PAPER_COSINES]
                rows.append((network, *cells, "", ""))
        theirs = [Cell(None, ".2g", interval=ends) for ends in PAPER_COSINES.values()]
        rows += [("the paper's ResNet-18", "", "", *theirs)] if rows else []
        headings: list[Heading] = [
            *("network", "scale-variant", "scale-invariant"),
            *paper("variant", "invariant"),
        ]
        note = (
            "|cos(w, g)| at the end of training: of a whole variant weight, of an invariant's rows."
        )
        cosines = Table("Cosines of weight and gradient, 99 % of them", headings, rows, note)
        return [*super().tables(runs), *([cosines] if rows else [])]

    def pictures(self, runs: Runs) -> list[Picture]:
        figure = empty_figure("threshold δ", "taken for invariant", log_x=True, log_y=True)
        law = np.geomspace(1e-3, 1, 25)
        figure.add_scatter(
            x=rounded(law), y=rounded(_false_positives(d) for d in law),
            name="law: 2 Φ(δ) - 1", line={"color": "#888", "dash": "dash"},
        )  # fmt: skip
        for network in NETWORKS:
            for kind, dash in (("variant", "dot"), ("invariant", "solid")):
                shares = self._projected(runs, network, kind)
                figure.add_scatter(
                    x=rounded(shares), y=rounded(shares.values()), name=f"{network}, {kind}",
                    mode="lines+markers", line={"color": COLORS[network], "dash": dash},
                )  # fmt: skip
        caption = (
            "The share of weights and steps that are projected: of scale-invariant weights (solid) "
            "all should be, of the others (dotted) none; and the law for random gradients."
        )
        return drawn([Picture(figure, caption)])

    def _projected(self, runs: Runs, network: str, kind: str) -> dict[float, float]:
        """The mean share of weights and steps by threshold, where there is one."""
        means = {
            delta: number(
                runs.best(network, _name(delta), by=_name(USUAL)), f"projected_{kind}"
            ).mean()
            for delta in sorted(DELTAS)
        }
        return {delta: share / 100 for delta, share in means.items() if share > 0}


ORDER: Sequence[float] = (USUAL, *(delta for delta in DELTAS if delta != USUAL))
ARMS = [
    Arm(_name(delta), None, {"delta": delta, "weight_decay": 0.0}, (),
        {"lr": 1e-3, "delta": delta, "weight_decay": 1e-6}, recipe="adamp")
    for delta in ORDER
]  # fmt: skip

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
    arms=ARMS,
    tune={"lr": RATES},
    conditions=list(map(_condition, NETWORKS)),
    claims=list(_claims()),
    scored=False,
    measures={
        LEFT_ALONE: (partial(_right, kind="variant"), ".2f"),
        PROJECTED: (partial(_right, kind="invariant"), ".2f"),
        **MEASURES,
    },
    first_seed=600,
    seeds=SEEDS,
    departures=(
        ("data, network", "ImageNet, ResNet-18", "digits; four small networks",
         "a small machine; the paper's network has one scale-variant matrix"),
        ("thresholds", "1 to 0.01", "1 to 0.000001", "float32 does not err in the paper's range"),
        ("learning rate", "0.001", "tuned", "Adam's best here is larger"),
        ("weight decay", "1e-6 (caption)", "0; with --data the paper's", "a run of 240 steps"),
        ("detection", "not defined", "projected steps, in percent of weights and steps after "
         "the tenth", "the first steps have no radial part"),
    ),
)  # fmt: skip
