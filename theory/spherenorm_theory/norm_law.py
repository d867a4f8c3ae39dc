"""`norm_growth`: the norm-growth law of any recipe, derived from its code and compared with it.

A step is split into decay and drive, w' = (1 - kappa) w + s. The decay kappa collects what
multiplies w by hyper-parameters alone; the drive s is the rest, projection included. Then

    |w'|^2 = (1 - kappa)^2 |w|^2 + |s|^2 + 2 (1 - kappa) <w, s>,

so that recipes differ in the cross term <w, s> alone, and in its recursion. Where a step ends on a
sphere, |w'| is a number whatever the step is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import sympy as sp
from torch import Tensor

from spherenorm import Recipe
from spherenorm_theory.claim import Claim, Hypothesis, Induction, ProofKind, positive_norms
from spherenorm_theory.evaluate import UNVERIFIED, Inputs, VerifiedDomain, evaluate
from spherenorm_theory.law_statement import describe_setting, state_law
from spherenorm_theory.printing import Letters, Proposition, enumerated, names_in, show, words
from spherenorm_theory.step import S, Step, W, express_inner, one_step, products_of_record
from spherenorm_theory.symbols import (
    MAX_READABLE_OPS,
    GrowthError,
    Inner,
    Norm,
    Vector,
    at,
    canonical_form,
    k,
    map_formulas,
    normalize_signs,
    shortest_form,
    t,
)
from spherenorm_theory.tracing import Trace, trace, trace_with_given_numbers_as_constants
from spherenorm_theory.verify import (
    DEFAULT_RUN_STEPS,
    DifferenceError,
    verify_against_code,
    verify_claims_on_run,
    verify_numbers,
)

CROSS = Inner("w", "s")
"""The cross term <w, s>; a law adds 2 (1 - kappa) <w, s> to the squared norm."""

w_norm, s_norm = sp.IndexedBase(Norm("w")), sp.IndexedBase(Norm("s"))
cross_term = sp.IndexedBase(CROSS)


@dataclass(frozen=True, eq=False)
class NormLaw:
    """The norm of a weight under a recipe: decay, drive and cross term, and their solution in time.

    Attributes:
        step: the step on symbols.
        kappa: decay of one step, a number between 0 and 1 for small learning rates.
        drive: the step without decay, s = w' - (1 - kappa) w.
        cross: <w, s> in products, of which the law holds 2 (1 - kappa) times: 0 for a projected
            step, -lr momentum <w, m> for SGD with momentum.
        recursion: <w', m'> in products, by <w, m>, for each buffer m that `cross` requires.
        new_norm: |w'| where it is a number whatever the step is, as on a sphere; else None.
        open_because: why there is no recursion or no closed form; empty if there is one.
        verified_domain: the weights for which the law agrees with its code.
        claims: all that the law says: relations, what shows them, and their hypotheses.

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
    new_norm: sp.Expr | None
    open_because: str
    verified_domain: VerifiedDomain = UNVERIFIED
    claims: tuple[Claim, ...] = ()

    @property
    def name(self) -> str:
        """The recipe's name."""
        return self.step.traced.name

    @property
    def retention(self) -> sp.Expr:
        """The factor 1 - kappa by which decay multiplies the weight, in its shorter form."""
        return min(1 - self.kappa, normalize_signs(1 - self.kappa), key=sp.count_ops)

    @property
    def sets_norm(self) -> bool:
        """True if the norm is a number whatever the step is: the weight lies on a sphere."""
        return self.new_norm is not None

    @property
    def equation(self) -> sp.Eq:
        """The squared norm |w'|^2 in |w|^2, |s|^2 and the cross term.

        Example:
            >>> print(show(norm_growth("sgdw", momentum=0.0).equation))
            |w'|^2 = (1 - lr wd)^2 |w|^2 + |s|^2
        """
        new_norm = Norm("w'") ** 2
        if self.new_norm is not None:
            return sp.Eq(new_norm, self.new_norm**2, evaluate=False)
        drift = shortest_form(2 * self.retention * self.cross)
        return sp.Eq(new_norm, self.retention**2 * W + S + drift, evaluate=False)

    @property
    def split_step(self) -> Step:
        """The step whose weight is (1 - kappa) w + s."""
        if self.new_norm is not None:
            return self.step
        weight = Vector.atom("w").scaled(1 - self.kappa) + self.drive
        return replace(self.step, weight=weight)

    @property
    def required_products(self) -> set[sp.Symbol]:
        """The inner products that the cross term needs, directly or through their recursions."""
        required, to_visit = set[sp.Symbol](), [self.cross]
        while to_visit:
            new = to_visit.pop().free_symbols & {*self.recursion} - required
            required |= new
            to_visit += [self.recursion[unknown] for unknown in new]
        return required

    @cached_property
    def cross_recursion(self) -> tuple[sp.Expr, sp.Expr] | None:
        """(A, B) of <w', s'> = A <w, s> + B |s|^2, if the cross term has this recursion."""
        unknowns = self.required_products
        if self.open_because or len(unknowns) != 1 or self.new_norm is not None:
            return None
        (unknown,) = unknowns
        ratio = sp.cancel(self.cross / unknown)
        in_cross = self.recursion[unknown].subs(unknown, CROSS / ratio)
        after = sp.expand(sp.cancel(ratio * in_cross))
        A, B = after.coeff(CROSS), after.coeff(Norm("s"), 2)
        if sp.expand(after - A * CROSS - B * S) != 0:
            return None
        used = A.free_symbols | B.free_symbols | ratio.free_symbols | self.kappa.free_symbols
        if not used <= {*self.step.traced.symbols.values()}:
            return None
        return shortest_form(A), shortest_form(B)

    def substitute_given_numbers(self, x: Any) -> Any:
        """Return words and formulas with the given numbers in place of their symbols."""
        numbers = self.step.traced.given_values
        if not numbers:
            return x
        return map_formulas(x, lambda formula: normalize_signs(formula.subs(numbers)))

    def at_given_numbers(self) -> NormLaw:
        """Return the law at the numbers that were given; its step keeps the symbols."""
        return replace(
            self,
            kappa=self.substitute_given_numbers(self.kappa),
            drive=self.substitute_given_numbers(self.drive),
            cross=self.substitute_given_numbers(self.cross),
            new_norm=self.substitute_given_numbers(self.new_norm),
            recursion={u: self.substitute_given_numbers(x) for u, x in self.recursion.items()},
        )

    @property
    def closed_form_hypotheses(self) -> tuple[Hypothesis, ...]:
        """The hypotheses of a closed form: constant hyper-parameters, momenta that start at 0."""
        used = sp.Tuple(self.kappa, self.cross, *(self.cross_recursion or ())).free_symbols
        names = [s for s in self.step.traced.symbolic.values() if s in used]
        constant = [enumerated(names, " constant")] if names else []
        buffers = self.step.buffers if self.cross != 0 else ()
        return (*constant, *(sp.Eq(sp.IndexedBase(m)[0], 0, evaluate=False) for m in buffers))

    def closed_form(self) -> sp.Eq | None:
        """Return |w_{t+1}|^2 as a sum over earlier steps, or |w_t|^2 where the cross term is 0.

        Returns:
            None if the law is open, has several unknowns or factors that change from step to step,
            or if its first step is of another kind.

        Example:
            >>> from spherenorm_theory import norm_growth, show
            >>> print(show(norm_growth("sgdw", dampening=0.0).closed_form()))
            |w_{t+1}|^2 = (1 - lr wd)^2 |w_t|^2 + |s_t|^2 + 2 Sum_{k<t} (beta (1 - lr wd))^(t - k) |s_k|^2
        """  # noqa: E501
        return _closed_form(self) if self.verified_domain.closed_form_verified else None

    @property
    def hypotheses(self) -> tuple[Hypothesis, ...]:
        """The assumptions of the step and of all claims, each once."""
        assumed: list[Hypothesis] = [*map(self.substitute_given_numbers, self.step.hypotheses)]
        assumed += [hypothesis for claim in self.claims for hypothesis in claim.hypotheses]
        assumed += positive_norms(*self.drive.values(), self.cross)
        of_closed_form = set(map(words, self.closed_form_hypotheses))
        by_text = {words(hypothesis): hypothesis for hypothesis in assumed}
        return tuple(x for text, x in by_text.items() if text not in of_closed_form)

    @property
    def hypotheses_text(self) -> tuple[str, ...]:
        """The setting and the hypotheses of the law, in text."""
        return tuple(map(words, (*describe_setting(self), *self.hypotheses)))

    def proposition(self) -> Proposition:
        """Return the law as a paper states it: a sentence, Setting, Assume, Then, Status.

        `print` writes it as text of 80 columns; `.latex()` is a proposition environment of amsthm.

        Example:
            >>> print(norm_growth("sgdw", momentum=0.0).proposition())  # doctest: +ELLIPSIS
            Proposition (sgdw)
            ...
        """
        return state_law(self)

    def __str__(self) -> str:
        return str(self.proposition())

    __repr__ = __str__

    def latex(self, letters: Letters | None = None) -> str:
        r"""Return the proposition as LaTeX, for a document with amsmath and amsthm.

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
        """Compute the law's step w' = (1 - kappa) w + s and the new state in numbers.

        Args:
            weight: a weight that `verified_domain.view` splits into units, or that is one unit
                where `verified_domain.multi_unit` is False.
            gradient: the gradient, orthogonal to each unit where the law assumes that.
            state: the state, as the rule's `init` or `step` returns it.
            **hyper_parameters: numbers; the others have the recipe's defaults.

        Returns:
            The new weight and the new state, in float64.

        Raises:
            OutsideError: an assumption of the law does not hold for these numbers.
            TraceError: the code takes another step at these hyper-parameters.
            ValueError: a hyper-parameter is unknown, outside its open interval, or fixed at another
                number by the law; or a state is missing.

        Example:
            >>> law, w = norm_growth("sgdp", momentum=0.9), torch.tensor([[3.0, 4.0]])
            >>> numbers = {"lr": 1.0, "weight_decay": 0.01, "dampening": 0.5}
            >>> law.evaluate(w, torch.tensor([[-8.0, 6.0]]), {"momentum": 0 * w}, **numbers)[0]
            tensor([[6.9700, 0.9600]], dtype=torch.float64)
        """
        traced = self.step.traced
        inputs = Inputs(weight, gradient, state, traced.all_values(**hyper_parameters))
        self.verified_domain.require(self.name, weight)
        verify_numbers(self, traced.free_values(**hyper_parameters))
        return evaluate(self.split_step, self.verified_domain.view, inputs)


def norm_growth(
    recipe: str | Recipe | Trace, *, scale_invariant: bool = True, **hyper_parameters: Any
) -> NormLaw:
    """Derive the growth of a weight's norm under one step of `recipe`.

    Args:
        recipe: a recipe, its registered name, "module:function", or a trace.
        scale_invariant: put <w, g> = 0; otherwise <w, g> is a general number.
        **hyper_parameters: values at which hyper-parameters are fixed, as in
            `norm_growth(sgd, nesterov=True)`.

    Raises:
        ValueError: no such recipe or hyper-parameter.
        TraceError: the step cannot be traced, an operation has no rule on formal vectors, or the
            law is not the step of its code.

    Example:
        >>> print(show(norm_growth("sgdw", momentum=0.0).equation))
        |w'|^2 = (1 - lr wd)^2 |w|^2 + |s|^2
    """
    return _verified_law(trace(recipe, **hyper_parameters), scale_invariant)


def verified_trace(recipe: str | Recipe | Trace, **hyper_parameters: Any) -> Trace:
    """Return a trace whose law agrees with its code, as other laws are derived from it.

    Args:
        recipe: a recipe, its registered name, "module:function", or a trace.
        **hyper_parameters: values at which hyper-parameters are fixed.

    Raises:
        ValueError: as for `norm_growth`.
    """
    traced = trace(recipe, **hyper_parameters)
    try:
        return _verified_law(traced, scale_invariant=True).step.traced
    except GrowthError:
        return traced  # the law that is derived from this trace raises the error by its own name


def _verified_law(traced: Trace, scale_invariant: bool) -> NormLaw:
    """Return the law of a trace.

    Where the code takes the given numbers otherwise than tensors, the law is that of the numbers.
    """
    try:
        return _law(traced, scale_invariant)
    except DifferenceError:
        if not traced.given_values:
            raise
        return _law(trace_with_given_numbers_as_constants(traced), scale_invariant)


@lru_cache(maxsize=512)
def _law(traced: Trace, scale_invariant: bool) -> NormLaw:
    law = derive_law(one_step(traced, scale_invariant=scale_invariant))
    claims = derive_claims(law)
    domain = verify_against_code(law, claims)
    if traced.given_values:
        law = law.at_given_numbers()
        claims = derive_claims(law)
    holds_at_defaults = verify_claims_on_run(law, claims, DEFAULT_RUN_STEPS, use_defaults=True)
    closed_form_verified = holds_at_defaults and domain.closed_form_verified
    if not closed_form_verified:
        claims = tuple(claim for claim in claims if claim.kind is not ProofKind.INDUCTION)
    domain = replace(domain, closed_form_verified=closed_form_verified)
    return replace(law, verified_domain=domain, claims=claims)


# Decay, drive and cross term


def derive_law(step: Step) -> NormLaw:
    """Return the law of a step, not yet compared with its code.

    It has a recursion for each cross term that is required or can be measured.
    """
    length = _find_fixed_new_norm(step)
    w = Vector.atom("w")
    if length is not None:
        # |w'|^2 = |w|^2 + |s|^2 + 2 <w, s>
        cross = (length**2 - W - S) / 2
        return NormLaw(step, sp.S.Zero, step.weight - w, cross, {}, length, "")
    constants, expanded = step.constants, step.algebra.expand_names(step.weight, canonical=True)
    kappa = _decay_of(expanded["w"], constants)
    drives = [
        step.algebra.replace_by_name((x - w.scaled(1 - kappa)).map(_cancel_sum))
        for x in (step.weight, expanded)
    ]
    drive = min(drives, key=len)
    cross = normalize_signs(step.inner(w, drive))
    law = NormLaw(step, kappa, drive, cross, {}, None, "")
    buffers = {Inner("w", m): m for m in step.buffers}
    measurable = constants | {Norm("w"), Norm("s")} | {Inner(m, "s") for m in buffers.values()}
    recursion: dict[sp.Symbol, sp.Expr] = {}
    to_visit = [cross]
    while to_visit:
        required = to_visit.pop().free_symbols & buffers.keys() - {*recursion}
        for unknown in sorted(required, key=str):
            after = _inner_after_step(step, drive, unknown, buffers[unknown])
            if after is not None:
                recursion[unknown] = after
                to_visit.append(after)
    for unknown in [x for x in buffers if x not in recursion]:
        after = _inner_after_step(step, drive, unknown, buffers[unknown])
        if after is not None and after.free_symbols <= measurable | {*buffers}:
            recursion[unknown] = after
    formulas = sp.Tuple(cross, *recursion.values())
    unexplained = formulas.free_symbols - measurable - {*recursion}
    return replace(law, recursion=recursion, open_because=_why_open(step, unexplained))


def _inner_after_step(step: Step, drive: Vector, unknown: sp.Symbol, buffer: str) -> sp.Expr | None:
    """Return <w', m'> in products; None where the formula is too long to read."""
    try:
        after = express_inner(step, drive, "s", step.weight, step.states[buffer])
        return sp.collect(sp.expand(after), [unknown, W, S], func=shortest_form)
    except GrowthError:
        return None


def _cancel_sum(x: sp.Expr) -> sp.Expr:
    return canonical_form(x) if x.is_Add else x


def _find_fixed_new_norm(step: Step) -> sp.Expr | None:
    """Return |w'|, if it is |w| or a number that no step changes."""
    unchanged = {symbol for atom, symbol in step.scalars.items() if step.states[atom] == symbol}
    fixed = unchanged | {*step.traced.symbols.values()}
    fixed |= {sp.Symbol(name, positive=True) for name in ("c", "q", "rank")}
    if len(step.weight) == 1:
        ((atom, factor),) = step.weight.items()
        square = _known_square(step, atom)
        if square is not None:
            length = sp.sqrt(sp.factor(canonical_form(factor**2 * square)))
            if length == Norm("w") or length.free_symbols <= fixed:
                return length
    rotates = step.weight["w"].has(sp.cos)
    keeps_norm = rotates and step.inner(step.weight, step.weight) == W
    return Norm("w") if keeps_norm else None


def _known_square(step: Step, atom: str) -> sp.Expr | None:
    """Return |a|^2 of a named combination as a symbol, or of an opaque vector where known."""
    if atom in step.algebra.opaque_vectors:
        return step.algebra.opaque_vectors[atom].square
    return Norm(atom) ** 2 if atom in step.algebra.combinations else None


def _decay_of(coefficient: sp.Expr, constants: set[sp.Symbol]) -> sp.Expr:
    """Return kappa: 1 minus the part of w's coefficient that constants alone make."""
    numerator, denominator = sp.fraction(sp.cancel(coefficient))
    terms = [sp.cancel(x / denominator) for x in sp.Add.make_args(sp.expand(numerator))]
    retention = sp.Add(*(term for term in terms if term.free_symbols <= constants))
    return normalize_signs(1 - (sp.S.One if retention == 0 else retention))


def _why_open(step: Step, unexplained: set[sp.Symbol]) -> str:
    """Say why the cross term has to be measured: the symbols that no recursion predicts."""
    symbols_by_reason: dict[str, list[str]] = {}
    for symbol in sorted(unexplained, key=str):
        names = {getattr(symbol, "a", ""), getattr(symbol, "b", "")}
        opaque = [atom for atom in step.algebra.opaque_vectors if atom in names]
        if symbol in step.facts.open_branches:
            reason = "decided anew at each step"
        elif opaque:
            reason = f"{', '.join(opaque)} not linear in gradients orthogonal to their weights"
        else:
            reason = "carried by no recursion"
        symbols_by_reason.setdefault(reason, []).append(show(symbol))
    reasons = [f"{', '.join(symbols)}: {reason}" for reason, symbols in symbols_by_reason.items()]
    return f"{'; '.join(reasons)}; so <w, s> has to be measured" if reasons else ""


# The claims of a law


def derive_claims(law: NormLaw) -> tuple[Claim, ...]:
    """Return all that a law says, each claim with its hypotheses."""
    claims = _claims_of_constant_norm(law) if law.sets_norm else _claims_of_drive(law)
    return tuple(replace(claim, hypotheses=_claim_hypotheses(law, claim)) for claim in claims)


def _claim_hypotheses(law: NormLaw, claim: Claim) -> tuple[Hypothesis, ...]:
    """Return the assumptions of the step, nonzero denominators, and the claim's own."""
    divisors = positive_norms(claim.relation.rhs, *claim.substitution.values())
    assumed = (
        *map(law.substitute_given_numbers, law.step.hypotheses),
        *divisors,
        *claim.hypotheses,
    )
    return tuple({words(hypothesis): hypothesis for hypothesis in assumed}.values())


def _claims_of_constant_norm(law: NormLaw) -> Iterator[Claim]:
    step, algebra = law.step, law.step.algebra
    yield _derived_claim(law, "the norm", w_norm[t + 1], at(law.new_norm, t))
    if len(step.weight) == 1:
        for name in (atom for atom in step.weight if atom in algebra.combinations):
            square = at(law.substitute_given_numbers(sp.expand(algebra.square(name))), t)
            norm = at(Norm(name), t) ** 2
            relation = sp.Eq(norm, square, evaluate=False)
            yield Claim(f"the norm of {name}", relation, ProofKind.DERIVED, {norm: square})
    projection = law.substitute_given_numbers(step.inner(Vector.atom("w"), step.weight))
    yield _derived_claim(law, "the turn", at(Inner("w", "w'"), t), at(projection, t))


def _claims_of_drive(law: NormLaw) -> Iterator[Claim]:
    """Yield the claims of w' = (1 - kappa) w + s: the norm, the cross term and their recursions."""
    is_open, retention = bool(law.open_because), law.retention
    drift = sp.S.Zero
    if law.cross != 0:
        drift = sp.Mul(2, *sp.Mul.make_args(retention), cross_term[t], evaluate=False)
    new_norm = retention**2 * w_norm[t] ** 2 + s_norm[t] ** 2 + drift
    norm = _derived_claim(law, "the norm", w_norm[t + 1] ** 2, new_norm)
    if not _is_readable(law, norm):
        norm = replace(norm, substitution=_products_of_split_step(law, norm.substitution))
    yield replace(norm, kind=ProofKind.IDENTITY) if is_open else norm
    # Where <w, s> is 0, the record shows that the step is orthogonal to the weight.
    yield _derived_claim(law, "the cross term", cross_term[t], at(law.cross, t))
    length = _known_drive_length(law)
    if length is not None:
        yield _derived_claim(law, "the length of the step", s_norm[t] ** 2, length)
    if law.cross_recursion is not None and law.cross != 0:
        A, B = law.cross_recursion
        after = sp.Add(A * cross_term[t], B * s_norm[t] ** 2, evaluate=False)
        yield _derived_claim(law, "the recursion", cross_term[t + 1], after)
    elif not is_open:
        for unknown in sorted(law.required_products, key=str):
            after = at(law.recursion[unknown], t)
            yield _derived_claim(law, "the recursion", at(unknown, t + 1), after)
    closed = _closed_form(law)
    if closed is not None:
        yield _closed_form_claim(law, closed)


def _derived_claim(law: NormLaw, about: str, lhs: sp.Expr, rhs: sp.Expr) -> Claim:
    """Return the claim lhs = rhs, with its products in those of the record."""
    step, relation = law.step, sp.Eq(lhs, rhs, evaluate=False)
    vectors = {"w": Vector.atom("w"), "w'": step.weight, "s": law.drive}
    for m, after in step.states.items():
        if isinstance(after, Vector):
            vectors |= {m: Vector.atom(m), f"{m}'": after}
    products = products_of_record(step.inner, vectors, relation)
    if cross_term[t + 1] in relation.atoms(sp.Indexed):
        # <w', s'> is the same multiple of <w', m'> as <w, s> is of <w, m>.
        (unknown,) = law.required_products
        after_step = step.inner(step.weight, step.states[unknown.b])
        products[cross_term[t + 1]] = at(sp.cancel(law.cross / unknown) * after_step, t)
    substitution = {
        x: law.substitute_given_numbers(_with_known_lengths(law, value) if x.is_Pow else value)
        for x, value in products.items()
    }
    return Claim(about, relation, ProofKind.DERIVED, substitution)


def _is_readable(law: NormLaw, claim: Claim) -> bool:
    """Tell if the products of a claim are short, and name combinations in all or in none."""
    names = {*law.step.algebra.combinations}
    n_ops, named = 0, set[bool]()
    for value in claim.substitution.values():
        n_ops += sp.count_ops(value)
        if value.has(Norm, Inner, sp.Indexed) and sp.count_ops(value) > 1:
            named.add(not names.isdisjoint(names_in(value)))
    return n_ops <= MAX_READABLE_OPS and len(named) < 2


def _products_of_split_step(
    law: NormLaw, products: Mapping[sp.Basic, sp.Basic]
) -> dict[sp.Basic, sp.Basic]:
    """Return |w'|^2 of w' = (1 - kappa) w + s in |w|^2, |s|^2 and the product <w, s> of the record.

    The drive s is w' - (1 - kappa) w, so that this is |w'|^2 of the record by bilinearity.
    """
    inner = at(law.substitute_given_numbers(law.step.inner(Vector.atom("w"), law.drive)), t)
    squared = law.retention**2 * w_norm[t] ** 2 + s_norm[t] ** 2 + 2 * law.retention * inner
    return {cross_term[t]: products.get(cross_term[t], inner), w_norm[t + 1] ** 2: squared}


def _with_known_lengths(law: NormLaw, x: sp.Expr) -> sp.Expr:
    """Return a squared norm at time t, with the known lengths of opaque vectors written out."""
    for atom, opaque in reversed(law.step.algebra.opaque_vectors.items()):
        norm = sp.IndexedBase(Norm(atom))[t]
        if opaque.square is not None and x.has(norm) and not x.has(sp.Piecewise):
            x = x.subs(norm, sp.sqrt(at(opaque.square, t)))
    return x


def _known_drive_length(law: NormLaw) -> sp.Expr | None:
    """Return |s|^2 where it is known whatever the gradient is, as for a sign."""
    if len(law.drive) != 1:
        return None
    ((atom, factor),) = law.drive.items()
    square = _known_square(law.step, atom)
    if square is None:
        return None
    length = _with_known_lengths(law, at(canonical_form(factor**2 * square), t))
    unknown = {sp.IndexedBase(Norm(name))[t] for name in law.step.algebra.combinations}
    return None if length.free_symbols & unknown else length


def _closed_form(law: NormLaw) -> sp.Eq | None:
    """Return the norm as a sum over earlier steps, not yet compared with a run; or None."""
    retention = law.retention
    if law.sets_norm:
        return None
    if law.cross == 0:
        if not retention.free_symbols <= {*law.step.traced.symbols.values()}:
            return None
        past = sp.Sum(retention ** (2 * (t - 1 - k)) * s_norm[k] ** 2, (k, 0, t - 1))
        total = retention ** (2 * t) * w_norm[0] ** 2 + past
        return sp.Eq(w_norm[t] ** 2, total, evaluate=False)
    if law.cross_recursion is None:
        return None
    A, B = law.cross_recursion
    has_form_of_lemma_2_2 = canonical_form(retention * B - A) == 0
    weight = A ** (t - k) if has_form_of_lemma_2_2 else retention * B * A ** (t - 1 - k)
    past = sp.Sum(weight * s_norm[k] ** 2, (k, 0, t - 1))
    total = retention**2 * w_norm[t] ** 2 + s_norm[t] ** 2 + sp.Mul(2, past, evaluate=False)
    return sp.Eq(w_norm[t + 1] ** 2, total, evaluate=False)


def _closed_form_claim(law: NormLaw, closed: sp.Eq) -> Claim:
    """Return the claim of the closed form, by induction with the recursion of the record."""
    retention, (A, B) = law.retention, law.cross_recursion or (sp.S.Zero, sp.S.Zero)
    without_cross = retention**2 * w_norm[t] ** 2 + s_norm[t] ** 2
    if law.cross == 0:
        substitution: dict[sp.Basic, sp.Basic] = {}
        induction = Induction(t, {}, {w_norm[t + 1] ** 2: without_cross}, retention**2)
    else:
        # The closed form says <w_t, s_t> = (|w_{t+1}|^2 - without_cross) / (2 retention).
        substitution = {w_norm[t + 1] ** 2: without_cross + 2 * retention * cross_term[t]}
        after = {cross_term[t + 1]: A * cross_term[t] + B * s_norm[t] ** 2}
        induction = Induction(t, {cross_term[0]: sp.S.Zero}, after, A)
    return Claim(
        "the norm at every step",
        closed,
        ProofKind.INDUCTION,
        substitution,
        induction=induction,
        hypotheses=law.closed_form_hypotheses,
    )
