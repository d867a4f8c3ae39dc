"""The paper's thirteen benchmarks in one table: uniform gains, or not, as measured."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from spherenorm_experiments.analysis import Claim, Heading, Results, Row, Table, column, paper
from spherenorm_experiments.study._benchmark import Benchmark
from spherenorm_experiments.study._benchmark_shown import score_text
from spherenorm_experiments.study._setting import THIRTEEN, Setting, arm_of
from spherenorm_experiments.study._study import Study

__all__ = ["thirteen_table"]


def thirteen_table(studies: Iterable[tuple[str, Study, Results]]) -> Table | None:
    """The score of every contender of the paper's beside its baseline's, by benchmark.

    Args:
        studies: labels, studies and results; studies that are no benchmark are left out.

    Returns:
        The table; None if no benchmark has a result.
    """
    rows: dict[str, list[Row]] = {name: [] for name in THIRTEEN}
    verdicts: list[str] = []
    for label, study, results in studies:
        if isinstance(study, Benchmark):
            for setting, pair, claim in _scores(study, results):
                if setting.benchmark and claim.has_results:
                    row = _row(study, setting, pair, claim, results)
                    row = (f"{setting.benchmark}: {setting.label} ({label})", *row)
                    rows[setting.benchmark].append(row)
                    verdicts.append(_outcome(claim))
    if not verdicts:
        return None
    filled = [row for name in THIRTEEN for row in rows[name] or [(f"{name}: not run", *("",) * 7)]]
    columns: list[Heading] = [
        *("benchmark", "optimizers", "baseline", "projected"),
        *("difference", "verdict"),
        *paper("scores", "difference"),
    ]
    return Table("The thirteen benchmarks", columns, filled, _about(verdicts))


def _scores(study: Benchmark, results: Results) -> Iterable[tuple[Setting, tuple[str, str], Claim]]:
    """The claims about scores, each with its setting and its pair."""
    claims = {claim.text: claim for claim in study.decided(results)}  # its own claims among them
    for setting, pair in itertools.product(study.table, dict.fromkeys(study.pairs)):
        yield setting, pair, claims[score_text(setting, *pair)]


def _row(
    study: Benchmark, setting: Setting, pair: tuple[str, str], claim: Claim, results: Results
) -> Row:
    known = {contender.name: contender for contender in study.contenders}
    arms = [arm_of(setting, known[name]) for name in pair]
    cells = column([results.arm(arm).values("test") for arm in arms], ".4g")
    theirs = next(iter(setting.paper.values()), {})
    quoted = [str(theirs[name]) for name in pair if name in theirs]
    return (
        f"{pair[0]} → {pair[1]}",
        *cells,
        claim.ours,
        claim.verdict,
        " → ".join(quoted),
        setting.gap(pair[1], pair[0]),
    )


def _outcome(claim: Claim) -> str:
    """The word of a verdict about a gain."""
    words = {"reproduced": "gain", "not reproduced": "loss"}
    return words.get(claim.verdict, claim.verdict)


def _about(verdicts: Sequence[str]) -> str:
    counts = {name: verdicts.count(name) for name in ("gain", "equivalent", "loss", "inconclusive")}
    listed = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    uniform = counts["gain"] == len(verdicts)
    said = "as the paper's abstract says" if uniform else "not the uniform gains of the abstract"
    return (
        "Scores, means over the seeds that both have ended ± standard deviation, none of one that "
        "diverged on one of these; on embedded data unless a study says the paper's data. "
        f"Of {len(verdicts)} comparisons: {listed}; {said}. A verdict is for "
        "a gain, against one (a loss), for a difference within the margin (equivalent), or open."
    )
