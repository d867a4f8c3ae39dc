"""A law of norm growth as lines of text, and as LaTeX."""

from __future__ import annotations

from collections.abc import Iterable

import sympy as sp

from spherenorm_theory.algebra import Letters, choose_latex, latex, show
from spherenorm_theory.laws._quantities import W_NEXT, primed
from spherenorm_theory.laws._recurrence import LinearRecurrence
from spherenorm_theory.laws._step_law import StepLaw

__all__ = ["align", "write_first_step", "write_line", "write_solution", "write_step"]


def write_line(label: str, text: str) -> str:
    """A line of text behind a label."""
    return f"  {label:12}{text}"


def write_step(law: StepLaw) -> Iterable[str]:
    """The split of one step, the law, the cross term and its recursion."""
    if law.constant:
        yield write_line("law", "|w'|^2 = |w|^2: the norm is constant")
    else:
        yield write_line("step", f"w' = {law.kept} + s,  s = {law.drive}")
        yield write_line("law", f"{show(W_NEXT)} = {show(law.law.rhs)}")
        yield write_line("cross term", f"<w,s> = {show(law.cross)}")
    for unknown, after in law.recursion.items():
        yield write_line("recursion", f"{primed(unknown)} = {show(after)}")


def write_solution(
    recurrence: LinearRecurrence | None, closed: sp.Eq | None, starts_alike: bool
) -> Iterable[str]:
    """The recurrence in closed form, or as a sum of powers of its matrix."""
    if closed is not None:
        yield write_line("closed", f"{show(closed.lhs)} = {show(closed.rhs)}")
    elif recurrence is not None:
        power, begin = ("A^t z[0]", 0) if starts_alike else ("A^(t-1) z[1]", 1)
        terms = f"Sum(A^(t-1-k) b[k], (k, {begin}, t - 1))"
        matrix, rest = show(recurrence.matrix.tolist()), show([*recurrence.rest])
        yield write_line("closed", f"z[t] = {power} + {terms} with z = {show(recurrence.unknowns)}")
        yield write_line("", f"A = {matrix}, b = {rest}")


def write_first_step(first: StepLaw) -> Iterable[str]:
    """A first step that differs from the later ones."""
    yield write_line("first step", f"w' = {first.kept} + s,  s = {first.drive}")
    for unknown, after in first.recursion.items():
        yield write_line("", f"{primed(unknown)} = {show(after)}")


def align(equations: Iterable[sp.Eq], letters: Letters | None = None) -> str:
    """Equations as an `aligned` block of LaTeX, in which each name has one letter."""
    equations = [*equations]
    table = choose_latex(equations, letters)
    rows = (latex(equation, table).replace(" = ", " &= ", 1) for equation in equations)
    body = " \\\\\n".join(rows)
    return f"\\begin{{aligned}}\n{body}\n\\end{{aligned}}"
