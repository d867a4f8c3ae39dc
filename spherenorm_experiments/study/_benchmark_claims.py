"""The claims of a benchmark: the scores of each pair on each setting, and the geometry behind."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

from spherenorm_experiments.analysis import (
    OURS,
    Arm,
    Cell,
    Claim,
    Of,
    Results,
    Statement,
    metric_on_test,
    percent_right,
    slug,
)
from spherenorm_experiments.study._benchmark_shown import DELTA, growth
from spherenorm_experiments.study._setting import Contender, Setting, arm_of

__all__ = ["benchmark_claims", "metric_claims", "score_name"]

Pair = tuple[Contender, Contender]
"""A baseline, and the contender that is held against it."""


def benchmark_claims(
    table: Sequence[Setting],
    pairs: Sequence[Pair],
    grounds: Mapping[str, Statement],
    is_at_edge: Callable[[Results, Arm], bool],
) -> list[Claim]:
    """For each setting and pair: the score, and the geometry behind it.

    Args:
        grounds: the statements behind the claims of "growth", "steps" and "detection".
        is_at_edge: True if the rate of an arm's final runs is at an edge of its search.
    """
    claims = [
        claim
        for setting, pair in itertools.product(table, pairs)
        for claim in (_of_score(setting, pair, is_at_edge), *_of_geometry(setting, pair, grounds))
    ]
    # Two pairs may have the same second optimizer, whose detection is claimed once.
    return list({claim.name: claim for claim in claims}.values())


def metric_claims(table: Sequence[Setting], pairs: Sequence[Pair], metric: str) -> Iterator[Claim]:
    """For each setting whose paper reports a metric, and each pair: ours is the higher one."""
    for setting, (behind, ahead) in itertools.product(table, pairs):
        theirs = setting.paper.get(metric)
        if theirs is not None:
            left, right = (
                Of(arm_of(setting, each), metric_on_test(metric), performance=True)
                for each in (ahead, behind)
            )
            yield Claim(
                f"{slug(setting.label)}.{slug(metric)}.{slug(ahead.name)}.{slug(behind.name)}",
                f"{ahead.name} has a higher {metric} than {behind.name} ({setting.label})",
                left, ">", right, cites=setting.cites, unit=setting.unit,
                equivalent=setting.margin,
                paper=Cell(theirs[ahead.name] - theirs[behind.name], "+.2f"),
            )  # fmt: skip


def score_name(setting: Setting, baseline: str, ours: str) -> str:
    """The name of the claim about a pair's scores."""
    return f"{slug(setting.label)}.score.{slug(ours)}.{slug(baseline)}"


def _of_score(setting: Setting, pair: Pair, is_at_edge: Callable[[Results, Arm], bool]) -> Claim:
    behind, ahead = pair
    arms = {each.name: arm_of(setting, each) for each in (ahead, behind)}

    def caveat(results: Results) -> str:
        return "; ".join(
            f"the best rate of {name} is at an edge of its search"
            for name, arm in arms.items()
            if is_at_edge(results, arm)
        )

    return Claim(
        score_name(setting, behind.name, ahead.name),
        f"{ahead.name} scores higher than {behind.name} ({setting.label})",
        Of(arms[ahead.name], "test"), ">", Of(arms[behind.name], "test"), cites=setting.cites,
        unit=setting.unit, equivalent=setting.margin, caveat=caveat, primary=True,
        paper=setting.gap(ahead.name, behind.name) or "",
    )  # fmt: skip


def _of_geometry(setting: Setting, pair: Pair, grounds: Mapping[str, Statement]) -> Iterator[Claim]:
    if not setting.invariant:
        return
    baseline, ours = (contender.name for contender in pair)
    behind, ahead = (arm_of(setting, contender) for contender in pair)
    where, name = f"({setting.label}, each at its rate)", slug(setting.label)
    yield Claim(
        f"{name}.growth.{slug(ours)}.{slug(baseline)}",
        f"{ours} grows its norm less than {baseline}: last over first norm {where}",
        Of(ahead, growth), "<", Of(behind, growth), how="ratio",
        cites=grounds.get("growth", OURS),
    )  # fmt: skip
    path = "total_effective_step"
    yield Claim(
        f"{name}.path.{slug(ours)}.{slug(baseline)}",
        f"{ours} keeps larger effective steps than {baseline}: ratio of the paths {where}",
        Of(ahead, path), ">", Of(behind, path), how="ratio", cites=grounds.get("steps", OURS),
    )  # fmt: skip
    yield Claim(
        f"{name}.detection.{slug(ours)}",
        f"The test takes scale-invariant weights of {ours} for such, more than 99 % of the time "
        f"({setting.label})",
        Of(ahead, percent_right(DELTA, invariant=True)), ">", 99.0, unit="%",
        limits=(0.0, 100.0), cites=grounds.get("detection", OURS),
    )  # fmt: skip
