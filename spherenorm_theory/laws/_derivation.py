"""The derivation of a law from one step on symbols."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace

import sympy as sp

from spherenorm_theory.algebra import Vector, normalize_signs, show
from spherenorm_theory.laws._one_step import OneStep, express_inner
from spherenorm_theory.laws._quantities import S, W, product
from spherenorm_theory.laws._step_law import StepLaw


def derive(step: OneStep, required: Collection[sp.Symbol] = ()) -> StepLaw:
    """The law of a step, with a recursion for each cross term that is required or can be measured.

    Args:
        step: one step on symbols.
        required: cross terms that must have a recursion, even if `cross` does not hold them.
    """
    w, given = Vector.atom("w"), _constants(step)
    kappa = _decay(step, given)
    drive = step.weight - w * (1 - kappa)
    cross = normalize_signs(step.inner(w, drive))
    law = StepLaw(step, kappa, drive, cross, {}, "")
    if law.constant:
        return law
    buffers = {product("w", m): m for m in step.buffers}
    measured = given | {W, S} | {product(m, "s") for m in buffers.values()}
    recursion = {}
    for unknown, buffer in buffers.items():
        after = express_inner(step, drive, "s", step.weight, step.states[buffer])
        after = sp.collect(sp.expand(after), [unknown, W, S], func=normalize_signs)
        can_be_measured = after.free_symbols <= measured | {*buffers}
        if unknown in cross.free_symbols | {*required} or can_be_measured:
            recursion[unknown] = after
    formulas = sp.Tuple(cross, *recursion.values())
    loose = formulas.free_symbols - measured - {*recursion}
    return replace(law, recursion=recursion, open_because=_reason(step, loose))


def _constants(step: OneStep) -> set[sp.Symbol]:
    """The hyper-parameters and the counters, and the names of formulas of these alone."""
    counters = (step.scalars[letter] for letter in step.counters)
    constants = {*step.traced.symbols.values(), *counters}
    for name, meaning in step.facts.definitions.items():
        if meaning.free_symbols <= constants:
            constants.add(name)
    return constants


def _decay(step: OneStep, given: set[sp.Symbol]) -> sp.Expr:
    """kappa: 1 minus the part of w's coefficient that hyper-parameters and counters make."""
    terms = sp.Add.make_args(sp.expand(step.weight["w"]))
    keep = sp.Add(*(term for term in terms if term.free_symbols <= given))
    return normalize_signs(1 - (sp.Integer(1) if keep == 0 else keep))


def _reason(step: OneStep, loose: set[sp.Symbol]) -> str:
    """The reason why the cross term must be measured: symbols that no recursion carries."""
    kinds: dict[str, list[str]] = {}
    for symbol in sorted(loose, key=str):
        meaning = step.facts.definitions.get(symbol)
        undecided = meaning is not None and meaning.has(sp.Piecewise)
        plain = meaning is None or undecided
        kind = "decided anew at each step" if undecided else _kind(step, symbol)
        kinds.setdefault(kind, []).append(str(symbol) if plain else f"{symbol} = {show(meaning)}")
    reasons = [f"{', '.join(symbols)}: {kind}" for kind, symbols in kinds.items()]
    return f"{'; '.join(reasons)}; so <w,s> has to be measured" if reasons else ""


def _kind(step: OneStep, symbol: sp.Symbol) -> str:
    atoms = [atom for atom in step.algebra.opaque if atom in re.split(r"[<>|,]", symbol.name)]
    if not atoms:
        return "not carried by a recursion"
    return f"{', '.join(atoms)} not linear in gradients orthogonal to their weights"
