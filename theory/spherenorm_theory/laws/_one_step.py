"""One step of a recipe on symbols: the new weight and states as combinations of the old ones.

A record of the step is read on formal vectors: the weight is the atom w, the gradient g, and each
state has a letter of its own (m for a momentum, v for a second moment). `step_in_coordinates` reads
it in explicit coordinates, where entrywise operations are exact.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import sympy as sp

from spherenorm import Recipe
from spherenorm.record import Call, Value
from spherenorm_theory.algebra import (
    RESERVED,
    Array,
    Assumptions,
    Coordinates,
    Formal,
    Space,
    Trace,
    Vector,
    interpret,
    outputs_of,
    read_values,
    trace,
)
from spherenorm_theory.laws._quantities import product

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


@dataclass(frozen=True)
class OneStep:
    """The weight and the states after one step, from (w, states) and the gradient g.

    Attributes:
        weight: w', the weight after the step.
        states: the states after the step, by the letter of the atom that each was before: a vector,
            or a sympy number.
        algebra: the algebra of the reading, with the Gram table and the assumptions made.
        traced: the record that was read.
        scalars: the symbols of the states that are one number, by letter.
        values: what each operation of the record gave in the reading.
        first: the first step, from the state that `init` returns, where the step is a law's.

    Example:
        >>> step = one_step("sgd", momentum=0.0, weight_decay=0.0, dampening=0.0)
        >>> print(step.weight, "and <w', w'> =", step.inner(step.weight, step.weight))
        w - g*lr and <w', w'> = lr**2*|g|^2 + |w|^2
    """

    weight: Vector
    states: Mapping[str, Vector | sp.Expr]
    algebra: Formal
    traced: Trace
    scalars: Mapping[str, sp.Symbol]
    values: Mapping[Value, Any] = field(default_factory=dict, repr=False)
    first: OneStep | None = None

    @property
    def facts(self) -> Assumptions:
        """The names and assumptions of the reading."""
        return self.algebra.facts

    def inner(self, a: Vector, b: Vector, everything: bool = False) -> sp.Expr:
        """<a, b>, in a form in which 0 is 0.

        Args:
            a, b: vectors of this step.
            everything: replace every name by its meaning, not those of angles alone.
        """
        return self.algebra.facts.expand(self.algebra.space.inner(a, b), everything)

    @property
    def after(self) -> dict[str, Any]:
        """The weight and the states after the step, each by its atom before it."""
        return {"w": self.weight, **self.states}

    @property
    def buffers(self) -> tuple[str, ...]:
        """The momenta: states that are combinations of earlier gradients.

        Or of the vectors that a preconditioner made of the gradients.
        """
        entrywise = {a for a in self.algebra.opaque if a.startswith("e")}
        vectors = {n: v for n, v in self.states.items() if isinstance(v, Vector)}
        return tuple(n for n, v in vectors.items() if not entrywise & {*v.terms})

    @cached_property
    def letters(self) -> dict[str, str]:
        """The atom of each state, by the name of the state."""
        return choose_letters(self.traced)

    @cached_property
    def open_calls(self) -> tuple[Call, ...]:
        """The operations whose results depend on a decision that inputs take."""
        calls = self.traced.general.needed
        return tuple(call for call in calls if self._is_open(self.values[call.result]))

    def _is_open(self, value: Any) -> bool:
        if isinstance(value, Vector):
            return any(map(self._is_open, value.terms.values()))
        if not isinstance(value, sp.Basic):
            return False
        meanings = (self.facts.definitions.get(symbol, sp.S.Zero) for symbol in value.free_symbols)
        return isinstance(value, sp.Rel) or any(meaning.has(sp.Piecewise) for meaning in meanings)

    @property
    def counters(self) -> tuple[str, ...]:
        """The states that are one number for the whole weight, such as the count of steps."""
        counters = self.traced.counters
        return tuple(letter for name, letter in self.letters.items() if name in counters)


def choose_letters(traced: Trace) -> dict[str, str]:
    """The atom of each state: its letter, unless something else has it too."""
    wanted = {n: re.sub(r"\W", "_", LETTERS.get(n, n)) or "state" for n in traced.outputs[1:]}
    taken = {*RESERVED, *traced.numbers, *(s.name for s in traced.symbols.values())}
    alone = {n for n, letter in wanted.items() if [*wanted.values()].count(letter) == 1}
    chosen: dict[str, str] = {}
    for name, letter in wanted.items():
        free = (
            letter if name in alone and letter not in taken else re.sub(r"\W", "_", name) or "state"
        )
        while free in taken or free in chosen.values() or (free != letter and free in wanted):
            free = f"{free}_state"
        chosen[name] = free
    return chosen


def one_step(
    recipe: str | Recipe | Trace,
    *,
    scale_invariant: bool = True,
    first: bool = False,
    tangent: bool = False,
    mean_field: bool = False,
    **given: Any,
) -> OneStep:
    """Read the recorded step of `recipe` on formal vectors.

    Args:
        recipe: as for `trace`, or a trace.
        scale_invariant: put <w, g> = 0 into the Gram table. Otherwise <w, g> is a general number,
            and a scale-invariance test fails.
        first: read the first step, from the state that `init` returns (all zero), instead of a
            general one.
        tangent: put <w, m> = 0 into the Gram table for every state m.
        mean_field: replace entrywise products by their means; see
            `spherenorm_theory.algebra.Formal`.
        given: hyper-parameters to hold at a value.

    Raises:
        ValueError: no such recipe or hyper-parameter.
        TraceError: the step cannot be traced, or holds an operation that has no meaning on symbols.

    Example:
        >>> print(one_step("sgd", weight_decay=0.0, dampening=0.0).weight)
        w - g*lr - lr*m*momentum
    """
    traced = recipe if isinstance(recipe, Trace) else trace(recipe, **given)
    reader = _Reader(traced, scale_invariant, tangent, mean_field)
    return reader.first if first else reader.general


@dataclass(frozen=True)
class _Reader:
    """Reads the record of a step on formal vectors; see `one_step` for the attributes."""

    traced: Trace
    scale_invariant: bool
    tangent: bool
    mean_field: bool

    @cached_property
    def letters(self) -> dict[str, str]:
        """The atom of each state."""
        return choose_letters(self.traced)

    @cached_property
    def scalar_states(self) -> Collection[str]:
        """The states that are numbers; in the mean field entrywise ones are too."""
        if not self.mean_field:
            return self.traced.scalar_states
        linear = one_step(self.traced, scale_invariant=self.scale_invariant).buffers
        averaged = (name for name, letter in self.letters.items() if letter not in linear)
        return (*self.traced.scalar_states, *averaged)

    @cached_property
    def first(self) -> OneStep:
        """The step from the state that `init` returns; what `init` makes of a weight is general."""
        return self._read(dict.fromkeys(self.scalar_states, "real"), self._starts(), True)

    @cached_property
    def general(self) -> OneStep:
        """The step from any state that earlier steps can have left.

        A number of the state has the sign that the step gives it: it is taken as positive, and the
        step is read again with fewer facts for as long as the step does not confirm them. One that
        no step changes has the value that `init` returns.
        """
        signs = dict.fromkeys(self.scalar_states, "positive")
        step = self._read(signs)
        while weaker := {n: WEAKER[s] for n, s in signs.items() if not self._keeps(step, n, s)}:
            signs |= weaker
            step = self._read(signs)
        at_rest = self._candidates_for_rest(step)
        while at_rest:
            again = self._read(signs, at_rest)
            stay = {n: x for n, x in at_rest.items() if again.states[self.letters[n]] == x}
            if stay == at_rest:
                return again
            at_rest = stay
        return step

    def _starts(self) -> dict[str, Any]:
        """The first value of each state that does not depend on the weight in an unknown way."""
        return {n: self._start(n) for n, start in self.traced.starts.items() if start is not None}

    def _start(self, name: str) -> Any:
        start = self.traced.starts[name]
        if not isinstance(start, tuple):
            return start
        of_weight, constant = start
        if name in self.scalar_states:
            return constant
        return Vector.atom("w") * of_weight + Vector.atom("1") * constant

    def _keeps(self, step: OneStep, name: str, sign: str) -> bool:
        """Tell if a number of the state has a sign after each step, if it has it before."""
        if sign == "real":
            return True
        if self.traced.starts[name] is None or not self._start(name).is_nonnegative:
            return False
        facts = step.facts
        proves = facts.is_positive if sign == "positive" else facts.is_nonnegative
        after, first = (s.states[self.letters[name]] for s in (step, self.first))
        return proves(after) and (sign != "positive" or self.first.algebra.facts.is_positive(first))

    def _candidates_for_rest(self, step: OneStep) -> dict[str, sp.Expr]:
        """The numbers of the state that the first step leaves as they are.

        One is the evidence against scale invariance where <w, g> = 0.
        """
        starts = {n: x for n, x in self._starts().items() if n in self.traced.scalar_states}
        return {n: x for n, x in starts.items() if self.first.states[self.letters[n]] == x}

    def _read(
        self,
        signs: Mapping[str, str],
        values: Mapping[str, Any] | None = None,
        first: bool = False,
    ) -> OneStep:
        """The step from a state of which `values` are known, and the others general."""
        traced, values = self.traced, values or {}
        symbols = {n: sp.Symbol(self.letters[n], **{sign: True}) for n, sign in signs.items()}
        algebra = _algebra_of(self, frozenset(symbols.values()))
        inputs = []
        for kind, name in traced.inputs:
            if kind == "state" and name in values:
                inputs.append(values[name])
            elif kind == "state":
                inputs.append(symbols.get(name) or Vector.atom(self.letters[name]))
            else:
                inputs.append(traced.numbers[name] if kind == "hyper" else Vector.atom(name))
        if not first:
            for name, value in values.items():
                algebra.facts.assume(sp.Eq, symbols[name], value, ", as at the start")
        values_read = read_values(traced.general, algebra, inputs)
        weight, *states = map(algebra.linear, outputs_of(traced.general, values_read))
        after = dict(zip(self.letters.values(), states, strict=True))
        by_letter = {self.letters[name]: symbol for name, symbol in symbols.items()}
        return OneStep(weight, after, algebra, traced, by_letter, values_read)


def _algebra_of(reader: _Reader, scalars: frozenset[sp.Symbol]) -> Formal:
    """The algebra of a reading, in which nothing is assumed but its facts."""
    traced = reader.traced
    hypers = traced.symbols.items()
    facts = Assumptions(
        domains={symbol: traced.intervals[name] for name, symbol in hypers},
        scalars=scalars,
        taken=frozenset(["w", "g", "s", *reader.letters.values(), *(s.name for _, s in hypers)]),
    )
    algebra = Formal(facts, mean_field=reader.mean_field, curved=_rotates(traced))
    if reader.scale_invariant:
        algebra.space.known["w", "g"] = sp.Integer(0)
    else:
        algebra.facts.general = product("w", "g")
    if reader.tangent:
        algebra.space.known.update({("w", m): sp.Integer(0) for m in reader.letters.values()})
    return algebra


def _rotates(traced: Trace) -> bool:
    """Tell if the step takes the cosine of an angle that vectors make, and not of a counter."""
    kinds = zip(traced.record.inputs, traced.inputs, strict=True)
    moving = {x for x, (kind, name) in kinds if kind != "hyper" and name not in traced.counters}
    for call in traced.record.needed:
        if not moving.isdisjoint(call.values()):
            if "cos" in call.name:
                return True
            moving.add(call.result)
    return False


def express_inner(step: OneStep, vector: Vector, letter: str, a: Vector, b: Vector) -> sp.Expr:
    """<a, b>, with `vector` substituted for its newest atom.

    The newest atom is the gradient, or the vector that a preconditioner made of it: neither the
    weight nor a state. |letter|^2 and each <m, letter> are new symbols. Vectors are substituted,
    not scalars, so that the result holds for coefficients of any kind.

    Args:
        step: the step that the vectors belong to.
        vector: such as the drive s of the step.
        letter: the name of `vector` in the result.
        a, b: the vectors of the inner product.
    """
    fresh = [atom for atom in vector.terms if atom != "w" and atom not in step.states]
    if len(fresh) != 1:
        return step.inner(a, b)
    (newest,) = fresh
    w = Vector.atom("w")
    space = Space({**step.algebra.space.known, ("w", letter): step.inner(w, vector)})
    for m in step.buffers:
        inner = step.inner(Vector.atom(m), vector)
        holds_newest = bool(inner.free_symbols & space.gram(m, newest).free_symbols)
        space.known[m, letter] = product(m, letter) if holds_newest else inner
    rest = Vector.atom(letter) - vector.without(newest)

    def substitute(x: Vector) -> Vector:
        share: sp.Expr = x[newest] / vector[newest]
        return x.without(newest) + rest.__mul__(share)

    return step.facts.expand(space.inner(substitute(a), substitute(b)))


def step_in_coordinates(
    traced: Trace, weight: list[Any], grad: list[Any], **values: Any
) -> tuple[Array, dict[str, Array], Coordinates]:
    """Read the recorded step of a recipe in coordinates.

    Args:
        traced: a trace of dimension len(weight).
        weight, grad: sympy coordinates.
        values: hyper-parameters, and states by their letter (m, v, t): a list of coordinates, or a
            number. Hyper-parameters that are not given stay symbols; states that are not given are
            0, as on the first step.

    Returns:
        The new weight, the new states by their letters, and the algebra with its assumptions; the
        arrays have the shape of the traced weight.

    Raises:
        ValueError: the weight has another number of coordinates than the trace.

    Example:
        >>> plain = trace("sgd", dimension=2, momentum=0.0, weight_decay=0.0)
        >>> (new,), states, _ = step_in_coordinates(plain, [1, 2], [-2, 1])
        >>> print(new)
        [2*lr + 1 2 - lr]
    """
    if len(weight) != traced.dimension:
        raise ValueError(
            f"the recipe was traced for dimension {traced.dimension}, "
            f"the weight has {len(weight)} coordinates"
        )
    letters, zeros = choose_letters(traced), [0] * traced.dimension
    vectors = {"weight": weight, "grad": grad}

    def read(kind: str, name: str) -> Array:
        """An input of the record."""
        if kind == "hyper":
            return np.array(sp.sympify(values.get(name, traced.numbers[name])), dtype=object)
        if kind == "state" and name in traced.scalar_states:
            return np.array(sp.sympify(values.get(letters[name], 0)), dtype=object)
        entries = values.get(letters[name], zeros) if kind == "state" else vectors[kind]
        return np.array([*map(sp.sympify, entries)], dtype=object).reshape(traced.shape)

    algebra = Coordinates()
    new, *states = interpret(traced.record, algebra, [read(*each) for each in traced.inputs])
    return new, dict(zip(letters.values(), states, strict=True)), algebra
