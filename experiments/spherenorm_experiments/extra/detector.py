"""A study of our own: a scale-invariance test that accumulates evidence against the single step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import plotly.graph_objects as go

from spherenorm import Chain, Scalar, chain
from spherenorm import rules as r
from spherenorm_experiments.claims import MARGIN, Claim, Of, Side
from spherenorm_experiments.detection import accumulated, single_step, statistics_of
from spherenorm_experiments.pictures import Picture, drawn, empty_figure, rounded
from spherenorm_experiments.plan import Plan
from spherenorm_experiments.results import Arm, Result, Results, Trial
from spherenorm_experiments.study import Study
from spherenorm_experiments.tables import Row, Table, mean_of

NETWORKS = ("plain", "residual", "transformer")
COLORS = {"plain": "#4c78a8", "residual": "#e4572e", "transformer": "#2e8b57"}

DELTA = 0.1
MEMORIES = (0.0, 0.5, 0.9, 0.99)
"""Of the accumulating test; without memory it is the single-step test."""
CHOSEN = 0.9
BURN_IN = 10
"""Steps after which the memory is taken to be filled."""
BLOCK = 10
"""Steps over which a curve is averaged."""

SINGLE = Arm("AdamP", "adamp", {"memory": 0.0})
ACCUMULATING = Arm("AdamP, accumulating", f"{__name__}:adamp_accumulating", {"memory": CHOSEN})


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


def _recorded(network: str) -> Arm:
    """AdamP on a network, with the statistic of the test recorded at each step."""
    return Arm(f"recorded: {network}", "adamp", {"stage": "recorded", "network": network})


class Detector(Study):
    """Detector: a scale-invariance test that remembers against the paper's single step

    The paper's test looks at one step's cosine. A random gradient passes it by chance; a
    scale-invariant weight passes at every step. Ours compares the running mean of squared cosines
    with the threshold (`rules.AccumulatedInvarianceTest`). Both are evaluated on the same recorded
    steps of AdamP runs, and AdamP is trained with each on the transformer, whose weights are nearly
    all scale-variant, so that a false positive costs a part of a step.
    """

    name = "detector"
    seeds = {"smoke": 1, "small": 3, "full": 12}  # noqa: RUF012
    first_seed = 700

    def trials(self, plan: Plan, results: Results) -> list[Trial]:
        common = {"options": {"variant": "transformer"}, "probes": ()}
        trials = []
        for network in NETWORKS:
            more = {"options": {"variant": network}, "probes": ("norms", "detection")}
            trials += self.seeded(plan, _recorded(network), "digits", {"lr": 0.003}, **more)
        for arm in (SINGLE, ACCUMULATING):
            trials += self.seeded(plan, arm, "digits", {"lr": 0.003}, **common)
        return trials

    def tables(self, results: Results) -> list[Table]:
        rows: list[Row] = []
        for network in NETWORKS:
            runs = results.arm(_recorded(network))
            for memory in MEMORIES if runs else ():
                label = "single step" if memory == 0 else f"accumulating, memory {memory}"
                errors = (
                    runs.values(partial(_wrong, memory=memory, invariant=invariant, late=late))
                    for invariant in (False, True)
                    for late in (False, True)
                )
                cells = (replace(mean_of(error, ".2f"), missing="none") for error in errors)
                rows.append((network, label, *cells))
        after = f"after {BURN_IN} steps"
        columns = ("network", "test", "false positives", after, "missed", after)
        title = f"Percent of weights and steps in error, δ = {DELTA}"
        note = "Means over seeds ± standard deviation."
        return [Table(title, columns, rows, note)] if rows else []

    def pictures(self, results: Results) -> list[Picture]:
        means = "means over ten steps: single step dotted, accumulating solid"
        positives = _over_time(results, "false positives", invariant=False)
        missed = _over_time(results, "missed", invariant=True)
        of_variant = f"False positives over training: of the scale-variant weights, {means}."
        of_invariant = f"Missed detections over training: of the scale-invariant weights, {means}."
        return drawn([Picture(positives, of_variant), Picture(missed, of_invariant)])

    @property
    def claims(self) -> Sequence[Claim]:
        def wrong(network: str, memory: float, *, late: bool, invariant: bool = False) -> Side:
            key = partial(_wrong, memory=memory, invariant=invariant, late=late)
            return Of(_recorded(network), key)

        single, remembered = (wrong("transformer", m, late=True) for m in (0.0, CHOSEN))
        accumulating, at_once = (Of(arm, "test") for arm in (ACCUMULATING, SINGLE))
        return [
            Claim(
                "fewer-false-positives",
                f"After {BURN_IN} steps the accumulating test has fewer false positives than the "
                "single-step test (transformer)",
                remembered, "<", single, unit="pp of weights and steps",
            ),
            Claim(
                "few-false-positives",
                f"After {BURN_IN} steps the accumulating test has less than 0.5 % false positives "
                "(transformer)",
                remembered, "<", 0.5, unit="%",
            ),
            *(
                Claim(
                    f"missed.{network}",
                    "The accumulating test misses less than 0.1 % of the scale-invariant weights "
                    f"and steps ({network})",
                    wrong(network, CHOSEN, late=False, invariant=True), "<", 0.1, unit="%",
                )
                for network in ("plain", "residual")
            ),
            Claim(
                "score", "AdamP scores higher with the accumulating test (transformer)",
                accumulating, ">", at_once, unit="pp", equivalent=MARGIN,
            ),
        ]  # fmt: skip


def _over_time(results: Results, what: str, *, invariant: bool) -> go.Figure:
    """Draw the share of the weights of one kind that either test gets wrong, against steps."""
    figure = empty_figure("step", f"{what} (share)")
    figure.update_yaxes(rangemode="nonnegative")
    for network in NETWORKS:
        runs = results.arm(_recorded(network)).finished
        for memory, dash in ((0.0, "dot"), (CHOSEN, "solid")):
            errors = [e for item in runs for e in _errors(item, memory, invariant=invariant)]
            if not errors:
                continue
            wrong = np.mean(errors, axis=0)
            starts = range(0, len(wrong), BLOCK)
            figure.add_scatter(
                x=[start + BLOCK // 2 for start in starts],
                y=rounded(wrong[start : start + BLOCK].mean() for start in starts),
                name=f"{network}, {'single step' if memory == 0 else 'accumulating'}",
                line={"color": COLORS[network], "dash": dash},
            )
    return figure


def _errors(item: Result, memory: float, *, invariant: bool) -> list[np.ndarray]:
    """For each weight of a kind, the steps at which a test with this memory gets it wrong."""
    passes = partial(accumulated, memory=memory) if memory else single_step
    chosen = statistics_of(item, invariant=invariant)
    return [passes(statistic, delta=DELTA) != invariant for statistic in chosen]


def _wrong(item: Result, memory: float, *, invariant: bool, late: bool) -> float | None:
    """Percent of weights and steps that a test with this memory gets wrong.

    Args:
        invariant: of the scale-invariant weights, or of the others. None if there are none.
        late: without the steps of the burn-in.
    """
    errors = _errors(item, memory, invariant=invariant)
    if not errors:
        return None
    first = min(BURN_IN, len(errors[0]) // 2) if late else 0
    return 100 * float(np.mean([error[first:].mean() for error in errors]))
