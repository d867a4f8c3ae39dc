"""The norm-growth law of any recipe, derived from its traced step."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import sympy as sp

from spherenorm.registry import Recipe
from theory.one_step import OneStep, one_step
from theory.symbols import Space, Vector, tidy, upright
from theory.text import latex, show
from theory.trace import Trace, trace

__all__ = ["NormGrowth", "S", "W", "in_terms_of", "norm_growth"]

W = sp.Symbol("|w|^2", positive=True)
W_NEXT = sp.Symbol("|w'|^2", positive=True)
S = sp.Symbol("|s|^2", positive=True)
WS = sp.Symbol("<w,s>", real=True)
t, k, j = sp.symbols("t k j", integer=True, nonnegative=True)


@dataclass(frozen=True)
class NormGrowth:
    """How the norm of a weight changes in one step of a recipe, and the cross term that drives it.

    The step is split into decay and drive, w' = (1 - kappa) w + s: kappa collects what multiplies w by hyper-parameters
    alone; the rest, projection included, is the drive s. Then

        |w'|^2 = (1 - kappa)^2 |w|^2 + |s|^2 + 2 (1 - kappa) <w, s>,

    and all there is to know about a recipe is what <w, s> is. A prime marks a value after the step.

    Attributes:
        name: the recipe's.
        step: the step on symbols.
        kappa: the decay of one step.
        drive: s, in the atoms.
        cross: <w, s> in terms of Gram entries: 0 for a projected step, and -lr momentum <w, m> for SGD with momentum.
        recursion: what <w', m'> is, for each buffer m that `cross` needs.
        open_because: why there is no recursion or no closed form; empty if there is.
        first: the law of the first step, from the state that `init` returns; it may differ, as torch.optim's dampening does.
    """

    name: str
    step: OneStep
    kappa: sp.Expr
    drive: Vector
    cross: sp.Expr
    recursion: Mapping[sp.Symbol, sp.Expr]
    open_because: str = ""
    first: NormGrowth | None = None

    @property
    def constant(self) -> bool:
        """Whether the norm never changes: the weight lives on a sphere."""
        return bool(self.norm_after == W)

    @cached_property
    def norm_after(self) -> sp.Expr:
        """|w'|^2 in Gram entries."""
        return self.step.inner(self.step.weight, self.step.weight)

    @property
    def law(self) -> sp.Eq:
        """|w'|^2 in terms of |w|^2, |s|^2 and the cross term."""
        if self.constant:
            return sp.Eq(W_NEXT, W, evaluate=False)
        keep = upright(1 - self.kappa)
        return sp.Eq(W_NEXT, keep**2 * W + S + upright(2 * keep * self.cross), evaluate=False)

    @property
    def residual(self) -> sp.Expr:
        """The law against |w'|^2 as the code computes it: 0 if the law holds."""
        predicted = self.law.rhs.subs(S, self.step.algebra.space.inner(self.drive, self.drive))
        return self.step.algebra.expand(predicted - self.norm_after)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the derivation used."""
        algebra = self.step.algebra
        known = [
            f"<{a},{b}> = {value}" for (a, b), value in algebra.space.known.items() if a != "1"
        ]
        meanings = {**{str(n): show(m) for n, m in algebra.definitions.items()}, **algebra.opaque}
        directions = {a: o for a, o in algebra.opaque.items() if a in self.drive.terms}
        origins = [
            f"{a} = {_spelled(o, meanings)}: the law holds for any vector {a}"
            for a, o in directions.items()
        ]
        shown = sp.Tuple(
            self.cross, *self.recursion.values(), *self.drive.terms.values()
        ).free_symbols
        cases = [
            f"{n} is {show(m)}"
            for n, m in algebra.definitions.items()
            if n in shown or m.has(sp.Piecewise)
        ]
        symbols = self.step.traced.symbols
        intervals = [
            f"{n} in {i.replace('inf', '∞')}"
            for n, i in self.step.traced.intervals.items()
            if n in symbols
        ]
        return ("w, g not 0", *known, *algebra.assumptions, *origins, *cases, *intervals)

    @property
    def needed(self) -> set[sp.Symbol]:
        """The unknowns that the cross term hangs on, by way of their recursions too."""
        needed, waiting = set[sp.Symbol](), [self.cross]
        while waiting:
            new = waiting.pop().free_symbols & {*self.recursion} - needed
            needed |= new
            waiting += [self.recursion[unknown] for unknown in new]
        return needed

    @cached_property
    def system(self) -> tuple[tuple[sp.Symbol, ...], sp.Matrix, sp.Matrix] | None:
        """(z, A, b) with z' = A z + b: the linear recursion of the cross terms, and of |w|^2 where they need it; None if there is none."""
        if self.open_because or self.constant:
            return None
        needed = self.needed
        z = tuple(unknown for unknown in self.recursion if unknown in needed)
        after = {W: self.law.rhs, **self.recursion}
        if not z or any(after[unknown].has(W) for unknown in z):
            z = (W, *z)
        matrix = sp.Matrix([[upright(sp.diff(after[x], y)) for y in z] for x in z])
        rest = sp.Matrix(
            [
                upright(after[x] - sum(matrix[i, n] * y for n, y in enumerate(z)))
                for i, x in enumerate(z)
            ]
        )
        if matrix.free_symbols - self._constants or rest.free_symbols & {*z}:
            return None
        return z, matrix, rest

    @cached_property
    def starts_alike(self) -> bool:
        """Whether the first step follows the recursion too, with all products of the buffers 0."""
        if self.first is None:
            return True
        past = {f"<{a},{b}>" for m in self.step.buffers for a, b in ((m, "s"), ("w", m))}
        zero = {s: 0 for s in sp.Add(*self.recursion.values()).free_symbols if s.name in past}
        pairs = [
            (self.kappa, self.first.kappa),
            *((e, self.first.recursion.get(u, sp.nan)) for u, e in self.recursion.items()),
        ]
        return all(tidy(generic.subs(zero) - first) == 0 for generic, first in pairs)

    @property
    def _constants(self) -> set[sp.Symbol]:
        return {*self.step.traced.symbols.values()}

    def closed_form(self, varying: tuple[str, ...] = ()) -> sp.Eq | None:
        """The cross term (or |w|^2, where there is none) at step t as a sum over the steps before it.

        Indexed symbols such as |s|^2[k] are the values at step k; buffers start at 0. None if the recursion has more than
        one unknown (see `system`: z_t is then the sum of A^(t-1-k) b_k) or none at all.

        Args:
            varying: names of the hyper-parameters that follow a schedule; `lr` becomes lr[k].
        """
        if self.system is None or len(self.system[0]) > 1 or not self.starts_alike:
            return None
        start, summand = self._solution(self.system[1][0, 0], varying)
        return sp.Eq(
            sp.IndexedBase(self.system[0][0])[t],
            start + sp.Sum(summand, (k, 0, t - 1)),
            evaluate=False,
        )

    def induction(self, varying: tuple[str, ...] = ()) -> dict[str, sp.Expr]:
        """Residuals of the proof of `closed_form` by induction over t, for symbolic t; all 0 if it holds.

        With z' = a z + b the recursion and F(t) the closed form: F(0) is the start value, and F(t+1) - a F(t) - b
        vanishes, summand by summand for k < t, and for the new summand k = t. The factor a is kept as a symbol.
        """
        if self.system is None or len(self.system[0]) > 1 or not self.starts_alike:
            raise ValueError(
                f"{self.name}: there is no closed form to prove: {self.open_because or 'several unknowns, or another first step'}"
            )
        (unknown,), matrix, rest = self.system
        factor = sp.Symbol("a", positive=True)
        if self._moving(matrix[0, 0], varying):
            varying = (*varying, "a")
        start, summand = self._solution(factor, varying)
        a, b = (
            _at(t, factor, self._moving(factor, varying)),
            _at(t, rest[0], self._moving(rest[0], varying)),
        )
        ahead, start_ahead = summand.subs(t, t + 1), start.subs(t, t + 1)
        # The factor of step t is split off the products over j <= t, so that both sides hold the same product.
        last = {
            p: p.subs(t, t - 1) * p.function.subs(j, t)
            for p in (ahead + start_ahead).atoms(sp.Product)
        }
        begin = sp.IndexedBase(unknown)[0] if unknown == W else sp.Integer(0)
        return {
            "t = 0": sp.simplify(start.subs(t, 0).doit() - begin),
            "start value": sp.simplify(start_ahead.subs(last) - a * start),
            "k < t": sp.simplify(ahead.subs(last) - a * summand),
            "k = t": sp.simplify(ahead.subs(k, t).doit() - b),
        }

    def _moving(self, expression: sp.Expr, varying: tuple[str, ...]) -> list[sp.Symbol]:
        """The symbols of `expression` that change from step to step."""
        return [
            s
            for s in expression.free_symbols
            if s.name in varying or (s not in self._constants and s.name != "a")
        ]

    def _solution(self, factor: sp.Expr, varying: tuple[str, ...]) -> tuple[sp.Expr, sp.Expr]:
        """The start value's share and the summand of step k in the solution of z' = factor z + b at step t."""
        assert self.system is not None
        (unknown,), _, rest = self.system
        moving = self._moving(factor, varying)

        def carried(low: sp.Expr) -> sp.Expr:
            return (
                sp.Product(_at(j, factor, moving), (j, low, t - 1))
                if moving
                else factor ** (t - low)
            )

        start = (
            sp.IndexedBase(unknown)[0] * carried(sp.Integer(0)) if unknown == W else sp.Integer(0)
        )
        return start, carried(k + 1) * _at(k, rest[0], self._moving(rest[0], varying))

    @property
    def kept(self) -> str:
        """What decay leaves of w, in text."""
        return "w" if self.kappa == 0 else f"({show(upright(1 - self.kappa))}) w"

    def __str__(self) -> str:
        lines = [f"norm growth of {self.name}"]
        if self.constant:
            lines.append("  law         |w'|^2 = |w|^2: the norm is constant")
        else:
            lines.append(f"  step        w' = {self.kept} + s,  s = {self.drive}")
            lines.append(f"  law         {show(W_NEXT)} = {show(self.law.rhs)}")
            lines.append(f"  cross term  <w,s> = {show(self.cross)}")
        for unknown, after in self.recursion.items():
            lines.append(f"  recursion   {_primed(unknown)} = {show(after)}")
        if (closed := self.closed_form()) is not None:
            lines.append(f"  closed      {show(closed.lhs)} = {show(closed.rhs)}")
        elif self.system is not None:
            z, matrix, rest = self.system
            begin = 0 if self.starts_alike else 1
            power = "A^t z[0]" if begin == 0 else "A^(t-1) z[1]"
            lines.append(
                f"  closed      z[t] = {power} + Sum(A^(t-1-k) b[k], (k, {begin}, t - 1)) with z = {show(z)}"
            )
            lines.append(f"              A = {show(matrix.tolist())}, b = {show([*rest])}")
        if self.first is not None and not self.starts_alike:
            lines.append(f"  first step  w' = {self.first.kept} + s,  s = {self.first.drive}")
            lines += [
                f"              {_primed(u)} = {show(e)}" for u, e in self.first.recursion.items()
            ]
        lines += [f"  open        {self.open_because}"] if self.open_because else []
        return "\n".join([*lines, *(f"  assumes     {a}" for a in self.assumptions)])

    __repr__ = __str__

    def latex(self) -> str:
        """The law, the recursion and the closed form as an `aligned` block."""
        rows = [latex(self.law)]
        rows += [latex(sp.Eq(_primed(u), e, evaluate=False)) for u, e in self.recursion.items()]
        closed = self.closed_form()
        rows += [latex(closed)] if closed is not None else []
        body = " \\\\\n".join(row.replace(" = ", " &= ", 1) for row in rows)
        return f"\\begin{{aligned}}\n{body}\n\\end{{aligned}}"


def _spelled(text: str, meanings: Mapping[str, str]) -> str:
    """`text` with each name replaced by its meaning."""
    while names := [n for n in meanings if re.search(rf"\b{n}\b", text)]:
        text = re.sub(rf"\b{names[0]}\b", lambda _: meanings[names[0]], text)
    return text


def _primed(product: sp.Symbol) -> sp.Symbol:
    return sp.Symbol(product.name.replace(",", "',").replace(">", "'>"))


def _at(step: sp.Expr, expression: sp.Expr, moving: list[sp.Symbol]) -> sp.Expr:
    """`expression` with each symbol of `moving` replaced by its value at `step`."""
    return expression.subs({s: sp.IndexedBase(s)[step] for s in moving})


def norm_growth(
    recipe: str | Recipe | Trace, *, scale_invariant: bool = True, **given: Any
) -> NormGrowth:
    """Derive how the norm of a weight grows under one step of `recipe`.

    Args:
        recipe: a recipe, its registered name, "module:function", or a trace.
        scale_invariant: whether <w, g> = 0.
        given: hyper-parameters to hold at a value: `norm_growth(sgd, weight_decay=0.0, nesterov=True)`.

    Raises:
        ValueError: no such recipe or hyper-parameter.
        TraceError: the step cannot be traced, or holds an operation that has no meaning on symbols.
    """
    traced = recipe if isinstance(recipe, Trace) else trace(recipe, **given)
    growth = _derive(one_step(traced, scale_invariant=scale_invariant))
    if growth.constant or not growth.step.states:
        return growth
    first = _derive(one_step(traced, scale_invariant=scale_invariant, first=True), growth.needed)
    return replace(growth, first=first, open_because=growth.open_because or first.open_because)


def _derive(step: OneStep, needed: Collection[sp.Symbol] = ()) -> NormGrowth:
    """The law of one step on symbols, with a recursion for each cross term that can be measured, or has to be followed."""
    traced = step.traced
    given = {
        *traced.symbols.values(),
        *(sp.Symbol(letter, positive=True) for letter in step.counters),
    }
    along = sp.expand(step.weight["w"])
    keep = sp.Add(*(term for term in sp.Add.make_args(along) if term.free_symbols <= given))
    keep = sp.Integer(1) if keep == 0 else keep
    kappa = upright(1 - keep)
    drive = step.weight - Vector.atom("w") * (1 - kappa)
    cross = upright(step.inner(Vector.atom("w"), drive))
    growth = NormGrowth(traced.name, step, kappa, drive, cross, {})
    if growth.constant:
        return growth
    recursion: dict[sp.Symbol, sp.Expr] = {}
    buffers = {sp.Symbol(f"<w,{m}>", real=True): m for m in step.buffers}
    measured = given | {W, S} | {sp.Symbol(f"<{m},s>", real=True) for m in buffers.values()}
    for unknown, buffer in buffers.items():
        after = _collected(
            in_terms_of(step, drive, "s", step.weight, step.states[buffer]), [unknown, W, S]
        )
        if unknown in cross.free_symbols | {*needed} or after.free_symbols <= measured | {*buffers}:
            recursion[unknown] = after
    known = {
        name for name, meaning in step.algebra.definitions.items() if meaning.free_symbols <= given
    }
    loose = sp.Tuple(cross, *recursion.values()).free_symbols - measured - {*recursion} - known
    return replace(growth, recursion=recursion, open_because=_reason(step, loose))


def _reason(step: OneStep, loose: set[sp.Symbol]) -> str:
    """Why the cross term has to be measured: what each of the symbols is that no recursion carries."""
    kinds: dict[str, list[str]] = {}
    for symbol in sorted(loose, key=str):
        meaning = step.algebra.definitions.get(symbol)
        atoms = [a for a in step.algebra.opaque if a in re.split(r"[<>|,]", symbol.name)]
        if meaning is not None and meaning.has(sp.Piecewise):
            kind = "decided anew at each step"
        elif atoms:
            kind = f"{', '.join(atoms)} not linear in gradients orthogonal to their weights"
        else:
            kind = "not carried by a recursion"
        plain = meaning is None or meaning.has(sp.Piecewise)
        kinds.setdefault(kind, []).append(str(symbol) if plain else f"{symbol} = {show(meaning)}")
    reasons = [f"{', '.join(symbols)}: {kind}" for kind, symbols in kinds.items()]
    return f"{'; '.join(reasons)}; so <w,s> has to be measured" if reasons else ""


def _collected(expression: sp.Expr, unknowns: list[sp.Symbol]) -> sp.Expr:
    """`expression` as a sum over `unknowns`, each coefficient factored."""
    return sp.collect(sp.expand(expression), unknowns, func=upright)


def in_terms_of(step: OneStep, vector: Vector, letter: str, a: Vector, b: Vector) -> sp.Expr:
    """<a, b>, with the newest atom of `vector` traded for `vector` itself, of which |letter|^2 and each <m, letter> are new symbols.

    The newest atom is the gradient, or what a preconditioner made of it: neither the weight nor a state. The trade is one of
    vectors, so that it holds whatever the coefficients depend on.
    """
    fresh = [atom for atom in vector.terms if atom != "w" and atom not in step.states]
    if len(fresh) != 1:
        return step.inner(a, b)
    (newest,) = fresh
    other = Vector.atom(letter) - Vector(
        {atom: c for atom, c in vector.terms.items() if atom != newest}
    )
    space = Space({**step.algebra.space.known, ("w", letter): step.inner(Vector.atom("w"), vector)})
    for m in step.buffers:
        product = step.inner(Vector.atom(m), vector)
        unknown = bool(product.free_symbols & space.gram(m, newest).free_symbols)
        space.known[m, letter] = sp.Symbol(f"<{m},{letter}>", real=True) if unknown else product

    def traded(x: Vector) -> Vector:
        share: sp.Expr = x[newest] / vector[newest]
        kept = Vector({atom: c for atom, c in x.terms.items() if atom != newest})
        return kept + other.__mul__(share)

    return step.algebra.expand(space.inner(traded(a), traded(b)))
