"""A step of a recipe on symbols: the new weight and states as combinations of the old ones.

`one_step` interprets the recorded step on formal vectors: the weight is the atom w, the gradient is
g, and each state has an atom of its own (m for a momentum, v for a second moment).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import sympy as sp
import torch

from spherenorm import Recipe
from spherenorm_theory.claim import Hypothesis
from spherenorm_theory.facts import Facts
from spherenorm_theory.interpreter import interpret
from spherenorm_theory.symbols import (
    MAX_READABLE_OPS,
    GrowthError,
    Inner,
    Norm,
    Vector,
    at,
    canonical_form,
    t,
)
from spherenorm_theory.tracing import RESERVED, Trace, trace
from spherenorm_theory.vectors import VectorAlgebra

STATE_LETTERS = {
    "momentum": "m",
    "momentum_buffer": "m",
    "exp_avg": "m",
    "exp_avg_sq": "v",
    "square_avg": "v",
    "step": "t",
}
"""The paper's letters for the states of the library's rules; another state keeps its name."""

NEXT_WEAKER_SIGN = {"positive": "nonnegative", "nonnegative": "real"}
"""The assumption to try next about the sign of a scalar state."""

W, S = Norm("w") ** 2, Norm("s") ** 2
"""The squared norms of the weight w and of the drive s, the part of a step that is not decay."""

GAMMA = sp.Symbol("gamma", positive=True)
"""The norm of the gradient at |w| = 1: a scale-invariant function has |g| = gamma / |w|."""


@dataclass(frozen=True, eq=False)
class Step:
    """The weight and the states after one step, from (w, states) and the gradient g.

    Attributes:
        weight: the weight after the step, w'.
        states: the states after the step, by the atoms that they were before; vectors or scalars.
        algebra: the vector algebra, with the inner products and hypotheses of the step.
        traced: the recorded step that was interpreted.
        scalars: symbols of the states that are one number, by their atoms.
        state_atoms: the atom of each state, by the name of the state.

    Example:
        >>> step = one_step("sgd", momentum=0.0, weight_decay=0.0, dampening=0.0)
        >>> print(show(step.weight), "and |w'|^2 =", show(step.inner(step.weight, step.weight)))
        w - lr g and |w'|^2 = |w|^2 + lr^2 |g|^2
    """

    weight: Vector
    states: Mapping[str, Vector | sp.Expr]
    algebra: VectorAlgebra
    traced: Trace
    scalars: Mapping[str, sp.Symbol]
    state_atoms: Mapping[str, str]

    @property
    def facts(self) -> Facts:
        """Facts and hypotheses about the scalars."""
        return self.algebra.facts

    def inner(self, a: Vector, b: Vector) -> sp.Expr:
        """Return <a, b> in canonical form; named norms stay where they keep it shorter."""
        short = canonical_form(self.algebra.inner(a, b))
        atoms = {atom for x in short.atoms(Norm, Inner) for atom in (x.a, getattr(x, "b", x.a))}
        if atoms.isdisjoint(self.algebra.combinations):
            return short
        try:
            expanded = self.algebra.expand_and_simplify(short, MAX_READABLE_OPS)
        except GrowthError:
            return short
        return expanded if sp.count_ops(expanded) <= sp.count_ops(short) else short

    @property
    def after(self) -> dict[str, Any]:
        """The weight and the states after the step, each by its atom before it."""
        return {"w": self.weight, **self.states}

    @property
    def buffers(self) -> tuple[str, ...]:
        """The momenta: states that are linear combinations of earlier gradients.

        With a preconditioner, they are combinations of the vectors that it made of the gradients.
        """
        opaque_atoms = {self.state_atoms[name] for name in self.traced.opaque_states}
        buffers = []
        for atom, value in self.states.items():
            if not isinstance(value, Vector) or atom in opaque_atoms:
                continue
            expanded = self.algebra.expand_names(value, canonical=True)
            if not any(map(self.algebra.is_magnitude, expanded)):
                buffers.append(atom)
        return tuple(buffers)

    @property
    def counters(self) -> tuple[str, ...]:
        """The states that are one number for the whole weight and change, as a step count does."""
        atoms = (self.state_atoms[name] for name in self.traced.counters)
        return tuple(a for a in atoms if self.states.get(a) != self.scalars.get(a))

    @property
    def constants(self) -> set[sp.Symbol]:
        """The symbols of hyper-parameters and counters, and open branches of these alone."""
        atoms = (self.state_atoms[name] for name in self.traced.counters)
        counters = (self.scalars[atom] for atom in atoms if atom in self.scalars)
        constants = {*self.traced.symbols.values(), *counters}
        for symbol, meaning in self.facts.open_branches.items():
            if meaning.free_symbols <= constants:
                constants.add(symbol)
        return constants

    @property
    def hypotheses(self) -> tuple[Hypothesis, ...]:
        """The assumptions of the step: <w, g> = 0, and those of its decisions."""
        products = [
            sp.Eq(Inner(a, b), value, evaluate=False)
            for (a, b), value in self.algebra.given_products.items()
            if self.algebra.combinations.keys().isdisjoint((a, b))
        ]
        decisions = [
            (relation, consequence) if consequence else relation
            for relation, consequence in self.facts.hypotheses.items()
        ]
        return (*products, *decisions)


def name_state_atoms(traced: Trace) -> dict[str, str]:
    """Return the atom of each state: its letter, unless another symbol has this name."""
    letters = {name: _identifier(STATE_LETTERS.get(name, name)) for name in traced.states}
    reserved = {*RESERVED, *traced.symbols, *(s.name for s in traced.symbols.values())} - {"t"}
    atoms: dict[str, str] = {}
    for name, letter in letters.items():
        is_unique = [*letters.values()].count(letter) == 1
        longer_names = (_identifier(name) + "_state" * n for n in itertools.count())
        for candidate in itertools.chain([letter] * is_unique, longer_names):
            is_used = candidate in reserved or candidate in atoms.values()
            is_other_state = candidate != letter and candidate in letters
            is_step_count = candidate == "t" and name != "step"
            if not (is_used or is_other_state or is_step_count):
                atoms[name] = candidate
                break
    return atoms


def _identifier(name: str) -> str:
    return re.sub(r"\W", "_", name) or "state"


def one_step(
    recipe: str | Recipe | Trace,
    *,
    scale_invariant: bool = True,
    orthogonal: tuple[tuple[str, str], ...] = (),
    mean_field: bool = False,
    settled: Mapping[str, sp.Expr] | None = None,
    **hyper_parameters: Any,
) -> Step:
    """Return the step of `recipe` on symbols, from any state that earlier steps can leave.

    A scalar state is first assumed to be positive. As long as the step does not preserve a sign, it
    is interpreted again with a weaker one. A scalar state that no step changes has the value that
    `init` returns.

    Args:
        recipe: a recipe, its registered name, "module:function", or a trace.
        scale_invariant: put <w, g> = 0. Otherwise <w, g> is a general number, and a
            scale-invariance test is false.
        orthogonal: further pairs of atoms whose product is 0, such as ("w", "m").
        mean_field: replace entrywise products by their means; see
            `spherenorm_theory.vectors.VectorAlgebra`.
        settled: the scalar states that have settled after many steps, each with its number.
        **hyper_parameters: values at which hyper-parameters are fixed.

    Raises:
        ValueError: no such recipe or hyper-parameter.
        TraceError: the step cannot be traced, or an operation has no rule on formal vectors.

    Example:
        >>> print(show(one_step("sgd", weight_decay=0.0, dampening=0.0).weight))
        w - lr beta m - lr g
    """
    traced = trace(recipe, **hyper_parameters)
    scalar_states, products = traced.scalar_states, dict.fromkeys(orthogonal, sp.S.Zero)
    if mean_field:  # an average of squares is one number in the mean field
        linear = one_step(traced, scale_invariant=scale_invariant, settled=settled)
        names = (*scalar_states, *traced.opaque_states)
        other_atoms = {*linear.buffers, *(linear.state_atoms[name] for name in names)}
        averages = [name for name, atom in linear.state_atoms.items() if atom not in other_atoms]
        scalar_states = (*scalar_states, *averages)
    if scale_invariant:
        products["w", "g"] = sp.S.Zero
    signs = _signs_at_start(traced, scalar_states)

    late_values = dict(settled or {})

    def interpret_step(values: Mapping[str, sp.Expr]) -> Step:
        return _interpret(traced, signs, {**values, **late_values}, products, mean_field)

    step = interpret_step({})
    # A momentum of entrywise functions of gradients has no mean that is one number.
    vectors = {name for name in signs if isinstance(step.states[step.state_atoms[name]], Vector)}
    if vectors:
        signs = {name: sign for name, sign in signs.items() if name not in vectors}
        step = interpret_step({})
    while weaker := {
        name: NEXT_WEAKER_SIGN[sign]
        for name, sign in signs.items()
        if name not in late_values and not _preserves_sign(step, name, sign)
    }:
        signs |= weaker
        step = interpret_step({})
    starts = {name: traced.starts[name] for name in traced.scalar_states}
    values = {
        name: value
        for name, value in starts.items()
        if value is not None and name not in late_values
    }
    while values:
        candidate = interpret_step(values)
        unchanged = {
            name: value
            for name, value in values.items()
            if candidate.states[candidate.state_atoms[name]] == value
        }
        if unchanged == values:
            return candidate
        values = unchanged
    return step


def _signs_at_start(traced: Trace, names: tuple[str, ...]) -> dict[str, str]:
    """Return the sign of each scalar state before the first step, which later steps may weaken."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(traced.shape, dtype=torch.float64, generator=generator)
    numbers = {name: torch.tensor(0.5, dtype=torch.float64) for name in traced.symbols}
    state = traced.build(numbers).init(weight)
    signs = {}
    for name in names:
        smallest = float(state[name].min())
        signs[name] = "positive" if smallest > 0 else "nonnegative" if smallest == 0 else "real"
    return signs


def _preserves_sign(step: Step, name: str, sign: str) -> bool:
    """Tell if a scalar state has a sign after each step that has it before."""
    atom, facts = step.state_atoms[name], step.facts
    after = step.states[atom]
    if sign == "real" or after == step.scalars.get(atom):
        return True
    return facts.is_positive(after) if sign == "positive" else facts.is_nonnegative(after)


def _interpret(
    traced: Trace,
    signs: Mapping[str, str],
    values: Mapping[str, sp.Expr],
    products: Mapping[tuple[str, str], sp.Expr],
    mean_field: bool,
) -> Step:
    """Interpret a step from a general state.

    Args:
        traced: the recorded step.
        signs: the sign of each scalar state, by name.
        values: the scalar states that keep their value.
        products: the inner products that are given.
        mean_field: replace entrywise second moments by their means.
    """
    atoms, hyper_parameters = name_state_atoms(traced), traced.symbols.values()
    symbols = {name: sp.Symbol(atoms[name], **{sign: True}) for name, sign in signs.items()}
    facts = Facts(traced.domains, frozenset(symbols.values()))
    facts.other_names = frozenset(atoms.values())
    facts.wg_symbol = None if ("w", "g") in products else Inner("w", "g")
    algebra = VectorAlgebra(
        facts,
        given_products=dict(products),
        reserved_names=frozenset([*atoms.values(), *(s.name for s in hyper_parameters)]),
        mean_field=mean_field,
        opaque_rules=traced.opaque_rules,
    )
    inputs = [*hyper_parameters, Vector.atom("w"), Vector.atom("g")]
    for name in traced.states:
        scalar = values.get(name, symbols.get(name))
        inputs.append(Vector.atom(atoms[name]) if scalar is None else scalar)
    for name, value in values.items():
        words = "at the start" if value == traced.starts[name] else "after many steps"
        facts.add_hypothesis(sp.Eq, symbols[name], value, f", as {words}")
    weight, *states = interpret(traced.record, algebra, inputs)
    after = dict(zip(atoms.values(), states, strict=True))
    scalars = {atoms[name]: symbol for name, symbol in symbols.items()}
    return Step(weight, after, algebra, traced, scalars, atoms)


def express_inner(step: Step, vector: Vector, name: str, a: Vector, b: Vector) -> sp.Expr:
    """Return <a, b> in products of `vector` instead of its newest atom.

    The newest atom is the gradient, or the vector that a preconditioner made of it: neither the
    weight nor a state. |vector| and each <m, vector> are new symbols. Vectors are substituted, not
    scalars, so that the result holds for coefficients of any kind.

    Args:
        step: the step that the vectors belong to.
        vector: the vector in whose products the result is, such as the drive s of the step.
        name: the name of `vector` in the result.
        a: the first vector of the inner product.
        b: the second vector of the inner product.

    Raises:
        GrowthError: the result has more than `MAX_READABLE_OPS` operations.
    """
    vector, a, b = (step.algebra.expand_names(x, canonical=True) for x in (vector, a, b))
    new_atoms = [atom for atom in vector if atom != "w" and atom not in step.states]
    if len(new_atoms) != 1:
        return step.inner(a, b)
    (newest,) = new_atoms
    w, inner = Vector.atom("w"), step.algebra.inner
    products = {**step.algebra.given_products, ("w", name): step.inner(w, vector)}
    for m in step.buffers:
        along_m = step.algebra.expand_and_simplify(inner(Vector.atom(m), vector))
        with_newest = inner(Vector.atom(m), Vector.atom(newest)).free_symbols
        products[m, name] = Inner(m, name) if along_m.free_symbols & with_newest else along_m
    algebra = VectorAlgebra(given_products=products)
    remainder = Vector.atom(name) - vector.without(newest)

    def replace_newest(x: Vector) -> Vector:
        return x.without(newest) + remainder.scaled(x[newest] / vector[newest])

    product = algebra.inner(replace_newest(a), replace_newest(b))
    return step.algebra.expand_and_simplify(product, MAX_READABLE_OPS)


def products_of_record(
    inner: Callable[[Vector, Vector], sp.Expr], vectors: Mapping[str, Vector], formula: sp.Basic
) -> dict[sp.Basic, sp.Basic]:
    """Return the norms and inner products of a formula in the products of the record.

    Args:
        inner: the inner product, in products of the record.
        vectors: the vectors by their names in the formula; a' is a at t + 1.
        formula: a formula in |a|^2 and <a, b>, or in these at the times t and t + 1.
    """
    products: dict[sp.Basic, sp.Basic] = {}
    for x in formula.atoms(sp.Indexed) or formula.atoms(Norm, Inner):
        is_indexed = isinstance(x, sp.Indexed)
        symbol: Any = x.base.label if is_indexed else x
        time: Any = x.indices[0] if is_indexed else t
        if not isinstance(symbol, (Norm, Inner)) or time not in (t, t + 1):
            continue
        prime = "'" if time == t + 1 else ""
        names = [f"{name}{prime}" for name in (symbol.a, getattr(symbol, "b", symbol.a))]
        if all(name in vectors for name in names):
            value = inner(*(vectors[name] for name in names))
            key = x**2 if isinstance(symbol, Norm) else x
            products[key] = at(value, t) if is_indexed else value
    return products
