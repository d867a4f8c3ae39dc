r"""A law as a paper states it, in text of 80 columns and in LaTeX.

A sentence says first how the norm grows. Then come, each under its heading,

| heading | contents |
|---|---|
| Setting | the unit, the state, and the hyper-parameters that are used, with their open intervals |
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
import torch
from torch import Tensor

from spherenorm import rules as r
from spherenorm_theory.claim import ProofKind
from spherenorm_theory.hyper_parameters import is_number
from spherenorm_theory.opaque_rules import squared_singular_range
from spherenorm_theory.printing import (
    SHORT,
    Part,
    Phrase,
    Proposition,
    enumerated,
    formulas,
    joined,
    names_in,
)
from spherenorm_theory.symbols import DIMENSION, Inner, Norm, Vector, at, map_formulas, t
from spherenorm_theory.tracing import ANY
from spherenorm_theory.vectors import OpaqueVector

if TYPE_CHECKING:  # norm_law imports this module
    from spherenorm_theory.norm_law import NormLaw


def state_law(law: NormLaw) -> Proposition:
    """Return the proposition of a law."""
    return Proposition(
        "Proposition",
        law.name,
        (
            Part("Setting", describe_setting(law)),
            *_law_parts(law),
            Part("Status", (_describe_status(law),)),
        ),
        summary=_summarize(law),
    )


def _law_parts(law: NormLaw) -> list[Part]:
    """Return the parts between Setting and Status."""
    closed = [claim for claim in law.claims if claim.kind is ProofKind.INDUCTION]
    relations = [claim.relation for claim in law.claims if claim not in closed]
    parts = [Part("Assume", tuple(_at_time_t(law, x) for x in law.hypotheses))]
    letters = _letters_used(law)
    if letters:
        opaque = law.step.algebra.opaque_vectors
        entrywise = [x for x in letters if x in opaque and opaque[x].kind.is_entrywise]
        note = f", entry by entry (the law holds for any {', '.join(entrywise)})"
        meanings = tuple(_meaning(law, letter) for letter in letters)
        parts.append(Part(f"Where{note if entrywise else ''}", meanings, displayed=True))
    parts.append(Part("Then", (*_step_lines(law), *relations), displayed=True))
    for claim in closed:
        assumed = joined(law.closed_form_hypotheses, "; ")
        heading = ("Closed form (", *assumed, ")") if assumed else "Closed form"
        parts.append(Part(heading, (claim.relation,), displayed=True))
    return parts


def _at_time_t(law: NormLaw, phrase: Any) -> Any:
    """Return a phrase at time t, with the numbers that were given."""
    phrase = law.substitute_given_numbers(phrase)
    formula = phrase.formula if isinstance(phrase, Vector) else phrase
    return map_formulas(formula, lambda x: at(x, t))


# The sentence that comes first


def _summarize(law: NormLaw) -> Phrase:
    """Say in one or two sentences how the norm changes."""
    if law.new_norm == Norm("w"):
        return "Each step keeps the norm."
    if law.new_norm is not None:
        return "Each step sets the norm to ", law.new_norm, "."
    decay, squared_step = _describe_decay(law), Norm("s") ** 2
    grows = (*decay, Norm("w") ** 2, " then grows by " if decay else " grows by ")
    if law.open_because:
        drift = sp.Mul(2, *_retention_factors(law), Inner("w", "s"), evaluate=False)
        growth = sp.Add(squared_step, drift, evaluate=False)
        return *grows, growth, "; ", Inner("w", "s"), " has to be measured."
    if law.cross == 0:
        momentum = "; momentum adds nothing" if law.step.buffers else ""
        return *grows, squared_step, f", the squared length of the step{momentum}."
    source = "momentum" if law.required_products else "the part of the step along w"
    cross = Inner("w", "s") if law.cross.is_Add else law.cross
    number, factors = cross.as_coeff_mul()
    drift = sp.Mul(2 * number, *_retention_factors(law), *factors, evaluate=False)
    step = (squared_step, ", the squared length of the step, and by ")
    return *grows, *step, drift, f" from {source}."


def _is_decay(law: NormLaw) -> bool:
    """Tell if the factor 1 - kappa of the weight is 1 at a learning rate of 0."""
    rates = {x: 0 for x in law.retention.free_symbols if x.name == "lr"}
    return not rates or law.retention.subs(rates) == 1


def _describe_decay(law: NormLaw) -> tuple[Any, ...]:
    """Say what multiplies the weight; nothing if the step only adds to it."""
    if law.kappa == 0:
        return ()
    if _is_decay(law):
        return "Decay multiplies the norm by ", law.retention, ". "
    return "The step multiplies w by ", law.retention, " and adds s. "


def _retention_factors(law: NormLaw) -> list[sp.Expr]:
    """Return the factors of 1 - kappa, none of which is 1."""
    return [x for x in sp.Mul.make_args(law.retention) if x != 1]


# Setting


def describe_setting(law: NormLaw) -> tuple[Phrase, ...]:
    """Return the unit, the state, and the hyper-parameters that are used or have fixed values."""
    traced, w = law.step.traced, sp.Symbol("w")
    phrases = [phrase for part in _law_parts(law) for phrase in (part.heading, *part.phrases)]
    printed = formulas(*phrases, _summarize(law))
    used = {symbol for x in printed for symbol in x.free_symbols}
    unit = law.verified_domain.unit
    if any(isinstance(rule, r.Orthogonalize) for rule in traced.opaque_rules):
        unit = unit.replace("weight", "weight, a matrix")
    entries = (", of ", DIMENSION, " entries") if DIMENSION in used else ()
    lines: list[Phrase] = [(w, f" is {unit}", *entries)]
    lines += _describe_states(law, {name for x in printed for name in names_in(x)})
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


def _describe_states(law: NormLaw, used_names: set[str]) -> Iterator[Phrase]:
    """Yield the states in the printed formulas: those of each step, then the constant ones."""
    step = law.step
    changing, constant = list[Any](), list[Phrase]()
    for name, atom in step.state_atoms.items():
        if atom not in used_names or atom == "t":
            continue
        symbol = step.scalars.get(atom, sp.Symbol(atom))
        if step.states.get(atom) == symbol:
            constant.append((symbol, _describe_constant_state(law, name)))
        else:
            changing.append((symbol, f" ({name})" if name != atom else ""))
    if changing:
        yield "the state before step t has ", *enumerated(changing)
    yield from constant


def _describe_constant_state(law: NormLaw, name: str) -> str:
    """Describe a number of the state that no step changes, by the rule's `init`."""
    traced = law.step.traced
    generator = torch.Generator().manual_seed(0)
    for scale in (1.0, 3.0):
        weight = scale * torch.randn(traced.shape, dtype=torch.float64, generator=generator)
        state = traced.recipe(**traced.hyper_parameters).init(weight)
        if not torch.allclose(state[name].double(), weight.norm(), rtol=1e-12):
            return ", a number of the state that no step changes"
    return " = |w_0|"


# Where and Then


def _step_lines(law: NormLaw) -> Iterator[Phrase]:
    """Yield the new weight and the drive s, each as a line."""
    w, s = (sp.IndexedBase(name) for name in "ws")
    if law.sets_norm:
        yield w[t + 1], " = ", _at_time_t(law, law.step.weight)
        return
    name = "the step"
    if law.kappa != 0:
        name = "the step without decay" if _is_decay(law) else "the rest of the step"
    yield w[t + 1], " = ", at(law.retention, t) * w[t] + s[t]
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
    to_visit, used = [*printed, *([law.step.weight] if law.sets_norm else [])], set[str]()
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
        return letter, " = ", _at_time_t(law, opaque.formula), *_known_facts(name, opaque)
    if name in {symbol.name for symbol in law.step.facts.scheduled}:
        return letter, f", the schedule of {name} at the step number t + 1"
    branches = law.step.facts.open_branches
    (choice,) = (x for symbol, x in branches.items() if symbol.name == name)
    (value, condition), (default, _) = choice.args
    return letter, " = ", *_at_time_t(law, (value, " where ", condition, ", else ", default))


def _known_facts(name: str, opaque: OpaqueVector) -> Iterator[Any]:
    """Yield what is known of an opaque vector with this name."""
    rule = opaque.rule
    if isinstance(rule, r.KeepNorm):
        yield ", as long as its argument"
    elif isinstance(rule, r.StiefelProjection):
        yield ", the part that is tangent to the Stiefel manifold"
    elif isinstance(rule, r.Orthogonalize):
        low, high = squared_singular_range(rule)
        yield ", the orthogonal factor of its argument, whatever the argument's scale; "
        yield sp.Eq(Norm(name) ** 2, opaque.square, evaluate=False)
        yield f", where c depends on the shape (scale={rule.scale!r}), and q is 1 for an exact "
        yield f"factor and between {low:.2f} and {high:.2f} after these Newton-Schulz steps"


# Status


def _describe_status(law: NormLaw) -> Phrase:
    """Say how the law was shown, and what stays open."""
    if law.open_because:
        reason = law.open_because.rpartition("; so ")[0]
        return f"The norm is an identity in s, and the cross term is open ({reason})"
    derived = "Derived from the recorded step, and compared with its code in float64"
    if any(claim.kind is ProofKind.INDUCTION for claim in law.claims):
        return f"{derived}; the closed form is proved by induction over t"
    if law.sets_norm or (law.cross == 0 and not law.step.facts.scheduled):
        return derived
    scheduled = sorted(symbol.name for symbol in law.step.facts.scheduled)
    if scheduled:
        verb = "change" if len(scheduled) > 1 else "changes"
        return f"{derived}; no closed form: {' and '.join(scheduled)} {verb} from step to step"
    if not law.verified_domain.closed_form_verified and law.cross_recursion is not None:
        return f"{derived}; no closed form: the first step is of another kind"
    for product in sorted(law.required_products, key=str):
        if law.recursion[product].has(Norm("w")):
            square = at(Norm("w"), t) ** 2
            return (
                f"{derived}; no closed form, since ",
                square,
                " enters the recursion of ",
                product,
            )
    return (
        f"{derived}; no closed form: it has several unknowns, or factors that change from step to "
        "step"
    )
