"""Claims that the paper's benchmarks share: the geometry behind the scores, and other metrics."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from spherenorm_experiments.claims import MARGIN, OURS, Claim, Of, Side, derive, slug
from spherenorm_experiments.condition import Condition, Contender, arm_of
from spherenorm_experiments.detection import percent_right
from spherenorm_experiments.paper.statements import says
from spherenorm_experiments.results import Key, Result, Results, metric_on_test
from spherenorm_experiments.samples import Sample, combined, pooled
from spherenorm_experiments.shown import growth
from spherenorm_experiments.stats import mean

DELTA = 0.1

Pair = tuple[Contender, Contender]


def projection(on: Sequence[Condition], *pairs: Pair) -> Iterator[Claim]:
    """The second of each pair grows its norm less and keeps larger steps, at equal rates.

    Each claim is about all conditions: its number is the mean over them, by seed.

    Args:
        on: conditions with scale-invariant weights.
    """
    for baseline, ours in pairs:
        names = f"{slug(ours.name)}.{slug(baseline.name)}"
        sides = {
            key: partial(ratio_at_equal_rates, on=on, pair=(baseline, ours), key=key)
            for key in (growth, "total_effective_step")
        }
        shared = partial(_shared, on=on, pair=(baseline, ours))
        yield Claim(
            f"growth.{names}",
            f"{ours.name} grows its norm less than {baseline.name} at equal learning rates: last "
            "over first norm, mean over the conditions",
            sides[growth], "<", 1.0, how="ratio", cites=OURS, caveat=shared,
        )  # fmt: skip
        yield Claim(
            f"path.{names}",
            f"{ours.name} keeps larger effective steps than {baseline.name} at equal learning "
            "rates: ratio of the paths, mean over the conditions",
            sides["total_effective_step"], ">", 1.0, how="ratio", cites=says("3.steps"),
            caveat=shared,
        )  # fmt: skip
    projected = {ours.name: ours for _, ours in pairs}
    for name, ours in projected.items():
        precise = (Of(arm_of(c, ours), percent_right(DELTA, invariant=False)) for c in on)
        yield Claim(
            f"precision.{slug(name)}",
            f"The test leaves scale-variant weights of {name} alone, more than 99 % of the time, "
            "mean over the conditions",
            mean_over_conditions(*precise), ">", 99.0, unit="%", limits=(0.0, 100.0),
            cites=says("3.delta"),
        )  # fmt: skip


def of_metric(condition: Condition, metric: str, baseline: Contender, ours: Contender) -> Claim:
    """The second of two is higher in a metric, in percent, that the paper reports."""
    left, right = (
        Of(arm_of(condition, each), metric_on_test(metric), performance=True)
        for each in (ours, baseline)
    )
    return Claim(
        f"{slug(condition.label)}.{slug(metric)}.{slug(ours.name)}.{slug(baseline.name)}",
        f"{ours.name} has a higher {metric} than {baseline.name} ({condition.label})",
        left, ">", right, cites=condition.cites, unit="pp", equivalent=MARGIN,
        paper=condition.gap(ours.name, baseline.name, metric) or "",
    )  # fmt: skip


def mean_over_conditions(
    *sides: Side, function: Callable[[list[float]], float] = statistics.fmean
) -> Side:
    """A side: the mean, by seed, of those sides that have numbers; not every condition has run."""

    def value(*samples: Sample) -> Sample:
        known = [sample for sample in samples if sample or sample.diverged]
        return combined(function, known) if known else Sample({})

    return derive(value, *sides)


def ratio_at_equal_rates(
    results: Results, on: Sequence[Condition], pair: Pair, key: Key
) -> Sample | None:
    """The second of a pair over the first at the rates of both, by seed.

    The geometric mean over rates, then over the conditions where both have runs at one rate. A
    seed is lost if the second diverged where the first did not; where the first diverged too there
    is nothing to compare.
    """
    parts = [part for each in on if (part := _log_ratios(results, each, pair, key)) is not None]
    return pooled(parts).map(math.exp) if parts else None


def _shared(results: Results, on: Sequence[Condition], pair: Pair) -> str:
    """On how many conditions the pair has runs at one rate, if not on all that have runs."""
    have = [c for c in on if any(map(len, _by_rate(results, c, pair)))]
    same = [c for c in have if set.intersection(*map(set, _by_rate(results, c, pair)))]
    return "" if have == same else f"at equal rates on {len(same)} of {len(have)} conditions"


def _by_rate(
    results: Results, condition: Condition, pair: Pair
) -> list[dict[tuple[int, float], Result]]:
    """The runs of each of a pair by seed and learning rate, whatever stage they are of."""
    arms = (results.having(condition=condition.label, contender=each.name) for each in pair)
    return [
        {
            (item.spec.seed, float(item.spec.hyper_parameters["lr"])): item
            for item in arm
            if "norms" in item.spec.probes and "lr" in item.spec.hyper_parameters
        }
        for arm in arms
    ]


def _log_ratios(results: Results, condition: Condition, pair: Pair, key: Key) -> Sample | None:
    theirs, ours = _by_rate(results, condition, pair)
    read = key if callable(key) else (lambda item: item.summary.get(key))
    logs: dict[int, list[float]] = {}
    lost: set[int] = set()
    for place in sorted(theirs.keys() & ours.keys()):
        if theirs[place].diverged:
            continue
        if ours[place].diverged:
            lost.add(place[0])
            continue
        first, second = read(theirs[place]), read(ours[place])
        if first and second:
            logs.setdefault(place[0], []).append(math.log(second / first))
    known = {seed: mean(values) for seed, values in logs.items() if seed not in lost}
    return Sample(known, frozenset(lost)) if known or lost else None
