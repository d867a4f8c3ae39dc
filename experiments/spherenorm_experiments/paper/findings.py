"""Findings: the paper's statements, each with the one outcome that its claims give it.

They are what a reader sees first; claims stand below them, by name.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

from spherenorm_experiments.claims import (
    AGAINST,
    FOR,
    OUT_OF_REACH,
    PERFORMANCE_SEEDS,
    PRIMARY_WEIGHT,
    Decision,
    Statement,
)
from spherenorm_experiments.paper.statements import STATEMENTS, TOPICS, UNCLAIMED
from spherenorm_experiments.paper.thirteen import across
from spherenorm_experiments.sections import Section, labeled
from spherenorm_experiments.stats import LATER, LEVEL, POWER
from spherenorm_experiments.tables import Cell, Row, Table

Outcome = Literal[
    "supported",
    "contradicted",
    "mixed",
    "open",
    "cannot be decided here",
    "true by construction",
    "not tested",
]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)

LEAST_SHARE = 0.5
"""Of the claims that these runs can decide, so many have to support a statement."""

RULE = """A statement is *supported* if no claim of it is decided against it and at least half of
those that these runs can decide are decided for it; *contradicted* if one is decided against it and
none for it; *mixed* if there are both; *open* otherwise. It *cannot be decided here* if that was
said of each of its claims before the runs. It is *true by construction* if it holds by definition,
or if a free number was chosen so that the paper's number comes out; *not tested* if it has no claim
or no runs."""


def outcome(kind: str, verdicts: Sequence[str]) -> Outcome:
    """The outcome of a statement by `RULE`.

    Args:
        verdicts: of those of its claims that have results.

    Examples:
        >>> outcome("paper", ["supported", "supported", "inconclusive"])
        'supported'
        >>> outcome("paper", ["supported", "inconclusive", "inconclusive"])
        'open'
        >>> outcome("paper", ["supported", "equivalent"])
        'mixed'
    """
    if not verdicts:
        return "not tested"
    held = sum(verdict in FOR for verdict in verdicts)
    denied = sum(verdict in AGAINST for verdict in verdicts)
    if kind in ("identity", "calibrated") and not denied:
        return "true by construction"
    reachable = [verdict for verdict in verdicts if verdict != "cannot be decided here"]
    if not reachable:
        return "cannot be decided here"
    if denied:
        return "mixed" if held else "contradicted"
    return "supported" if held and held >= LEAST_SHARE * len(reachable) else "open"


ALL = "thirteen"
"""The label of claims about all benchmarks together."""


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
        decided = [c for c in self.claims if c["verdict"] in (*AGAINST, *FOR)]
        against = [c for c in decided if c["verdict"] in AGAINST]
        return min(against or decided, key=lambda c: c["p"] or 0.0, default=None)


class Summary(NamedTuple):
    """The first screen.

    Attributes:
        counts: the statements by subject and outcome.
        holds: of each subject the supported statements.
        fails: the statements that some claim contradicts; first those that none supports.
        reach: what these runs cannot say.
    """

    counts: Table
    holds: dict[str, list[Finding]]
    fails: list[Finding]
    reach: str


def current(sections: Iterable[Section]) -> list[Section]:
    """Of each study its first section: the defaults, in the largest tier that was run."""
    first: dict[str, Section] = {}
    for section in sections:
        first.setdefault(section.study.name, section)
    return list(first.values())


def every_decision(sections: Sequence[Section]) -> list[tuple[str, Decision]]:
    """The decisions of these sections and across benchmarks, with the labels of their studies."""
    own = [(each.study.name, decision) for each in sections for decision in each.decisions]
    return [*own, *((ALL, decision) for decision in across(sections) if decision.has_results)]


def findings(sections: Sequence[Section]) -> list[Finding]:
    """Each statement of the paper, in its order."""
    cited: dict[Statement, list[tuple[str, Decision]]] = {}
    for label, decision in every_decision(current(sections)):
        if decision.has_results or decision.out_of_reach:
            cited.setdefault(decision.claim.cites, []).append((label, decision))
    made = []
    for name, statement in STATEMENTS.items():
        known = cited.get(statement, [])
        claims = [
            claim
            for label, decision in known
            for claim in labeled({"label": label, "anchor": label, "claims": [decision.to_json()]})
        ]
        found = outcome(statement.kind, [decision.verdict for _, decision in known])
        made.append(Finding(name, statement, found, claims, UNCLAIMED.get(name, "")))
    return made


def summary(sections: Sequence[Section]) -> Summary | None:
    """The first screen; None of a store without a study of the paper."""
    found = findings(sections)
    if not any(finding.claims for finding in found):
        return None
    rows: list[Row] = []
    for topic in TOPICS:
        own = [finding.outcome for finding in found if finding.statement.topic == topic]
        rows.append((topic, *(_count(own.count(each)) for each in OUTCOMES)))
    every = [finding.outcome for finding in found]
    rows.append(("all", *(_count(every.count(each)) for each in OUTCOMES)))
    holds = {
        topic: [f for f in found if f.statement.topic == topic and f.outcome == "supported"]
        for topic in TOPICS
    }
    fails = [[f for f in found if f.outcome == each] for each in ("contradicted", "mixed")]
    return Summary(
        Table("Statements of the paper", ("about", *OUTCOMES), rows),
        {topic: own for topic, own in holds.items() if own},
        [*fails[0], *fails[1]],
        _reach([decision for _, decision in every_decision(current(sections))]),
    )


def _count(number: int) -> Cell:
    return Cell(number or None, "d", missing="")


def _reach(decisions: Sequence[Decision]) -> str:
    """The number of claims whose effects these runs cannot find, and how far off they are."""
    sized = [
        (decision, decision.expected, abs(decision.claim.effect))
        for decision in decisions
        if decision.claim.effect and decision.expected and math.isfinite(decision.expected)
    ]
    if not sized:
        return ""
    out = sum(decision.out_of_reach for decision, *_ in sized)
    factors = [expected / effect for _, expected, effect in sized]
    return (
        f"{out} of {len(sized)} comparisons of scores were marked before the runs: what so many "
        f"seeds can be expected to detect is more than {OUT_OF_REACH:g} times the paper's effect. "
        f"In the median of the {len(sized)} it is {statistics.median(factors):.2g} times that."
    )


def findings_table(found: Sequence[Finding]) -> Table:
    """The statements with their outcomes and the verdicts of their claims."""
    rows = [
        (
            str(finding.statement),
            finding.outcome,
            "; ".join(f"{claim['label']}: {claim['verdict']}" for claim in finding.claims)
            or finding.reason
            or "no runs",
        )
        for finding in found
    ]
    return Table("Statements of the paper", ("statement", "outcome", "claims"), rows)


def rules() -> list[str]:
    """The rules of verdicts; each number is the constant that decides."""
    return [
        f"A number is a mean over seeds with Student's {100 * (1 - LEVEL):g} % interval; two "
        "optimizers are compared seed by seed. The exact sign test decides where a run diverged, "
        "where a number lies at a limit such as 100 %, and where all numbers are equal. A score or "
        f"a time needs {PERFORMANCE_SEEDS} seeds.",
        f"The level is {LEVEL:g}, of which later looks at more seeds share {LATER:g}. The claims "
        "of one study are one family: their p-values are adjusted by Holm's procedure, in which "
        f"primary claims count {PRIMARY_WEIGHT:g} times, so that a study without any true "
        f"difference has a verdict for or against with a probability of at most {LEVEL:g}.",
        "*Supported*: the number lies where the claim has it, and the test excludes the bound; a "
        "note says if the interval lies below or above the paper's effect. *Contradicted*: the "
        "same on the other side. *Equivalent*: the difference is shown to be within a margin that "
        "is at most the paper's effect, so that it is denied.",
        "Detectable is the effect that these runs find with a probability of "
        f"{POWER:g}: (t(1 - {LEVEL:g} / 2) + t({POWER:g})) s / √n, with the n - 1 degrees of "
        "freedom of n seeds of standard deviation s. If s as earlier runs have it makes that more "
        f"than {OUT_OF_REACH:g} times the paper's effect, the claim *cannot be decided here*, "
        "whatever the runs say, and takes no part in the family.",
        RULE.replace("\n", " "),
    ]
