"""Claims about a benchmark's other metrics, beside those about its scores."""

from __future__ import annotations

from collections.abc import Iterator

from spherenorm_experiments.analysis import Cell, Claim, Results, metric_on_test, performance
from spherenorm_experiments.paper.statements import says
from spherenorm_experiments.study._benchmark import Benchmark
from spherenorm_experiments.study._setting import arm_of

__all__ = ["claims_of_metric"]


def claims_of_metric(study: Benchmark, results: Results, name: str) -> Iterator[Claim]:
    """For each setting whose paper reports a metric, and each pair: ours is the higher one."""
    contenders = {contender.name: contender for contender in study.contenders}
    for setting in study.table:
        theirs = setting.paper.get(name)
        if theirs is None:
            continue
        for baseline, ours in study.pairs:
            arms = (arm_of(setting, contenders[each]) for each in (ours, baseline))
            a, b = (results.arm(arm).values(metric_on_test(name), performance=True) for arm in arms)
            text = f"{ours} has a higher {name} than {baseline} ({setting.label})"
            gap = Cell(theirs[ours] - theirs[baseline], "+.2f")
            yield performance(text, a, b, source=says(setting.source), paper=gap,
                              unit=setting.unit, margin=setting.margin)  # fmt: skip
