"""Findings: the paper's statements, each with the one outcome that its claims give it.

They are what a reader sees first; claims stand below them, by name.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

from spherenorm_experiments.claims import (
    AGAINST,
    FOR,
    OUT_OF_REACH,
    VERDICTS,
    Decision,
    Statement,
)
from spherenorm_experiments.sections import Section
from spherenorm_experiments.tables import Cell, Row, Table
from spherenorm_paper.statements import (
    AT_ANY_SCALE,
    EVERY,
    STATEMENTS,
    TOPICS,
    UNCLAIMED,
    says,
)
from spherenorm_paper.thirteen import UNIFORM, across, first_of_each, of_every_benchmark

Outcome = Literal[
    "supported",
    "contradicted",
    "mixed",
    "not seen at this scale",
    "open",
    "true by construction",
    "not tested",
]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
"""Five outcomes of statements that are tested, and two reasons why one is not."""

FAILED: tuple[Outcome, ...] = ("contradicted", "not seen at this scale", "mixed")

LEAST_SHARE = 0.5
"""Of the claims that these runs can decide, so many have to support a statement."""

RULE = """A statement is *supported* if no claim of it is decided against it and at least half of
those that these runs can decide are decided for it, so one of two; all of its claims, if it speaks
of every case, or of two things at once. A claim is decided against it if it is contradicted, or
equivalent. It is *mixed* if some are decided for it and some against it. If some are decided
against it and none for it, it is *contradicted* where the scale is not the difference: a toy
problem in the paper's own setting (whose rates, lengths and scales of the loss are ours where the
paper gives none), a law of norms or steps, a count; else it is *not seen at this scale*: our
networks, data and runs are smaller than the paper's, and that may be the reason. It is *open*
otherwise: the runs are too few or too noisy, or their numbers tie. Two kinds are not tested: what
is *true by construction* holds by definition, or by a free number that was chosen so that the
paper's number comes out; what is *not tested* has no claim or no runs."""


def outcome(
    kind: str, verdicts: Sequence[str], *, at_any_scale: bool = True, every: bool = False
) -> Outcome:
    """The outcome of a statement by `RULE`.

    Args:
        verdicts: of those of its claims that have results, or were out of reach before the runs;
            "" for a case without results, of a statement about every case.
        at_any_scale: True if the size of the runs does not excuse a failure.
        every: True of a statement about every case.

    Examples:
        >>> outcome("paper", ["supported", "supported", "inconclusive"])
        'supported'
        >>> outcome("paper", ["supported", "supported", "inconclusive"], every=True)
        'open'
        >>> outcome("paper", ["supported", "equivalent"])
        'mixed'
        >>> outcome("paper", ["contradicted"], at_any_scale=False)
        'not seen at this scale'
    """
    if not any(verdicts):
        return "true by construction" if kind == "identity" else "not tested"
    held = sum(verdict in FOR for verdict in verdicts)
    denied = sum(verdict in AGAINST for verdict in verdicts)
    if kind in ("identity", "calibrated") and not denied:
        return "true by construction"
    if denied and held:
        return "mixed"
    if denied:
        return "contradicted" if at_any_scale else "not seen at this scale"
    reachable = [verdict for verdict in verdicts if verdict != "cannot be decided here"]
    needed = len(verdicts) if every else max(1.0, LEAST_SHARE * len(reachable))
    return "supported" if held >= needed else "open"


NO_RESULTS = "no results"
"""Stands in place of the verdict of a claim without runs."""

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
        every = cited.get(statement, [])
        known = [(label, each) for label, each in every if each.has_results or each.out_of_reach]
        if known and name in EVERY:
            known = every
        claims = [{**each.to_json(), "study": label, "anchor": label,
                   "label": f"{label}.{each.claim.name}",
                   "verdict": each.verdict if each.has_results or each.out_of_reach
                   else NO_RESULTS} for label, each in known]  # fmt: skip
        ran = any(each.has_results for _, each in known)
        verdicts: list[str] = [claim["verdict"] if ran else "" for claim in claims]
        found = outcome(
            statement.kind, verdicts, at_any_scale=name in AT_ANY_SCALE, every=name in EVERY
        )
        made.append(Finding(name, statement, found, claims, UNCLAIMED.get(name, "")))
    return made


def summary(sections: Sequence[Section]) -> Summary | None:
    """The first screen; None of a store without a study of the paper."""
    found = findings(sections)
    if not any(finding.claims for finding in found):
        return None
    topics = {topic: [f for f in found if f.statement.topic == topic] for topic in TOPICS}
    rows: list[Row] = []
    for topic, own in {**topics, "all": found}.items():
        outcomes = [finding.outcome for finding in own]
        counts = (outcomes.count(each) or None for each in OUTCOMES)
        rows.append((topic, *(Cell(count, "d", missing="") for count in counts)))
    supported = {topic: [finding for finding in own if finding.outcome == "supported"]
                 for topic, own in topics.items()}  # fmt: skip
    return Summary(
        Table("Statements of the paper", ("about", *OUTCOMES), rows),
        {topic: own for topic, own in supported.items() if own},
        [finding for each in FAILED for finding in found if finding.outcome == each],
        _reach(each for _, each in _decisions(sections)[1]),
    )


def _reach(decisions: Iterable[Decision]) -> str:
    """The number of claims whose effects these runs cannot find, and how far off they are."""
    sized = [
        (decision.out_of_reach, decision.expected / abs(decision.claim.effect))
        for decision in decisions
        if decision.claim.effect and decision.expected and math.isfinite(decision.expected)
    ]
    if not sized:
        return ""
    factor = statistics.median(factor for _, factor in sized)
    return (
        f"{sum(out for out, _ in sized)} of {len(sized)} comparisons of scores were marked before "
        "the runs: what so many seeds can be expected to detect is more than "
        f"{OUT_OF_REACH:g} times the paper's effect. In the median of the {len(sized)} it is "
        f"{factor:.2g} times that."
    )


FEW = 3
"""Claims of a statement that its row names; of more, each study has its counts of verdicts."""


def findings_table(found: Sequence[Finding]) -> Table:
    """The statements with their outcomes and the verdicts of their claims."""
    rows = [
        (str(each.statement), each.outcome, _verdicts(each) or each.reason or "no runs")
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
    order = (*VERDICTS, NO_RESULTS)
    return "; ".join(
        f"{study}: {', '.join(f'{counts[each]} {each}' for each in order if counts[each])}"
        for study, counts in by_study.items()
    )
