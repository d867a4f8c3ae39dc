"""Proof objects: claims that are decided, and statements that they refute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import sympy as sp

from spherenorm_theory.algebra._claims import Claim, Refutation
from spherenorm_theory.algebra._text import show

__all__ = ["Proof"]


@dataclass(frozen=True)
class Proof:
    """A statement, the claims that lead to it, and the printed statements that fail.

    Text and LaTeX are printed from the relations that are decided. Words name their subjects.

    Attributes:
        name: such as "Lemma 2.2".
        claims: the statement, then the steps that it rests on; all must hold.
        refuted: the statement as it is printed, where that fails.
        under: the hypotheses of all claims.
        remark: a note for the reader, without formulas.
        verdict: the status in words, for a statement that is refuted as printed.

    Raises:
        ValueError: there are no claims, so that nothing would be proved.
    """

    name: str
    claims: tuple[Claim, ...]
    refuted: tuple[Refutation, ...] = ()
    under: tuple[sp.Basic | str, ...] = ()
    remark: str = ""
    verdict: str = "not as printed; corrected and proved"

    def __post_init__(self) -> None:
        if not self.claims:
            raise ValueError(f"{self.name}: a proof needs a claim")

    @property
    def statement(self) -> Claim:
        """The first claim."""
        return self.claims[0]

    @property
    def failures(self) -> tuple[Claim | Refutation, ...]:
        """The claims that are not shown, and the refutations that refute nothing."""
        parts: tuple[Claim | Refutation, ...] = (*self.claims, *self.refuted)
        return tuple(each for each in parts if not each.holds)

    @property
    def proved(self) -> bool:
        """True if nothing fails: the claims hold, and what is refuted is false."""
        return not self.failures

    @property
    def holds_as_printed(self) -> bool:
        """True if the statement is proved and nothing printed is refuted."""
        return self.proved and not self.refuted

    @property
    def kinds(self) -> tuple[str, ...]:
        """The ways in which the claims are shown, the statement's first."""
        return tuple(dict.fromkeys(str(claim.kind) for claim in self.claims))

    @property
    def status(self) -> str:
        """The kinds of the claims and their hypotheses, or the subjects of all that failed."""
        if failed := self.failures:
            return f"NOT proved: {', '.join(each.about for each in failed)}"
        held = ", ".join(h if isinstance(h, str) else show(h) for h in self.under)
        shown = ", ".join(self.kinds) + (f" under {{{held}}}" if held else "")
        return f"{self.verdict}: {shown}" if self.refuted else shown

    def latex(self, letters: Mapping[str, str] | None = None) -> str:
        """The statement in LaTeX; see `spherenorm_theory.algebra.latex` for the letters."""
        return self.statement.latex(letters)

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.status}", *(f"  {claim}" for claim in self.claims)]
        lines += [f"  as printed: {each}" for each in self.refuted]
        return "\n".join([*lines, *([f"  note: {self.remark}"] if self.remark else [])])

    __repr__ = __str__
