"""The paper's statements, in its order; each function states one and proves it.

A docstring has the paper's equation, and the body the same equation in sympy. The steps of the
proof follow: `derived_from` a recorded step and earlier claims, `by_induction` over the steps, and
`refuted_by` for readings that are false. Each function takes the recipe whose code it is about, so
that a recipe with a fault fails.

Notation: the paper's eta is lr. p_t is the momentum after the gradient g_t of step t entered, and
q_t its projection. The state before a step is m_t = p_{t-1}, with m_0 = 0.

Source: Heo et al., *AdamP*, ICLR 2021, arXiv:2006.08217.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import sympy as sp
import torch
from torch import Tensor

from spherenorm import Recipe
from spherenorm.record import record
from spherenorm_theory.claim import Claim, Proof, ProofKind
from spherenorm_theory.interpreter import interpret
from spherenorm_theory.norm_law import norm_growth
from spherenorm_theory.proofs.context import (
    CONSTANT,
    W_NEXT,
    WITHOUT_DECAY,
    WM,
    WP,
    WS,
    ZERO_INITIAL_MOMENTUM,
    G,
    M,
    P,
    ProofContext,
    Q,
    S,
    W,
    beta,
    by_induction,
    derived_from,
    g,
    lr,
    momentum_of,
    refuted_by,
    scalar,
    step_in_the_plane,
    w,
)
from spherenorm_theory.symbols import DIMENSION, Inner, Norm, Vector, at, k, t
from spherenorm_theory.vectors import VectorAlgebra

Function = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

RATIO = scalar("growth/Sum(|s|^2)")
"""The growth of |w|^2 over all steps, relative to the sum of the squared steps."""


def sum_before(term: sp.Expr) -> sp.Sum:
    """Return the sum of a term over the steps k = 0, ..., t - 1."""
    return sp.Sum(term, (k, 0, t - 1))


# Section 2.2: the gradient is orthogonal to the weight


def _normalize(z: Tensor, n_entries: Tensor) -> Tensor:
    """Return Norm(z) = (z - mean) / standard deviation (Section 2.1), with no eps."""
    centered = z - z.sum() / n_entries
    return centered / ((centered * centered).sum() / n_entries).sqrt()


def _normalize_rows(x: Tensor) -> Tensor:
    return x / (x * x).sum(1, keepdim=True).sqrt()


SCALE_INVARIANT_FUNCTIONS: dict[str, Function] = {
    "batch and layer normalization of any pre-activations": (
        lambda z, x, c, n_entries: (x * _normalize(z, n_entries)).sum()
    ),
    "linear layer of normalized weights": lambda w, x, c, n_entries: (
        c * _normalize_rows(w) * x
    ).sum(),
    "weight normalization": lambda w, x, c, n_entries: (
        c * w / (w * w).sum(1, keepdim=True).sqrt() * x
    ).sum(),
    "cosine loss": lambda w, x, c, n_entries: 1 - (_normalize_rows(w) * _normalize_rows(x)).sum(),
}
"""Scale-invariant functions of a vector w, or of pre-activations z, with data x and a number c.

Each is <x, normalized output> or the like, so that x stands for the gradient of any loss behind
it. The pre-activations of a unit over a batch, or of a sample over the units, are linear in the
weight, so that <W, grad_W> = sum <z, grad_z>.
"""


def equation_4(functions: Mapping[str, Function] = SCALE_INVARIANT_FUNCTIONS) -> Proof:
    """Equation 4: a scale-invariant function has a gradient orthogonal to the weight,

        0 = d f(c w) / dc = <w, grad f(w)>,    where f(c w) = f(w) for all c > 0.

    First for any f, which is a function h of w / |w|, in an instance of three dimensions. Then for
    `functions`, from the recorded gradients of autograd, in any dimension and for any data.

    Args:
        functions: functions such as `SCALE_INVARIANT_FUNCTIONS`, by name.

    Example:
        >>> equation_4().proved
        True
    """
    radial = scalar("<w,grad f(w)>")
    statement = sp.Eq(radial, 0)

    any_function = "any function of the direction alone, an instance in three dimensions"
    cases = {any_function: (ProofKind.IDENTITY, _radial_part_of_any_function())}
    cases |= {name: (ProofKind.DERIVED, radial_part(f)) for name, f in functions.items()}

    hypotheses = ("f(c w) = f(w) for all c > 0", "no eps")
    return Proof(
        "Eq. 4",
        tuple(
            Claim(name, statement, kind, {radial: value}, hypotheses=hypotheses)
            for name, (kind, value) in cases.items()
        ),
        remark="the eps of a normalization layer leaves a residue that `check` measures",
        section="Section 2.3",
        verdict="Holds as printed.",
    )


def _radial_part_of_any_function() -> sp.Expr:
    """Return <w, grad f(w)> for f(w) = h(w / |w|)."""
    weight = sp.symbols("w1:4", positive=True)
    norm = sp.sqrt(sum(x**2 for x in weight))
    f = sp.Function("h")(*(x / norm for x in weight))
    radial = sp.Add(*(x * sp.diff(f, x) for x in weight))
    return radial.xreplace({partial: sp.Dummy() for partial in radial.atoms(sp.Subs)})


def radial_part(function: Function) -> sp.Expr:
    """Return <w, grad f(w)> of a function, for vectors of any dimension."""
    # The record does not depend on the values of the tensors at which it is made.
    tensors = (torch.full(x, 4.0, dtype=torch.float64) for x in ((1, 4), (1, 4), (1, 1), ()))
    recorded = record(torch.func.grad(function), *tensors)
    algebra = VectorAlgebra()
    inputs = [w, Vector.atom("x"), sp.Symbol("c", real=True), DIMENSION]
    (gradient,) = interpret(recorded, algebra, inputs)
    return algebra.expand_and_simplify(algebra.inner(w, gradient))


def effective_step(recipe: str | Recipe = "sgd") -> Proof:
    """Equation 5: the effective step size is about the step size over the new norm,

        |w_{t+1}/|w_{t+1}| - w_t/|w_t||  ~  |w_{t+1} - w_t| / |w_{t+1}|.

    The squares differ by exactly (1 - |w_t| / |w_{t+1}|)^2, for a step orthogonal to w. With
    x = lr^2 |g|^2 / |w|^2 that is a relative error of x / 4 + ..., so that "about" is for small x.
    """
    effective, approximation, x = (
        sp.Symbol(name, positive=True) for name in ("effective^2", "approximate^2", "x")
    )
    norm_ratio = sp.sqrt(1 + x)  # |w'| / |w|
    gap = (1 - 1 / norm_ratio) ** 2
    relative_error = sp.Limit((effective / approximation - 1) / x, x, 0)

    step = norm_growth(recipe, momentum=0.0, **WITHOUT_DECAY).step
    sgd = ProofContext(
        step,
        vectors={"step": step.weight - w},
        definitions={
            effective: 2 - 2 * Inner("w", "w'") / (W * norm_ratio),
            approximation: Norm("step") ** 2 / (W * norm_ratio**2),
        },
        lemmas={G: x * W / lr**2},
    )
    return Proof(
        "Eq. 5",
        (
            derived_from("both effective steps", sp.Eq(effective, approximation + gap), sgd),
            derived_from("an underestimate", sp.Ge(effective, approximation), sgd, difference=gap),
            derived_from(
                "the norm, with x for (lr |g| / |w|)^2", sp.Eq(W_NEXT, norm_ratio**2 * W), sgd
            ),
            derived_from(
                "relative error of the square", sp.Eq(relative_error, sp.Rational(1, 4)), sgd
            ),
        ),
        remark="a step along the weight moves no direction at all, so the cosine of weight and "
        "step has to vanish with the rate",
        section="Section 2.3",
        verdict="Holds as an approximation for small steps, with the error shown here: effective "
        "is the paper's left side, approximate its right side, and x is (lr |g| / |w|)^2.",
    )


# Sections 2.3 and 2.4: the norm grows


def lemma_2_1(recipe: str | Recipe = "sgd") -> Proof:
    """Lemma 2.1 (norm growth by GD), for p_t = grad f(w_t):

    |w_{t+1}|^2 = |w_t|^2 + lr^2 |p_t|^2.
    """
    statement = sp.Eq(at(W, t + 1), at(W, t) + lr**2 * at(P, t))
    monotone = sp.Gt(at(W, t + 1), at(W, t))

    step = norm_growth(recipe, momentum=0.0, **WITHOUT_DECAY).step
    nonzero = sp.Gt(Norm("p"), 0, evaluate=False)
    sgd = ProofContext(step, vectors={"p": g}, hypotheses=(nonzero,))
    in_gradients = sp.Eq(W_NEXT, W + lr**2 * G)
    return Proof(
        "Lemma 2.1",
        (
            derived_from("the norm after a step", statement, sgd),
            derived_from("monotone", monotone, sgd, difference=lr**2 * at(P, t)),
            derived_from("p is the gradient", in_gradients, sgd),
        ),
        section="Section 2.3",
        verdict="Holds as printed; strictly monotone where the gradient is not 0.",
    )


def lemma_2_2(recipe: str | Recipe = "sgd") -> Proof:
    """Lemma 2.2 (norm growth by momentum), for w_{t+1} = w_t - lr p_t, p_t = beta p_{t-1} + g_t:

        |w_{t+1}|^2 = |w_t|^2 + lr^2 |p_t|^2 + 2 lr^2 Sum_{k<t} beta^(t-k) |p_k|^2.

    As in the paper, one step gives |w_{t+1}|^2 = |w_t|^2 + lr^2 |p_t|^2 - 2 lr <w_t, p_t>, and it
    remains to find <w_t, p_t> = -lr Sum_{k<t} beta^(t-k) |p_k|^2. The induction is over
    <w_t, m_t>, where m_t = p_{t-1}, and <w_t, p_t> = beta <w_t, m_t> since <w_t, g_t> = 0.
    """
    past = 2 * lr**2 * sum_before(beta ** (t - k) * at(P, k))
    statement = sp.Eq(at(W, t + 1), at(W, t) + lr**2 * at(P, t) + past)
    monotone = sp.Ge(at(W, t + 1), at(W, t) + lr**2 * at(P, t))
    one_step = sp.Eq(W_NEXT, W + lr**2 * P - 2 * lr * WP)
    cross_term = sp.Eq(at(WP, t), -lr * sum_before(beta ** (t - k) * at(P, k)))
    with_momentum = sp.Eq(at(WM, t), -lr * sum_before(beta ** (t - 1 - k) * at(P, k)))

    sgd = ProofContext.of_momentum(recipe)
    momentum_claim = by_induction(
        "the weight with the momentum before the step",
        with_momentum,
        sgd,
        start={at(WM, 0): sp.S.Zero, at(M, 0): sp.S.Zero},
        step=beta,
        assuming=(ZERO_INITIAL_MOMENTUM, CONSTANT),
    )
    return Proof(
        "Lemma 2.2",
        (
            derived_from("the norm at every step", statement, sgd, momentum_claim),
            derived_from("one step", one_step, sgd),
            derived_from("the cross term", cross_term, sgd, momentum_claim),
            momentum_claim,
            derived_from("momentum adds growth", monotone, sgd, momentum_claim, difference=past),
        ),
        section="Section 2.4",
        verdict="Holds as printed, at a constant learning rate and momentum. m_t = p_{t-1} is the "
        "momentum before the step, so that m_0 = 0 is the paper's p_{-1} = 0.",
    )


def lemma_2_2_scheduled(recipe: str | Recipe = "sgd") -> Proof:
    """Lemma 2.2 with a learning rate lr_t, of which the paper's lemma is the constant case:

        |w_{t+1}|^2 = |w_t|^2 + lr_t^2 |p_t|^2 + 2 lr_t Sum_{k<t} lr_k beta^(t-k) |p_k|^2.

    Each old term keeps the rate of its own step. The printed formula with lr_t for all terms is
    another reading, which is false.
    """
    rate = sp.IndexedBase(lr)
    without_past = at(W, t) + rate[t] ** 2 * at(P, t)
    past = 2 * rate[t] * sum_before(rate[k] * beta ** (t - k) * at(P, k))
    statement = sp.Eq(at(W, t + 1), without_past + past)
    monotone = sp.Ge(at(W, t + 1), without_past)
    with_momentum = sp.Eq(at(WM, t), -sum_before(rate[k] * beta ** (t - 1 - k) * at(P, k)))
    at_present_rate = sp.Eq(
        at(W, t + 1), without_past + 2 * rate[t] ** 2 * sum_before(beta ** (t - k) * at(P, k))
    )

    sgd = ProofContext.of_momentum(recipe).with_values({lr: rate[t]})
    momentum_claim = by_induction(
        "the cross term",
        with_momentum,
        sgd,
        start={at(WM, 0): sp.S.Zero, at(M, 0): sp.S.Zero},
        step=beta,
        assuming=(ZERO_INITIAL_MOMENTUM, "momentum constant"),
    )
    # Three steps with the rates 1/2, 1/3, 1/5 and the squared steps 3, 5, 2.
    numbers = {t: sp.Integer(2), beta: sp.Rational(1, 2), at(W, 2): sp.Integer(7)}
    for n, (denominator, square) in enumerate(((2, 3), (3, 5), (5, 2))):
        numbers |= {rate[n]: sp.Rational(1, denominator), at(P, n): sp.Integer(square)}
    true_norm = statement.rhs.subs(t, 2).doit().subs(numbers)
    return Proof(
        "Lemma 2.2 under a schedule",
        (
            derived_from("the norm at every step", statement, sgd, momentum_claim),
            momentum_claim,
            derived_from("momentum adds growth", monotone, sgd, momentum_claim, difference=past),
        ),
        (
            refuted_by(
                "the present rate for all terms",
                at_present_rate,
                {**numbers, at(W, 3): true_norm},
                (sp.Rational(2269, 300), sp.Rational(367, 50)),
            ),
        ),
        remark="after a decay of the rate the old terms weigh more than at the present rate: "
        "the norm keeps growing by past, larger steps",
        section="Section 2.4",
        verdict="An extension: the paper has one learning rate.",
    )


def corollary_2_3(recipe: str | Recipe = "sgd") -> Proof:
    """Corollary 2.3: momentum multiplies the growth of the squared norm,

        (|w_t^GDM|^2 - |w_0|^2) / (|w_t^GD|^2 - |w_0|^2)  ->  1 + 2 beta / (1 - beta),

    if the |p_t| are the same with and without momentum, and 0 < Sum |p_t|^2 < oo.

    Stated in the steps s_t = -lr p_t: a step adds |s_t|^2 + 2 <w_t, s_t> to |w_t|^2, so that the
    ratio is 1 + 2 Sum <w_k, s_k> / Sum |s_k|^2. The recursion <w', s'> = beta (<w, s> + |s|^2)
    adds up to an exact deficit,

        beta / (1 - beta) - Sum_{k<t} <w_k, s_k> / Sum_{k<t} |s_k|^2
            = <w_t, s_t> / ((1 - beta) Sum_{k<t} |s_k|^2),

    which goes to 0 as |s_t|^2 does. The printed proof bounds residues instead, and two of its
    inequalities are false at numbers that meet its premises: the bound on r_2 is upside down, and
    T max A_k stands for T + 1 terms.
    """
    statement = sp.Eq(RATIO, 1 + 2 * beta / (1 - beta))
    ratio_of_beta = sp.Function("ratio")
    at_usual_beta = sp.Eq(ratio_of_beta(sp.Rational(9, 10)), 19)

    recursion = heavy_ball_claim("the cross term", recipe, WITHOUT_DECAY)
    total, deficit, ratio = summed_growth(recursion)
    growth = ratio.substitution[RATIO]
    hypotheses = (
        "|p_k| the same with and without momentum",
        "Sum(|p_k|^2) positive and finite",
        "momentum in (0, 1)",
    )
    return Proof(
        "Corollary 2.3",
        (
            Claim(
                "the growth ratio",
                statement,
                ProofKind.DERIVED,
                {RATIO: growth},
                hypotheses=hypotheses,
            ),
            Claim(
                "its usual value",
                at_usual_beta,
                ProofKind.DERIVED,
                {ratio_of_beta: sp.Lambda(beta, growth)},
            ),
            recursion,
            total,
            deficit,
        ),
        _refuted_bounds(),
        remark="the limit holds; of the inequalities of the printed proof two do not",
        section="Section 2.4",
        verdict="The limit holds as printed. Two inequalities of its printed proof do not. Growth "
        "is |w_t^GDM|^2 - |w_0|^2, and Sum(|s|^2) is |w_t^GD|^2 - |w_0|^2 by Lemma 2.1.",
    )


def _refuted_bounds() -> tuple[Any, Any]:
    """Refute two bounds of the printed proof, at numbers that meet its premises.

    With T = 1, T' = 2, beta = 3/4 and A = (2, 2, 2, 1, 0, ...): the tail of A after T is 3, and
    beta / (1 - beta) - Sum_{l<=T'} beta^l = 27/16 = eps / (T max A), for eps = 27/8.
    """
    A, l = sp.IndexedBase("A"), sp.Symbol("l", integer=True)  # noqa: E741  (the paper's letter)
    T, end = sp.symbols("T t", integer=True, nonnegative=True)
    eps, r_1, largest = sp.symbols("eps r_1 max_A", positive=True)
    r_2 = sp.Sum(sp.Sum(beta**l, (l, 1, end - k)) * A[k], (k, T + 1, end))
    return (
        refuted_by(
            "the bound on r_2 in the proof",
            sp.Le(r_2, (1 - beta) / beta * eps),
            {
                **{T: sp.S.One, end: sp.Integer(3), beta: sp.Rational(3, 4)},
                **{eps: sp.Rational(27, 8), A[2]: sp.Integer(2), A[3]: sp.S.One},
            },
            (sp.Rational(3, 2), sp.Rational(9, 8)),
        ),
        refuted_by(
            "T max A_k r_1 for the sum over k <= T in the proof",
            sp.Le(sp.Sum(r_1 * A[k], (k, 0, T)), T * largest * r_1),
            {
                **{T: sp.Integer(2), largest: sp.Integer(2), r_1: sp.Rational(1, 2)},
                **{A[n]: sp.Integer(2) for n in range(3)},
            },
            (sp.Integer(3), sp.Integer(2)),
        ),
    )


def heavy_ball_claim(
    about: str, recipe: str | Recipe, hyper_parameters: Mapping[str, Any]
) -> Claim:
    """Claim <w', s'> = beta (<w, s> + |s|^2), from the law of a recipe."""
    law = norm_growth(recipe, **hyper_parameters)
    (unknown,) = law.cross.free_symbols & {*law.recursion}
    later = Inner("w'", "s'")
    substitution = {later: law.cross / unknown * law.recursion[unknown], WS: law.cross}
    hypotheses = (*law.step.hypotheses, CONSTANT)
    relation = sp.Eq(later, beta * (WS + S))
    return Claim(about, relation, ProofKind.DERIVED, substitution, hypotheses=hypotheses)


def summed_growth(recursion: Claim) -> tuple[Claim, Claim, Claim]:
    """Claim the sum of <w_k, s_k> over the steps, its deficit, and the growth ratio.

    Args:
        recursion: the claim <w', s'> = beta (<w, s> + |s|^2).
    """
    crosses, squares = sum_before(at(WS, k)), sum_before(at(S, k))
    total = sp.Eq((1 - beta) * crosses, beta * squares - at(WS, t))
    deficit = sp.Eq(crosses / squares, beta / (1 - beta) - at(WS, t) / ((1 - beta) * squares))
    limit = sp.Eq(RATIO, (1 + beta) / (1 - beta))

    # |w'|^2 - |w|^2 = |s|^2 + 2 <w, s>, and <w_t, s_t> goes to 0.
    growth = 1 + 2 * total.rhs.coeff(squares) / total.lhs.coeff(crosses)
    return (
        by_induction(
            "the sum over the steps",
            total,
            recursion,
            start={at(WS, 0): sp.S.Zero},
            step=sp.S.One,
            assuming=(ZERO_INITIAL_MOMENTUM, CONSTANT),
        ),
        Claim("the exact deficit", deficit, ProofKind.DERIVED, {crosses: total.rhs / (1 - beta)}),
        Claim("the growth ratio, once <w, s> is gone", limit, ProofKind.DERIVED, {RATIO: growth}),
    )


# Section 3: the projected momentum


def equation_14(recipe: str | Recipe = "sgdp") -> Proof:
    """Equation 14: the norm growth of the projected update, with q_t the projection of p_t,

        |w_{t+1}|^2 = |w_t|^2 + lr^2 |q_t|^2  <=  |w_t|^2 + lr^2 |p_t|^2.

    The projection takes the radial part away: p - q = (<w, p> / |w|^2) w. It acts where the paper's
    test finds cos(w, g) < delta / sqrt(dim(w)), which <w, g> = 0 implies; elsewhere q = p, and the
    growth is that of Lemma 2.2.
    """
    statement = sp.Eq(at(W, t + 1), at(W, t) + lr**2 * at(Q, t))
    bound = sp.Le(at(W, t + 1), at(W, t) + lr**2 * at(P, t))
    removed = WP**2 / W
    radial = sp.Eq(sp.Symbol("p - q"), WP / W * sp.Symbol("w"))

    step = norm_growth(recipe, **WITHOUT_DECAY).step
    p, q = momentum_of(step), (w - step.weight) * (1 / lr)
    sgdp = ProofContext(step, vectors={"p": p, "q": q, "p - q": p - q})
    return Proof(
        "Eq. 14",
        (
            derived_from("the norm", statement, sgdp),
            derived_from("the bound", bound, sgdp, difference=lr**2 * at(removed, t)),
            derived_from("the step is orthogonal", sp.Eq(Inner("w", "q"), 0), sgdp),
            derived_from("the share that is lost", sp.Eq(Q, P - removed), sgdp),
            derived_from("it is radial", radial, sgdp),
        ),
        remark="compares one step from one weight and momentum",
        section="Section 3.1",
        verdict="Holds as printed, where the test of Eq. 13 projects.",
    )


def proposition_3_1(original: str | Recipe = "sgd", projected: str | Recipe = "sgdp") -> Proof:
    """Proposition 3.1: with the original and the projected update

        w^o = w_t - lr p_t    and    w^p = w_t - lr Pi_{w_t}(p_t),

    w^p / |w^p| lies on the geodesic of the sphere that w_t / |w_t| and w^o / |w^o| define.

    The paper's proof defines the geodesic as the great circle, the sphere's intersection with
    span(w_t, p_t), and so it holds: with a = <w, p> / |w|^2, w^p = w^o + lr a w. On this circle w^p
    is on the side of w_t to which w^o turns, at an angle tan(theta_p) = (1 - lr a) tan(theta_o).
    For a < 0, which momentum brings (Lemma 2.2), it lies *beyond* w^o: on the shortest arc between
    w_t and w^o, another reading, it does not lie. Where p is a multiple of w, the two points define
    no circle, and the projected step stays at w_t.
    """
    a = WP / W
    statement = sp.Eq(sp.Symbol("w^p"), sp.Symbol("w^o") + lr * a * sp.Symbol("w"))
    tan_o, tan_p = scalar("tan_o"), scalar("tan_p")
    angles = sp.Eq(tan_p, (1 - lr * a) * tan_o)
    on_the_arc = sp.Le(tan_p, tan_o)

    original_step, projected_step = (
        norm_growth(recipe, **WITHOUT_DECAY).step for recipe in (original, projected)
    )
    q = (w - projected_step.weight) * (1 / lr)
    sgdp = ProofContext(
        projected_step,
        vectors={
            "p": momentum_of(projected_step),
            "q": q,
            "w^o": original_step.weight,
            "w^p": projected_step.weight,
        },
        # In the plane of w and q: <w, .> along w, and -<q, .> across it.
        definitions={
            tan_o: -Inner("q", "w^o") / Inner("w", "w^o"),
            tan_p: -Inner("q", "w^p") / Inner("w", "w^p"),
        },
        hypotheses=original_step.hypotheses,
    )
    # In the plane, from w = (1, 0) with p = (-1, 1): a = -1.
    start = {"weight": [1, 0], "grad": [0, 1]}
    numbers = {"lr": 1.0, "momentum": 0.5, **WITHOUT_DECAY}
    (x_o, y_o), (x_p, y_p) = (
        step_in_the_plane(recipe, start["weight"], start["grad"], [-2, 0], **numbers)
        for recipe in (original, projected)
    )
    return Proof(
        "Prop. 3.1",
        (
            derived_from(
                "the projected step is in the span of weight and original step", statement, sgdp
            ),
            derived_from("the angles from the weight", angles, sgdp),
            derived_from(
                "the original turns along the tangent", sp.Eq(Inner("q", "w^o"), -lr * Q), sgdp
            ),
            derived_from(
                "the projected turns as far along it", sp.Eq(Inner("q", "w^p"), -lr * Q), sgdp
            ),
        ),
        (
            refuted_by(
                "the projected step lies between weight and original step",
                on_the_arc,
                {
                    **{tan_p: sp.Abs(y_p / x_p), tan_o: sp.Abs(y_o / x_o)},
                    **{lr: sp.S.One, WP: sp.S.NegativeOne},
                },
                (sp.S.One, sp.Rational(1, 2)),
            ),
        ),
        remark="so after momentum the projected step turns further: the effective step grows, "
        "as intended",
        section="Section 3.1",
        verdict="Holds as printed: its proof defines the geodesic as the great circle.",
    )
