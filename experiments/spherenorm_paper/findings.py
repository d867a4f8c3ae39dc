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
    EVERY,
    STATEMENTS,
    TOPICS,
    UNCLAIMED,
    says,
)
from spherenorm_paper.thirteen import UNIFORM, across, first_of_each, of_every_benchmark


class Outcome(StrEnum):
    """What the decided claims of a statement say together."""

    ALL = "all"
    NONE = "none"
    MIXED = "mixed"
    INCONCLUSIVE = "inconclusive"
    NOT_TESTED = "not tested"


FAILED = (Outcome.NONE, Outcome.MIXED)

LEAST_SHARE = 0.5
"""Of the claims that were tested, so many have to be supported for the outcome "all"."""

RULE = """The outcome of a statement counts the verdicts of its claims. *All*: no claim of it is
decided against it, and at least half of those that were tested are supported; each of its claims,
if it speaks of every case, or of two things at once. *None*: some claim is decided against it, and
none for it; a claim is against it if it is contradicted, or equivalent. Our networks, data and runs
are smaller than the paper's, and that may be the reason, except for toy problems and laws of norms
and steps. *Mixed*: some claims are for it and some against it. *Inconclusive*: otherwise; the runs
are too few or too noisy, or their numbers tie. *Not tested*: it has no claim, or no runs. A
statement that is true by construction (a definition, or a free number that was chosen so that the
paper's number comes out) tests our code alone; its claims stand apart."""


def outcome(verdicts: Sequence[Verdict], *, every: bool = False) -> Outcome:
    """The outcome of a statement by `RULE`.

    Args:
        verdicts: of its claims.
        every: True of a statement about every case, or about two things at once.

    Examples:
        >>> V = Verdict
        >>> str(outcome([V.SUPPORTED, V.SUPPORTED, V.INCONCLUSIVE]))
        'all'
        >>> str(outcome([V.SUPPORTED, V.SUPPORTED, V.INCONCLUSIVE], every=True))
        'inconclusive'
        >>> str(outcome([V.SUPPORTED, V.EQUIVALENT]))
        'mixed'
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
    """Of each study its first section, with its decisions, and those across benchmarks."""
    shown = first_of_each(sections)
    own = [(section.study.name, each) for section in shown for each in section.decisions]
    return shown, [*own, *((ALL, each) for each in across(shown) if each.has_results)]


def findings(sections: Sequence[Section]) -> list[Finding]:
    """Each statement of the paper, in its order."""
    shown, decisions = _decisions(sections)
    cited: dict[Statement, list[Labeled]] = {says(UNIFORM): of_every_benchmark(shown)}
    for label, decision in decisions:
        cited.setdefault(decision.claim.cites, []).append((label, decision))
    made = []
    for name, statement in STATEMENTS.items():
        known = cited.get(statement, [])
        if name not in EVERY:
            known = [(label, each) for label, each in known if each.has_results]
        claims = [
            {
                **each.to_json(),
                "study": label,
                "anchor": label,
                "label": f"{label}.{each.claim.name}",
            }
            for label, each in known
        ]
        found, reason = outcome([each.verdict for _, each in known], every=name in EVERY), ""
        if statement.kind != "paper" and found not in FAILED:
            found, reason = Outcome.NOT_TESTED, "true by construction"
        made.append(Finding(name, statement, found, claims, UNCLAIMED.get(name, reason)))
    return made


def summary(sections: Sequence[Section]) -> Summary | None:
    """The first screen; None of a store without a study of the paper."""
    found = findings(sections)
    if not any(claim["numbers"] for finding in found for claim in finding.claims):
        return None
    topics = {topic: [f for f in found if f.statement.topic == topic] for topic in TOPICS}
    rows: list[Row] = []
    for topic, own in {**topics, "all": found}.items():
        outcomes = [finding.outcome for finding in own]
        counts = (outcomes.count(each) or None for each in Outcome)
        rows.append((topic, *(Cell(count, "d", missing="") for count in counts)))
    supported = {
        topic: [finding for finding in own if finding.outcome is Outcome.ALL]
        for topic, own in topics.items()
    }
    return Summary(
        Table("Statements of the paper", ("about", *map(str, Outcome)), rows),
        {topic: own for topic, own in supported.items() if own},
        [finding for each in FAILED for finding in found if finding.outcome is each],
        _reach(each for _, each in _decisions(sections)[1]),
    )


def _reach(decisions: Iterable[Decision]) -> str:
    """How many comparisons with an effect of the paper's are inconclusive, and how far off."""
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


def findings_table(found: Sequence[Finding]) -> Table:
    """The statements with their outcomes and the verdicts of their claims."""
    rows = [
        (str(each.statement), str(each.outcome), _verdicts(each) or each.reason or "no runs")
        for each in found
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
        f"{study}: {', '.join(f'{counts[each]} {each}' for each in VERDICTS if counts[each])}"
        for study, counts in by_study.items()
    )
