"""The hypotheses of a law: all that its derivation took for granted, in text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import sympy as sp
from torch import Tensor

from spherenorm_theory.algebra import ANY, is_number, show
from spherenorm_theory.laws._step_law import StepLaw

__all__ = ["list_hypotheses"]


def list_hypotheses(law: StepLaw) -> tuple[str, ...]:
    """The assumptions of a law.

    They are: known inner products, comparisons that were decided, the views in which no
    scale-invariance test passes, entrywise operations of which
    nothing is known, cases that are left open, the intervals of the hyper-parameters, and the
    numbers at which some of them are held.
    """
    return (
        "w, g not 0",
        *_inner_products(law),
        *law.step.algebra.assumptions,
        *_views_without_projection(law),
        *_entrywise_directions(law),
        *_cases(law),
        *_intervals(law),
        *_held_numbers(law),
    )


def _inner_products(law: StepLaw) -> Iterable[str]:
    known = law.step.algebra.space.known
    return (f"<{a},{b}> = {value}" for (a, b), value in known.items() if a != "1")


def _views_without_projection(law: StepLaw) -> Iterable[str]:
    views = law.step.traced.views
    if law.step.algebra.failed and len(views) > 1:
        yield f"no projection acts in any of the views {', '.join(map(str, views))}"


def _entrywise_directions(law: StepLaw) -> Iterable[str]:
    algebra = law.step.algebra
    meanings = {**{str(n): show(m) for n, m in algebra.definitions.items()}, **algebra.opaque}
    for atom, origin in algebra.opaque.items():
        if atom in law.drive.terms:
            yield f"{atom} = {_spell_out(origin, meanings)}: the law holds for any vector {atom}"


def _spell_out(text: str, meanings: Mapping[str, str]) -> str:
    """`text` with each name replaced by its meaning."""
    while names := [n for n in meanings if re.search(rf"\b{n}\b", text)]:
        text = re.sub(rf"\b{names[0]}\b", lambda _: meanings[names[0]], text)
    return text


def _cases(law: StepLaw) -> Iterable[str]:
    formulas = sp.Tuple(law.kappa, law.cross, *law.recursion.values(), *law.drive.terms.values())
    for name, meaning in law.step.algebra.definitions.items():
        if name in formulas.free_symbols or meaning.has(sp.Piecewise):
            yield f"{name} is {show(meaning)}"


def _intervals(law: StepLaw) -> Iterable[str]:
    traced = law.step.traced
    used = sp.Tuple(*law.step.weight.terms.values(), law.cross, *law.recursion.values())
    for name, interval in traced.intervals.items():
        if name in traced.symbols and (interval != ANY or used.has(traced.symbols[name])):
            yield f"{name} in {interval}"


def _held_numbers(law: StepLaw) -> Iterable[str]:
    for name, value in law.step.traced.held.items():
        if is_number(value):
            yield f"{name} = {value}"
        elif isinstance(value, Tensor):
            yield f"{name} = {value.tolist()}"
