r"""A law as a paper states it, in text of 80 columns and in LaTeX.

A sentence says first how the norm grows. Then come, each under its heading,

| heading | contents |
|---|---|
| Setting | the unit, and the hyper-parameters that are used, with their open intervals |
| Assume | the hypotheses of the claims |
| Where | the meaning of letters |
| Then | the step, the norm, the cross term and its recursion |
| Closed form | the norm as a sum over the steps, and what it assumes |
| Status | how the law was shown, and what stays open |
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import sympy as sp
from torch import Tensor

from spherenorm import rules as r
from spherenorm_theory.claim import Kind
from spherenorm_theory.hyper_parameters import is_number
from spherenorm_theory.opaque_rules import RANK, SCALE, SHARE, squared_singular_range
from spherenorm_theory.printing import (
    SHORT,
    Part,
    Phrase,
    Statement,
    formulas,
    joined,
    names_in,
)
from spherenorm_theory.symbols import DIMENSION, Inner, Norm, Vector, at, map_formulas, t
from spherenorm_theory.tracing import ANY
from spherenorm_theory.vectors import OpaqueVector

if TYPE_CHECKING:  # norm_law imports this module
    from spherenorm_theory.norm_law import NormLaw


def law_statement(law: NormLaw) -> Statement:
    """Return the statement of a law."""
    return Statement(
        "Proposition",
        law.name,
        (
            Part("Setting", setting(law)),
            *_law_parts(law),
            Part("Status", (_status(law),)),
        ),
        summary=_summary(law),
    )


def _law_parts(law: NormLaw) -> list[Part]:
    """Return the parts between Setting and Status."""
    closed = [claim for claim in law.claims if claim.kind is Kind.INDUCTION]
    relations = [claim.relation for claim in law.claims if claim not in closed]
    parts = [Part("Assume", tuple(_at_time_t(law, x) for x in law.hypotheses))]
    letters = _letters_used(law)
    if letters:
        opaque = law.step.algebra.opaque_vectors
        entrywise = any(x in opaque and opaque[x].kind.is_entrywise for x in letters)
        note = " (entry by entry; the law holds for any such vectors)" if entrywise else ""
        meanings = tuple(_meaning(law, letter) for letter in letters)
        parts.append(Part(f"Where{note}", meanings, displayed=True))
    parts.append(Part("Then", (*_step_lines(law), *relations), displayed=True))
    for claim in closed:
        assumed = joined(law.closed_form_hypotheses, "; ")
        heading = ("Closed form (", *assumed, ")") if assumed else "Closed form"
        parts.append(Part(heading, (claim.relation,), displayed=True))
    return parts


def _at_time_t(law: NormLaw, phrase: Any) -> Any:
    """Return a phrase at time t, with the numbers that were given."""
    phrase = law.with_given_numbers(phrase)
    formula = phrase.formula if isinstance(phrase, Vector) else phrase
    return map_formulas(formula, lambda x: at(x, t))


def _summary(law: NormLaw) -> Phrase:
    """Say in one sentence how the norm changes."""
    if law.length == Norm("w"):
        return "Each step keeps the norm."
    if law.length is not None:
        return "Each step sets the norm to ", law.length, "."
    if law.open_because:
        return (
            "The step's own length adds to the norm, and so does ",
            *(_drift(law), ", which no formula predicts."),
        )
    decay: tuple[Any, ...] = ()
    if law.kappa != 0:
        decay = ("Decay multiplies the norm by ", law.retention, ". ")
    if law.cross == 0:
        momentum = "; momentum adds nothing" if law.step.buffers else ""
        return *decay, f"The norm grows by the step's own length alone{momentum}."
    source = "Momentum" if law.unknowns else "The radial part of the step"
    drift = law.equation.rhs - law.retention**2 * Norm("w") ** 2 - Norm("s") ** 2
    if len(sp.Add.make_args(drift)) > 2:
        drift = _drift(law)
    return *decay, f"{source} adds ", drift, " to the growth of |w|^2 by the step's own length."


def _drift(law: NormLaw) -> sp.Expr:
    """Return 2 (1 - kappa) <w, s>, in these factors."""
    factors = [x for x in (*sp.Mul.make_args(law.retention), Inner("w", "s")) if x != 1]
    return sp.Mul(2, *factors, evaluate=False)


def setting(law: NormLaw) -> tuple[Phrase, ...]:
    """Return the unit, and the hyper-parameters that the law uses or that have fixed values."""
    traced, w = law.step.traced, sp.Symbol("w")
    phrases = [phrase for part in _law_parts(law) for phrase in (part.heading, *part.phrases)]
    used = {symbol for x in formulas(*phrases, _summary(law)) for symbol in x.free_symbols}
    note = law.verified_domain.note
    unit: Phrase = (w, f" is one unit of a weight ({note})")
    if DIMENSION in used:
        unit = (w, " is one unit of a weight, of ", DIMENSION, f" entries ({note})")
    if any(isinstance(rule, r.Orthogonalize) for rule in traced.opaque_rules):
        unit = (w, f" is one matrix ({note})")
    lines = [unit]
    for name, symbol in traced.symbolic.items():
        if symbol in used:
            is_printed_short = SHORT.get(name, name) not in {*traced.symbolic, *traced.fixed_values}
            long_name = f" = {name}" if name in SHORT and is_printed_short else ""
            interval = traced.intervals[name]
            lines.append((symbol, f"{long_name} in {interval}" if interval != ANY else long_name))
    for name, value in traced.fixed_values.items():
        if is_number(value) or isinstance(value, Tensor):
            number = value.tolist() if isinstance(value, Tensor) else f"{value:g}"
            # As a symbol, a fixed beta keeps momentum from being printed as beta.
            is_short_name = name in SHORT.values()
            lines.append(
                (sp.Symbol(name), f" = {number}") if is_short_name else f"{name} = {number}"
            )
    return tuple(lines)


def _step_lines(law: NormLaw) -> Iterator[Phrase]:
    """Yield the new weight and the drive s, each as a line."""
    w, s = (sp.IndexedBase(name) for name in "ws")
    if law.constant:
        yield w[t + 1], " = ", _at_time_t(law, law.step.weight)
        return
    name = "the step without decay" if law.kappa != 0 else "the step"
    yield w[t + 1], " = ", at(Vector({"w": law.retention, "s": sp.S.One}).formula, t)
    yield s[t], " = ", _at_time_t(law, law.drive), f", {name}"


def _letters_used(law: NormLaw) -> list[str]:
    """Return the letters in the printed formulas, and those in their meanings."""
    algebra = law.step.algebra
    meanings: dict[str, Any] = {
        **algebra.combinations,
        **{name: opaque.formula for name, opaque in algebra.opaque_vectors.items()},
        **{symbol.name: x for symbol, x in law.step.facts.open_branches.items()},
        **{symbol.name: symbol for symbol in law.step.facts.scheduled},
    }
    printed = [law.drive, law.cross, *(claim.relation for claim in law.claims)]
    to_visit, used = [*printed, *([law.step.weight] if law.constant else [])], set[str]()
    while to_visit:
        new = {*names_in(to_visit.pop())} & meanings.keys() - used
        used |= new
        to_visit += [meanings[name] for name in new]
    return [name for name in meanings if name in used]


def _meaning(law: NormLaw, name: str) -> Phrase:
    """Return a letter and what it stands for: p_t = beta m_t + g_t."""
    algebra, letter = law.step.algebra, sp.IndexedBase(name)[t]
    if name in algebra.combinations:
        return letter, " = ", _at_time_t(law, algebra.combinations[name])
    if name in algebra.opaque_vectors:
        opaque = algebra.opaque_vectors[name]
        return letter, " = ", _at_time_t(law, opaque.formula), *_known_facts(opaque)
    if name in {symbol.name for symbol in law.step.facts.scheduled}:
        return letter, f", the schedule of {name} at the step number t + 1"
    branches = law.step.facts.open_branches
    (choice,) = (x for symbol, x in branches.items() if symbol.name == name)
    (value, condition), (default, _) = choice.args
    return letter, " = ", *_at_time_t(law, (value, " where ", condition, ", else ", default))


def _known_facts(opaque: OpaqueVector) -> Iterator[Any]:
    """Yield what is known of an opaque vector."""
    rule = opaque.rule
    if isinstance(rule, r.KeepNorm):
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


def _status(law: NormLaw) -> str:
    """Say how the law was shown, and what stays open."""
    if law.open_because:
        reason = law.open_because.rpartition("; so ")[0]
        return f"The norm is an identity in s, and the cross term is open ({reason})"
    derived = "Derived from the recorded step, and compared with its code in float64"
    if any(claim.kind is Kind.INDUCTION for claim in law.claims):
        return f"{derived}; the closed form is proved by induction over t"
    if law.constant or (law.cross == 0 and not law.step.facts.scheduled):
        return derived
    why = "it has several unknowns, or factors that change from step to step"
    scheduled = sorted(symbol.name for symbol in law.step.facts.scheduled)
    if scheduled:
        verb = "change" if len(scheduled) > 1 else "changes"
        why = f"{' and '.join(scheduled)} {verb} from step to step"
    elif not law.verified_domain.closed_form_verified and law.growth is not None:
        why = "the first step is of another kind"
    elif any(law.recursion[unknown].has(Norm("w")) for unknown in law.unknowns):
        why = "the norm enters the recursion"
    return f"{derived}; no closed form: {why}"
