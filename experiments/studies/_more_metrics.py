"""Claims about a benchmark's other metrics, beside those about its scores."""

from __future__ import annotations

from collections.abc import Iterator

from experiments.results import Cell, Claim, Result, Results, performance
from experiments.studies._benchmark import Benchmark
from experiments.studies._paper import says
from experiments.studies._setting import arm_of

__all__ = ["claims_of_metric"]


def claims_of_metric(study: Benchmark, results: Results, name: str) -> Iterator[Claim]:
    """For each setting whose paper reports a metric, and each pair: ours is the higher one."""

    def value(item: Result) -> float | None:
        found: dict[str, float] = item.summary.get("test_metrics", {})
        return found.get(name)

    contenders = {contender.name: contender for contender in study.contenders}
    for setting in study.table:
        theirs = setting.paper.get(name)
        if theirs is None:
            continue
        for baseline, ours in study.pairs:
            a, b = (
                results.arm(arm_of(setting, contenders[each])).values(value, performance=True)
                for each in (ours, baseline)
            )
            text = f"{ours} has a higher {name} than {baseline} ({setting.label})"
            gap = Cell(theirs[ours] - theirs[baseline], "+.2f")
            yield performance(text, a, b, source=says(setting.source), paper=gap,
                              unit=setting.unit, margin=setting.margin)  # fmt: skip
