"""Claims that the paper's benchmarks share: the geometry behind the scores, and other metrics."""

from __future__ import annotations

from collections.abc import Iterable

from spherenorm_experiments.analysis import MARGIN, Claim, Of, metric_on_test, percent_right, slug
from spherenorm_experiments.paper.statements import says
from spherenorm_experiments.study import Condition, Contender, arm_of, growth

DELTA = 0.1


def projection(on: Iterable[Condition], *pairs: tuple[Contender, Contender]) -> list[Claim]:
    """The second of each pair grows its norm less, keeps larger steps, and is projected.

    Args:
        on: conditions with scale-invariant weights.
    """
    claims = [
        claim
        for condition in on
        for pair in pairs
        for claim in _of_pair(condition, *pair)
    ]  # fmt: skip
    # Two pairs may have the same second optimizer, whose detection is claimed once.
    return list({claim.name: claim for claim in claims}.values())


def _of_pair(condition: Condition, baseline: Contender, ours: Contender) -> Iterable[Claim]:
    behind, ahead = arm_of(condition, baseline), arm_of(condition, ours)
    where, name = f"({condition.label}, each at its rate)", slug(condition.label)
    pair, path = f"{slug(ours.name)}.{slug(baseline.name)}", "total_effective_step"
    yield Claim(
        f"{name}.growth.{pair}",
        f"{ours.name} grows its norm less than {baseline.name}: last over first norm {where}",
        Of(ahead, growth), "<", Of(behind, growth), how="ratio", cites=says("t1.restrain"),
    )  # fmt: skip
    yield Claim(
        f"{name}.path.{pair}",
        f"{ours.name} keeps larger effective steps than {baseline.name}: ratio of the paths "
        f"{where}",
        Of(ahead, path), ">", Of(behind, path), how="ratio", cites=says("3.steps"),
    )  # fmt: skip
    yield Claim(
        f"{name}.detection.{slug(ours.name)}",
        f"The test takes scale-invariant weights of {ours.name} for such, more than 99 % of the "
        f"time ({condition.label})",
        Of(ahead, percent_right(DELTA, invariant=True)), ">", 99.0, unit="%",
        limits=(0.0, 100.0), cites=says("3.delta"),
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
