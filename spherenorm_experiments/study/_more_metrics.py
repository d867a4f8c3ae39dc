"""Claims about a benchmark's other metrics, beside those about its scores."""

from __future__ import annotations

from collections.abc import Iterator

from spherenorm_experiments.analysis import Cell, Claim, Of, metric_on_test, slug
from spherenorm_experiments.study._benchmark import Benchmark
from spherenorm_experiments.study._setting import arm_of

__all__ = ["claims_of_metric"]


def claims_of_metric(study: Benchmark, metric: str) -> Iterator[Claim]:
    """For each setting whose paper reports a metric, and each pair: ours is the higher one."""
    contenders = {contender.name: contender for contender in study.contenders}
    for setting in study.table:
        theirs = setting.paper.get(metric)
        if theirs is None:
            continue
        for baseline, ours in study.pairs:
            left, right = (
                Of(arm_of(setting, contenders[name]), metric_on_test(metric), performance=True)
                for name in (ours, baseline)
            )
            yield Claim(
                f"{slug(setting.label)}.{slug(metric)}.{slug(ours)}.{slug(baseline)}",
                f"{ours} has a higher {metric} than {baseline} ({setting.label})",
                left, ">", right, cites=setting.cites, unit=setting.unit,
                equivalent=setting.margin, paper=Cell(theirs[ours] - theirs[baseline], "+.2f"),
            )  # fmt: skip
