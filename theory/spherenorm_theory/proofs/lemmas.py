"""Eq. 4: scale invariance makes the gradient orthogonal to the weight.

By the chain rule, and from the recorded autograd gradients of normalized functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import sympy as sp
import torch
from torch import Tensor

from spherenorm import Recipe
from spherenorm.record import record
from spherenorm_theory.claim import Claim, Induction, Kind, Proof, Refutation
from spherenorm_theory.interpreter import interpret
from spherenorm_theory.norm_law import norm_growth
from spherenorm_theory.proofs.context import (
    AT_REST,
    CONSTANT,
    PLAIN,
    W_NEXT,
    WM,
    WP,
    WS,
    G,
    P,
    Q,
    Reading,
    S,
    W,
    beta,
    k,
    lr,
    momentum_of,
    scalar,
    step_in_the_plane,
    t,
    w,
)
from spherenorm_theory.symbols import DIMENSION, Inner, Norm, Vector, at
from spherenorm_theory.vectors import VectorAlgebra

Function = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def normalize(z: Tensor, entries: Tensor) -> Tensor:
    """Norm(z) = (z - mean) / standard deviation (paper, Section 2.1), with no eps."""
    centred = z - z.sum() / entries
    return centred / ((centred * centred).sum() / entries).sqrt()


def _unit(x: Tensor) -> Tensor:
    return x / (x * x).sum(1, keepdim=True).sqrt()


FUNCTIONS: dict[str, Function] = {
    "batch and layer normalization of any pre-activations": (
        lambda z, x, c, entries: (x * normalize(z, entries)).sum()
    ),
    "linear layer of normalized weights": lambda w, x, c, entries: (c * _unit(w) * x).sum(),
    "weight normalization": lambda w, x, c, entries: (
        c * w / (w * w).sum(1, keepdim=True).sqrt() * x
    ).sum(),
    "cosine loss": lambda w, x, c, entries: 1 - (_unit(w) * _unit(x)).sum(),
}
"""Functions of a vector w, or of pre-activations z, with data x and a number c, in any dimension.

Each is <x, normalized output> or the like, so that x stands for any loss that follows. The
pre-activations of a unit over a batch, or of a sample over the units, are linear in the weight:
<W, grad_W> = sum <z, grad_z>.
"""


def equation_4(functions: Mapping[str, Function] = FUNCTIONS) -> Proof:
    """Eq. 4: f(c w) = f(w) for all c > 0 gives 0 = d f(c w) / dc = <w, grad f(w)>.

    First for any f, which is then a function h of w / |w|, in three dimensions; then for
    `functions`, from the recorded code of autograd, for vectors of any dimension and any data.

    Args:
        functions: as `FUNCTIONS`.

    Example:
        >>> equation_4().proved
        True
    """
    radial = scalar("<w,grad f(w)>")
    any_function = "any function of the direction alone, an instance in three dimensions"
    cases = {any_function: (Kind.IDENTITY, {radial: _any_function()})}
    cases |= {name: (Kind.DERIVED, {radial: radial_part(f)}) for name, f in functions.items()}
    hypotheses = ("f(c w) = f(w) for all c > 0", "no eps")
    return Proof(
        "Eq. 4",
        tuple(
            Claim(n, sp.Eq(radial, 0), *case, hypotheses=hypotheses) for n, case in cases.items()
        ),
        remark="the eps of a normalization layer leaves a residue that `check` measures",
    )


def _any_function() -> sp.Expr:
    """<w, grad f(w)> for f(w) = h(w / |w|)."""
    w = sp.symbols("w1:4", positive=True)
    f = sp.Function("h")(*(x / sp.sqrt(sum(x**2 for x in w)) for x in w))
    along = sp.Add(*(x * sp.diff(f, x) for x in w))
    return along.xreplace({partial: sp.Dummy() for partial in along.atoms(sp.Subs)})


def radial_part(function: Function) -> sp.Expr:
    """<w, grad> of a function, for vectors of any dimension."""
    # The values of the tensors that it is recorded at do not matter.
    tensors = (torch.full(x, 4.0, dtype=torch.float64) for x in ((1, 4), (1, 4), (1, 1), ()))
    written = record(torch.func.grad(function), *tensors)
    algebra, w = VectorAlgebra(), Vector.atom("w")
    inputs = [w, Vector.atom("x"), sp.Symbol("c", real=True), DIMENSION]
    (gradient,) = interpret(written, algebra, inputs)
    return algebra.expand_and_simplify(algebra.inner(w, gradient))


# The statements of the paper, each proved from the recorded step of a recipe.


RATIO = scalar("growth/Sum(|s|^2)")


def effective_step(recipe: str | Recipe = "sgd") -> Proof:
    """Eq. 5: the effective step |w'/|w'| - w/|w|| is about |w' - w| / |w'|.

    Exactly, |effective step|^2 = |w' - w|^2 / |w'|^2 + (1 - |w| / |w'|)^2 for a step orthogonal to
    w, with the relative error x / 4 + ..., x = lr^2 |g|^2 / |w|^2.
    """
    step = norm_growth(recipe, momentum=0.0, **PLAIN).step
    exactly, approximate, x = (
        sp.Symbol(name, positive=True) for name in ("effective^2", "approximate^2", "x")
    )
    ratio = sp.sqrt(1 + x)
    gap = (1 - 1 / ratio) ** 2
    relative = sp.Limit((exactly / approximate - 1) / x, x, 0)
    where = {
        exactly: 2 - 2 * Inner("w", "w'") / (W * ratio),
        approximate: Norm("moved") ** 2 / (W * ratio**2),
    }
    read = Reading(step, {"moved": step.weight - w}, where=where, by={G: x * W / lr**2})
    return Proof(
        "Eq. 5",
        read.shown(
            ("both effective steps", sp.Eq(exactly, approximate + gap)),
            ("an underestimate", sp.Ge(exactly, approximate), gap),
            ("the norm, with x for (lr |g| / |w|)^2", sp.Eq(W_NEXT, ratio**2 * W)),
            ("relative error of the square", sp.Eq(relative, sp.Rational(1, 4))),
        ),
        remark="a step along the weight moves no direction at all, so the cosine of weight and "
        "step has to vanish with the rate",
    )


def lemma_2_1(recipe: str | Recipe = "sgd") -> Proof:
    """Lemma 2.1: gradient descent grows the norm by the squared step.

    |w'|^2 = |w|^2 + lr^2 |g|^2.
    """
    step = norm_growth(recipe, momentum=0.0, **PLAIN).step
    read = Reading(step, hypotheses=(sp.Gt(Norm("g"), 0, evaluate=False),))
    return Proof(
        "Lemma 2.1",
        read.shown(
            ("the norm after a step", sp.Eq(W_NEXT, W + lr**2 * G)),
            ("monotone", sp.Gt(W_NEXT, W), lr**2 * G),
        ),
    )


def lemma_2_2(recipe: str | Recipe = "sgd") -> Proof:
    """Lemma 2.2: with momentum, |w_{t+1}|^2 = |w_t|^2 + lr^2 P_t + 2 lr^2 sum_{k<t} beta^(t-k) P_k.

    As in the paper, it remains to find the cross term, <w_t, p_t> = beta <w_t, m_t>, by induction
    for symbolic t.
    """
    read = _read_momentum(recipe, CONSTANT)
    one = "one step", sp.Eq(W_NEXT, W + lr**2 * P - 2 * lr * WP)
    claims = _at_a_rate(read, lr, lambda x: lr * _sum_before_t(x))
    return Proof("Lemma 2.2", (*claims, *replace(read, hypotheses=()).shown(one)))


def lemma_2_2_scheduled(recipe: str | Recipe = "sgd") -> Proof:
    """Lemma 2.2 under a learning-rate schedule, of which the paper's lemma, at one rate, is a case.

    Each old term keeps the rate of its own step; one rate for all terms is another reading.
    """
    rates = sp.IndexedBase(lr)
    read = _read_momentum(recipe, "momentum constant")
    lemma, *rest = _at_a_rate(read, rates[t], lambda x: _sum_before_t(rates[k] * x))
    past = 2 * rates[t] ** 2 * _sum_before_t(beta ** (t - k) * at(P, k))
    one_rate = sp.Eq(at(W, t + 1), at(W, t) + rates[t] ** 2 * at(P, t) + past)
    values = {beta: sp.Rational(1, 2), at(W, 2): sp.Integer(7)}
    for n, (denominator, length) in enumerate(((2, 3), (3, 5), (5, 2))):
        values |= {rates[n]: sp.Rational(1, denominator), at(P, n): sp.Integer(length)}
    after = lemma.relation.rhs.subs(t, 2).doit().subs(values)
    other = Refutation(
        "the present rate for all terms",
        one_rate,
        {t: sp.Integer(2), **values, at(W, 3): after},
        (sp.Rational(2269, 300), sp.Rational(367, 50)),
    )
    return Proof(
        "Lemma 2.2 under a schedule",
        (lemma, *rest),
        (other,),
        remark="after a decay of the rate the old terms weigh more than at the present rate: "
        "the norm keeps growing by past, larger steps",
    )


def _read_momentum(recipe: str | Recipe, *hypotheses: str) -> Reading:
    """The step of a recipe like SGD, in products of its momentum p = m' in place of g."""
    step = norm_growth(recipe, **PLAIN).step
    p = momentum_of(step)
    return Reading(step, {"p": p, "m'": p}, letter="p", hypotheses=hypotheses)


def _sum_before_t(term: sp.Expr) -> sp.Sum:
    return sp.Sum(term, (k, 0, t - 1))


def _at_a_rate(
    read: Reading, rate: sp.Expr, total: Callable[[sp.Expr], sp.Expr]
) -> tuple[Claim, ...]:
    """Lemma 2.2 at the rate of step t, with `total` for x -> Sum(lr_k x_k, k < t)."""
    relation = sp.Eq(at(WM, t), -total(beta ** (t - 1 - k) * at(P, k)))
    cross = replace(read, by={lr: rate}).induction("the cross term", relation)
    by = replace(
        read, by={lr: rate, relation.lhs: relation.rhs}, hypotheses=(AT_REST, *read.hypotheses)
    )
    plain = at(W, t) + rate**2 * at(P, t)
    past = 2 * rate * total(beta ** (t - k) * at(P, k))
    lemma, faster = by.shown(
        ("the norm at every step", sp.Eq(at(W, t + 1), plain + past)),
        ("momentum adds growth", sp.Ge(at(W, t + 1), plain), past),
        kind=Kind.INDUCTION,
    )
    return lemma, cross, faster


def corollary_2_3(recipe: str | Recipe = "sgd") -> Proof:
    """Corollary 2.3: (|w^GDM|^2 - |w_0|^2) / (|w^GD|^2 - |w_0|^2) -> 1 + 2 beta / (1 - beta).

    For summable |s_k|^2, s = -lr p. A step adds |s|^2 + 2 y to |w|^2, y_t = <w_t, s_t>. So the
    ratio is 1 + 2 Sum(y) / Sum(|s|^2), whose deficit is exactly

        beta / (1 - beta) - Sum(y_k, k < t) / Sum(|s_k|^2, k < t)
            = y_t / ((1 - beta) Sum(|s_k|^2, k < t)),

    which goes to 0 as |s_k|^2 does. (Two inequalities of the printed proof fail, and with them its
    last; see docs/theory.md.)
    """
    total, deficit, ratio = summed_growth()
    of_momentum = sp.Function("ratio")
    substitution = {**ratio.substitution, of_momentum: sp.Lambda(beta, ratio.substitution[RATIO])}
    hypotheses = ("|p_k| the same with and without momentum", "Sum(|p_k|^2) positive and finite",
             "momentum in (0, 1)")  # fmt: skip
    limit = sp.Eq(RATIO, 1 + 2 * beta / (1 - beta))
    usual = sp.Eq(of_momentum(sp.Rational(9, 10)), 19)
    return Proof(
        "Corollary 2.3",
        (
            Claim("the growth ratio", limit, Kind.DERIVED, substitution, hypotheses=hypotheses),
            Claim("its usual value", usual, Kind.DERIVED, substitution),
            heavy_ball("the cross term", recipe, PLAIN),
            total,
            deficit,
        ),
        remark="the limit holds; of the inequalities of the printed proof two do not",
    )


def heavy_ball(about: str, recipe: str | Recipe, given: dict[str, Any]) -> Claim:
    """<w', s'> = beta (<w, s> + |s|^2), from the law of a recipe."""
    law = norm_growth(recipe, **given)
    (unknown,) = law.cross.free_symbols & {*law.recursion}
    later, hypotheses = Inner("w'", "s'"), (*law.step.hypotheses, CONSTANT)
    substitution = {later: law.cross / unknown * law.recursion[unknown], WS: law.cross}
    return Claim(
        about, sp.Eq(later, beta * (WS + S)), Kind.DERIVED, substitution, hypotheses=hypotheses
    )


def summed_growth() -> tuple[Claim, Claim, Claim]:
    """The sum of y' = beta (y + |s|^2), y = <w, s>, over the steps, and the growth it makes."""
    crossed, moved, y = _sum_before_t(at(WS, k)), _sum_before_t(at(S, k)), at(WS, t)
    total = sp.Eq((1 - beta) * crossed, beta * moved - y)
    step = Induction(t, {at(WS, 0): sp.S.Zero}, {at(WS, t + 1): beta * (y + at(S, t))})
    deficit = sp.Eq(crossed / moved, beta / (1 - beta) - y / ((1 - beta) * moved))
    # |w'|^2 - |w|^2 = |s|^2 + 2 y, and y is 0 in the end.
    growth = 1 + 2 * total.rhs.coeff(moved) / total.lhs.coeff(crossed)
    limit, about = sp.Eq(RATIO, (1 + beta) / (1 - beta)), "the growth ratio, once <w, s> is gone"
    hypotheses = (AT_REST, CONSTANT)
    return (
        Claim(
            "the sum over the steps", total, Kind.INDUCTION, induction=step, hypotheses=hypotheses
        ),
        Claim("the exact deficit", deficit, Kind.DERIVED, {crossed: total.rhs / (1 - beta)}),
        Claim(about, limit, Kind.DERIVED, {RATIO: growth}),
    )


def equation_14(recipe: str | Recipe = "sgdp") -> Proof:
    """Eq. 14: |w'|^2 = |w|^2 + lr^2 |q|^2 <= |w|^2 + lr^2 |p|^2, with q the projected momentum."""
    step = norm_growth(recipe, **PLAIN).step
    p, q = momentum_of(step), (w - step.weight) * (1 / lr)
    lost = WP**2 / W
    return Proof(
        "Eq. 14",
        Reading(step, {"p": p, "q": q, "p - q": p - q}).shown(
            ("the norm", sp.Eq(W_NEXT, W + lr**2 * Q)),
            ("the bound", sp.Le(W_NEXT, W + lr**2 * P), lr**2 * lost),
            ("the step is orthogonal", sp.Eq(Inner("w", "q"), 0)),
            ("the share that is lost", sp.Eq(Q, P - lost)),
            ("it is radial", sp.Eq(sp.Symbol("p - q"), WP / W * sp.Symbol("w"))),
        ),
        remark="compares one step from one weight and momentum",
    )


def proposition_3_1(plain: str | Recipe = "sgd", projected: str | Recipe = "sgdp") -> Proof:
    """Prop. 3.1: the projected step lies on the great circle of w_t and the original step.

    The paper's proof defines its geodesic as the great circle of the sphere with span(w_t, p_t), so
    that the proposition holds as printed. With a = <w, p> / |w|^2: w^p = w^o + lr a w, so it lies
    in span(w_t, w^o), on the side of w_t that w^o turns to, at an angle tan(theta_p) = (1 - lr a)
    tan(theta_o). For a < 0, which is what momentum brings (Lemma 2.2), it lies *beyond* w^o: on the
    shortest arc, another reading, it does not lie.
    """
    original, kept = (norm_growth(each, **PLAIN).step for each in (plain, projected))
    q, (tan_o, tan_p), a = (w - kept.weight) * (1 / lr), map(scalar, ("tan_o", "tan_p")), WP / W
    # In the plane of w and q: along w by <w, .>, across it by -<q, .>.
    where = {tan_o: -Inner("q", "w^o") / Inner("w", "w^o")}
    where |= {tan_p: -Inner("q", "w^p") / Inner("w", "w^p")}
    vectors = {"p": momentum_of(kept), "q": q, "w^o": original.weight, "w^p": kept.weight}
    read = Reading(kept, vectors, where=where, hypotheses=original.hypotheses)
    turned = (
        step_in_the_plane(each, [1, 0], [0, 1], [-2, 0], lr=1.0, momentum=0.5, **PLAIN)
        for each in (plain, projected)
    )  # p = (-1, 1)
    far_o, far_p = (sp.Abs(across / along) for along, across in turned)
    return Proof(
        "Prop. 3.1",
        read.shown(
            (
                "the projected step is in the span of weight and original step",
                sp.Eq(sp.Symbol("w^p"), sp.Symbol("w^o") + lr * a * sp.Symbol("w")),
            ),
            ("the angles from the weight", sp.Eq(tan_p, (1 - lr * a) * tan_o)),
            ("the original turns along the tangent", sp.Eq(Inner("q", "w^o"), -lr * Q)),
            ("the projected turns as far along it", sp.Eq(Inner("q", "w^p"), -lr * Q)),
        ),
        (
            Refutation(
                "the projected step lies between weight and original step",
                sp.Le(tan_p, tan_o),
                {tan_p: far_p, tan_o: far_o, lr: sp.S.One, WP: sp.S.NegativeOne},
                (sp.S.One, sp.Rational(1, 2)),
            ),
        ),
        remark="so after momentum the projected step turns further: the effective step grows, "
        "as intended",
    )
