"""Claims that the paper's benchmarks share: the geometry behind the scores, and other metrics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import pandas as pd

from spherenorm_experiments.comparison import Condition
from spherenorm_experiments.runs import Runs, mean_over, number
from spherenorm_experiments.verdict import EQUIVALENCE_MARGIN, Claim, slug
from spherenorm_paper.shared.detection import percent_right
from spherenorm_paper.statements import says

DELTA = 0.1
Pair = tuple[str, str]


def projection(on: Sequence[Condition], *pairs: Pair) -> Iterator[Claim]:
    """The second of each pair grows its norm less and keeps larger steps, at equal rates.

    Each claim is about all conditions: its number is the mean over them, by seed.

    Args:
        on: conditions with scale-invariant weights.
        *pairs: the baseline and the projected optimizer.
    """
    for baseline, projected in pairs:
        names = f"{slug(projected)}.{slug(baseline)}"
        ratio = partial(ratio_at_equal_rates, on=on, pair=(baseline, projected))
        shared = partial(_shared, on=on, pair=(baseline, projected))
        yield Claim(
            f"growth.{names}", "< 1", partial(ratio, column="growth"),
            f"{projected} grows its norm less than {baseline} at equal learning rates: last over "
            "first norm, mean over the conditions", ratio=True, note=shared,
        )  # fmt: skip
        yield Claim(
            f"path.{names}", "> 1", partial(ratio, column="total_effective_step"),
            f"{projected} keeps larger effective steps than {baseline} at equal learning rates: "
            "ratio of the paths, mean over the conditions", says("3.steps"), ratio=True,
            note=shared,
        )  # fmt: skip
    for name in dict.fromkeys(projected for _, projected in pairs):
        yield Claim(
            f"precision.{slug(name)}", "> 99.9", partial(_left_alone, on=on, name=name),
            f"The test leaves scale-variant weights of {name} alone, more than 99.9 % of the time, "
            "mean over the conditions", says("3.delta"), unit="%", limits=(0.0, 100.0),
        )  # fmt: skip


def of_metric(condition: Condition, metric: str, baseline: str, projected: str) -> Claim:
    """The second of two is higher in a metric, in percent, that the paper reports."""
    return Claim(
        f"{slug(condition.label)}.{slug(metric)}.{slug(projected)}.{slug(baseline)}", "> 0",
        partial(gain, label=condition.label, metric=metric, pair=(baseline, projected)),
        f"{projected} has a higher {metric} than {baseline} ({condition.label})", condition.cites,
        unit="pp", equivalence_margin=EQUIVALENCE_MARGIN, is_performance=True,
        paper=condition.paper_difference(projected, baseline, metric) or "",
    )  # fmt: skip


def gain(runs: Runs, label: str, metric: str, pair: Pair) -> pd.Series:
    """A metric on the test set of the chosen runs: the second of a pair minus the first."""
    baseline, projected = (number(runs.selected(label, name), f"test.{metric}") for name in pair)
    return projected - baseline


def _left_alone(runs: Runs, on: Sequence[Condition], name: str) -> pd.Series:
    key = percent_right(DELTA, invariant=False)
    return mean_over(
        number(runs.selected(condition.label, name), key, worst=-np.inf) for condition in on
    )


def ratio_at_equal_rates(
    runs: Runs, on: Sequence[Condition], pair: Pair, column: str
) -> pd.Series | None:
    """The second of a pair over the first at the rates of both, by seed.

    The geometric mean over rates, then over the conditions where both have runs at one rate. Rates
    at which the first diverged count for nothing.
    """
    parts = []
    for condition in on:
        baseline, projected = (_by_rate(runs, condition, name)[column] for name in pair)
        baseline = baseline[np.isfinite(baseline.astype(float)) & (baseline > 0)]
        with np.errstate(divide="ignore"):
            logs = np.log((projected / baseline).dropna().astype(float))
        if len(logs):
            parts.append(logs.groupby("seed").mean())
    return np.exp(mean_over(parts)) if parts else None


def _by_rate(runs: Runs, condition: Condition, name: str) -> pd.DataFrame:
    """The runs of an arm whose norms were measured, by seed and rate."""

    def measured() -> pd.DataFrame:
        all_runs = runs.all_runs(condition.label, name)
        is_measured = np.array(["norms" in run.spec.probes for run in all_runs.run], dtype=bool)
        return all_runs[is_measured].drop_duplicates(["seed", "lr"]).set_index(["seed", "lr"])

    return runs.cached(("by rate", condition.label, name), measured)


def _shared(runs: Runs, on: Sequence[Condition], pair: Pair) -> str:
    """On how many conditions the pair has runs at one rate, if not on all that have runs."""
    rates = [[set(_by_rate(runs, condition, name).index) for name in pair] for condition in on]
    have = [points for points in rates if any(points)]
    same = sum(bool(baseline & projected) for baseline, projected in have)
    return "" if len(have) == same else f"at equal rates on {same} of {len(have)} conditions"
