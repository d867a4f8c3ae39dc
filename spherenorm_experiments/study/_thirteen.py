"""The paper's thirteen benchmarks in one table: uniform gains, or not, as measured."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from spherenorm_experiments.analysis import Decision, Heading, Results, Row, Table, column, paper
from spherenorm_experiments.study._comparison import TunedComparison, score_claim
from spherenorm_experiments.study._condition import THIRTEEN, Condition, Contender, arm_of
from spherenorm_experiments.study._study import Study

__all__ = ["thirteen_table"]


def thirteen_table(studies: Iterable[tuple[str, Study, Results]]) -> Table | None:
    """The score of every contender of the paper's beside its baseline's, by benchmark.

    Args:
        studies: labels, studies and results; studies that are no tuned comparison are left out.

    Returns:
        The table; None if no benchmark has a result.
    """
    rows: dict[str, list[Row]] = {name: [] for name in THIRTEEN}
    verdicts: list[str] = []
    for label, study, results in studies:
        if isinstance(study, TunedComparison):
            for condition, pair, decision in _scores(study, results):
                if condition.benchmark and decision.has_results:
                    row = _row(condition, pair, decision, results)
                    row = (f"{condition.benchmark}: {condition.label} ({label})", *row)
                    rows[condition.benchmark].append(row)
                    verdicts.append(_outcome(decision))
    if not verdicts:
        return None
    filled = [row for name in THIRTEEN for row in rows[name] or [(f"{name}: not run", *("",) * 7)]]
    columns: list[Heading] = [
        *("benchmark", "optimizers", "baseline", "projected"),
        *("difference", "verdict"),
        *paper("scores", "difference"),
    ]
    return Table("The thirteen benchmarks", columns, filled, _about(verdicts))


Pair = tuple[Contender, Contender]


def _scores(study: TunedComparison, results: Results) -> Iterable[tuple[Condition, Pair, Decision]]:
    """The claims about scores, each with its condition and its pair."""
    decided = {decision.claim.name: decision for decision in study.decided(results)}
    for condition, pair in itertools.product(study.on, study.pairs):
        yield condition, pair, decided[score_claim(condition, *pair).name]


def _row(condition: Condition, pair: Pair, decision: Decision, results: Results) -> Row:
    names = [contender.name for contender in pair]
    arms = [arm_of(condition, contender) for contender in pair]
    cells = column([results.arm(arm).values("test") for arm in arms], ".4g")
    theirs = next(iter(condition.paper.values()), {})
    quoted = [str(theirs[name]) for name in names if name in theirs]
    return (
        " → ".join(names),
        *cells,
        decision.ours,
        decision.verdict,
        " → ".join(quoted),
        condition.gap(names[1], names[0]),
    )


def _outcome(decision: Decision) -> str:
    """The word of a verdict about a gain."""
    if decision.verdict in ("equivalent", "inconclusive"):
        return decision.verdict
    return "gain" if decision.supported else "loss"


def _about(verdicts: Sequence[str]) -> str:
    counts = {name: verdicts.count(name) for name in ("gain", "equivalent", "loss", "inconclusive")}
    listed = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    uniform = counts["gain"] == len(verdicts)
    said = "as the paper's abstract says" if uniform else "not the uniform gains of the abstract"
    return (
        "Mean ± SD over the seeds that both completed; blank if either diverged. Embedded data, "
        "unless a study says the paper's data. Verdicts: gain, loss, equivalent (within the "
        f"margin), inconclusive. Of {len(verdicts)} comparisons: {listed}; {said}."
    )
