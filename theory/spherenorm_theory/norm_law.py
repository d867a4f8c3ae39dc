"""The norm-growth law of any recipe, derived from the record of its step.

The step is split into decay and drive, w' = (1 - kappa) w + s: kappa collects what multiplies w by
hyper-parameters alone; the rest, projection included, is the drive s. Then

    |w'|^2 = (1 - kappa)^2 |w|^2 + |s|^2 + 2 (1 - kappa) <w, s>,

so that recipes differ in <w, s> alone, and in its recursion. Where a step ends on a sphere, |w'| is
a number whatever the step is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import sympy as sp
from torch import Tensor

from spherenorm import Recipe
from spherenorm_theory.claim import Claim, Hypothesis, Induction, Kind, positive_norms
from spherenorm_theory.evaluate import UNVERIFIED, Inputs, VerifiedDomain, evaluate
from spherenorm_theory.law_statement import proposition, setting
from spherenorm_theory.printing import Letters, Statement, enumerated, show, words
from spherenorm_theory.step import S, Step, W, express_inner, one_step
from spherenorm_theory.symbols import (
    GrowthError,
    Inner,
    Norm,
    Vector,
    at,
    canonical_form,
    map_formulas,
    normalize_signs,
)
from spherenorm_theory.tracing import Trace, hold_as_constants, trace
from spherenorm_theory.verify import (
    OWN_STEPS,
    DifferenceError,
    verify_against_code,
    verify_claims_on_run,
    verify_numbers,
)

CROSS = Inner("w", "s")


@dataclass(frozen=True, eq=False)
class NormLaw:
    """The norm under a recipe: decay and drive of a step, and the recursion of the cross term.

    Attributes:
        step: the step on symbols.
        kappa: the decay of one step.
        drive: s, in the atoms.
        cross: <w, s> in products: 0 for a projected step, -lr momentum <w, m> for SGD with
            momentum.
        recursion: <w', m'> in products, for each buffer m that `cross` requires.
        length: |w'|, where it is a number whatever the step is; else None.
        open_because: the reason why there is no recursion or no closed form; empty if there is one.
        verified_domain: the weights for which the law was compared with its code.
        claims: all that the law says, as relations with what shows them and their hypotheses.

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
    verified_domain: VerifiedDomain = UNVERIFIED
    claims: tuple[Claim, ...] = ()

    @property
    def name(self) -> str:
        """The recipe's name."""
        return self.step.traced.name

    @property
    def retention(self) -> sp.Expr:
        """1 - kappa, the share of the weight that decay leaves."""
        return 1 - self.kappa

    @property
    def constant(self) -> bool:
        """True if the norm is a number whatever the step is: the weight lives on a sphere."""
        return self.length is not None

    @property
    def equation(self) -> sp.Eq:
        """|w'|^2 in terms of |w|^2, |s|^2 and the cross term."""
        after = Norm("w'") ** 2
        if self.length is not None:
            return sp.Eq(after, self.length**2, evaluate=False)
        drift = normalize_signs(2 * self.retention * self.cross)
        return sp.Eq(after, self.retention**2 * W + S + drift, evaluate=False)

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

    def with_given_numbers(self, x: Any) -> Any:
        """Words and formulas with the numbers that were given in place of their symbols."""
        given = self.step.traced.exact_values
        return map_formulas(x, lambda each: normalize_signs(each.subs(given))) if given else x

    def at_given_numbers(self) -> NormLaw:
        """The law at the numbers that were given; the step keeps its symbols."""
        whole = {
            n: self.with_given_numbers(getattr(self, n))
            for n in ("kappa", "drive", "cross", "length")
        }
        recursion = {unknown: self.with_given_numbers(x) for unknown, x in self.recursion.items()}
        return replace(self, recursion=recursion, **whole)

    @property
    def closed_form_hypotheses(self) -> tuple[Hypothesis, ...]:
        """The hypotheses of a closed form: what is the same at each step, and 0 at the start."""
        used = sp.Tuple(self.kappa, self.cross, *(self.growth or ())).free_symbols
        names = [s for s in self.step.traced.symbolic.values() if s in used]
        same = [enumerated(names, " constant")] if names else []
        rest = [m for m in self.step.buffers if self.cross != 0]
        return (*same, *(sp.Eq(sp.IndexedBase(m)[0], 0, evaluate=False) for m in rest))

    def closed_form(self) -> sp.Eq | None:
        """|w_{t+1}|^2 as a sum over the steps before; |w_t|^2 where the cross term is 0.

        None if the law is open, has several unknowns, factors that change from step to step, or a
        first step of another kind.

        Example:
            >>> from spherenorm_theory import norm_growth, show
            >>> print(show(norm_growth("sgdw", dampening=0.0).closed_form()))
            |w_{t+1}|^2 = (1 - lr wd)^2 |w_t|^2 + |s_t|^2 + 2 Sum_{k<t} (beta (1 - lr wd))^(t - k) |s_k|^2
        """  # noqa: E501
        return closed_form(self) if self.verified_domain.closed_form_verified else None

    @property
    def hypotheses(self) -> tuple[Hypothesis, ...]:
        """Those of all claims, and of the step that is split, each once."""
        found = [
            *map(self.with_given_numbers, self.step.hypotheses),
            *(h for c in self.claims for h in c.hypotheses),
        ]
        found += positive_norms(*self.drive.values(), self.cross)
        closed = {words(h) for h in self.closed_form_hypotheses}
        distinct = {words(each): each for each in found if words(each) not in closed}
        return tuple(distinct.values())

    @property
    def hypotheses_text(self) -> tuple[str, ...]:
        """The setting and the hypotheses of the law, in text."""
        return tuple(map(words, (*setting(self, self.verified_domain.note), *self.hypotheses)))

    def proposition(self) -> Statement:
        """The law as a paper states it: Setting, Assume, Then, Closed form, Status.

        Print it for text of 80 columns; `.latex()` is a proposition environment of amsthm.

        Example:
            >>> print(norm_growth("sgdw", momentum=0.0).proposition())  # doctest: +ELLIPSIS
            Proposition (sgdw)
            Setting. ...
        """
        held = self.verified_domain
        return proposition(self, self.claims, self.hypotheses, held.note, held.closed_form_verified)

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
            TraceError: the code takes another step at these hyper-parameters.
            ValueError: a hyper-parameter is unknown, outside its open interval, or held at another
                number by the law; or a state is missing.

        Example:
            >>> law, w = norm_growth("sgdp", momentum=0.9), torch.tensor([[3.0, 4.0]])
            >>> numbers = {"lr": 1.0, "weight_decay": 0.01, "dampening": 0.5}
            >>> law.evaluate(w, torch.tensor([[-8.0, 6.0]]), {"momentum": 0 * w}, **numbers)[0]
            tensor([[6.9700, 0.9600]], dtype=torch.float64)
        """
        traced = self.step.traced
        values = traced.numbers(**hyper_parameters)
        self.verified_domain.require(self.name, weight)
        verify_numbers(self, traced.values(**hyper_parameters))
        return evaluate(
            self.split_step, self.verified_domain.view, Inputs(weight, gradient, state, values)
        )


def norm_growth(
    recipe: str | Recipe | Trace, *, scale_invariant: bool = True, **given: Any
) -> NormLaw:
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
        >>> print(show(norm_growth("sgdw", momentum=0.0).equation))
        |w'|^2 = (1 - lr wd)^2 |w|^2 + |s|^2
    """
    return _verified_law(trace(recipe, **given), scale_invariant)


def verified_trace(recipe: str | Recipe | Trace, **given: Any) -> Trace:
    """The trace of a recipe from which a law can be derived that is the step of its code.

    Args:
        recipe: as for `norm_growth`.
        given: hyper-parameters to hold at a value.

    Raises:
        ValueError: as for `norm_growth`.
    """
    traced = trace(recipe, **given)
    try:
        return _verified_law(traced, scale_invariant=True).step.traced
    except GrowthError:
        return traced  # whoever derives a law from it names that error


def _verified_law(traced: Trace, scale_invariant: bool) -> NormLaw:
    """The law of a trace; where the code takes given numbers otherwise than tensors, of these."""
    try:
        return _law(traced, scale_invariant)
    except DifferenceError:
        if not traced.exact_values:
            raise
        return _law(hold_as_constants(traced), scale_invariant)


@lru_cache(maxsize=512)
def _law(traced: Trace, scale_invariant: bool) -> NormLaw:
    split = derive_law(one_step(traced, scale_invariant=scale_invariant))
    claims = derive_claims(split)
    verified_domain = verify_against_code(split, claims)
    if traced.exact_values:
        split = split.at_given_numbers()
        claims = derive_claims(split)
    closed_form_verified = (
        verify_claims_on_run(split, claims, OWN_STEPS, own=True)
        and verified_domain.closed_form_verified
    )
    verified_domain = replace(verified_domain, closed_form_verified=closed_form_verified)
    if not closed_form_verified:
        claims = tuple(claim for claim in claims if claim.kind is not Kind.INDUCTION)
    return replace(split, verified_domain=verified_domain, claims=claims)


# The law of a step


def derive_law(step: Step) -> NormLaw:
    """The law of a step, with a recursion for each cross term that is required or can be measured.

    It is not yet held against its code.
    """
    length = _length(step)
    if length is not None:
        drive = step.weight - Vector.atom("w")
        # |w'|^2 = |w|^2 + |s|^2 + 2 <w, s>
        return NormLaw(step, sp.S.Zero, drive, (length**2 - W - S) / 2, {}, length, "")
    w, given = Vector.atom("w"), step.constants
    whole = step.algebra.expand_names(step.weight, canonical=True)
    kappa = _decay(whole["w"], given)
    drives = [x - w.scaled(1 - kappa) for x in (step.weight, whole)]
    drive = min((step.algebra.replace_by_name(x.map(_canonical_sum)) for x in drives), key=len)
    cross = normalize_signs(step.inner(w, drive))
    law = NormLaw(step, kappa, drive, cross, {}, None, "")
    buffers = {Inner("w", m): m for m in step.buffers}
    measured = given | {Norm("w"), Norm("s")} | {Inner(m, "s") for m in buffers.values()}
    recursion: dict[sp.Symbol, sp.Expr] = {}
    waiting = [cross]
    while waiting:
        for unknown in sorted(waiting.pop().free_symbols & buffers.keys() - {*recursion}, key=str):
            after = _inner_after_step(step, drive, unknown, buffers[unknown])
            if after is not None:
                recursion[unknown] = after
                waiting.append(after)
    for unknown in [x for x in buffers if x not in recursion]:
        after = _inner_after_step(step, drive, unknown, buffers[unknown])
        if after is not None and after.free_symbols <= measured | {*buffers}:
            recursion[unknown] = after
    formulas = sp.Tuple(cross, *recursion.values())
    loose = formulas.free_symbols - measured - {*recursion}
    return replace(law, recursion=recursion, open_because=_why_open(step, loose))


def _inner_after_step(step: Step, drive: Vector, unknown: sp.Symbol, buffer: str) -> sp.Expr | None:
    """<w', m'> in products; None where the formula grows beyond what anybody would read."""
    try:
        after = express_inner(step, drive, "s", step.weight, step.states[buffer])
        return sp.collect(sp.expand(after), [unknown, W, S], func=normalize_signs)
    except GrowthError:
        return None


def _canonical_sum(x: sp.Expr) -> sp.Expr:
    return canonical_form(x) if x.is_Add else x


def _length(step: Step) -> sp.Expr | None:
    """|w'|, if it is |w| or a number that no step changes."""
    algebra = step.algebra
    kept = {s for n, s in step.scalars.items() if step.states[n] == s}
    fixed = kept | {*step.traced.symbols.values(), *(sp.Symbol(n, positive=True) for n in "cq")}
    fixed |= {sp.Symbol("rank", positive=True)}
    if len(step.weight) == 1:
        ((atom, factor),) = step.weight.items()
        square = Norm(atom) ** 2 if atom in algebra.combinations else None
        square = algebra.opaque_vectors[atom].square if atom in algebra.opaque_vectors else square
        if square is not None:
            length = sp.sqrt(sp.factor(canonical_form(factor**2 * square)))
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


def _why_open(step: Step, loose: set[sp.Symbol]) -> str:
    """The reason why the cross term must be measured: symbols that no recursion carries."""
    kinds: dict[str, list[str]] = {}
    for symbol in sorted(loose, key=str):
        if symbol in step.facts.open_branches:
            kind = "decided anew at each step"
        else:
            names = {getattr(symbol, "a", ""), getattr(symbol, "b", "")}
            atoms = [atom for atom in step.algebra.opaque_vectors if atom in names]
            plain = f"{', '.join(atoms)} not linear in gradients orthogonal to their weights"
            kind = plain if atoms else "carried by no recursion"
        kinds.setdefault(kind, []).append(show(symbol))
    reasons = [f"{', '.join(symbols)}: {kind}" for kind, symbols in kinds.items()]
    return f"{'; '.join(reasons)}; so <w, s> has to be measured" if reasons else ""


# All that a law says, as claims: relations that are decided, and printed as they are decided.


t, k = sp.symbols("t k", integer=True, nonnegative=True)
w, s, y = sp.IndexedBase(Norm("w")), sp.IndexedBase(Norm("s")), sp.IndexedBase(CROSS)


def read_products(
    step: Step, vectors: Mapping[str, Vector], relation: sp.Basic
) -> dict[sp.Basic, sp.Basic]:
    """The meanings of a relation's products: of |a|^2 and <a, b>, or of these at t and t + 1.

    Args:
        step: of which the products are.
        vectors: by their names in the relation; a' is a at t + 1.
        relation: whose products are read; or several.
    """
    found: dict[sp.Basic, sp.Basic] = {}
    indexed = relation.atoms(sp.Indexed)
    for x in indexed or relation.atoms(Norm, Inner):
        label, later = (x.base.label, "'" * int(x.indices[0] == t + 1)) if indexed else (x, "")
        names = [name + later for name in (label.a, getattr(label, "b", label.a))]
        if all(name in vectors for name in names):
            value = step.inner(*(vectors[name] for name in names))
            key = x**2 if isinstance(label, Norm) else x
            found[key] = at(value, t) if indexed else value
    return found


def derive_claims(law: NormLaw) -> tuple[Claim, ...]:
    """The claims of a law, each with its hypotheses."""
    found = _claims_of_constant_norm(law) if law.constant else _claims_of_drive(law)
    return tuple(replace(each, hypotheses=_hypotheses(law, each)) for each in found)


def _hypotheses(law: NormLaw, claim: Claim) -> tuple[Hypothesis, ...]:
    """Those of the reading, the norms that the claim divides by, and its own; each once."""
    divided = positive_norms(claim.relation.rhs, *claim.substitution.values())
    hypotheses = (*map(law.with_given_numbers, law.step.hypotheses), *divided, *claim.hypotheses)
    return tuple({words(each): each for each in hypotheses}.values())


def closed_form(law: NormLaw) -> sp.Eq | None:
    """|w_{t+1}|^2 as a sum over the steps before; |w_t|^2 where the cross term is 0; or None."""
    keep = law.retention
    if law.constant:
        return None
    if law.cross == 0:
        if not keep.free_symbols <= {*law.step.traced.symbols.values()}:
            return None
        past = sp.Sum(keep ** (2 * (t - 1 - k)) * s[k] ** 2, (k, 0, t - 1))
        return sp.Eq(w[t] ** 2, keep ** (2 * t) * w[0] ** 2 + past, evaluate=False)
    if law.growth is None:
        return None
    A, B = law.growth
    lemma = canonical_form(keep * B - A) == 0
    power = A ** (t - k) if lemma else keep * B * A ** (t - 1 - k)
    past = sp.Sum(power * s[k] ** 2, (k, 0, t - 1))
    after = keep**2 * w[t] ** 2 + s[t] ** 2 + sp.Mul(2, past, evaluate=False)
    return sp.Eq(w[t + 1] ** 2, after, evaluate=False)


def _derive_claim(law: NormLaw, about: str, left: sp.Expr, right: sp.Expr) -> Claim:
    """A claim that is read off the record of the step."""
    step, relation = law.step, sp.Eq(left, right, evaluate=False)
    states = {m: x for m, x in step.states.items() if isinstance(x, Vector)}
    vectors = {"w": Vector.atom("w"), "w'": step.weight, "s": law.drive}
    vectors |= {m: Vector.atom(m) for m in states} | {f"{m}'": x for m, x in states.items()}
    substitution = read_products(step, vectors, relation)
    if y[t + 1] in relation.atoms(sp.Indexed):
        # <w', s'> is the same share of <w', m'> as <w, s> of <w, m>.
        (unknown,) = law.unknowns
        after = step.inner(step.weight, step.states[unknown.b])
        substitution[y[t + 1]] = at(sp.cancel(law.cross / unknown) * after, t)
    substitution = {
        x: law.with_given_numbers(_write_known_lengths(law, meaning) if x.is_Pow else meaning)
        for x, meaning in substitution.items()
    }
    return Claim(about, relation, Kind.DERIVED, substitution)


def _claims_of_constant_norm(law: NormLaw) -> Iterator[Claim]:
    step, algebra, length = law.step, law.step.algebra, law.length
    assert length is not None
    yield _derive_claim(law, "the norm", w[t + 1], at(length, t))
    if len(step.weight) == 1:
        for name in (n for n in step.weight if n in algebra.combinations):
            square = at(law.with_given_numbers(sp.expand(algebra.square(name))), t)
            left = at(Norm(name), t) ** 2
            yield Claim(f"the norm of {name}", sp.Eq(left, square, evaluate=False), Kind.DERIVED,
                        {left: square})  # fmt: skip
    along = law.with_given_numbers(step.inner(Vector.atom("w"), step.weight))
    yield _derive_claim(law, "the turn", at(Inner("w", "w'"), t), at(along, t))


def _claims_of_drive(law: NormLaw) -> Iterator[Claim]:
    open_norm = bool(law.open_because)
    drift = 0 if law.cross == 0 else sp.Mul(2, law.retention, y[t], evaluate=False)
    after = law.retention**2 * w[t] ** 2 + s[t] ** 2 + drift
    norm = _derive_claim(law, "the norm", w[t + 1] ** 2, after)
    yield replace(norm, kind=Kind.IDENTITY) if open_norm else norm
    # By the record: where <w, s> is 0, the step is orthogonal to the weight.
    yield _derive_claim(law, "the cross term", y[t], at(law.cross, t))
    if (length := _known_length(law)) is not None:
        yield _derive_claim(law, "the length of the step", s[t] ** 2, length)
    if law.growth is not None and law.cross != 0:
        A, B = law.growth
        after = sp.Add(A * y[t], B * s[t] ** 2, evaluate=False)
        yield _derive_claim(law, "the recursion", y[t + 1], after)
    elif not open_norm:
        for unknown in sorted(law.unknowns, key=str):
            after = at(law.recursion[unknown], t)
            yield _derive_claim(law, "the recursion", at(unknown, t + 1), after)
    closed = closed_form(law)
    if closed is not None:
        yield _closed_form_claim(law, closed)


def _write_known_lengths(law: NormLaw, x: sp.Expr) -> sp.Expr:
    """A squared norm at time t, with the known lengths of atoms written out."""
    for atom, made in reversed(law.step.algebra.opaque_vectors.items()):
        label = sp.IndexedBase(Norm(atom))[t]
        if made.square is not None and x.has(label) and not x.has(sp.Piecewise):
            x = x.subs(label, sp.sqrt(at(made.square, t)))
    return x


def _known_length(law: NormLaw) -> sp.Expr | None:
    """|s|^2, where it is known whatever the gradient is: of a sign, a letter, a unit vector."""
    if len(law.drive) != 1:
        return None
    ((atom, factor),) = law.drive.items()
    algebra = law.step.algebra
    square = Norm(atom) ** 2 if atom in algebra.combinations else None
    if atom in algebra.opaque_vectors:
        square = algebra.opaque_vectors[atom].square
    if square is None:
        return None
    length = _write_known_lengths(law, at(canonical_form(factor**2 * square), t))
    unknown = {sp.IndexedBase(Norm(name))[t] for name in algebra.combinations}
    return None if length.free_symbols & unknown else length


def _closed_form_claim(law: NormLaw, closed: sp.Eq) -> Claim:
    """The closed form, carried over t by the record."""
    keep, (A, B) = law.retention, law.growth or (sp.S.Zero, sp.S.Zero)
    if law.cross == 0:
        substitution, start, A = {}, {}, keep**2
        after = {w[t + 1] ** 2: keep**2 * w[t] ** 2 + s[t] ** 2}
    else:
        # Its cross term is (|w_{t+1}|^2 - keep^2 |w_t|^2 - |s_t|^2) / (2 keep) at each step.
        substitution = {w[t + 1] ** 2: keep**2 * w[t] ** 2 + s[t] ** 2 + 2 * keep * y[t]}
        start, after = {y[0]: sp.S.Zero}, {y[t + 1]: A * y[t] + B * s[t] ** 2}
    induction = Induction(t, start, after, A)
    return Claim("the norm at every step", closed, Kind.INDUCTION, substitution,
                 induction=induction, hypotheses=law.closed_form_hypotheses)  # fmt: skip
