"""False positives: random directions that a scale-invariance test takes for orthogonal ones."""

from __future__ import annotations

from typing import Any

import sympy as sp
from mpmath import betainc, erf, sqrt  # type: ignore[import-untyped]

from spherenorm import Chain, Recipe, Scalar, chain
from spherenorm import rules as r
from spherenorm_theory.claim import Claim, Kind, Proof, Refutation, substitute
from spherenorm_theory.equilibria.equilibrium import (
    Equilibrium,
    equilibrium,
    growth_ratio,
    momenta_at_rest,
)
from spherenorm_theory.norm_law import NormLaw, norm_growth
from spherenorm_theory.proofs.context import (
    CONSTANT,
    PLAIN,
    W_NEXT,
    WM,
    WS,
    G,
    M,
    P,
    Reading,
    S,
    W,
    beta,
    beta1,
    lr,
    m,
    momentum_of,
    rho,
    scalar,
    step_in_the_plane,
    t,
    w,
    wd,
)
from spherenorm_theory.proofs.lemmas import RATIO, heavy_ball, summed_growth
from spherenorm_theory.step import GAMMA, one_step
from spherenorm_theory.symbols import DIMENSION, Norm, at
from spherenorm_theory.tracing import trace


def _projected(delta: Scalar = 0.1) -> Chain:
    return chain(r.ScaleInvarianceTest(delta), r.RadialProjection())


def derive_threshold(dimension: int) -> sp.Expr:
    """The squared cosine below which the recorded test passes, in terms of delta."""
    step = one_step(trace(_projected, dimension=dimension), scale_invariant=False)
    (relation,) = {*step.facts.tests_assumed_false}
    bound = sp.Lt(relation.lhs, relation.rhs).rhs
    return sp.cancel(bound**2 / (Norm("w") * Norm("g")) ** 2)


def false_positive_rate(
    delta: float = 0.1, dimension: int | None = None, channels: int = 1
) -> float:
    """P(every channel of a weight passes the test) for isotropic random gradients.

    The cosine of a fixed and a random direction in R^d has cos^2 ~ Beta(1/2, (d-1)/2), so that one
    unit passes with probability

        I_{delta^2/d}(1/2, (d-1)/2)  ->  erf(delta / sqrt(2)) = P(|N(0, 1)| < delta)  as d -> oo,

    and the greatest cosine of c independent channels stays below the threshold with that to the
    power c.

    Args:
        delta: the threshold of the test.
        dimension: entries of a unit; None is the limit.
        channels: units that all have to pass.

    Raises:
        ValueError: delta is not positive, channels < 1, or dimension < 2.

    Example:
        >>> round(false_positive_rate(0.1), 4)
        0.0797
    """
    if not delta > 0:
        raise ValueError(f"delta must be positive, got {delta!r}")
    if channels < 1 or (dimension is not None and dimension < 2):
        raise ValueError(
            "need channels >= 1 and dimension >= 2, "
            f"got channels={channels!r}, dimension={dimension!r}"
        )
    if dimension is None:
        one = erf(delta / sqrt(2))
    else:
        one = betainc(0.5, (dimension - 1) / 2, 0, min(1.0, delta**2 / dimension), regularized=True)
    return float(one) ** channels


# Statements that the paper leaves open, proved from recorded steps in the same way.


def average_momentum(lr: Scalar = 0.1, momentum: Scalar = 0.9) -> Chain:
    """SGD with an exponential average for momentum."""
    return chain(r.ExponentialAverage(momentum), r.StepSize(lr))


def step_size_inside(lr: Scalar = 0.1, momentum: Scalar = 0.9) -> Chain:
    """SGD with the learning rate inside the momentum, as SGDG has it."""
    return chain(r.StepSize(lr), r.HeavyBall(momentum))


HEAVY_BALLS: dict[str, tuple[str | Recipe, dict[str, Any]]] = {
    "heavy ball": ("sgd", PLAIN),
    "dampened": ("sgd", {"weight_decay": 0.0}),
    "exponential average": (average_momentum, {}),
    "step size inside": (step_size_inside, {}),
}
"""Recipes with a heavy ball, and the hyper-parameters that are held."""


def momentum_by_any_name(*recipes: str | Recipe) -> Proof:
    """One law for all heavy balls: y_t = <w_t, s_t> follows y' = beta (y + |s|^2).

    So growth tends to (1 + beta) / (1 - beta) sum |s|^2. Dampening, averaging and the place of the
    step size change the step s, not the law in s.
    """
    own = [heavy_ball(str(each), each, {}) for each in recipes]
    known = (heavy_ball(name, *case) for name, case in HEAVY_BALLS.items())
    return Proof(
        "Any heavy ball",
        (*(own or known), *summed_growth()),
        remark="dampening, an exponential average, a step size before or after the momentum",
    )


def nesterov_never_shrinks(recipe: str | Recipe = "sgd") -> Proof:
    """Nesterov momentum never shrinks the norm: <w, m> <= -(lr sqrt(beta) / 2) |m|^2 at every step.

    |w'|^2 = |w|^2 + |s|^2 - 2 lr beta^2 <w, m>. With p = m', r = p - sqrt(beta) m and
    V = <w, m> + (lr sqrt(beta) / 2) |m|^2,

        V' = beta V - lr ((1 + beta - sqrt(beta)) |p|^2 + (sqrt(beta) / 2) |r|^2),

    so V <= 0 by induction from V = 0.
    """
    step, root = norm_growth(recipe, nesterov=True, **PLAIN).step, sp.sqrt(beta)
    p = momentum_of(step)
    vectors = {"s": step.weight - w, "p": p, "m'": p, "r": p - m * root}
    # 1 + beta - sqrt(beta), as a sum of squares
    certain = (root - sp.Rational(1, 2)) ** 2 + sp.Rational(3, 4)
    bounded = Reading(step, vectors, hypotheses=(CONSTANT,)).induction(
        "the bound on the momentum's radial part, with r = p - sqrt(beta) m",
        sp.Le(at(WM, t), -lr * root / 2 * at(M, t)),
        lr * (certain * at(P, t) + root / 2 * at(Norm("r") ** 2, t)),
    )
    slack = sp.Symbol("slack", nonnegative=True)
    worst = substitute(bounded.relation.rhs, {at(M, t): M}) - slack
    grown = S - 2 * lr * beta**2 * WM
    least = {W_NEXT: W + grown.xreplace({WM: worst})}
    gain = S + lr**2 * beta ** sp.Rational(5, 2) * M + 2 * lr * beta**2 * slack
    never = "the norm never shrinks", sp.Gt(W_NEXT, W), Kind.INDUCTION, least, gain
    return Proof(
        "Nesterov",
        (
            Claim(*never, hypotheses=bounded.hypotheses),
            *Reading(step, vectors).shown(
                ("the cross term", sp.Eq(WS, -lr * beta**2 * WM)),
                ("the norm", sp.Eq(W_NEXT, W + grown)),
            ),
            bounded,
        ),
        remark="the paper says its observations apply to Nesterov momentum; this is the proof",
    )


def adam_can_shrink(recipe: str | Recipe = "adam", projected: str | Recipe = "adamp") -> Proof:
    """Adam's first step can shrink the norm.

    Its step is not orthogonal to w, even where the gradient is. A projection makes it so. The paper
    remarks that its observations apply to Adam: as a tendency they may, as a law they do not.
    """
    law, kept = (norm_growth(each, weight_decay=0.0) for each in (recipe, projected))
    tenth, shown = sp.Rational(1, 10), list[Claim]()
    for weight, grad, sign in (([2, 1], [-1, 2], 1), ([1, 2], [-2, 1], -1)):  # <w, g> = 0
        moved = step_in_the_plane(recipe, weight, grad, lr=0.1, eps=0.0, weight_decay=0.0)
        along = sum(a * (b - a) for a, b in zip(weight, moved, strict=True))
        about = f"a first step from w = {weight}, with g = {grad}, lr = 1/10"
        shown.append(Claim(about, sp.Eq(WS, sign * lr), Kind.DERIVED, {WS: along, lr: tenth}))
    shrunk = sp.Add(*(x**2 for x in moved))
    read = Reading(law.step, {"s": law.drive})
    (one,) = read.shown(("one step", sp.Eq(W_NEXT, W + S + 2 * WS)), kind=Kind.IDENTITY)
    return Proof(
        "Adam",
        (one, *shown, *Reading(kept.step, {"s": kept.drive}).shown(
            ("with the projection", sp.Eq(WS, 0)))),
        (
            Refutation(
                "a step of Adam grows the norm",
                sp.Ge(W_NEXT, W),
                {W: sp.Integer(5), lr: tenth, W_NEXT: shrunk},
                (sp.Rational(241, 50), sp.Integer(5)),
            ),
        ),
        remark="a tendency, no law: the sign of Adam's cross term is open",
    )  # fmt: skip


# Equilibria and growth ratios, against the literature and against each other

KAPPA = sp.Symbol("kappa", positive=True)
AT, USUAL = sp.Function("ratio"), sp.Rational(9, 10)
RANDOM = ("random gradients", CONSTANT)
TURN, FOURTH = scalar("turn^2"), Norm("w") ** 4


def ratio_laws() -> Proof:
    """The ratio of Corollary 2.3 for the other kinds of momentum and of decay.

    (1 + beta) / (1 - beta) is that of the corollary. Every momentum moves the weight by
    lr g / (1 - beta) in the end; its square is the growth. Coupled decay enters the momentum, so
    that its ratio is a function of |w|^2 / |s|^2.
    """
    keep, growth = 1 - KAPPA, scalar("growth per step")
    nesterov = norm_growth("sgd", nesterov=True, **PLAIN)
    decoupled, coupled = (norm_growth(each, dampening=0.0) for each in ("sgdw", "sgd"))
    at_rest = momenta_at_rest(nesterov)
    lookahead = beta**2 * (1 + beta - beta**2) / (1 + 2 * beta - 2 * beta**3)
    own = keep * beta / (1 - beta * keep)
    entered = keep * beta * (1 - KAPPA * keep * W / S) / (1 - beta * (1 - 2 * KAPPA))
    rows = (
        ("heavy ball", sp.Eq(RATIO, (1 + beta) / (1 - beta)), norm_growth("sgd", **PLAIN)),
        ("projected", sp.Eq(RATIO, 1), norm_growth("sgdp", **PLAIN)),
        ("Nesterov", sp.Eq(RATIO, 1 + 2 * lookahead / (1 - beta)), nesterov),
        ("Nesterov, the usual momentum", sp.Eq(AT(USUAL), sp.Rational(9500, 671)), nesterov),
        ("Nesterov, growth", sp.Eq(growth, (lr / (1 - beta)) ** 2 * G), nesterov),
        ("decoupled decay", sp.Eq(RATIO, 1 + 2 * own), decoupled),
        ("coupled decay", sp.Eq(RATIO, 1 + 2 * entered), coupled),
    )

    def shown(about: str, relation: sp.Eq, law: NormLaw) -> Claim:
        found = growth_ratio(law)
        substitution = {RATIO: found, AT: sp.Lambda(beta, found), KAPPA: law.kappa}
        substitution |= {growth: S * found, G: at_rest[G]}
        return Claim(about, relation, Kind.MEAN_FIELD, substitution, hypotheses=RANDOM)

    return Proof(
        "Ratio laws",
        tuple(shown(*row) for row in rows),
        remark="Nesterov's steps are longer; coupled decay enters the momentum, so that no number "
        "is its ratio",
    )


def equilibria_of_the_literature() -> Proof:
    """The derived equilibria against Wan et al. 2021 and Kosson et al. 2023.

    Wan et al., *Spherical Motion Dynamics*: SGD with momentum and coupled decay,
    |w|^4 = gamma^2 lr / (wd (1-b)(2 - lr wd / (1+b))), rotation sqrt(2 lr wd / (1+b)).
    Kosson et al., *Rotational Equilibrium*: AdamW, |w|^2 = lr d / (2 wd), rotation
    sqrt(2 lr wd (1-b1) / (1+b1)).
    """
    sgdm, sgd = equilibrium("sgd", dampening=0.0), equilibrium("sgd", momentum=0.0, dampening=0.0)
    adamw = equilibrium("adamw", eps=0.0)
    fourth, rotation = map(adamw.leading, (adamw.fourth_power, adamw.squared_rotation))
    wan = GAMMA**2 * lr / (wd * (1 - beta) * (2 - lr * wd / (1 + beta)))
    kosson = 2 * lr * wd * (1 - beta1) / (1 + beta1)
    exact = kosson / (1 - lr * wd * beta1 / (1 + beta1))

    def shown(about: str, published: sp.Expr, law: Equilibrium, derived: sp.Expr) -> Claim:
        symbol = FOURTH if "norm" in about else TURN
        kind = Kind.LITERATURE if "Wan" in about or "Kosson" in about else Kind.MEAN_FIELD
        substitution = {symbol: derived}
        return Claim(about, sp.Eq(symbol, published), kind, substitution, hypotheses=law.hypotheses)

    return Proof("Equilibria", (
        shown("SGD with momentum, norm (Wan, exactly)", wan, sgdm, sgdm.fourth_power),
        shown("SGD with momentum, rotation (Wan, Kosson, exactly)", 2 * lr * wd / (1 + beta),
              sgdm, sgdm.squared_rotation),
        shown("SGD, rotation (Wan, exactly)", 2 * lr * wd, sgd, sgd.squared_rotation),
        shown("AdamW, norm (Kosson, for small lr)", (lr * DIMENSION / (2 * wd)) ** 2,
              adamw, fourth),
        shown("AdamW, rotation (Kosson, for small lr)", kosson, adamw, rotation),
        shown("AdamW, rotation (exactly)", exact, adamw, adamw.squared_rotation),
    ))  # fmt: skip


def matched_decay() -> Proof:
    """With equal decay a projected optimizer turns faster: rotation^2 by the decay ratio times 19.

    Without projection the squared rotation carries the factor (1 - beta) / (1 + beta), the inverse
    of Corollary 2.3's; with it, the factor wd_ratio. They match at wd_ratio = (1 - beta) /
    (1 + beta) = 1/19 for beta = 0.9; the release's 0.1 turns 1.38 times faster.
    """
    adamw, adamp = equilibrium("adamw", eps=0.0), equilibrium("adamp", eps=0.0)
    sgdm, sgdp = equilibrium("sgd", dampening=0.0), equilibrium("sgdp", dampening=0.0)
    turn_adamw = adamw.leading(adamw.squared_rotation)
    (of_adam,) = sp.solve(adamp.squared_rotation - turn_adamw, rho)
    (of_sgd,) = sp.solve(sgdp.squared_rotation - sgdm.squared_rotation, rho)
    faster, matched = sp.Function("speed^2"), sp.Function("matched_ratio")
    speed = sp.Lambda((rho, beta1), sp.cancel(adamp.squared_rotation / turn_adamw))
    by_adam = "AdamP turns as AdamW does (for small lr)", sp.Eq(rho, (1 - beta1) / (1 + beta1))
    by_sgd = "SGDP turns as SGD with momentum does", sp.Eq(rho, (1 - beta) / (1 + beta))
    usual = "the usual momentum", sp.Eq(matched(USUAL), sp.Rational(1, 19))
    release = "the release's ratio", sp.Eq(faster(1 - USUAL, USUAL), sp.Rational(19, 10))
    of_adamp = "AdamP's rotation", sp.Eq(TURN, 2 * lr * wd * rho)
    of_sgdp = "SGDP's rotation", sp.Eq(TURN, 2 * lr * wd * rho / (1 - beta))
    rows = (
        (by_adam, {rho: of_adam}, RANDOM),
        (by_sgd, {rho: of_sgd}, RANDOM),
        (of_adamp, {TURN: adamp.squared_rotation}, adamp.hypotheses),
        (of_sgdp, {TURN: sgdp.squared_rotation}, sgdp.hypotheses),
        (usual, {matched: sp.Lambda(beta1, of_adam)}, RANDOM),
        (release, {faster: speed}, RANDOM),
    )
    return Proof(
        "Matched decay",
        tuple(
            Claim(*row, Kind.MEAN_FIELD, known, hypotheses=hypotheses)
            for row, known, hypotheses in rows
        ),
    )


def false_positive_law() -> Proof:
    """The threshold from the recorded test, the exact law in dimension d, and what is left of it.

    P(pass) = I_{delta^2/d}(1/2, (d-1)/2): its slope in delta is the density of the cosine at both
    ends of the interval that passes, and it is 0 at delta = 0. For large d the density of
    x = sqrt(d) cos is normal, and its integral erf(delta / sqrt 2); that the rate itself goes there
    follows by dominated convergence. Its premise holds from d = 6 on: log(1 - y) <= -y bounds the
    density's kernel by exp(-x^2 / 4), so that its integral converges too, and the density's
    constant, which makes the integral 1, is the reciprocal.

    Example:
        >>> proof = false_positive_law()
        >>> print(proof.statement.relation.lhs)
        Derivative(betainc_regularized(1/2, d/2 - 1/2, 0, delta**2/d), delta)
    """
    delta, x, d = sp.symbols("delta x d", positive=True)
    e = sp.Symbol("e", nonnegative=True)
    kernel, threshold, rate = scalar("kernel"), scalar("threshold^2"), sp.Function("rate")
    law = sp.betainc_regularized(sp.Rational(1, 2), (d - 1) / 2, 0, delta**2 / d)
    # The density of c = cos in R^d, from the area of the zone of a sphere, at c = delta / sqrt(d).
    area = sp.gamma(d / 2) / (sp.sqrt(sp.pi) * sp.gamma((d - 1) / 2))
    density = area * (1 - delta**2 / d) ** ((d - 3) / 2)
    normal = sp.exp(-(x**2) / 2)
    whole = sp.integrate(normal, (x, -sp.oo, sp.oo))
    slope = sp.Eq(sp.Derivative(law, delta), 2 * density / sp.sqrt(d))
    large = {kernel: sp.exp((d - 3) / 2 * sp.log(1 - x**2 / d))}
    integral = sp.Integral(2 / whole * normal, (x, 0, delta))
    erf = sp.erf(delta / sp.sqrt(2))
    hypotheses = ("a direction uniform on the sphere", "one unit")
    by_algebra: tuple[Any, ...] = (
        ("its slope is the density at the ends", slope, {}),
        ("and none passes at a threshold of 0", sp.Eq(rate(0), 0), {rate: sp.Lambda(delta, law)}),
        ("the kernel of the density for large d", sp.Eq(sp.Limit(kernel, d, sp.oo), normal), large),
        ("the integral of the normal density", sp.Eq(integral, erf), {}),
    )
    bound = Claim(
        "the exponent of a bound on the kernel",
        sp.Ge((d - 3) / (2 * d), sp.Rational(1, 4)),
        Kind.IDENTITY,
        {d: 6 + e},
        e / (4 * (6 + e)),
    )
    recorded = sp.Eq(threshold, delta**2 / d), Kind.DERIVED, {threshold: derive_threshold(3)}
    return Proof(
        "False positives",
        (
            *(Claim(about, relation, Kind.IDENTITY, known, hypotheses=hypotheses)
              for about, relation, known in by_algebra),
            Claim("the threshold of the code", *recorded),
            bound,
        ),
        remark="of several channels all must pass: the rate to their number's power",
    )  # fmt: skip
