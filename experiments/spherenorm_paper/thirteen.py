"""The paper's thirteen benchmarks side by side, and what it says about all of them together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import pandas as pd

from spherenorm_experiments.comparison import Arm, Comparison, Condition, score_claim
from spherenorm_experiments.report import Section
from spherenorm_experiments.runs import Runs
from spherenorm_experiments.tables import Cell, Heading, Row, Table, format_cells, paper_columns
from spherenorm_experiments.verdict import (
    LEVEL,
    PERFORMANCE_SEEDS,
    POWER,
    Claim,
    Decision,
    adjust_for_multiplicity,
    deviation,
    evaluate_claim,
    mean,
    slug,
)
from spherenorm_paper.statements import says

THIRTEEN = (
    *("ImageNet", "MS-COCO", "CIFAR-10 attacked", "Biased MNIST", "9-Class ImageNet"),
    *("MagnaTagATune", "Speech Commands", "DCASE 2017", "WikiText-103"),
    *("CUB", "Cars-196", "In-Shop", "SOP"),
)
"""The thirteen benchmarks of the paper's abstract."""

UNIFORM = "abstract.uniform"
"""The statement about all of them: each row of the table is a claim of it."""

ABOUT = f"""Mean ± SD over the seeds that both completed; blank if either diverged. Embedded data,
unless a study says the paper's data. Detectable: the effect that so many seeds of this spread find
with probability {POWER:g} at the level {LEVEL:g}. Verdicts: better, worse, equivalent (within a
margin that is at most the paper's difference), inconclusive, not tested.""".replace("\n", " ")


class Line(NamedTuple):
    """A pair of optimizers on a benchmark, with the decision about its scores."""

    section: Section
    condition: Condition
    pair: tuple[Arm, Arm]
    decision: Decision

    @property
    def verdict(self) -> str:
        """The verdict on the claim that the second of the pair scores better."""
        return self.decision.verdict_word

    @property
    def scores(self) -> list[pd.Series]:
        """The test scores of both."""
        runs = self.section.results
        return [runs.selected(self.condition.label, arm.name).test for arm in self.pair]

    @property
    def gain(self) -> float:
        """The mean gain over the baseline's standard deviation over seeds.

        nan of fewer than `PERFORMANCE_SEEDS`: where nothing is gained, the mean of two seeds is
        above their deviation in a quarter of all cases.
        """
        baseline, projected = self.scores
        gains, spread = (projected - baseline).dropna(), deviation(baseline)
        is_sized = len(gains) >= PERFORMANCE_SEEDS and spread > 0
        return mean(gains) / spread if is_sized else math.nan

    @property
    def row(self) -> Row:
        """The row of the table."""
        condition, (base, projected) = self.condition, [arm.name for arm in self.pair]
        paper_scores = next(iter(condition.paper.values()), {})
        return (
            f"{condition.benchmark}: {condition.label} ({self.section.label})",
            f"{base} → {projected}",
            *format_cells(self.scores, ".4g"),
            self.decision.number_text,
            Cell(self.decision.detectable, ".2g", missing=""),
            self.verdict,
            " → ".join(
                str(paper_scores[name]) for name in (base, projected) if name in paper_scores
            ),
            condition.paper_difference(projected, base),
        )


def first_of_each(sections: Sequence[Section]) -> list[Section]:
    """Return the first section of each study: the defaults in the largest tier that was run."""
    first_sections = {section.study.name: section for section in reversed(sections)}
    return [section for section in sections if first_sections[section.study.name] is section]


def lines_of(sections: Iterable[Section]) -> Iterator[Line]:
    """The pairs of every comparison that has results, in the order of the sections."""
    for section in sections:
        study = section.study
        if not isinstance(study, Comparison):
            continue
        decided = {decision.claim.name: decision for decision in section.decisions}
        for condition, pair in study.comparisons:
            decision = decided.get(score_claim(condition, *pair).name)
            if condition.benchmark and decision is not None and decision.has_results:
                yield Line(section, condition, pair, decision)


def thirteen_table(sections: Sequence[Section]) -> Table | None:
    """The score of every optimizer beside its baseline's; None if no benchmark has a result."""
    lines, sections_shown = list(lines_of(sections)), first_of_each(sections)
    if not lines:
        return None
    rows: list[Row] = []
    for name in THIRTEEN:
        benchmark_rows = [line.row for line in lines if line.condition.benchmark == name]
        rows += benchmark_rows or [(f"{name}: not run", *("",) * 8)]
    columns: list[Heading] = ["benchmark", "optimizers", "baseline", "projected", "difference"]
    columns += ["detectable", "verdict", *paper_columns("scores", "difference")]
    verdicts = [line.verdict for line in lines]
    listed = ", ".join(f"{verdicts.count(v)} {v}" for v in dict.fromkeys(verdicts))
    gains = mean_gains(sections_shown)
    ahead = sum(gain > 0 for gain in gains.values())
    counted = (
        f"{ABOUT} Of {len(lines)} comparisons: {listed}. In the mean of its rows AdamP is ahead of "
        f"its baselines on {ahead} of {len(gains)} benchmarks that have {PERFORMANCE_SEEDS} seeds."
    )
    (gain_decision,) = across(sections_shown)
    counted += f" {gain_decision.claim.text}: {gain_decision.detail} ({gain_decision.verdict})."
    return Table("The thirteen benchmarks", columns, rows, counted)


def of_every_benchmark(sections: Sequence[Section]) -> list[tuple[str, Decision]]:
    """Each row of the table, and each benchmark without one, with the name of its study.

    A statement of gains on all of them stands if each of these does.
    """
    lines = list(lines_of(section for section in sections if section.decides))
    ran = {line.condition.benchmark for line in lines}
    missing = [name for name in THIRTEEN if name not in ran] if lines else []
    claims = [Claim(slug(name), "> 0", lambda _: None, name) for name in missing]
    rows = [(line.section.study.name, line.decision) for line in lines]
    return [*rows, *(("thirteen", Decision(claim)) for claim in claims)]


def mean_gains(sections: Sequence[Section]) -> dict[str, float]:
    """AdamP's mean gain over its rows, in deviations, for each benchmark that has one."""
    gains: dict[str, list[float]] = {}
    for line in lines_of(section for section in sections if section.decides):
        if line.pair[1].recipe == "adamp" and math.isfinite(line.gain):
            gains.setdefault(line.condition.benchmark, []).append(line.gain)
    return {name: mean(gains[name]) for name in THIRTEEN if name in gains}


def across(sections: Sequence[Section]) -> list[Decision]:
    """The statement about most benchmarks; each counts once, however many rows it has.

    The exact sign test over benchmarks decides.
    """
    gains = mean_gains(sections)
    share = pd.Series([100.0 * (gain > 1) for gain in gains.values()], dtype=float)
    below = [benchmark for benchmark, gain in gains.items() if gain <= 1]
    few = [benchmark for benchmark in THIRTEEN if benchmark not in gains]
    facts = [f"{len(gains) - len(below)} of {len(gains)} benchmarks"]
    facts += [f"not on {', '.join(below)}"] if below else []
    facts += [f"no row with {PERFORMANCE_SEEDS} seeds of {', '.join(few)}"] if few else []
    claim = Claim(
        "gains-over-spread", "> 50", lambda _: share,
        "AdamP's gain is greater than its baseline's standard deviation over seeds on more than "
        "half of the benchmarks", says("h2.most"), unit="%", limits=(0.0, 100.0),
        note="; ".join(facts), is_performance=True,
    )  # fmt: skip
    return adjust_for_multiplicity([evaluate_claim(claim, Runs())])
