"""The text of a law: its hypotheses, its bounds, its lines and its LaTeX."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import sympy as sp
from torch import Tensor

from spherenorm_theory.algebra import ANY, DIMENSION, Letters, choose_latex, is_number, latex, show
from spherenorm_theory.laws._quantities import W_NEXT, primed
from spherenorm_theory.laws._recurrence import SolvedLaw
from spherenorm_theory.laws._step_law import StepLaw


def list_hypotheses(law: SolvedLaw) -> Iterator[str]:
    """All that the derivation of a law took for granted, in text."""
    step, traced, algebra = law.step, law.step.traced, law.step.algebra
    definitions = step.facts.definitions
    formulas = sp.Tuple(law.cross, *law.recursion.values())
    yield "w, g not 0"
    for (a, b), value in algebra.space.known.items():
        if a != "1":
            yield f"<{a},{b}> = {value}"
    yield from step.facts.assumptions
    if law.first is not None:
        for each in law.first.step.facts.assumptions:
            if each not in step.facts.assumptions:
                yield f"{each} in the first step"
    if step.facts.failed and len(traced.views) > 1:
        yield f"no projection acts in any of the views {', '.join(map(str, traced.views))}"
    meanings = {str(name): show(meaning) for name, meaning in definitions.items()}
    meanings |= {atom: made.origin for atom, made in algebra.opaque.items()}
    for atom in algebra.opaque:
        if atom in law.drive.terms:
            text = _spell_out(meanings[atom], meanings)
            yield f"{atom} = {text}: the law holds for any vector {atom}"
    named = sp.Tuple(law.kappa, *formulas, *law.drive.terms.values()).free_symbols
    for name, meaning in definitions.items():
        if name in named or meaning.has(sp.Piecewise):
            yield f"{name} is {show(meaning)}"
    used = sp.Tuple(*step.weight.terms.values(), *formulas)
    for name, interval in traced.intervals.items():
        if name in traced.symbols and (interval != ANY or used.has(traced.symbols[name])):
            yield f"{name} in {interval}"
    for name, value in traced.held.items():
        if is_number(value):
            yield f"{name} = {value}"
        elif isinstance(value, Tensor):
            yield f"{name} = {value.tolist()}"


def _spell_out(text: str, meanings: Mapping[str, str]) -> str:
    """`text` with each name replaced by its meaning."""
    while names := [n for n in meanings if re.search(rf"\b{n}\b", text)]:
        text = re.sub(rf"\b{names[0]}\b", lambda _: meanings[names[0]], text)
    return text


ONE = (np.sign, np.tanh)
"""Entrywise operations of which every entry is at most 1."""


def bound_of_drive(law: StepLaw) -> sp.Expr | None:
    """A number that |s| never exceeds, where every vector of the drive has one; else None."""
    bounds = []
    for atom, coefficient in law.drive.terms.items():
        entry = _bound_of_entry(law, atom)
        fixed = coefficient.free_symbols <= {*law.step.traced.symbols.values()}
        if entry is None or not fixed:
            return None
        bounds.append(sp.Abs(coefficient) * entry * sp.sqrt(DIMENSION))
    return sp.Add(*bounds) if bounds else None


def _bound_of_entry(law: StepLaw, atom: str) -> sp.Expr | None:
    if atom not in law.step.algebra.opaque:
        return None
    _, function, arguments = law.step.algebra.opaque[atom]
    if function in ONE:
        return sp.Integer(1)
    ends = arguments[1:]
    if function is np.clip and all(isinstance(end, sp.Expr) for end in ends):
        return sp.Max(*map(sp.Abs, ends))
    return None


def write_interval(law: StepLaw) -> Iterator[str]:
    """The bounds that an open law still gives, in text."""
    keep = show(1 - law.kappa)
    yield "-|w| |s| <= <w,s> <= |w| |s|"
    yield f"| |{keep}| |w| - |s| | <= |w'| <= |{keep}| |w| + |s|"
    bound = bound_of_drive(law)
    if bound is not None:
        yield f"|s| <= {show(bound)}"


def describe(law: SolvedLaw, bounds: Iterable[str], assumptions: Iterable[str]) -> str:
    """A law in text, one statement a line."""
    lines = [*_describe_step(law), *_describe_solution(law)]
    if not law.starts_alike and law.first is not None:
        lines.append(("first step", f"w' = {law.first.kept} + s,  s = {law.first.drive}"))
        lines += [("", f"{primed(u)} = {show(after)}") for u, after in law.first.recursion.items()]
    lines += [("open", law.open_because)] if law.open_because else []
    lines += [("bounds", each) for each in bounds] + [("assumes", each) for each in assumptions]
    written = (f"  {label:12}{text}" for label, text in lines)
    return "\n".join([f"norm growth of {law.name}", *written])


Line = tuple[str, str]
"""A label, and a statement."""


def _describe_step(law: StepLaw) -> Iterator[Line]:
    """The split of one step, the law, the cross term and its recursion."""
    if law.constant:
        yield "law", "|w'|^2 = |w|^2: the norm is constant"
    else:
        yield "step", f"w' = {law.kept} + s,  s = {law.drive}"
        yield "law", f"{show(W_NEXT)} = {show(law.law.rhs)}"
        yield "cross term", f"<w,s> = {show(law.cross)}"
    for unknown, after in law.recursion.items():
        yield "recursion", f"{primed(unknown)} = {show(after)}"


def _describe_solution(law: SolvedLaw) -> Iterator[Line]:
    """The recurrence in closed form, or as a sum of powers of its matrix."""
    recurrence, closed = law.system, law.closed_form()
    if closed is not None:
        yield "closed", f"{show(closed.lhs)} = {show(closed.rhs)}"
    elif recurrence is not None:
        power, begin = ("A^t z[0]", 0) if law.starts_alike else ("A^(t-1) z[1]", 1)
        terms = f"Sum(A^(t-1-k) b[k], (k, {begin}, t - 1))"
        matrix, rest = show(recurrence.matrix.tolist()), show([*recurrence.rest])
        yield "closed", f"z[t] = {power} + {terms} with z = {show(recurrence.unknowns)}"
        yield "", f"A = {matrix}, b = {rest}"


def align(equations: Iterable[sp.Eq], letters: Letters | None = None) -> str:
    """Equations as an `aligned` block of LaTeX, in which each name has one letter."""
    equations = [*equations]
    table = choose_latex(equations, letters)
    rows = (latex(equation, table).replace(" = ", " &= ", 1) for equation in equations)
    body = " \\\\\n".join(rows)
    return f"\\begin{{aligned}}\n{body}\n\\end{{aligned}}"
