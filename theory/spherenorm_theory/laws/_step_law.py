"""The law of one step: the decay of the weight, the drive beside it, their inner product."""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import sympy as sp

from spherenorm_theory.algebra import NumericEvaluator, Vector, normalize_signs, show
from spherenorm_theory.laws._one_step import OneStep, express_inner
from spherenorm_theory.laws._quantities import W_NEXT, S, W, product


def squared_norm_after(keep: sp.Expr, drift: sp.Expr) -> sp.Expr:
    """|w'|^2 for w' = keep w + s, where drift = 2 keep <w, s>."""
    return keep**2 * W + S + drift


@dataclass(frozen=True)
class StepLaw:
    """The norm after one step of a recipe, and the cross term that drives it.

    The step is split into decay and drive, w' = (1 - kappa) w + s: kappa collects what multiplies w
    by hyper-parameters alone; the rest, projection included, is the drive s. Then

        |w'|^2 = (1 - kappa)^2 |w|^2 + |s|^2 + 2 (1 - kappa) <w, s>,

    so that recipes differ in <w, s> alone. A prime marks a value after the step.

    Attributes:
        step: the step on symbols.
        kappa: the decay of one step.
        drive: s, in the atoms.
        cross: <w, s> in Gram entries: 0 for a projected step, -lr momentum <w, m> for SGD with
            momentum.
        recursion: <w', m'> in Gram entries, for each buffer m that `cross` requires.
        open_because: the reason why there is no recursion or no closed form; empty if there is one.
        first: the law of the first step, from the state that `init` returns. It may differ from
            the later ones, as torch.optim's dampening does.
    """

    step: OneStep
    kappa: sp.Expr
    drive: Vector
    cross: sp.Expr
    recursion: Mapping[sp.Symbol, sp.Expr]
    open_because: str
    first: StepLaw | None

    @property
    def name(self) -> str:
        """The recipe's name."""
        return self.step.traced.name

    @cached_property
    def constant(self) -> bool:
        """True if the norm never changes: the weight lives on a sphere, or is put back to it."""
        if self.norm_after == W:
            return True
        if not self.norm_after.free_symbols & self.step.facts.definitions.keys():
            return False
        # In numbers first: few norms are constant, and roots written out can grow far.
        seems = all(self._ratio_at(seed) == 1 for seed in range(2))
        return seems and bool(self.step.facts.expand(self.norm_after, everything=True) == W)

    def _ratio_at(self, seed: int) -> float:
        """|w'|^2 / |w|^2 at random inner products, rounded; nan where no real vectors have them."""
        rng, definitions = random.Random(seed), self.step.facts.definitions
        formulas = sp.Tuple(self.norm_after, *definitions.values())
        free = sorted((formulas.free_symbols | {W}) - definitions.keys(), key=str)
        values = {symbol.name: rng.uniform(0.5, 1) for symbol in free}
        ratio = NumericEvaluator(self.step.algebra, {}, values).scalar(self.norm_after / W)
        return round(float(ratio), 9)

    @cached_property
    def norm_after(self) -> sp.Expr:
        """|w'|^2 in Gram entries, as the code computes it."""
        return self.step.inner(self.step.weight, self.step.weight)

    @property
    def split_step(self) -> OneStep:
        """The step with the weight that decay and drive make: w' = (1 - kappa) w + s."""
        weight = Vector.atom("w") * (1 - self.kappa) + self.drive
        first = None if self.first is None else self.first.split_step
        return replace(self.step, weight=weight, first=first)

    @property
    def law(self) -> sp.Eq:
        """|w'|^2 in terms of |w|^2, |s|^2 and the cross term."""
        if self.constant:
            return sp.Eq(W_NEXT, W, evaluate=False)
        keep = normalize_signs(1 - self.kappa)
        drift = normalize_signs(2 * keep * self.cross)
        return sp.Eq(W_NEXT, squared_norm_after(keep, drift), evaluate=False)

    @property
    def residual(self) -> sp.Expr:
        """The law against `norm_after`: 0 if the law holds."""
        predicted = self.law.rhs.subs(S, self.step.algebra.space.inner(self.drive, self.drive))
        return self.step.facts.expand(predicted - self.norm_after)

    @property
    def unknowns(self) -> set[sp.Symbol]:
        """The inner products that the cross term requires, by way of their recursions too."""
        required, waiting = set[sp.Symbol](), [self.cross]
        while waiting:
            new = waiting.pop().free_symbols & {*self.recursion} - required
            required |= new
            waiting += [self.recursion[unknown] for unknown in new]
        return required

    @property
    def kept(self) -> str:
        """The share of w that decay leaves, in text."""
        return "w" if self.kappa == 0 else f"({show(normalize_signs(1 - self.kappa))}) w"


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
    law = StepLaw(step, kappa, drive, cross, {}, "", None)
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
