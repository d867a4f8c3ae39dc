"""One step of a recipe on symbols: the new weight and states as combinations of the old ones.

A record of the step is read on formal vectors: the weight is the atom w, the gradient g, and each
state has a letter of its own (m for a momentum, v for a second moment).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
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
    canonical_form,
)
from spherenorm_theory.tracing import RESERVED, Trace, trace
from spherenorm_theory.vectors import VectorAlgebra

LETTERS = {
    "momentum": "m",
    "momentum_buffer": "m",
    "exp_avg": "m",
    "exp_avg_sq": "v",
    "square_avg": "v",
    "step": "t",
}
"""The paper's letters for the states of the library's rules; a state of another name keeps it."""

WEAKER = {"positive": "nonnegative", "nonnegative": "real"}
"""The fact to try next about a number of the state."""

W, S = Norm("w") ** 2, Norm("s") ** 2
"""The squared norms of the weight, and of the drive s, the part of a step that is not decay."""

GAMMA = sp.Symbol("gamma", positive=True)
"""The norm of the gradient at |w| = 1: a scale-invariant function has |g| = gamma / |w|."""


@dataclass(frozen=True, eq=False)
class Step:
    """The weight and the states after one step, from (w, states) and the gradient g.

    Attributes:
        weight: w', the weight after the step.
        states: the states after the step, by the letter of the atom that each was before: a vector,
            or a number.
        algebra: the algebra of the reading, with the products and the hypotheses.
        traced: the record that was read.
        scalars: the symbols of the states that are one number, by letter.
        letters: the atom of each state, by the name of the state.

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
        """The scalars: facts and hypotheses."""
        return self.algebra.facts

    def inner(self, a: Vector, b: Vector) -> sp.Expr:
        """<a, b> in a form in which 0 is 0; norms of letters stay, unless they are of no use."""
        plain, named = canonical_form(self.algebra.inner(a, b)), self.algebra.combinations
        if not any({x.a, getattr(x, "b", x.a)} & {*named} for x in plain.atoms(Norm, Inner)):
            return plain
        try:
            whole = self.algebra.expand_and_simplify(plain, MAX_READABLE_OPS)
        except GrowthError:
            return plain
        return whole if sp.count_ops(whole) <= sp.count_ops(plain) else plain

    @property
    def after(self) -> dict[str, Any]:
        """The weight and the states after the step, each by its atom before it."""
        return {"w": self.weight, **self.states}

    @property
    def buffers(self) -> tuple[str, ...]:
        """The momenta: states that are combinations of earlier gradients.

        Or of the vectors that a preconditioner made of the gradients.
        """
        entrywise = {a for a in self.algebra.opaque_vectors if a.startswith("e")}
        vectors = {n: v for n, v in self.states.items() if isinstance(v, Vector)}
        inside = {self.state_atoms[name] for name in self.traced.opaque_states}
        kept = {
            n: self.algebra.expand_names_canonical(v) for n, v in vectors.items() if n not in inside
        }
        return tuple(n for n, v in kept.items() if not entrywise & {*v})

    @property
    def counters(self) -> tuple[str, ...]:
        """The states that are one number for the whole weight and change, as the count of steps."""
        found = (self.state_atoms[name] for name in self.traced.counters)
        return tuple(n for n in found if self.states.get(n) != self.scalars.get(n))

    @property
    def constants(self) -> set[sp.Symbol]:
        """The symbols of hyper-parameters and counters, and of open cases of these alone."""
        numbers = (self.state_atoms[name] for name in self.traced.counters)
        counters = (self.scalars[letter] for letter in numbers if letter in self.scalars)
        constants = {*self.traced.symbols.values(), *counters}
        for name, meaning in self.facts.open_branches.items():
            if meaning.free_symbols <= constants:
                constants.add(name)
        return constants

    @property
    def hypotheses(self) -> tuple[Hypothesis, ...]:
        """The premises of the reading: <w, g> = 0, and those of its decisions."""
        known = self.algebra.given_products.items()
        given = [
            sp.Eq(Inner(a, b), x, evaluate=False)
            for (a, b), x in known
            if a not in self.algebra.combinations and b not in self.algebra.combinations
        ]
        made = [(each, so) if so else each for each, so in self.facts.hypotheses.items()]
        return (*given, *made)


def name_state_atoms(traced: Trace) -> dict[str, str]:
    """The atom of each state: its letter, unless something else has it too."""
    wanted = {n: re.sub(r"\W", "_", LETTERS.get(n, n)) or "state" for n in traced.states}
    taken = {*RESERVED, *traced.symbols, *(s.name for s in traced.symbols.values())} - {"t"}
    chosen: dict[str, str] = {}
    for name, letter in wanted.items():
        alone = [*wanted.values()].count(letter) == 1
        plain = re.sub(r"\W", "_", name) or "state"
        longer = (plain + "_state" * n for n in itertools.count())
        chosen[name] = next(
            x
            for x in itertools.chain([letter] * alone, longer)
            if x not in {*taken, *chosen.values()}
            and (x == letter or x not in wanted)
            and (x != "t" or name == "step")
        )
    return chosen


def one_step(
    recipe: str | Recipe | Trace,
    *,
    scale_invariant: bool = True,
    orthogonal: tuple[tuple[str, str], ...] = (),
    mean_field: bool = False,
    **given: Any,
) -> Step:
    """Read the recorded step of `recipe` on formal vectors, from any state that steps can leave.

    A number of the state has the sign that the step gives it: it is taken as positive, and the step
    is read again with fewer facts for as long as the step does not confirm them. One that no step
    changes has the value that `init` returns.

    Args:
        recipe: as for `trace`, or a trace.
        scale_invariant: put <w, g> = 0. Otherwise <w, g> is a general number, and a
            scale-invariance test fails.
        orthogonal: pairs of atoms whose product is put to 0 as well, such as ("w", "m").
        mean_field: replace entrywise products by their means; see
            `spherenorm_theory.vectors.Formal`.
        given: hyper-parameters to hold at a value.

    Raises:
        ValueError: no such recipe or hyper-parameter.
        TraceError: the step cannot be traced, or holds an operation that has no meaning on formal
            vectors.

    Example:
        >>> print(show(one_step("sgd", weight_decay=0.0, dampening=0.0).weight))
        w - lr beta m - lr g
    """
    traced = trace(recipe, **given)
    names, known = traced.scalar_states, dict.fromkeys(orthogonal, sp.S.Zero)
    if mean_field:  # then an average of squares is one number, too
        linear = one_step(traced, scale_invariant=scale_invariant)
        other = {*linear.buffers, *(linear.state_atoms[n] for n in (*names, *traced.opaque_states))}
        names = (*names, *(n for n, letter in linear.state_atoms.items() if letter not in other))
    if scale_invariant:
        known["w", "g"] = sp.S.Zero
    signs = _signs_at_start(traced, names)

    def read(values: Mapping[str, sp.Expr]) -> Step:
        return _read(traced, signs, values, known, mean_field)

    step = read({})
    # A momentum of entrywise functions of gradients has no mean that is one number.
    if vectors := {n for n in signs if isinstance(step.states[step.state_atoms[n]], Vector)}:
        signs = {n: sign for n, sign in signs.items() if n not in vectors}
        step = read({})
    while weaker := {n: WEAKER[s] for n, s in signs.items() if not _keeps(step, n, s)}:
        signs |= weaker
        step = read({})
    values = {n: x for n in traced.scalar_states if (x := traced.starts[n]) is not None}
    while values:
        again = read(values)
        stay = {n: x for n, x in values.items() if again.states[again.state_atoms[n]] == x}
        if stay == values:
            return again
        values = stay
    return step


def _signs_at_start(traced: Trace, names: tuple[str, ...]) -> dict[str, str]:
    """The sign of each number of the state before the first step, to be confirmed."""
    weight = torch.randn(traced.shape, dtype=torch.float64)
    numbers = {n: torch.tensor(0.5, dtype=torch.float64) for n in traced.symbols}
    start = traced.build(numbers).init(weight)
    least = {n: float(start[n].min()) for n in names}
    return {
        n: "positive" if x > 0 else "nonnegative" if x == 0 else "real" for n, x in least.items()
    }


def _keeps(step: Step, name: str, sign: str) -> bool:
    """Tell if a number of the state has a sign after each step, if it has it before."""
    letter, facts = step.state_atoms[name], step.facts
    after = step.states[letter]
    if sign == "real" or after == step.scalars.get(letter):
        return True
    return facts.is_positive(after) if sign == "positive" else facts.is_nonnegative(after)


def _read(
    traced: Trace,
    signs: Mapping[str, str],
    values: Mapping[str, sp.Expr],
    known: Mapping[tuple[str, str], sp.Expr],
    mean_field: bool,
) -> Step:
    """The step from a state of which `values` are known, numbers have signs, others are general."""
    letters, hypers = name_state_atoms(traced), traced.symbols.values()
    symbols = {n: sp.Symbol(letters[n], **{sign: True}) for n, sign in signs.items()}
    facts = Facts(traced.domains, frozenset(symbols.values()))
    facts.other_names = frozenset(letters.values())
    facts.wg_symbol = None if ("w", "g") in known else Inner("w", "g")
    algebra = VectorAlgebra(
        facts,
        given_products=dict(known),
        mean_field=mean_field,
        opaque_rules=traced.opaque_rules,
        reserved_names=frozenset([*letters.values(), *(s.name for s in hypers)]),
    )
    inputs = [*hypers, Vector.atom("w"), Vector.atom("g")]
    for name in traced.states:
        entered = values.get(name, symbols.get(name))
        inputs.append(Vector.atom(letters[name]) if entered is None else entered)
    for name, value in values.items():
        facts.add_hypothesis(sp.Eq, symbols[name], value, ", as at the start")
    weight, *states = interpret(traced.record, algebra, inputs)
    after = dict(zip(letters.values(), states, strict=True))
    by_letter = {letters[name]: symbol for name, symbol in symbols.items()}
    return Step(weight, after, algebra, traced, by_letter, letters)


def express_inner(step: Step, vector: Vector, letter: str, a: Vector, b: Vector) -> sp.Expr:
    """<a, b>, with `vector` substituted for its newest atom.

    The newest atom is the gradient, or the vector that a preconditioner made of it: neither the
    weight nor a state. |letter| and each <m, letter> are new symbols. Vectors are substituted,
    not scalars, so that the result holds for coefficients of any kind.

    Args:
        step: the step that the vectors belong to.
        vector: such as the drive s of the step.
        letter: the name of `vector` in the result.
        a, b: the vectors of the inner product.

    Raises:
        GrowthError: nobody would read it.
    """
    vector, a, b = (step.algebra.expand_names_canonical(x) for x in (vector, a, b))
    fresh = [atom for atom in vector if atom != "w" and atom not in step.states]
    if len(fresh) != 1:
        return step.inner(a, b)
    (newest,) = fresh
    w, inner = Vector.atom("w"), step.algebra.inner
    known = {**step.algebra.given_products, ("w", letter): step.inner(w, vector)}
    for m in step.buffers:
        along = step.algebra.expand_and_simplify(inner(Vector.atom(m), vector))
        loose = along.free_symbols & step.algebra.gram(m, newest).free_symbols
        known[m, letter] = Inner(m, letter) if loose else along
    space = VectorAlgebra(given_products=known)
    rest = Vector.atom(letter) - vector.without(newest)

    def substitute(x: Vector) -> Vector:
        return x.without(newest) + rest.scaled(x[newest] / vector[newest])

    return step.algebra.expand_and_simplify(
        space.inner(substitute(a), substitute(b)), MAX_READABLE_OPS
    )
