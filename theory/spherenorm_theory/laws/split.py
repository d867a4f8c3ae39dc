"""The norm-growth law of any recipe, derived from the record of its step.

The step is split into decay and drive, w' = (1 - kappa) w + s: kappa collects what multiplies w by
hyper-parameters alone; the rest, projection included, is the drive s. Then

    |w'|^2 = (1 - kappa)^2 |w|^2 + |s|^2 + 2 (1 - kappa) <w, s>,

so that recipes differ in <w, s> alone, and in its recursion. Where a step ends on a sphere, |w'| is
a number whatever the step is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import sympy as sp

from spherenorm_theory.algebra.claims import Hypothesis
from spherenorm_theory.algebra.printing import show
from spherenorm_theory.algebra.statement import enumerated
from spherenorm_theory.algebra.symbols import (
    GrowthError,
    Inner,
    Norm,
    Vector,
    mapped,
    normalize_signs,
    tidy,
)
from spherenorm_theory.laws.step import S, Step, W, express_inner

CROSS = Inner("w", "s")


@dataclass(frozen=True, eq=False)
class Split:
    """A step as decay and drive, with the recursions of what its norm requires.

    Attributes:
        step: the step on symbols.
        kappa: the decay of one step.
        drive: s, in the atoms.
        cross: <w, s> in products: 0 for a projected step, -lr momentum <w, m> for SGD with
            momentum.
        recursion: <w', m'> in products, for each buffer m that `cross` requires.
        length: |w'|, where it is a number whatever the step is; else None.
        open_because: the reason why there is no recursion or no closed form; empty if there is one.
    """

    step: Step
    kappa: sp.Expr
    drive: Vector
    cross: sp.Expr
    recursion: Mapping[sp.Symbol, sp.Expr]
    length: sp.Expr | None
    open_because: str

    @property
    def name(self) -> str:
        """The recipe's name."""
        return self.step.traced.name

    @property
    def keep(self) -> sp.Expr:
        """1 - kappa, the share of the weight that decay leaves."""
        return 1 - self.kappa

    @property
    def constant(self) -> bool:
        """True if the norm is a number whatever the step is: the weight lives on a sphere."""
        return self.length is not None

    @property
    def law(self) -> sp.Eq:
        """|w'|^2 in terms of |w|^2, |s|^2 and the cross term."""
        after = Norm("w'") ** 2
        if self.length is not None:
            return sp.Eq(after, self.length**2, evaluate=False)
        drift = normalize_signs(2 * self.keep * self.cross)
        return sp.Eq(after, self.keep**2 * W + S + drift, evaluate=False)

    @property
    def split_step(self) -> Step:
        """The step with the weight that decay and drive make: w' = (1 - kappa) w + s."""
        if self.length is not None:
            return self.step
        weight = Vector.atom("w").scaled(1 - self.kappa) + self.drive
        return replace(self.step, weight=weight)

    @property
    def unknowns(self) -> set[sp.Symbol]:
        """The inner products that the cross term requires, by way of their recursions too."""
        required, waiting = set[sp.Symbol](), [self.cross]
        while waiting:
            new = waiting.pop().free_symbols & {*self.recursion} - required
            required |= new
            waiting += [self.recursion[unknown] for unknown in new]
        return required

    @cached_property
    def growth(self) -> tuple[sp.Expr, sp.Expr] | None:
        """(A, B) of <w', s'> = A <w, s> + B |s|^2, where that is the recursion; else None."""
        unknowns = self.unknowns
        if self.open_because or len(unknowns) != 1 or self.length is not None:
            return None
        (unknown,) = unknowns
        share, held = sp.cancel(self.cross / unknown), {*self.step.traced.symbols.values()}
        after = sp.expand(sp.cancel(share * self.recursion[unknown].subs(unknown, CROSS / share)))
        A, B = after.coeff(CROSS), after.coeff(Norm("s"), 2)
        whole = sp.expand(after - A * CROSS - B * S) == 0
        fixed = A.free_symbols | B.free_symbols | share.free_symbols | self.kappa.free_symbols
        return (normalize_signs(A), normalize_signs(B)) if whole and fixed <= held else None

    def entered(self, x: Any) -> Any:
        """Words and formulas with the numbers that were given in place of their symbols."""
        given = self.step.traced.given
        return mapped(x, lambda each: normalize_signs(each.subs(given))) if given else x

    def with_numbers(self) -> Split:
        """The law at the numbers that were given; the step keeps its symbols."""
        whole = {n: self.entered(getattr(self, n)) for n in ("kappa", "drive", "cross", "length")}
        recursion = {unknown: self.entered(x) for unknown, x in self.recursion.items()}
        return replace(self, recursion=recursion, **whole)

    @property
    def at_start(self) -> tuple[Hypothesis, ...]:
        """The hypotheses of a closed form: what is the same at each step, and 0 at the start."""
        used = sp.Tuple(self.kappa, self.cross, *(self.growth or ())).free_symbols
        names = [s for s in self.step.traced.free.values() if s in used]
        same = [enumerated(names, " constant")] if names else []
        rest = [m for m in self.step.buffers if self.cross != 0]
        return (*same, *(sp.Eq(sp.IndexedBase(m)[0], 0, evaluate=False) for m in rest))


def derive(step: Step) -> Split:
    """The law of a step, with a recursion for each cross term that is required or can be measured.

    It is not yet held against its code.
    """
    length = _length(step)
    if length is not None:
        drive = step.weight - Vector.atom("w")
        # |w'|^2 = |w|^2 + |s|^2 + 2 <w, s>
        return Split(step, sp.S.Zero, drive, (length**2 - W - S) / 2, {}, length, "")
    w, given = Vector.atom("w"), step.constants
    whole = step.algebra.unfold(step.weight)
    kappa = _decay(whole["w"], given)
    drives = [x - w.scaled(1 - kappa) for x in (step.weight, whole)]
    drive = min((step.algebra.fold(x.map(_zero)) for x in drives), key=len)
    cross = normalize_signs(step.inner(w, drive))
    law = Split(step, kappa, drive, cross, {}, None, "")
    buffers = {Inner("w", m): m for m in step.buffers}
    measured = given | {Norm("w"), Norm("s")} | {Inner(m, "s") for m in buffers.values()}
    recursion: dict[sp.Symbol, sp.Expr] = {}
    waiting = [cross]
    while waiting:
        for unknown in sorted(waiting.pop().free_symbols & buffers.keys() - {*recursion}, key=str):
            after = _after(step, drive, unknown, buffers[unknown])
            if after is not None:
                recursion[unknown] = after
                waiting.append(after)
    for unknown in [x for x in buffers if x not in recursion]:
        after = _after(step, drive, unknown, buffers[unknown])
        if after is not None and after.free_symbols <= measured | {*buffers}:
            recursion[unknown] = after
    formulas = sp.Tuple(cross, *recursion.values())
    loose = formulas.free_symbols - measured - {*recursion}
    return replace(law, recursion=recursion, open_because=_reason(step, loose))


def _after(step: Step, drive: Vector, unknown: sp.Symbol, buffer: str) -> sp.Expr | None:
    """<w', m'> in products; None where the formula grows beyond what anybody would read."""
    try:
        after = express_inner(step, drive, "s", step.weight, step.states[buffer])
        return sp.collect(sp.expand(after), [unknown, W, S], func=normalize_signs)
    except GrowthError:
        return None


def _zero(x: sp.Expr) -> sp.Expr:
    return tidy(x) if x.is_Add else x


def _length(step: Step) -> sp.Expr | None:
    """|w'|, if it is |w| or a number that no step changes."""
    algebra = step.algebra
    kept = {s for n, s in step.scalars.items() if step.states[n] == s}
    fixed = kept | {*step.traced.symbols.values(), *(sp.Symbol(n, positive=True) for n in "cq")}
    fixed |= {sp.Symbol("rank", positive=True)}
    if len(step.weight) == 1:
        ((atom, factor),) = step.weight.items()
        square = Norm(atom) ** 2 if atom in algebra.named else None
        square = algebra.opaque[atom].square if atom in algebra.opaque else square
        if square is not None:
            length = sp.sqrt(sp.factor(tidy(factor**2 * square)))
            length = length if length.free_symbols <= fixed | {Norm("w")} else None
            if length is not None and (length == Norm("w") or length.free_symbols <= fixed):
                return length
    turns = step.weight["w"].has(sp.cos)
    return Norm("w") if turns and step.inner(step.weight, step.weight) == W else None


def _decay(coefficient: sp.Expr, given: set[sp.Symbol]) -> sp.Expr:
    """kappa: 1 minus the part of w's coefficient that hyper-parameters and counters make."""
    above, below = sp.fraction(sp.cancel(coefficient))
    terms = [sp.cancel(term / below) for term in sp.Add.make_args(sp.expand(above))]
    keep = sp.Add(*(term for term in terms if term.free_symbols <= given))
    return normalize_signs(1 - (sp.S.One if keep == 0 else keep))


def _reason(step: Step, loose: set[sp.Symbol]) -> str:
    """The reason why the cross term must be measured: symbols that no recursion carries."""
    kinds: dict[str, list[str]] = {}
    for symbol in sorted(loose, key=str):
        if symbol in step.facts.cases:
            kind = "decided anew at each step"
        else:
            names = {getattr(symbol, "a", ""), getattr(symbol, "b", "")}
            atoms = [atom for atom in step.algebra.opaque if atom in names]
            plain = f"{', '.join(atoms)} not linear in gradients orthogonal to their weights"
            kind = plain if atoms else "carried by no recursion"
        kinds.setdefault(kind, []).append(show(symbol))
    reasons = [f"{', '.join(symbols)}: {kind}" for kind, symbols in kinds.items()]
    return f"{'; '.join(reasons)}; so <w, s> has to be measured" if reasons else ""
