"""Outcomes: the one verdict that a statement has from all of its claims."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from spherenorm_experiments.analysis._claims import Kind
from spherenorm_experiments.analysis._decisions import AGAINST, FOR, Verdict

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


def outcome(kind: Kind, verdicts: Sequence[Verdict]) -> Outcome:
    """The outcome of a statement by `RULE`.

    Args:
        verdicts: of those of its claims that have results.

    Examples:
        >>> outcome("paper", ["reproduced", "smaller than the paper's", "inconclusive"])
        'supported'
        >>> outcome("paper", ["reproduced", "inconclusive", "inconclusive"])
        'open'
        >>> outcome("paper", ["reproduced", "equivalent"])
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
