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
from torch import Tensor

from spherenorm import Recipe
from spherenorm_theory.algebra import (
    ANY,
    Array,
    Claim,
    Hypothesis,
    Induction,
    Inner,
    Kind,
    Letters,
    Norm,
    Trace,
    Vector,
    at,
    is_number,
    normalize_signs,
    positive_norms,
    show,
    tidy,
    trace,
    words,
)
from spherenorm_theory.laws import predict as prediction
from spherenorm_theory.laws.proposition import Proposition
from spherenorm_theory.laws.step import S, Step, W, express_inner, one_step
from spherenorm_theory.laws.verify import Agreement, Inputs, evaluate, hold

t, k = sp.symbols("t k", integer=True, nonnegative=True)
CROSS = Inner("w", "s")


@dataclass(frozen=True, eq=False)
class Law:
    """The norm under a recipe: the law of a step, and its solution in time.

    Attributes:
        step: the step on symbols.
        kappa: the decay of one step.
        drive: s, in the atoms.
        cross: <w, s> in products: 0 for a projected step, -lr momentum <w, m> for SGD with
            momentum.
        recursion: <w', m'> in products, for each buffer m that `cross` requires.
        length: |w'|, where it is a number whatever the step is; else None.
        open_because: the reason why there is no recursion or no closed form; empty if there is one.
        agreement: the weights for which the law was held against its code.

    Example:
        >>> law = norm_growth("sgd", weight_decay=0.0, dampening=0.0)
        >>> print(show(law.cross))
        -lr beta <w, m>
        >>> norm_growth("sgdp").cross, norm_growth("sgd", momentum=0.0).cross
        (0, 0)
    """

    step: Step
    kappa: sp.Expr
    drive: Vector
    cross: sp.Expr
    recursion: Mapping[sp.Symbol, sp.Expr]
    length: sp.Expr | None
    open_because: str
    agreement: Agreement = Agreement()  # noqa: RUF009  (immutable)

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
        drift = 2 * self.keep * self.cross
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

    @property
    def at_start(self) -> tuple[Hypothesis, ...]:
        """The hypotheses of a closed form: what is the same at each step, and 0 at the start."""
        names = [show(s) for s in self.step.traced.free.values() if self._uses(s)]
        same = [f"{', '.join(names)} constant"] if names else []
        return (*same, *(f"{m}_0 = 0" for m in self.step.buffers if self.cross != 0))

    def _uses(self, symbol: sp.Symbol) -> bool:
        used = sp.Tuple(self.kappa, *(self.growth or ()))
        return symbol in used.free_symbols

    def closed_form(self) -> sp.Eq | None:
        """|w_{t+1}|^2 as a sum over the steps before; |w_t|^2 where the cross term is 0.

        None if the law is open, has several unknowns, or factors that change from step to step.

        Example:
            >>> print(show(norm_growth("sgdw", dampening=0.0).closed_form()))
            |w_{t+1}|^2 = (1 - lr wd)^2 |w_t|^2 + |s_t|^2 + 2 Sum_{k<t} (beta (1 - lr wd))^(t - k) |s_k|^2
        """  # noqa: E501
        w, s, keep = sp.IndexedBase(Norm("w")), sp.IndexedBase(Norm("s")), self.keep
        if self.length is not None or not self.agreement.from_start:
            return None
        if self.cross == 0:
            if not keep.free_symbols <= {*self.step.traced.symbols.values()}:
                return None
            past = sp.Sum(keep ** (2 * (t - 1 - k)) * s[k] ** 2, (k, 0, t - 1))
            return sp.Eq(w[t] ** 2, keep ** (2 * t) * w[0] ** 2 + past, evaluate=False)
        if self.growth is None:
            return None
        A, B = self.growth
        lemma = tidy(keep * B - A) == 0
        power = A ** (t - k) if lemma else keep * B * A ** (t - 1 - k)
        past = sp.Sum(power * s[k] ** 2, (k, 0, t - 1))
        after = keep**2 * w[t] ** 2 + s[t] ** 2 + sp.Mul(2, past, evaluate=False)
        return sp.Eq(w[t + 1] ** 2, after, evaluate=False)

    @cached_property
    def claims(self) -> tuple[Claim, ...]:
        """All that the law says, as relations with what shows them and their hypotheses."""
        return tuple(self._claims())

    def _claims(self) -> Any:
        def now(x: sp.Expr) -> sp.Expr:
            return at(x, t)

        def later(x: sp.Expr) -> sp.Expr:
            return at(x, t + 1)

        step, derived = self.step, self.step.hypotheses
        w_later = sp.IndexedBase(Norm("w"))[t + 1]
        algebra = step.algebra

        def claim(
            about: str,
            relation: sp.Eq,
            meanings: Any,
            kind: Kind = Kind.DERIVED,
            induction: Induction | None = None,
            extra: tuple[Hypothesis, ...] = (),
        ) -> Claim:
            under = (*derived, *positive_norms(relation.rhs, *meanings.values()), *extra)
            distinct = tuple({words(each): each for each in under}.values())
            return Claim(about, relation, kind, meanings, None, induction, distinct)

        if self.length is not None:
            squared = {w_later**2: now(self._written(step.inner(step.weight, step.weight)))}
            yield claim("the norm", sp.Eq(w_later, now(self.length), evaluate=False), squared)
            for name in (n for n in step.weight if n in algebra.named and len(step.weight) == 1):
                square = sp.expand(algebra.square(name))
                shown = sp.Eq(at(Norm(name), t) ** 2, now(square), evaluate=False)
                yield claim(f"the norm of {name}", shown, {at(Norm(name), t) ** 2: now(square)})
            turned = at(Inner("w", "w'"), t)
            along = step.inner(Vector.atom("w"), step.weight)
            yield claim("the turn", sp.Eq(turned, now(along), evaluate=False), {turned: now(along)})
            return
        drive = step.inner(self.drive, self.drive)
        drift = sp.Mul(2, self.keep, at(CROSS, t), evaluate=False) if self.cross != 0 else sp.S.Zero
        norm = sp.Eq(w_later**2, self.keep**2 * now(W) + now(S) + drift, evaluate=False)
        after = step.inner(step.weight, step.weight)
        meanings = {w_later**2: now(after), now(S): now(drive), at(CROSS, t): now(self.cross)}
        shown = {x: m for x, m in meanings.items() if x != at(CROSS, t) or self.cross != 0}
        kind = Kind.IDENTITY if self.open_because else Kind.DERIVED
        yield claim("the norm", norm, shown, kind)
        # What <w, s> is, by the record; where it is 0, the step is orthogonal to the weight.
        cross = step.inner(Vector.atom("w"), self.drive)
        yield claim("the cross term", sp.Eq(at(CROSS, t), now(self.cross), evaluate=False),
                    {at(CROSS, t): now(cross)})  # fmt: skip
        yield from self._known_lengths(claim)
        if self.growth is not None and self.cross != 0:
            yield from self._growth_claims(claim)
        elif not self.open_because:
            for unknown in sorted(self.unknowns, key=str):
                carried = step.inner(step.weight, step.states[_buffer(unknown)])
                relation = sp.Eq(later(unknown), now(self.recursion[unknown]), evaluate=False)
                more = {now(product): now(self._in_step(product))
                        for product in self.recursion[unknown].atoms(Norm, Inner)
                        if "s" in (product.a, getattr(product, "b", ""))}  # fmt: skip
                squares = {x**2 if isinstance(x.base.label, Norm) else x: m
                           for x, m in more.items()}  # fmt: skip
                yield claim("the recursion", relation, {later(unknown): now(carried), **squares})
        yield from self._closed_claim(claim)

    def _written(self, x: sp.Expr) -> sp.Expr:
        """A formula with the known lengths of atoms written out."""
        for atom, made in self.step.algebra.opaque.items():
            if made.square is not None and x.has(Norm(atom)) and not x.has(sp.Piecewise):
                x = x.subs(Norm(atom), sp.sqrt(made.square))
        return x

    def _in_step(self, product: Any) -> sp.Expr:
        """|s|^2, or <m, s>, by the record."""
        names = {product.a, getattr(product, "b", product.a)} - {"s"}
        other = Vector.atom(names.pop()) if names else self.drive
        return self.step.inner(other, self.drive)

    def _known_lengths(self, claim: Any) -> Any:
        """|s|, where it is known whatever the gradient is: of a sign, a letter, a unit vector."""
        if len(self.drive) != 1:
            return
        ((atom, factor),) = self.drive.items()
        algebra = self.step.algebra
        square = algebra.opaque[atom].square if atom in algebra.opaque else None
        square = None if square is None else self._written(square)
        if atom in algebra.named:
            square = Norm(atom) ** 2
        if square is None or atom in ("w", "g"):
            return
        length = tidy(factor**2 * square)
        if not length.free_symbols & {*map(Norm, algebra.named)}:
            S_t = at(S, t)
            shown = sp.Eq(S_t, at(length, t), evaluate=False)
            yield claim("the length of the step", shown, {S_t: at(length, t)})

    def _growth_claims(self, claim: Any) -> Any:
        """<w', s'> = A <w, s> + B |s|^2, from the recursion of the buffer."""
        A, B = self.growth or (sp.S.Zero, sp.S.Zero)
        (unknown,) = self.unknowns
        step, share = self.step, sp.cancel(self.cross / unknown)
        carried = share * step.inner(step.weight, step.states[_buffer(unknown)])
        after = sp.Add(A * at(CROSS, t), B * at(S, t), evaluate=False)
        meanings = {at(CROSS, t + 1): at(carried, t), at(CROSS, t): at(self.cross, t),
                    at(S, t): at(step.inner(self.drive, self.drive), t)}  # fmt: skip
        relation = sp.Eq(at(CROSS, t + 1), after, evaluate=False)
        yield claim("the recursion", relation, meanings)

    def _closed_claim(self, claim: Any) -> Any:
        """The closed form, by induction over t."""
        closed = self.closed_form()
        if closed is None:
            return
        w, keep = sp.IndexedBase(Norm("w")), self.keep
        if self.cross == 0:
            squared = {w[t + 1] ** 2: keep**2 * w[t] ** 2 + at(S, t)}
            induction = Induction(t, {}, squared, keep**2)
            yield claim("the norm at every step", closed, {}, Kind.INDUCTION, induction,
                        self.at_start)  # fmt: skip
            return
        A, B = self.growth or (sp.S.Zero, sp.S.Zero)
        # Its cross term is (|w_{t+1}|^2 - keep^2 |w_t|^2 - |s_t|^2) / (2 keep) at each step.
        y = sp.IndexedBase(CROSS)
        norm = keep**2 * w[t] ** 2 + at(S, t) + 2 * keep * y[t]
        induction = Induction(t, {y[0]: sp.S.Zero}, {y[t + 1]: A * y[t] + B * at(S, t)}, A)
        yield claim("the norm at every step", closed, {w[t + 1] ** 2: norm}, Kind.INDUCTION,
                    induction, self.at_start)  # fmt: skip

    @property
    def hypotheses(self) -> tuple[Hypothesis, ...]:
        """Those of all claims, and of the step that is split, each once."""
        found = [*self.step.hypotheses, *(h for c in self.claims for h in c.under)]
        found += positive_norms(*self.drive.values(), self.cross)
        closed = {words(h) for h in self.at_start}
        distinct = {words(each): each for each in found if words(each) not in closed}
        return tuple(distinct.values())

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The hypotheses under which the law holds, in text."""
        return (self.agreement.note, *map(words, self.hypotheses), *self.definitions, *self.numbers)

    @property
    def definitions(self) -> tuple[str, ...]:
        """The letters of the law: what they stand for, in text."""
        return self.proposition().letters

    @property
    def numbers(self) -> tuple[str, ...]:
        """The intervals of the hyper-parameters, and the values of those that are held."""
        traced = self.step.traced
        used = sp.Tuple(*self.step.weight.values(), *self.recursion.values(), self.kappa)
        lines = [
            f"{show(s)} in {traced.intervals[name]}"
            for name, s in traced.free.items()
            if traced.intervals[name] != ANY or used.has(s)
        ]
        for name, value in traced.held.items():
            if is_number(value):
                lines.append(f"{name} = {value}")
            elif isinstance(value, Tensor):
                lines.append(f"{name} = {value.tolist()}")
        return tuple(lines)

    def proposition(self) -> Proposition:
        """The law as a paper states it: Setting, Assume, Then, Closed form, Status.

        Print it for text of 80 columns; `.latex()` is a proposition environment of amsthm.

        Example:
            >>> print(norm_growth("sgdw", momentum=0.0).proposition())  # doctest: +ELLIPSIS
            Proposition (sgdw)
            Setting. ...
        """
        return Proposition.of(self)

    def __str__(self) -> str:
        return str(self.proposition())

    __repr__ = __str__

    def latex(self, letters: Letters | None = None) -> str:
        r"""The proposition as LaTeX, for a document with amsmath and amsthm.

        Args:
            letters: LaTeX by name, such as {"lr": r"\alpha", "w": r"\theta"}; the other names have
                the paper's letters.

        Raises:
            ValueError: two names would have one letter.
        """
        return self.proposition().latex(letters)

    def evaluate(
        self, weight: Tensor, gradient: Tensor, state: Mapping[str, Tensor], **hyper_parameters: Any
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The step w' = (1 - kappa) w + s that the law says, and the new state, in numbers.

        Args:
            weight: of any shape that `agreement.view` splits into units; of one unit where
                `agreement.several` is False.
            gradient: shaped as the weight; orthogonal to each unit where the law assumes that.
            state: as the rule's `init` or `step` returns it.
            hyper_parameters: numbers; those that are not given have the recipe's defaults.

        Returns:
            The new weight and the new state, in float64.

        Raises:
            OutsideError: an assumption of the law does not hold for these numbers.
            ValueError: a hyper-parameter is unknown, outside its open interval, or held at another
                number by the law; or a state is missing.

        Example:
            >>> law, w = norm_growth("sgdp", momentum=0.9), torch.tensor([[3.0, 4.0]])
            >>> numbers = {"lr": 1.0, "weight_decay": 0.01, "dampening": 0.5}
            >>> law.evaluate(w, torch.tensor([[-8.0, 6.0]]), {"momentum": 0 * w}, **numbers)[0]
            tensor([[6.9700, 0.9600]], dtype=torch.float64)
        """
        traced = self.step.traced
        values = {s.name: x for s, x in traced.values(**hyper_parameters).items()}
        values |= {s.name: float(x) for s, x in traced.given.items()}
        self.agreement.require(self.name, weight)
        return evaluate(
            self.split_step, self.agreement.view, Inputs(weight, gradient, state, values)
        )

    def predict(
        self,
        norms: Any,
        drive: Any,
        measured: Mapping[str, Any] | None = None,
        **hyper_parameters: Any,
    ) -> Array:
        """|w_t| over a run, from |w_0| and the lengths of the steps by the law alone.

        Args:
            norms: |w_0| of each unit, shape (...); or |w_t|, shape (steps + 1, ...), whose first
                entry is taken.
            drive: |s_t|, shape (steps, ...), with s the drive of the law.
            measured: other quantities that the law needs, by name, shape (steps, ...): `<w,s>` of
                an open law, `<m,s>` with Nesterov momentum, a counter `t`.
            hyper_parameters: numbers, or an array of one per step for a schedule; those that are
                not given have the recipe's defaults.

        Returns:
            |w_t|, shape (steps + 1, ...).

        Raises:
            ValueError: lengths that do not fit, a quantity that the law needs and does not get, or
                a hyper-parameter as for `evaluate`.

        Example:
            >>> plain = norm_growth("sgd", momentum=0.0, weight_decay=0.0, dampening=0.0)
            >>> plain.predict(3.0, [4.0, 12.0], lr=0.1)
            array([ 3.,  5., 13.])
        """
        return prediction.predict_norms(self, norms, drive, measured or {}, hyper_parameters)


def _buffer(unknown: Any) -> str:
    """m of <w, m>."""
    return str(unknown.b)


def norm_growth(recipe: str | Recipe | Trace, *, scale_invariant: bool = True, **given: Any) -> Law:
    """Derive the growth of a weight's norm under one step of `recipe`.

    Args:
        recipe: a recipe, its registered name, "module:function", or a trace.
        scale_invariant: put <w, g> = 0; otherwise <w, g> is a general number.
        given: hyper-parameters to hold at a value: `norm_growth(sgd, nesterov=True)`.

    Raises:
        ValueError: no such recipe or hyper-parameter.
        TraceError: the step cannot be traced, or holds an operation that has no meaning on formal
            vectors; or the law is not the step of its code.

    Example:
        >>> print(show(norm_growth("sgdw", momentum=0.0).law))
        |w'|^2 = (1 - lr wd)^2 |w|^2 + |s|^2
    """
    traced = recipe if isinstance(recipe, Trace) else trace(recipe, **given)
    law = derive(one_step(traced, scale_invariant=scale_invariant))
    law = replace(law, agreement=hold(law))
    return law if not traced.given else _at_numbers(law, traced.given)


def _at_numbers(law: Law, numbers: Mapping[sp.Symbol, sp.Expr]) -> Law:
    """The law with the numbers that were given in place of their symbols."""

    def entered(x: Any) -> Any:
        if isinstance(x, Vector):
            return x.map(entered)
        return normalize_signs(x.subs(numbers)) if isinstance(x, sp.Expr) else x

    step, algebra = law.step, law.step.algebra
    facts = replace(
        algebra.facts,
        hypotheses={r.func(*(x.subs(numbers) for x in r.args), evaluate=False): so
                    for r, so in algebra.facts.hypotheses.items()},
        cases={name: x.subs(numbers) for name, x in algebra.facts.cases.items()},
    )  # fmt: skip
    algebra = replace(
        algebra,
        facts=facts,
        known={pair: entered(x) for pair, x in algebra.known.items()},
        named={name: entered(x) for name, x in algebra.named.items()},
        opaque={name: replace(made, arguments=tuple(map(entered, made.arguments)))
                for name, made in algebra.opaque.items()},
    )  # fmt: skip
    step = replace(
        step,
        weight=entered(step.weight),
        states={name: entered(x) for name, x in step.states.items()},
        algebra=algebra,
    )
    return replace(
        law,
        step=step,
        kappa=entered(law.kappa),
        drive=entered(law.drive),
        cross=entered(law.cross),
        recursion={unknown: entered(x) for unknown, x in law.recursion.items()},
        length=None if law.length is None else entered(law.length),
    )


def derive(step: Step) -> Law:
    """The law of a step, with a recursion for each cross term that is required or can be measured.

    It is not yet held against its code.
    """
    length = _length(step)
    if length is not None:
        drive = step.weight - Vector.atom("w")
        # |w'|^2 = |w|^2 + |s|^2 + 2 <w, s>
        return Law(step, sp.S.Zero, drive, (length**2 - W - S) / 2, {}, length, "")
    w, given = Vector.atom("w"), step.constants
    whole = step.algebra.unfold(step.weight)
    kappa = _decay(whole["w"], given)
    drives = [x - w.scaled(1 - kappa) for x in (step.weight, whole)]
    drive = min((step.algebra.fold(x.map(_zero)) for x in drives), key=len)
    cross = normalize_signs(step.inner(w, drive))
    law = Law(step, kappa, drive, cross, {}, None, "")
    buffers = {Inner("w", m): m for m in step.buffers}
    measured = given | {Norm("w"), Norm("s")} | {Inner(m, "s") for m in buffers.values()}
    recursion = {}
    for unknown, buffer in buffers.items():
        after = express_inner(step, drive, "s", step.weight, step.states[buffer])
        after = sp.collect(sp.expand(after), [unknown, W, S], func=normalize_signs)
        can_be_measured = after.free_symbols <= measured | {*buffers}
        if unknown in cross.free_symbols or can_be_measured:
            recursion[unknown] = after
    waiting = [cross]
    while waiting:
        for unknown in waiting.pop().free_symbols & buffers.keys():
            if unknown not in recursion:
                after = express_inner(step, drive, "s", step.weight, step.states[buffers[unknown]])
                recursion[unknown] = sp.collect(sp.expand(after), [unknown, W, S],
                                                func=normalize_signs)  # fmt: skip
                waiting.append(recursion[unknown])
    formulas = sp.Tuple(cross, *recursion.values())
    loose = formulas.free_symbols - measured - {*recursion}
    return replace(law, recursion=recursion, open_because=_reason(step, loose))


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
