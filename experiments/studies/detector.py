"""A study of our own: does a scale-invariance test that accumulates evidence over steps beat the single-step one?"""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from experiments.claims import Claim, paired, performance, sample
from experiments.detection import accumulated, read, single_step
from experiments.plots import Picture, base, short
from experiments.results import Results, Trial
from experiments.studies.c1 import COLORS, COMPARED, NETWORKS, watched
from experiments.study import Plan, Study, Table
from spherenorm import rules as r
from spherenorm.chain import Chain, chain
from spherenorm.rule import Scalar

__all__ = ["Detector", "adamp_accumulating"]

DELTA, MEMORIES = 0.1, (0.0, 0.5, 0.9, 0.99)
CHOSEN = 0.9
BURN_IN = 10
"""Steps after which the memory is taken to be filled."""


def adamp_accumulating(
    lr: Scalar = 1e-3,
    betas: tuple[Scalar, Scalar] = (0.9, 0.999),
    eps: Scalar = 1e-8,
    weight_decay: Scalar = 0.0,
    delta: Scalar = 0.1,
    memory: Scalar = 0.9,
    wd_ratio: Scalar = 0.1,
) -> Chain:
    """AdamP with the accumulating test in place of the single-step one."""
    return chain(
        r.AdaptiveMoments(*betas, eps=eps),
        r.AccumulatedInvarianceTest(delta, memory),
        r.RadialProjection(),
        r.DecoupledDecay(weight_decay, invariant_ratio=wd_ratio),
        r.StepSize(lr),
    )


class Detector(Study):
    """Detector: a scale-invariance test that remembers against the paper's single step

    The paper's test looks at one step's cosine. A random gradient passes it by chance; a scale-invariant weight passes at
    every step. Ours compares the running mean of squared cosines with the threshold (`rules.AccumulatedInvarianceTest`).
    Both are evaluated on the same recorded steps of AdamP runs, and AdamP is trained with each on the transformer, whose
    weights are nearly all scale-variant, so that a false positive costs a part of a step.
    """

    name = "detector"
    compared = COMPARED

    def trials(self, plan: Plan, results: Results) -> list[Trial]:
        trials = watched(self, plan)
        for arm, recipe in (
            ("AdamP", "adamp"),
            ("AdamP, accumulating", f"{__name__}:adamp_accumulating"),
        ):
            options = {"variant": "transformer"}
            trials += self.seeded(
                plan, arm, "digits", recipe, {"lr": 0.003}, options=options, probes=()
            )
        return trials

    def tables(self, results: Results) -> list[Table]:
        rows = []
        for network in NETWORKS:
            runs = results.arm(f"watched: {network}")
            for memory in MEMORIES if runs else ():
                label = "single step" if memory == 0 else f"accumulating, memory {memory}"
                rates = (
                    _mean(_errors(runs, memory, invariant, late))
                    for invariant in (False, True)
                    for late in (False, True)
                )
                rows.append((network, label, *rates))
        columns = (
            "network",
            "test",
            "false positives",
            f"after {BURN_IN} steps",
            "missed",
            f"after {BURN_IN} steps",
        )
        return (
            [Table(f"Percent of weights and steps in error, δ = {DELTA}", columns, rows)]
            if rows
            else []
        )

    def pictures(self, results: Results) -> list[Picture]:
        means = "means over ten steps: single step dotted, accumulating solid"
        pictures = [
            Picture(
                _over_time(results, False, "false positives"),
                f"False positives over training: of the scale-variant weights, {means}.",
            ),
            Picture(
                _over_time(results, True, "missed"),
                f"Missed detections over training: of the scale-invariant weights, {means}.",
            ),
        ]
        return [picture for picture in pictures if picture.figure.data]

    def claims(self, results: Results) -> list[Claim]:
        watched_transformer = results.arm("watched: transformer")
        single, remembered = (
            _errors(watched_transformer, memory, False, True) for memory in (0.0, CHOSEN)
        )
        text = f"After {BURN_IN} steps the accumulating test has fewer false positives than the single-step test (transformer)"
        claims = [
            paired(text, remembered, single, "<", source="ours", unit="pp of weights and steps")
        ]
        text = f"After {BURN_IN} steps the accumulating test has less than 0.5 % false positives (transformer)"
        claims.append(sample(text, remembered, "<", 0.5, source="ours", unit="%"))
        for network in ("plain", "residual"):
            missed = _errors(results.arm(f"watched: {network}"), CHOSEN, True, False)
            text = f"The accumulating test misses less than 0.1 % of the scale-invariant weights and steps ({network})"
            claims.append(sample(text, missed, "<", 0.1, source="ours", unit="%"))
        scores = (results.arm(arm).values("test") for arm in ("AdamP, accumulating", "AdamP"))
        claims.append(
            performance(
                "AdamP scores higher with the accumulating test (transformer)",
                *scores,
                source="ours",
                unit="pp",
            )
        )
        return claims


def _over_time(results: Results, invariant: bool, what: str) -> go.Figure:
    """The share of the weights of one kind that either test gets wrong, against steps."""
    figure = base("step", f"{what} (share)")
    figure.update_yaxes(rangemode="nonnegative")
    for network in NETWORKS:
        chosen = [
            s
            for item in results.arm(f"watched: {network}").finished
            for s in read(item)
            if (s.view is not None) == invariant
        ]
        for memory, dash in ((0.0, "dot"), (CHOSEN, "solid")) if chosen else ():
            wrong = np.mean([accumulated(s, DELTA, memory) != invariant for s in chosen], axis=0)
            blocks = [(i, wrong[i : i + 10].mean()) for i in range(0, len(wrong), 10)]
            name = f"{network}, {'single step' if memory == 0 else 'accumulating'}"
            line = {"color": COLORS[network], "dash": dash}
            figure.add_scatter(
                x=[i + 5 for i, _ in blocks],
                y=short(rate for _, rate in blocks),
                name=name,
                line=line,
            )
    return figure


def _errors(runs: Results, memory: float, invariant: bool, late: bool) -> dict[int, float]:
    """Percent of weights and steps, by seed, that a test with this memory gets wrong; empty without such weights."""
    wrong = {}
    for item in runs.finished:
        chosen = [s for s in read(item) if (s.view is not None) == invariant]
        verdicts = [
            single_step(s, DELTA) if memory == 0 else accumulated(s, DELTA, memory) for s in chosen
        ]
        if verdicts:
            first = min(BURN_IN, len(verdicts[0]) // 2) if late else 0
            wrong[item.spec.seed] = 100 * float(
                np.mean([(verdict[first:] != invariant).mean() for verdict in verdicts])
            )
    return wrong


def _mean(values: dict[int, float]) -> str:
    return f"{np.mean(list(values.values())):.2f}" if values else "none"
