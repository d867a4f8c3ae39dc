"""Bases: the ground on which a claim is made. Only a statement of the paper can be reproduced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

__all__ = ["KINDS", "OURS", "Basis", "Kind", "calibrated", "identity", "of_paper"]

Kind = Literal["paper", "calibrated", "identity", "ours"]
KINDS: tuple[Kind, ...] = get_args(Kind)

TITLES: dict[Kind, str] = {
    "paper": "Statements of the paper",
    "calibrated": "Calibrated: a free number was chosen so that the paper's number comes out",
    "identity": "Identities: true by construction, so that they test our code alone",
    "ours": "Ours: beyond the paper",
}


@dataclass(frozen=True)
class Basis:
    """The ground of a claim.

        >>> str(Basis("paper", "Section 3.2", "ensuring a faster convergence"))
        'Section 3.2: “ensuring a faster convergence”'

    Attributes:
        kind: paper, a statement with its place and wording; calibrated, a number of the paper's
            that a choice of ours was fitted to; identity, true by construction; ours, beyond the
            paper.
        place: the section, table, figure or equation; of another source its name.
        quotation: the paper's own words.

    Raises:
        ValueError: an unknown kind, or a statement of the paper without its place and wording.
    """

    kind: Kind
    place: str
    quotation: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {self.kind!r}")
        if self.kind == "paper" and not (self.place and self.quotation):
            lack = "a statement of the paper needs its place and its wording"
            raise ValueError(f"{lack}, got {self.place!r} and {self.quotation!r}")

    def __str__(self) -> str:
        return f"{self.place}: “{self.quotation}”" if self.quotation else self.place

    @classmethod
    def of(cls, source: Basis | str) -> Basis:
        """The basis; a text is the place of a claim of ours."""
        return source if isinstance(source, Basis) else cls("ours", source)


OURS = Basis("ours", "ours")


def of_paper(place: str, quotation: str) -> Basis:
    """A statement of the paper."""
    return Basis("paper", place, quotation)


def calibrated(place: str, quotation: str = "") -> Basis:
    """A number of the paper's that a free number of ours was fitted to."""
    return Basis("calibrated", place, quotation)


def identity(place: str) -> Basis:
    """A statement that is true by construction."""
    return Basis("identity", place)
