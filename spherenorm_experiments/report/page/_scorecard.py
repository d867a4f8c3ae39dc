"""The scorecard: the claims of all sections, counted apart by kind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from spherenorm_experiments.analysis import KINDS, TITLES, VERDICTS

__all__ = ["Group", "groups", "labeled"]


class Group(NamedTuple):
    """The claims of one kind, and how many of them have each verdict."""

    kind: str
    title: str
    claims: list[Mapping[str, Any]]
    counts: dict[str, int]


def labeled(entry: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The claims of a section with its label and anchor, and a label of their own, such as t1.3."""
    return [
        {
            "study": entry["label"],
            "anchor": entry["anchor"],
            "label": f"{entry['anchor']}.{number}",
            **claim,
        }
        for number, claim in enumerate(entry["claims"], 1)
    ]


def groups(claims: Iterable[Mapping[str, Any]]) -> list[Group]:
    """The claims by kind, the paper's first; kinds without a claim are left out."""
    known = list(claims)
    made = []
    for kind in KINDS:
        chosen = [claim for claim in known if claim["kind"] == kind]
        if chosen:
            made.append(Group(kind, TITLES[kind], chosen, _counts(chosen)))
    return made


def _counts(claims: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """The number of claims with each verdict that a claim of the kind can have."""
    paper = claims[0]["kind"] == "paper"
    other = {"holds", "does not hold"} if paper else {"reproduced", "not reproduced"}
    return {
        verdict: sum(claim["verdict"] == verdict for claim in claims)
        for verdict in VERDICTS
        if verdict not in other
    }
