"""One law as LaTeX for a paper: the drive, the law, its cross term, and what it assumes."""

from __future__ import annotations

import re

import sympy as sp

from spherenorm_theory.algebra import Letters, choose_latex, latex
from spherenorm_theory.laws import NormGrowth
from spherenorm_theory.report._formats import escape_latex


def law_to_latex(law: NormGrowth, letters: Letters | None = None) -> str:
    r"""A law with its cross term, its hypotheses, and the kind of each part.

    The text is for the body of a LaTeX document that uses amsmath.

    Args:
        law: of `norm_growth`.
        letters: LaTeX by name of hyper-parameters and vectors, such as {"lr": r"\alpha", "w":
            r"\theta", "m": "v"}; the other names have the paper's letters.

    Raises:
        ValueError: two names would have one letter.

    Example:
        >>> print(law_to_latex(norm_growth("sgdp"), {"w": r"\theta"}).splitlines()[1])
        \begin{equation*}
    """
    formulas = [law.law, sp.Eq(*map(sp.Symbol, ("s", "w'"))), *law.recursion.values()]
    table = choose_latex([*formulas, *_symbols(law)], letters)
    lines = [f"The norm under {escape_latex(law.name)}, where ${_step(law, table)}$:"]
    lines += ["\\begin{equation*}", law.latex(letters), "\\end{equation*}"]
    lines += [f"{_status(law)} It assumes:", "\\begin{itemize}"]
    lines += [f"  \\item {_hypothesis(each, table)}" for each in law.assumptions]
    return "\n".join([*lines, "\\end{itemize}", ""])


def _symbols(law: NormGrowth) -> list[sp.Symbol]:
    """The names that the step holds: hyper-parameters, and vectors."""
    vectors = [sp.Symbol(atom) for atom in law.drive.terms if atom != "1"]
    return [*law.step.traced.symbols.values(), *vectors]


def _step(law: NormGrowth, table: Letters) -> str:
    """w' = (1 - kappa) w + s with the drive s."""
    if law.constant:
        return latex(sp.Eq(sp.Symbol("|w'|^2"), sp.Symbol("|w|^2"), evaluate=False), table)
    w, s = sp.Symbol("w"), sp.Symbol("s")
    step = sp.Eq(sp.Symbol("w'"), (1 - law.kappa) * w + s, evaluate=False)
    drive = sp.Add(*(c * (1 if a == "1" else sp.Symbol(a)) for a, c in law.drive.terms.items()))
    return f"{latex(step, table)},\\; {latex(sp.Eq(s, drive, evaluate=False), table)}"


def _status(law: NormGrowth) -> str:
    if law.constant:
        return "Derived from the code of the step."
    shown = "The first line is an identity in $s$"
    if law.open_because:
        return f"{shown}; the cross term is open: {escape_latex(law.open_because)}."
    shown += "; the cross term and its recursion are derived from the code of the step"
    if law.closed_form() is not None and not any(law.induction().values()):
        shown += "; the closed form is proved by induction"
    return f"{shown}."


def _hypothesis(text: str, table: Letters) -> str:
    """A hypothesis as text, in which intervals and inner products are formulas."""
    if interval := re.fullmatch(r"(\w+) in (.+)", text):
        high = interval[2].replace("inf", r"\infty").replace("∞", r"\infty")
        return f"${latex(sp.Symbol(interval[1]), table)} \\in {high}$"
    if product := re.fullmatch(r"(<\w+,\w+>|\|\w+\|\^2) = (\w+)", text):
        return f"${latex(sp.Symbol(product[1]), table)} = {product[2]}$"
    return escape_latex(text)
