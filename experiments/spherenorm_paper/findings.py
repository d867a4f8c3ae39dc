"""Findings: the paper's statements, each with the one outcome that its claims give it.

They are what a reader sees first; claims stand below them, by name.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from spherenorm_experiments.report import Section
from spherenorm_experiments.tables import Cell, Row, Table
from spherenorm_experiments.verdict import AGAINST, FOR, VERDICTS, Decision, Statement, Verdict
from spherenorm_paper.statements import (
    STATEMENTS,
    TOPICS,
    UNCLAIMED,
    UNIVERSAL,
    says,
)
from spherenorm_paper.thirteen import UNIFORM, across, first_of_each, of_every_benchmark


class Outcome(StrEnum):
    """The conclusion from the verdicts of a statement's claims."""

    ALL = "holds"
    NONE = "does not hold"
    MIXED = "holds in part"
    INCONCLUSIVE = "inconclusive"
    NOT_TESTED = "not tested"


FAILED = (Outcome.NONE, Outcome.MIXED)

LEAST_SHARE = 0.5
"""The share of the tested claims that has to be supported for the outcome "holds"."""

RULE = """The outcome of a statement counts the verdicts of its claims. *Holds*: no claim of it is
decided against it, and at least half of those that were tested are supported; each of its claims,
if it speaks of every case, or of two things at once. *Does not hold*: some claim is decided against
it, and none for it; a claim is against it if it is contradicted, or equivalent. Our networks, data
and runs are smaller than the paper's, and that may be the reason, except for toy problems and laws
of norms and steps. *Holds in part*: some claims are for it and some against it. *Inconclusive*:
otherwise; the runs are too few or too noisy, or their numbers tie. *Not tested*: it has no claim,
or no runs. A statement that is true by construction (a definition, or a free number that was chosen
so that the paper's number comes out) tests our code alone; its claims stand apart."""


def outcome(verdicts: Sequence[Verdict], *, every: bool = False) -> Outcome:
    """The outcome of a statement by `RULE`.

    Args:
        verdicts: of its claims.
        every: True of a statement about every case, or about two things at once.

    Examples:
        >>> V = Verdict
        >>> str(outcome([V.SUPPORTED, V.SUPPORTED, V.INCONCLUSIVE]))
        'holds'
        >>> str(outcome([V.SUPPORTED, V.SUPPORTED, V.INCONCLUSIVE], every=True))
        'inconclusive'
        >>> str(outcome([V.SUPPORTED, V.EQUIVALENT]))
        'holds in part'
    """
    tested = [verdict for verdict in verdicts if verdict is not Verdict.NOT_TESTED]
    supported = sum(verdict in FOR for verdict in tested)
    against = sum(verdict in AGAINST for verdict in tested)
    if not tested:
        return Outcome.NOT_TESTED
    if against:
        return Outcome.MIXED if supported else Outcome.NONE
    needed = len(verdicts) if every else max(1.0, LEAST_SHARE * len(tested))
    return Outcome.ALL if supported >= needed else Outcome.INCONCLUSIVE


ALL = "thirteen"
"""The label of claims about all benchmarks together."""

Labeled = tuple[str, Decision]
"""A decision with the label of its study."""


class Finding(NamedTuple):
    """A statement with its claims that have results, or could not be decided by any.

    Attributes:
        reason: why it has no claim.
    """

    name: str
    statement: Statement
    outcome: Outcome
    claims: Sequence[Mapping[str, Any]]
    reason: str

    @property
    def telling(self) -> Mapping[str, Any] | None:
        """The claim that decides most, against the statement if one does."""
        against = [claim for claim in self.claims if claim["verdict"] in AGAINST]
        decided = against or [claim for claim in self.claims if claim["verdict"] in FOR]
        return min(decided, key=lambda claim: claim["p"] or 0.0, default=None)


class Summary(NamedTuple):
    """The first screen.

    Attributes:
        counts: the statements by subject and outcome.
        holds: of each subject the supported statements.
        fails: the statements that some claim is against, in the order of `FAILED`.
        reach: what these runs cannot say.
    """

    counts: Table
    holds: dict[str, list[Finding]]
    fails: list[Finding]
    reach: str


def _decisions(sections: Sequence[Section]) -> tuple[list[Section], list[Labeled]]:
    """Return the first section of each study, and their decisions with those across benchmarks."""
    first_sections = first_of_each(sections)
    labeled_decisions = [
        (section.study.name, decision)
        for section in first_sections
        for decision in section.decisions
    ]
    return first_sections, [
        *labeled_decisions,
        *((ALL, decision) for decision in across(first_sections) if decision.has_results),
    ]


def findings(sections: Sequence[Section]) -> list[Finding]:
    """Each statement of the paper, in its order."""
    first_sections, decisions = _decisions(sections)
    cited: dict[Statement, list[Labeled]] = {says(UNIFORM): of_every_benchmark(first_sections)}
    for label, decision in decisions:
        cited.setdefault(decision.claim.cites, []).append((label, decision))
    all_findings = []
    for name, statement in STATEMENTS.items():
        cited_decisions = cited.get(statement, [])
        if name not in UNIVERSAL:
            cited_decisions = [
                (label, decision) for label, decision in cited_decisions if decision.has_results
            ]
        claims = [
            {
                **decision.to_json(),
                "study": label,
                "anchor": label,
                "label": f"{label}.{decision.claim.name}",
            }
            for label, decision in cited_decisions
        ]
        statement_outcome, reason = (
            outcome([decision.verdict for _, decision in cited_decisions], every=name in UNIVERSAL),
            "",
        )
        if statement.kind != "paper" and statement_outcome not in FAILED:
            statement_outcome, reason = Outcome.NOT_TESTED, "true by construction"
        all_findings.append(
            Finding(name, statement, statement_outcome, claims, UNCLAIMED.get(name, reason))
        )
    return all_findings


def summary(sections: Sequence[Section]) -> Summary | None:
    """The first screen; None of a store without a study of the paper."""
    all_findings = findings(sections)
    if not any(claim["numbers"] for finding in all_findings for claim in finding.claims):
        return None
    topics = {topic: [f for f in all_findings if f.statement.topic == topic] for topic in TOPICS}
    rows: list[Row] = []
    for topic, topic_findings in {**topics, "all": all_findings}.items():
        outcomes = [finding.outcome for finding in topic_findings]
        counts = (outcomes.count(outcome_) or None for outcome_ in Outcome)
        rows.append((topic, *(Cell(count, "d", missing="") for count in counts)))
    supported = {
        topic: [finding for finding in topic_findings if finding.outcome is Outcome.ALL]
        for topic, topic_findings in topics.items()
    }
    return Summary(
        Table("Statements of the paper", ("about", *map(str, Outcome)), rows),
        {topic: topic_findings for topic, topic_findings in supported.items() if topic_findings},
        [finding for outcome_ in FAILED for finding in all_findings if finding.outcome is outcome_],
        _reach(decision for _, decision in _decisions(sections)[1]),
    )


def _reach(decisions: Iterable[Decision]) -> str:
    """Count the inconclusive comparisons with an effect of the paper's, and say how far off."""
    sized = [
        decision.detectable / abs(decision.claim.effect)
        for decision in decisions
        if decision.claim.effect and decision.detectable and math.isfinite(decision.detectable)
        if decision.verdict is Verdict.INCONCLUSIVE
    ]
    if not sized:
        return ""
    return (
        f"{len(sized)} comparisons with a number of the paper's are inconclusive. In the median of "
        f"them the runs detect {statistics.median(sized):.2g} times the paper's effect."
    )


FEW = 3
"""Claims of a statement that its row names; of more, each study has its counts of verdicts."""


def findings_table(all_findings: Sequence[Finding]) -> Table:
    """The statements with their outcomes and the verdicts of their claims."""
    rows = [
        (
            str(finding.statement),
            str(finding.outcome),
            _verdicts(finding) or finding.reason or "no runs",
        )
        for finding in all_findings
    ]
    return Table("Statements of the paper", ("statement", "outcome", "claims"), rows)


def _verdicts(finding: Finding) -> str:
    """Few by their names, such as "t1.path.sgdp: supported"; more by study and verdict."""
    if len(finding.claims) <= FEW:
        return "; ".join(f"{claim['label']}: {claim['verdict']}" for claim in finding.claims)
    by_study: dict[str, Counter[str]] = {}
    for claim in finding.claims:
        by_study.setdefault(claim["study"], Counter())[claim["verdict"]] += 1
    return "; ".join(
        f"{study}: {', '.join(f'{counts[v]} {v}' for v in VERDICTS if counts[v])}"
        for study, counts in by_study.items()
    )
