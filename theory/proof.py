"""What it takes to call a statement proved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import sympy as sp

from theory.text import show

__all__ = ["Proof"]


@dataclass(frozen=True)
class Proof:
    """A statement, and the expressions that decide it.

    Attributes:
        name: such as "Lemma 2.2".
        statement: the formula, in words or symbols.
        residuals: must all be 0; each is obtained from traced code, or is a step of an argument.
        nonnegative: must all be at least 0, which sympy has to see by itself.
        counterexamples: to the statement as printed in the paper; must all be true. The residuals then prove `corrected`.
        corrected: the statement that holds instead.
        remark: what a reader should know.
        verdict: the status of a statement with counterexamples.
    """

    name: str
    statement: str
    residuals: Mapping[str, sp.Expr]
    nonnegative: Mapping[str, sp.Expr] = field(default_factory=dict)
    counterexamples: Mapping[str, sp.Basic] = field(default_factory=dict)
    corrected: str = ""
    remark: str = ""
    verdict: str = "not as printed; corrected and proved"

    def __post_init__(self) -> None:
        if not self.residuals:
            raise ValueError(f"{self.name}: a proof needs a residual")

    @property
    def failures(self) -> dict[str, sp.Basic]:
        """The residuals that are not 0, the terms not seen to be nonnegative, the counterexamples that are none."""
        return {
            **{k: r for k, r in self.residuals.items() if r != 0},
            **{k: e for k, e in self.nonnegative.items() if not e.is_nonnegative},
            **{k: c for k, c in self.counterexamples.items() if c not in (True, sp.true)},
        }

    @property
    def proved(self) -> bool:
        return not self.failures

    @property
    def holds_as_printed(self) -> bool:
        return self.proved and not self.counterexamples

    @property
    def status(self) -> str:
        if not self.proved:
            return f"NOT proved: {', '.join(self.failures)}"
        return self.verdict if self.counterexamples else "proved"

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.status}", f"  {self.statement}"]
        lines += [f"  counterexample: {k}" for k in self.counterexamples]
        lines += [f"  instead: {self.corrected}"] if self.corrected else []
        lines += [f"  residual {k}: {show(r)}" for k, r in self.residuals.items() if r != 0]
        return "\n".join(lines)

    __repr__ = __str__
