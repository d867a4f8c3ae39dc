"""One step of a recipe on symbols: the new weight and states as combinations of the old ones and the gradient."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import sympy as sp

from spherenorm.registry import Recipe
from theory.formal import Formal
from theory.interpreter import interpret
from theory.symbols import Vector
from theory.trace import Trace, trace

__all__ = ["OneStep", "one_step"]

LETTERS = {
    "momentum": "m",
    "momentum_buffer": "m",
    "exp_avg": "m",
    "exp_avg_sq": "v",
    "square_avg": "v",
    "step": "t",
}
"""The paper's letters for the states of the library's rules; a state of another name keeps it."""


@dataclass(frozen=True)
class OneStep:
    """What one step makes of (w, states) and the gradient g.

    Attributes:
        weight: w', the weight after the step.
        states: the states after the step, by the letter of the atom that each was before: a vector, or a sympy number.
        algebra: the algebra it was computed in, with the Gram table and the assumptions made.
        traced: the trace behind it.
    """

    weight: Vector
    states: Mapping[str, Vector | sp.Expr]
    algebra: Formal
    traced: Trace

    def inner(self, a: Vector, b: Vector) -> sp.Expr:
        """<a, b>, in a form in which 0 is 0."""
        return self.algebra.expand(self.algebra.space.inner(a, b))

    def settled(self, a: Vector, b: Vector) -> sp.Expr:
        """<a, b> with every name replaced by its meaning."""
        return self.algebra.expand(self.algebra.space.inner(a, b), everything=True)

    @property
    def buffers(self) -> tuple[str, ...]:
        """The states that are combinations of earlier gradients (or of what a preconditioner made of them): momenta."""
        entrywise = {a for a in self.algebra.opaque if a.startswith("e")} | {"1"}
        return tuple(
            n
            for n, v in self.states.items()
            if isinstance(v, Vector) and not entrywise & {*v.terms}
        )

    @property
    def counters(self) -> tuple[str, ...]:
        """The states that are one number for the whole weight, such as the count of steps."""
        return tuple(
            letter for name, letter in letters(self.traced).items() if name in self.traced.counters
        )


def letters(traced: Trace) -> dict[str, str]:
    """The atom that stands for each state: its letter, unless two states or a hyper-parameter have it already."""
    states = traced.outputs[1:]
    wanted = {name: LETTERS.get(name, name) for name in states}
    taken = {"w", "g", "s", "u", "1", *traced.numbers}
    chosen = {
        n: letter if [*wanted.values()].count(letter) == 1 and letter not in taken else n
        for n, letter in wanted.items()
    }
    return {n: f"{n}_state" if letter in taken else letter for n, letter in chosen.items()}


def one_step(
    recipe: str | Recipe | Trace,
    *,
    scale_invariant: bool = True,
    first: bool = False,
    tangent: bool = False,
    mean_field: bool = False,
    **given: Any,
) -> OneStep:
    """Run the traced step of `recipe` on formal vectors.

    Args:
        recipe: as for `trace`, or a trace.
        scale_invariant: put <w, g> = 0 into the Gram table; without it <w, g> is a general number, and a scale-invariance
            test fails.
        first: the first step, from the state that `init` returns (all zero) instead of a general one.
        tangent: put <w, m> = 0 into the Gram table for every state m.
        mean_field: see `Formal`.
        given: hyper-parameters to hold at a value.
    """
    traced = recipe if isinstance(recipe, Trace) else trace(recipe, **given)
    letter = letters(traced)
    curved = any("cos" in str(node.target) for node in traced.graph.graph.nodes)
    scalars = {*traced.scalar_states}
    if mean_field:
        linear = {*one_step(traced, scale_invariant=scale_invariant).buffers}
        scalars |= {name for name, m in letter.items() if m not in linear}

    def outputs(zero: Collection[str]) -> tuple[Formal, list[Any]]:
        """The step from a state of which the entries `zero` are 0."""
        algebra = Formal(mean_field=mean_field, curved=curved)
        if scale_invariant:
            algebra.space.known["w", "g"] = sp.Integer(0)
        else:
            algebra.general = sp.Symbol("<w,g>", real=True)
        if tangent:
            algebra.space.known.update({("w", m): sp.Integer(0) for m in letter.values()})

        def symbol(kind: str, name: str) -> Any:
            if kind == "hyper":
                return traced.numbers[name]
            if kind != "state":
                return Vector.atom(name)
            if name in scalars:
                return sp.Integer(0) if name in zero else sp.Symbol(letter[name], positive=True)
            return Vector() if name in zero else Vector.atom(letter[name])

        return algebra, interpret(
            traced.graph, algebra, [symbol(*i) for i in traced.inputs], traced.lines
        )

    algebra, values = outputs(letter if first else ())
    # A number that starts at 0 and stays there, as the evidence against scale invariance does where <w, g> = 0, is 0.
    after = dict(zip(traced.outputs, values, strict=True))
    at_rest = {
        n: letter[n]
        for n in traced.scalar_states
        if sp.sympify(after[n]).subs(sp.Symbol(letter[n], positive=True), 0) == 0
    }
    if at_rest and not first:
        algebra, values = outputs(at_rest)
        algebra.assumptions[:0] = [f"{name} = 0, as at the start" for name in at_rest.values()]
    weight, *states = [algebra.linear(o) for o in values]
    return OneStep(
        weight,
        dict(zip((letter[n] for n in traced.outputs[1:]), states, strict=True)),
        algebra,
        traced,
    )
