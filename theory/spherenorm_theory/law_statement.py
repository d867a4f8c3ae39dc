r"""A law as a paper states it, in text of 80 columns and in LaTeX.

| heading | what it holds |
|---|---|
| Setting | the unit, the dimension, the hyper-parameters and their open intervals |
| Assume | the hypotheses that the claims use |
| Where | what letters stand for |
| Then | the step, the norm, the cross term, its recursion |
| Closed form | the norm as a sum over the steps, and what that needs beside |
| Status | how it was shown, and what stays open |
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import sympy as sp
from torch import Tensor

from spherenorm import rules as r
from spherenorm_theory.claim import Claim, Hypothesis, Kind
from spherenorm_theory.hyper_parameters import is_number
from spherenorm_theory.opaque_rules import RANK, SCALE, SHARE, squared_singular_range
from spherenorm_theory.printing import SHORT, Part, Phrase, Statement, names_in, pieces
from spherenorm_theory.symbols import DIMENSION, Norm, Vector, at, map_formulas
from spherenorm_theory.tracing import ANY
from spherenorm_theory.vectors import OpaqueVector

if TYPE_CHECKING:  # norm_law verifies its laws with this module
    from spherenorm_theory.norm_law import NormLaw

TIME = sp.Symbol("t", integer=True, nonnegative=True)


def proposition(
    law: NormLaw,
    claims: Sequence[Claim],
    hypotheses: Sequence[Hypothesis],
    note: str,
    closed_form_verified: bool,
) -> Statement:
    """The statement of a law.

    Args:
        law: the law.
        claims: all that it says.
        hypotheses: those that it needs.
        note: the units that it is about.
        from_start: whether it holds from the first step on.
    """
    used = _letters_of(law, claims)
    entrywise = any(n in law.step.algebra.opaque_vectors and n[0] in "ue" for n in used)
    where = "Where (entry by entry; the law holds for any such vectors)" if entrywise else "Where"
    closed = [c for c in claims if c.kind is Kind.INDUCTION]
    then = [*_step_lines(law), *(c.relation for c in claims if c not in closed)]
    parts = [
        Part("Setting", setting(law, note)),
        Part("Assume", tuple(_at_time_t(law, each) for each in hypotheses)),
        *([Part(where, tuple(_meaning(law, name) for name in used), True)] if used else []),
        Part("Then", tuple(then), True),
    ]
    for claim in closed:
        held = [
            x
            for n, each in enumerate(law.closed_form_hypotheses)
            for x in ("; " * bool(n), *pieces(each))
        ]
        heading = ("Closed form (", *held, ")") if held else "Closed form"
        parts.append(Part(heading, (claim.relation,), True))
    parts.append(Part("Status", (_status(law, claims, closed_form_verified),)))
    return Statement("Proposition", law.name, tuple(parts))


def _at_time_t(law: NormLaw, x: Any) -> Any:
    """A phrase at time t, with the numbers that the law holds."""
    entered = law.with_given_numbers(x)
    return map_formulas(
        entered.formula if isinstance(entered, Vector) else entered, lambda each: at(each, TIME)
    )


def setting(law: NormLaw, note: str) -> tuple[Phrase, ...]:
    """The unit, the open intervals of hyper-parameters, and those that are held."""
    traced, w = law.step.traced, sp.Symbol("w")
    unit: Phrase = (w, " is one unit of a weight, of ", DIMENSION, f" entries ({note})")
    if any(isinstance(x, r.Orthogonalize) for x in traced.opaque_rules):
        unit = (w, f" is one matrix ({note})")
    found, used = [unit], sp.Tuple(*law.step.weight.values(), law.kappa).free_symbols
    for name, symbol in traced.symbolic.items():
        if traced.intervals[name] != ANY or symbol in used:
            short = name in SHORT and SHORT[name] not in {*traced.symbolic, *traced.fixed_values}
            found.append((symbol, f" = {name}" * short, f" in {traced.intervals[name]}"))
    for name, value in traced.fixed_values.items():
        if is_number(value) or isinstance(value, Tensor):
            shown = value.tolist() if isinstance(value, Tensor) else f"{value:g}"
            # As a symbol, a held beta keeps momentum from being printed as beta.
            shortens = name in SHORT.values()
            found.append((sp.Symbol(name), f" = {shown}") if shortens else f"{name} = {shown}")
    return tuple(found)


def _step_lines(law: NormLaw) -> Iterator[Phrase]:
    w, s = (sp.IndexedBase(name) for name in "ws")
    if law.constant:
        yield w[TIME + 1], " = ", _at_time_t(law, law.step.weight)
        return
    yield w[TIME + 1], " = ", at(Vector({"w": law.retention, "s": sp.S.One}).formula, TIME)
    yield s[TIME], " = ", _at_time_t(law, law.drive)


def _letters_of(law: NormLaw, claims: Sequence[Claim]) -> list[str]:
    """The letters that the printed formulas hold, and those within their meanings."""
    algebra, cases = law.step.algebra, {s.name: x for s, x in law.step.facts.open_branches.items()}
    parts: dict[str, list[Any]] = {
        **{name: [whole] for name, whole in algebra.combinations.items()},
        **{name: [made.formula] for name, made in algebra.opaque_vectors.items()},
        **{name: [case] for name, case in cases.items()},
    }
    shown = [law.drive, law.step.weight] if law.constant else [law.drive]
    waiting, used = [*shown, *(c.relation for c in claims), law.cross], set[str]()
    while waiting:
        new = {*names_in(waiting.pop())} & parts.keys() - used
        used |= new
        waiting += [x for name in new for x in parts[name]]
    return [name for name in parts if name in used]


def _meaning(law: NormLaw, name: str) -> Phrase:
    """A letter and what it stands for: p_t = beta m_t + g_t."""
    algebra, letter = law.step.algebra, sp.IndexedBase(name)[TIME]
    if name in algebra.combinations:
        return letter, " = ", _at_time_t(law, algebra.combinations[name])
    if name in algebra.opaque_vectors:
        made = algebra.opaque_vectors[name]
        return letter, " = ", _at_time_t(law, made.formula), *_note(made)
    (case,) = (x for s, x in law.step.facts.open_branches.items() if s.name == name)
    (first, condition), (second, _) = case.args
    return letter, " = ", *_at_time_t(law, (first, " where ", condition, ", else ", second))


def _note(made: OpaqueVector) -> Iterator[Any]:
    """The facts about the letter of a rule."""
    rule = made.rule
    if isinstance(rule, r.Graft):
        yield ", as long as its argument"
    elif isinstance(rule, r.StiefelProjection):
        yield ", the part that is tangent to the Stiefel manifold"
    elif isinstance(rule, r.Orthogonalize):
        low, high = squared_singular_range(rule)
        yield ", orthogonal, of degree 0; "
        yield sp.Eq(Norm("O") ** 2, SCALE**2 * SHARE * RANK, evaluate=False)
        yield (
            f", c by the shape ({rule.scale}), q in [{low:.2f}, {high:.2f}] for this iteration, "
            "1 for an exact factor"
        )


def _status(law: NormLaw, claims: Sequence[Claim], closed_form_verified: bool) -> Phrase:
    shown = "read off the record of the step, and held against its code in float64"
    if law.open_because:
        reason = law.open_because.rpartition("; so ")[0]
        return f"the norm is an identity in s, and the cross term is open ({reason})"
    if any(claim.kind is Kind.INDUCTION for claim in claims):
        return f"{shown}; the closed form is proved by induction over t"
    if law.constant or law.cross == 0:
        return shown
    why = "it has several unknowns, or factors that change from step to step"
    if not closed_form_verified and law.growth is not None:
        why = "the first step is of another kind"
    elif any(law.recursion[u].has(Norm("w")) for u in law.unknowns):
        why = "the norm enters the recursion"
    return f"{shown}; no closed form: {why}"
