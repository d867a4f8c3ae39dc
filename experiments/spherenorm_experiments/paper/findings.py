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
from spherenorm_experiments.paper.statements import (
    AT_ANY_SCALE,
    EVERY,
    STATEMENTS,
    TOPICS,
    UNCLAIMED,
    says,
)
from spherenorm_experiments.paper.thirteen import UNIFORM, across, of_every_benchmark
from spherenorm_experiments.sections import Section, labeled
from spherenorm_experiments.stats import LATER, LEVEL, POWER
from spherenorm_experiments.tables import Cell, Row, Table

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
those that these runs can decide are decided for it; all of its claims, if it speaks of every case.
It is *mixed* if some are decided for it and some against it. If some are decided against it and
none for it, it is *contradicted* where the scale is not the difference: a toy problem in the
paper's own setting, a law of norms or steps, a count; else it is *not seen at this scale*: our
networks, data and runs are smaller than the paper's, and that may be the reason. It is *open*
otherwise: the runs are too few, or too noisy for the paper's effect. Two kinds are not tested: what
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
        return "not tested"
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
        fails: the statements that some claim is against, in the order of `FAILED`.
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
    shown = current(sections)
    cited: dict[Statement, list[tuple[str, Decision]]] = {says(UNIFORM): of_every_benchmark(shown)}
    for label, decision in every_decision(shown):
        cited.setdefault(decision.claim.cites, []).append((label, decision))
    made = []
    for name, statement in STATEMENTS.items():
        every = cited.get(statement, [])
        known = [(label, d) for label, d in every if d.has_results or d.out_of_reach]
        claims = [
            claim
            for label, decision in known
            for claim in labeled({"label": label, "anchor": label, "claims": [decision.to_json()]})
        ]
        verdicts: list[str] = [decision.verdict for _, decision in known]
        if name in EVERY:
            verdicts += [""] * (len(every) - len(known))
        scale, all_cases = name in AT_ANY_SCALE, name in EVERY
        found = outcome(statement.kind, verdicts, at_any_scale=scale, every=all_cases)
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
    return Summary(
        Table("Statements of the paper", ("about", *OUTCOMES), rows),
        {topic: own for topic, own in holds.items() if own},
        [finding for each in FAILED for finding in found if finding.outcome == each],
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
        f"difference has a verdict for or against with a probability of at most {LEVEL:g}. Where "
        "nothing is random, equal numbers decide.",
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
