"""Statements beyond the paper, proved from recorded steps in the same way; false-positive rates."""

from __future__ import annotations

from typing import Any

import sympy as sp
from mpmath import betainc, erf, sqrt  # type: ignore[import-untyped]

from spherenorm import Chain, Recipe, Scalar, chain
from spherenorm import rules as r
from spherenorm_theory.claim import Claim, Proof, ProofKind, substitute
from spherenorm_theory.equilibria.equilibrium import (
    Equilibrium,
    equilibrium,
    growth_ratio,
    stationary_momenta,
)
from spherenorm_theory.norm_law import NormLaw, norm_growth
from spherenorm_theory.proofs.context import (
    CONSTANT,
    W_NEXT,
    WITHOUT_DECAY,
    WM,
    WS,
    ZERO_INITIAL_MOMENTUM,
    G,
    M,
    P,
    ProofContext,
    S,
    W,
    beta,
    beta1,
    by_induction,
    derived_from,
    lr,
    m,
    momentum_of,
    refuted_by,
    rho,
    scalar,
    step_in_the_plane,
    w,
    wd,
)
from spherenorm_theory.proofs.lemmas import RATIO, heavy_ball_claim, summed_growth
from spherenorm_theory.step import GAMMA, one_step
from spherenorm_theory.symbols import DIMENSION, Norm, at, t
from spherenorm_theory.tracing import trace

# Other momenta


def average_momentum(lr: Scalar = 0.1, momentum: Scalar = 0.9) -> Chain:
    """SGD with an exponential average for momentum."""
    return chain(r.ExponentialAverage(momentum), r.StepSize(lr))


def step_size_inside(lr: Scalar = 0.1, momentum: Scalar = 0.9) -> Chain:
    """SGD with the learning rate inside the momentum, as SGDG has it."""
    return chain(r.StepSize(lr), r.HeavyBall(momentum))


HEAVY_BALLS: dict[str, tuple[str | Recipe, dict[str, Any]]] = {
    "heavy ball": ("sgd", WITHOUT_DECAY),
    "dampened": ("sgd", {"weight_decay": 0.0}),
    "exponential average": (average_momentum, {}),
    "step size inside": (step_size_inside, {}),
}
"""Recipes with a heavy ball, and the hyper-parameters that are fixed."""


def momentum_by_any_name(*recipes: str | Recipe) -> Proof:
    """All heavy balls have one law: y_t = <w_t, s_t> follows y' = beta (y + |s|^2).

    So the growth tends to (1 + beta) / (1 - beta) Sum |s|^2. Dampening, averaging and the position
    of the step size change the step s, not the law in s.
    """
    cases: dict[str, tuple[str | Recipe, dict[str, Any]]] = HEAVY_BALLS
    if recipes:
        cases = {str(recipe): (recipe, {}) for recipe in recipes}
    recursions = [
        heavy_ball_claim(name, recipe, numbers) for name, (recipe, numbers) in cases.items()
    ]
    return Proof(
        "Any heavy ball",
        (*recursions, *summed_growth(recursions[0])),
        remark="dampening, an exponential average, a step size before or after the momentum",
    )


def nesterov_never_shrinks(recipe: str | Recipe = "sgd") -> Proof:
    """Nesterov momentum never shrinks the norm: <w, m> <= -(lr sqrt(beta) / 2) |m|^2 at every step.

    |w'|^2 = |w|^2 + |s|^2 - 2 lr beta^2 <w, m>. With p = m', r = p - sqrt(beta) m and
    V = <w, m> + (lr sqrt(beta) / 2) |m|^2,

        V' = beta V - lr ((1 + beta - sqrt(beta)) |p|^2 + (sqrt(beta) / 2) |r|^2),

    so that V <= 0 by induction from V = 0.
    """
    root = sp.sqrt(beta)
    statement = sp.Gt(W_NEXT, W)
    growth = S - 2 * lr * beta**2 * WM
    bound = sp.Le(at(WM, t), -lr * root / 2 * at(M, t))

    step = norm_growth(recipe, nesterov=True, **WITHOUT_DECAY).step
    p = momentum_of(step)
    nesterov = ProofContext(
        step, vectors={"s": step.weight - w, "p": p, "m'": p, "r": p - m * root}
    )
    # 1 + beta - sqrt(beta), as a sum of squares
    positive = (root - sp.Rational(1, 2)) ** 2 + sp.Rational(3, 4)
    bound_claim = by_induction(
        "the bound on the momentum's radial part, with r = p - sqrt(beta) m",
        bound,
        nesterov,
        start={at(WM, 0): sp.S.Zero, at(M, 0): sp.S.Zero},
        step=beta,
        assuming=(ZERO_INITIAL_MOMENTUM, CONSTANT),
        difference=lr * (positive * at(P, t) + root / 2 * at(Norm("r") ** 2, t)),
    )
    # Within the bound, <w, m> is the bound minus a slack.
    slack = sp.Symbol("slack", nonnegative=True)
    within_bound = substitute(bound.rhs, {at(M, t): M}) - slack
    gain = S + lr**2 * beta ** sp.Rational(5, 2) * M + 2 * lr * beta**2 * slack
    return Proof(
        "Nesterov",
        (
            Claim(
                "the norm never shrinks",
                statement,
                ProofKind.INDUCTION,
                {W_NEXT: W + growth.xreplace({WM: within_bound})},
                gain,
                hypotheses=bound_claim.hypotheses,
            ),
            derived_from("the cross term", sp.Eq(WS, -lr * beta**2 * WM), nesterov),
            derived_from("the norm", sp.Eq(W_NEXT, W + growth), nesterov),
            bound_claim,
        ),
        remark="the paper says its observations apply to Nesterov momentum; this is the proof",
    )


def adam_can_shrink(recipe: str | Recipe = "adam", projected: str | Recipe = "adamp") -> Proof:
    """Adam's first step can shrink the norm.

    Its step is not orthogonal to w, even where the gradient is. A projection makes it so. The paper
    remarks (Section 2.4) that its observations apply to Adam: as a tendency they may, as a law they
    do not.
    """
    grows = sp.Ge(W_NEXT, W)
    one_step_equation = sp.Eq(W_NEXT, W + S + 2 * WS)

    law, projected_law = (norm_growth(x, weight_decay=0.0) for x in (recipe, projected))
    adam = ProofContext(law.step, vectors={"s": law.drive})
    adamp = ProofContext(projected_law.step, vectors={"s": projected_law.drive})
    tenth, first_steps = sp.Rational(1, 10), list[Claim]()
    for weight, grad, sign in (([2, 1], [-1, 2], 1), ([1, 2], [-2, 1], -1)):  # <w, g> = 0
        new = step_in_the_plane(recipe, weight, grad, lr=0.1, eps=0.0, weight_decay=0.0)
        cross = sum(a * (b - a) for a, b in zip(weight, new, strict=True))
        about = f"a first step from w = {weight}, with g = {grad}, lr = 1/10"
        relation = sp.Eq(WS, sign * lr)
        first_steps.append(Claim(about, relation, ProofKind.DERIVED, {WS: cross, lr: tenth}))
    smaller_norm = sp.Add(*(x**2 for x in new))
    return Proof(
        "Adam",
        (
            derived_from("one step", one_step_equation, adam, kind=ProofKind.IDENTITY),
            *first_steps,
            derived_from("with the projection", sp.Eq(WS, 0), adamp),
        ),
        (
            refuted_by(
                "a step of Adam grows the norm",
                grows,
                {W: sp.Integer(5), lr: tenth, W_NEXT: smaller_norm},
                (sp.Rational(241, 50), sp.Integer(5)),
            ),
        ),
        remark="a tendency, no law: the sign of Adam's cross term is open",
        section="Section 2.4, a remark",
        verdict="The remark on Adam does not hold as a law: a first step can shrink the norm.",
    )


# Equilibria and growth ratios, against the literature and against each other

KAPPA = sp.Symbol("kappa", positive=True)
RATIO_OF_BETA, USUAL_BETA = sp.Function("ratio"), sp.Rational(9, 10)
RANDOM_GRADIENTS = ("random gradients", CONSTANT)
SQUARED_STEP, NORM_TO_THE_FOURTH = scalar("step^2"), Norm("w") ** 4
"""The squared effective step |w'/|w'| - w/|w||^2, and |w|^4."""


def ratio_laws() -> Proof:
    """The ratio of Corollary 2.3 for other kinds of momentum and of decay.

    The corollary has (1 + beta) / (1 - beta). In the end every momentum moves the weight by
    lr g / (1 - beta), whose square is the growth. Coupled decay enters the momentum, so that its
    ratio is a function of |w|^2 / |s|^2.
    """
    retention, growth = 1 - KAPPA, scalar("growth per step")
    nesterov = norm_growth("sgd", nesterov=True, **WITHOUT_DECAY)
    decoupled, coupled = (norm_growth(name, dampening=0.0) for name in ("sgdw", "sgd"))
    gradient_square = stationary_momenta(nesterov)[G]
    lookahead = beta**2 * (1 + beta - beta**2) / (1 + 2 * beta - 2 * beta**3)
    decoupled_cross = retention * beta / (1 - beta * retention)
    coupled_cross = (
        retention * beta * (1 - KAPPA * retention * W / S) / (1 - beta * (1 - 2 * KAPPA))
    )
    cases = (
        ("heavy ball", sp.Eq(RATIO, (1 + beta) / (1 - beta)), norm_growth("sgd", **WITHOUT_DECAY)),
        ("projected", sp.Eq(RATIO, 1), norm_growth("sgdp", **WITHOUT_DECAY)),
        ("Nesterov", sp.Eq(RATIO, 1 + 2 * lookahead / (1 - beta)), nesterov),
        (
            "Nesterov, the usual momentum",
            sp.Eq(RATIO_OF_BETA(USUAL_BETA), sp.Rational(9500, 671)),
            nesterov,
        ),
        ("Nesterov, growth", sp.Eq(growth, (lr / (1 - beta)) ** 2 * G), nesterov),
        ("decoupled decay", sp.Eq(RATIO, 1 + 2 * decoupled_cross), decoupled),
        ("coupled decay", sp.Eq(RATIO, 1 + 2 * coupled_cross), coupled),
    )

    def ratio_claim(about: str, relation: sp.Eq, law: NormLaw) -> Claim:
        ratio = growth_ratio(law)
        substitution = {RATIO: ratio, RATIO_OF_BETA: sp.Lambda(beta, ratio), KAPPA: law.kappa}
        substitution |= {growth: S * ratio, G: gradient_square}
        return Claim(
            about, relation, ProofKind.MEAN_FIELD, substitution, hypotheses=RANDOM_GRADIENTS
        )

    return Proof(
        "Ratio laws",
        tuple(ratio_claim(*case) for case in cases),
        remark="Nesterov's steps are longer; coupled decay enters the momentum, so that no number "
        "is its ratio",
    )


def equilibria_of_the_literature() -> Proof:
    """The derived equilibria equal those of Wan et al. 2021 and Kosson et al. 2023.

    Wan et al., *Spherical Motion Dynamics*: SGD with momentum and coupled decay,
    |w|^4 = gamma^2 lr / (wd (1-b)(2 - lr wd / (1+b))), step^2 = 2 lr wd / (1+b).
    Kosson et al., *Rotational Equilibrium*: AdamW, |w|^2 = lr d / (2 wd),
    step^2 = 2 lr wd (1-b1) / (1+b1). The effective step is what they call a rotation or an angular
    update.
    """
    sgdm, sgd = equilibrium("sgd", dampening=0.0), equilibrium("sgd", momentum=0.0, dampening=0.0)
    adamw = equilibrium("adamw", eps=0.0)
    norm, squared_step = map(adamw.leading_term, (adamw.fourth_power, adamw.squared_effective_step))
    wan = GAMMA**2 * lr / (wd * (1 - beta) * (2 - lr * wd / (1 + beta)))
    kosson = 2 * lr * wd * (1 - beta1) / (1 + beta1)
    kosson_norm = (lr * DIMENSION / (2 * wd)) ** 2
    exact = kosson / (1 - lr * wd * beta1 / (1 + beta1))

    def published_claim(
        about: str, published: sp.Expr, law: Equilibrium, derived: sp.Expr
    ) -> Claim:
        symbol = NORM_TO_THE_FOURTH if "norm" in about else SQUARED_STEP
        is_published = "Wan" in about or "Kosson" in about
        kind = ProofKind.LITERATURE if is_published else ProofKind.MEAN_FIELD
        relation = sp.Eq(symbol, published)
        return Claim(about, relation, kind, {symbol: derived}, hypotheses=law.hypotheses)

    cases = (
        ("SGD with momentum, norm (Wan, exactly)", wan, sgdm, sgdm.fourth_power),
        (
            "SGD with momentum, effective step (Wan, Kosson, exactly)",
            2 * lr * wd / (1 + beta),
            sgdm,
            sgdm.squared_effective_step,
        ),
        ("SGD, effective step (Wan, exactly)", 2 * lr * wd, sgd, sgd.squared_effective_step),
        ("AdamW, norm (Kosson, for small lr)", kosson_norm, adamw, norm),
        ("AdamW, effective step (Kosson, for small lr)", kosson, adamw, squared_step),
        ("AdamW, effective step (exactly)", exact, adamw, adamw.squared_effective_step),
    )
    return Proof("Equilibria", tuple(published_claim(*case) for case in cases))


def matched_decay() -> Proof:
    """With equal decay a projected optimizer turns faster: step^2 by the decay ratio times 19.

    The square of the effective step has the factor (1 - beta) / (1 + beta), the inverse of
    Corollary 2.3's, without projection, and the factor wd_ratio with it. They match at
    wd_ratio = (1 - beta) / (1 + beta) = 1/19 for beta = 0.9; the release's 0.1 turns 1.38 times
    faster.
    """
    adamw, adamp = equilibrium("adamw", eps=0.0), equilibrium("adamp", eps=0.0)
    sgdm, sgdp = equilibrium("sgd", dampening=0.0), equilibrium("sgdp", dampening=0.0)
    adamw_step = adamw.leading_term(adamw.squared_effective_step)
    (adam_ratio,) = sp.solve(adamp.squared_effective_step - adamw_step, rho)
    (sgd_ratio,) = sp.solve(sgdp.squared_effective_step - sgdm.squared_effective_step, rho)
    speed, matched = sp.Function("speed^2"), sp.Function("matched_ratio")
    derived_speed = sp.Lambda((rho, beta1), sp.cancel(adamp.squared_effective_step / adamw_step))
    cases = (
        (
            "AdamP turns as AdamW does (for small lr)",
            sp.Eq(rho, (1 - beta1) / (1 + beta1)),
            {rho: adam_ratio},
            RANDOM_GRADIENTS,
        ),
        (
            "SGDP turns as SGD with momentum does",
            sp.Eq(rho, (1 - beta) / (1 + beta)),
            {rho: sgd_ratio},
            RANDOM_GRADIENTS,
        ),
        (
            "AdamP's effective step",
            sp.Eq(SQUARED_STEP, 2 * lr * wd * rho),
            {SQUARED_STEP: adamp.squared_effective_step},
            adamp.hypotheses,
        ),
        (
            "SGDP's effective step",
            sp.Eq(SQUARED_STEP, 2 * lr * wd * rho / (1 - beta)),
            {SQUARED_STEP: sgdp.squared_effective_step},
            sgdp.hypotheses,
        ),
        (
            "the usual momentum",
            sp.Eq(matched(USUAL_BETA), sp.Rational(1, 19)),
            {matched: sp.Lambda(beta1, adam_ratio)},
            RANDOM_GRADIENTS,
        ),
        (
            "the release's ratio",
            sp.Eq(speed(1 - USUAL_BETA, USUAL_BETA), sp.Rational(19, 10)),
            {speed: derived_speed},
            RANDOM_GRADIENTS,
        ),
    )
    return Proof(
        "Matched decay",
        tuple(
            Claim(about, relation, ProofKind.MEAN_FIELD, substitution, hypotheses=hypotheses)
            for about, relation, substitution, hypotheses in cases
        ),
    )


# False positives: random directions that a scale-invariance test takes for orthogonal ones


def _projected(delta: Scalar = 0.1) -> Chain:
    return chain(r.ScaleInvarianceTest(delta), r.RadialProjection())


def derive_threshold(dimension: int) -> sp.Expr:
    """Return the squared cosine below which the recorded test passes, in terms of delta."""
    step = one_step(trace(_projected, dimension=dimension), scale_invariant=False)
    (relation,) = {*step.facts.tests_assumed_false}
    bound = sp.Lt(relation.lhs, relation.rhs).rhs
    return sp.cancel(bound**2 / (Norm("w") * Norm("g")) ** 2)


def false_positive_rate(
    delta: float = 0.1, dimension: int | None = None, channels: int = 1
) -> float:
    """Return the probability that all channels of a weight pass, for isotropic random gradients.

    The cosine of a fixed and a random direction in R^d has cos^2 ~ Beta(1/2, (d-1)/2), so that one
    unit passes with probability

        I_{delta^2/d}(1/2, (d-1)/2)  ->  erf(delta / sqrt(2)) = P(|N(0, 1)| < delta)
        as d -> oo,

    and c independent channels with its power c.

    Args:
        delta: threshold of the test.
        dimension: entries of a unit; None for the limit.
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
        rate = erf(delta / sqrt(2))
    else:
        bound = min(1.0, delta**2 / dimension)
        rate = betainc(0.5, (dimension - 1) / 2, 0, bound, regularized=True)
    return float(rate) ** channels


def false_positive_law() -> Proof:
    """The false-positive rate: the threshold of the code, its law in dimension d, and its limit.

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
    excess = sp.Symbol("e", nonnegative=True)  # d - 6
    kernel, threshold, rate = scalar("kernel"), scalar("threshold^2"), sp.Function("rate")
    law = sp.betainc_regularized(sp.Rational(1, 2), (d - 1) / 2, 0, delta**2 / d)
    # The density of c = cos in R^d, from the area of the zone of a sphere, at c = delta / sqrt(d).
    area = sp.gamma(d / 2) / (sp.sqrt(sp.pi) * sp.gamma((d - 1) / 2))
    density = area * (1 - delta**2 / d) ** ((d - 3) / 2)
    normal = sp.exp(-(x**2) / 2)
    total = sp.integrate(normal, (x, -sp.oo, sp.oo))
    integral = sp.Integral(2 / total * normal, (x, 0, delta))
    identities: tuple[tuple[str, sp.Rel, dict[Any, Any]], ...] = (
        (
            "its slope is the density at the ends",
            sp.Eq(sp.Derivative(law, delta), 2 * density / sp.sqrt(d)),
            {},
        ),
        (
            "and none passes at a threshold of 0",
            sp.Eq(rate(0), 0),
            {rate: sp.Lambda(delta, law)},
        ),
        (
            "the kernel of the density for large d",
            sp.Eq(sp.Limit(kernel, d, sp.oo), normal),
            {kernel: sp.exp((d - 3) / 2 * sp.log(1 - x**2 / d))},
        ),
        (
            "the integral of the normal density",
            sp.Eq(integral, sp.erf(delta / sp.sqrt(2))),
            {},
        ),
    )
    hypotheses = ("a direction uniform on the sphere", "one unit")
    return Proof(
        "False positives",
        (
            *(
                Claim(about, relation, ProofKind.IDENTITY, substitution, hypotheses=hypotheses)
                for about, relation, substitution in identities
            ),
            Claim(
                "the threshold of the code",
                sp.Eq(threshold, delta**2 / d),
                ProofKind.DERIVED,
                {threshold: derive_threshold(3)},
            ),
            Claim(
                "the exponent of a bound on the kernel",
                sp.Ge((d - 3) / (2 * d), sp.Rational(1, 4)),
                ProofKind.IDENTITY,
                {d: 6 + excess},
                excess / (4 * (6 + excess)),
            ),
        ),
        remark="of several channels all must pass: the rate to their number's power",
    )
