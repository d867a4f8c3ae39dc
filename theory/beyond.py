"""What the paper leaves open, derived from the recipes in the same way."""

from __future__ import annotations

from typing import Any

import sympy as sp

from spherenorm import rules as r
from spherenorm.chain import Chain, chain
from spherenorm.registry import Recipe
from spherenorm.rule import Scalar
from theory.coordinates import step_in_coordinates
from theory.equilibrium import DIMENSION, GAMMA, equilibrium, late, stationary_buffers
from theory.norm_growth import S, W, norm_growth
from theory.one_step import one_step
from theory.proof import Proof
from theory.symbols import Vector, tidy, upright
from theory.trace import Trace, trace

__all__ = [
    "adam_can_shrink",
    "equilibria_of_the_literature",
    "growth_ratio",
    "matched_decay",
    "momentum_by_any_name",
    "nesterov_never_shrinks",
    "projected_buffer",
    "ratio_laws",
    "sphere_keeps_the_norm",
]

lr, beta, wd, rho = (
    sp.Symbol(n, positive=True) for n in ("lr", "momentum", "weight_decay", "wd_ratio")
)
beta1 = sp.Symbol("beta1", positive=True)
PLAIN: dict[str, Any] = {"weight_decay": 0.0, "dampening": 0.0}
w = Vector.atom("w")


def average_momentum(lr: Scalar = 0.1, momentum: Scalar = 0.9) -> Chain:
    """SGD with an exponential average for momentum."""
    return chain(r.ExponentialAverage(momentum), r.StepSize(lr))


def step_size_inside(lr: Scalar = 0.1, momentum: Scalar = 0.9) -> Chain:
    """SGD with the learning rate inside the momentum, as SGDG has it."""
    return chain(r.StepSize(lr), r.HeavyBall(momentum))


def momentum_by_any_name(*recipes: str | Recipe) -> Proof:
    """One law for all heavy balls: y_t = <w_t, s_t> follows y' = beta (y + |s|^2), so growth tends to (1 + beta) / (1 - beta) sum |s|^2.

    Dampening, averaging and the place of the step size change the step s, not the law in s: summed over t < T,
    (1 - beta) sum y_t = beta sum |s_t|^2 - y_T, and y_T -> 0 where the steps do.
    """
    cases: dict[str, tuple[str | Recipe, dict[str, Any]]] = {
        "heavy ball": ("sgd", PLAIN),
        "dampened": ("sgd", {"weight_decay": 0.0}),
        "exponential average": (average_momentum, {}),
        "step size inside": (step_size_inside, {}),
    }
    if recipes:
        cases = {str(recipe): (recipe, {}) for recipe in recipes}
    residuals = {}
    for name, (recipe, given) in cases.items():
        law = norm_growth(recipe, **given)
        (unknown,) = law.cross.free_symbols & {*law.recursion}
        per_buffer = law.cross / unknown
        residuals[name] = tidy(per_buffer * law.recursion[unknown] - beta * (law.cross + S))
        start = one_step(law.step.traced, first=True)
        moved, buffer = start.weight - w, start.states[law.step.buffers[0]]
        first = law.recursion[unknown].subs({unknown: 0, S: start.inner(moved, moved)})
        residuals[f"{name}, first step"] = tidy(start.inner(start.weight, buffer) - first)
    return Proof(
        "Any heavy ball",
        "<w', s'> = beta (<w, s> + |s|^2): growth / sum |s|^2 -> (1 + beta) / (1 - beta)",
        residuals,
        remark="dampening (undamped first step included), exponential average, step size before or after the momentum; constant rate",
    )


def nesterov_never_shrinks(recipe: str | Recipe = "sgd") -> Proof:
    """Nesterov momentum never shrinks the norm: <w, m> <= -(lr sqrt(beta) / 2) |m|^2 at every step.

    |w'|^2 = |w|^2 + |s|^2 - 2 lr beta^2 <w, m>. With p = m' and V = <w, m> + (lr sqrt(beta) / 2) |m|^2,

        V' = beta V - lr ((1 + beta - sqrt(beta)) |p|^2 + (sqrt(beta) / 2) |p - sqrt(beta) m|^2),

    so V <= 0 by induction from V = 0.
    """
    step = one_step(recipe, nesterov=True, **PLAIN)
    p, m = step.states["m"], Vector.atom("m")
    assert isinstance(p, Vector)
    root = sp.sqrt(beta)
    drive = step.weight - w

    def value(weight: Vector, momentum: Vector) -> sp.Expr:
        return step.inner(weight, momentum) + lr * root / 2 * step.inner(momentum, momentum)

    mixed = p - m * root
    loss = (1 + beta - root) * step.inner(p, p) + root / 2 * step.inner(mixed, mixed)
    u = sp.Symbol("u", positive=True)
    return Proof(
        "Nesterov",
        "|w'|^2 = |w|^2 + |s|^2 - 2 lr beta^2 <w, m>, with <w, m> <= -(lr sqrt(beta) / 2) |m|^2 <= 0: the norm never shrinks",
        {
            "cross term": tidy(step.inner(w, drive) + lr * beta**2 * step.inner(w, m)),
            "V' = beta V - a sum of squares": tidy(
                value(step.weight, p) - beta * value(w, m) + lr * loss
            ),
            "1 + beta - sqrt(beta) is a sum of squares": sp.expand(
                (u - sp.Rational(1, 2)) ** 2 + sp.Rational(3, 4) - (1 + u**2 - u)
            ),
        },
        remark="the paper says its observations apply to Nesterov momentum; this is the proof",
    )


def adam_can_shrink(recipe: str | Recipe = "adam") -> Proof:
    """Adam's step is not orthogonal to w even where the gradient is: its first step can shrink the norm."""
    traced = trace(recipe, dimension=2, weight_decay=0.0, eps=0.0)
    weight, grad = [sp.Integer(1), sp.Integer(2)], [sp.Integer(-2), sp.Integer(1)]
    new, _, _ = step_in_coordinates(traced, weight, grad)
    change = sp.simplify(sum(c**2 for c in new[0]) - 5)
    return Proof(
        "Adam",
        '"our observations are also applicable to ... Adam" (Section 2.4)',
        {
            "<w, g> = 0": sum(a * b for a, b in zip(weight, grad, strict=True)),
            "w = (1, 2), g = (-2, 1): |w'|^2 - |w|^2 = 2 lr^2 - 2 lr": sp.expand(
                change - 2 * lr**2 + 2 * lr
            ),
        },
        counterexamples={
            "the norm shrinks in a first step of Adam with lr = 1/10": change.subs(
                lr, sp.Rational(1, 10)
            )
            < 0
        },
        corrected="|w'|^2 = |w|^2 + |s|^2 + 2 <w, s>, <w, s> of either sign; <w, s> = 0 for AdamP, monotone without decay",
        verdict="a tendency, no law: the sign of Adam's cross term is open",
    )


def sphere_keeps_the_norm(*recipes: str | Recipe) -> Proof:
    """On the sphere the norm is constant, for any buffer; and a tangent buffer stays tangent, so that it is one from the start on."""
    residuals = {}
    for recipe in recipes or ("sgdg", "adamg"):
        law = norm_growth(recipe)
        residuals[f"{law.name}: |w'|^2 - |w|^2"] = tidy(law.norm_after - W)
        step = one_step(law.step.traced, tangent=True)
        for m in step.buffers:
            residuals[f"{law.name}: <w', m'> where <w, m> = 0"] = step.inner(
                step.weight, step.states[m]
            )
    return Proof(
        "Sphere geometry",
        "|w'| = |w|, and <w, m> = 0 stays",
        residuals,
        remark="exponential map and parallel transport, clip or not",
    )


def projected_buffer() -> Proof:
    """Algorithm 1 remembers the unprojected momentum, the release its projection: same norm law, other memory.

    <w', m'> = beta (1 - kappa) <w, m> - |s|^2 / lr in the paper, -|s|^2 / lr in the release: the radial part that the next
    projection removes is a sum over all past steps in the one, of the last step alone in the other.
    """
    paper, release = norm_growth("sgdp"), norm_growth("sgdp", project_buffer=True)
    X = sp.Symbol("<w,m>", real=True)
    keep = 1 - paper.kappa
    settled_paper, settled_release = (
        equilibrium("sgdp", dampening=0.0, **b) for b in ({}, {"project_buffer": True})
    )
    rotation = settled_paper.squared_rotation - settled_release.squared_rotation
    ratio = sp.cancel(settled_paper.fourth_power / settled_release.fourth_power)
    first_order = sp.diff(ratio, lr).subs(lr, 0) * lr
    kappa = lr * wd * rho / (1 - beta)
    expected = kappa * beta * (3 / (1 - beta) - 1 / (1 + beta) - 2 / (1 - beta) ** 2)
    return Proof(
        "Release's buffer",
        "SGDP with a projected buffer (the release) against Algorithm 1",
        {
            "same norm law": sp.simplify(paper.law.rhs - release.law.rhs),
            "paper: <w', m'> = beta (1 - kappa) <w, m> - |s|^2 / lr": tidy(
                paper.recursion[X] - (keep * beta * X - S / lr)
            ),
            "release: <w', m'> = -|s|^2 / lr": tidy(release.recursion[X] + S / lr),
            "same rotation in equilibrium": sp.simplify(rotation),
            "same equilibrium norm for small lr": sp.simplify(ratio.subs(lr, 0) - 1),
            "|w|^4 to first order in kappa": sp.simplify(first_order - expected),
        },
        remark="0.15 % less |w|^4 in the paper's at lr = 0.1, wd = 1e-4, beta = 0.9, ratio 0.1; plain only where decay is strong",
    )


def growth_ratio(recipe: str | Recipe | Trace, **given: Any) -> sp.Expr:
    """(|w'|^2 - (1 - kappa)^2 |w|^2) / |s|^2 for random gradients of constant size, after the buffers have settled.

    1 for a projected recipe, (1 + beta) / (1 - beta) for SGD with momentum (Corollary 2.3): by how much momentum multiplies the
    growth that the steps themselves bring. It is one number where the recursion of <w, s> holds no norm but |s|^2. Coupled decay has
    none: it enters the momentum, and <w, s> holds a multiple of |w|^2; the ratio is then a function of |w|^2 / |s|^2, both means.
    """
    law = norm_growth(recipe, **given)
    if law.constant:
        return sp.Integer(0)
    if law.cross == 0:
        return sp.Integer(1)
    keep, cross = (late(e, law.step) for e in (1 - law.kappa, law.cross))
    # Summed over many steps each cross term is at rest, which settles it where the norms are all there is in the recursions.
    rest, squared = {}, S
    if not law.open_because:
        (rest,) = sp.solve(
            [late(law.recursion[u], law.step) - u for u in law.needed], [*law.needed], dict=True
        )
    if not rest or any(
        str(s).endswith(",s>") for value in rest.values() for s in value.free_symbols
    ):
        rest, squared = stationary_buffers(law)
    return upright(sp.cancel(1 + 2 * keep * cross.subs(rest) / squared))


def ratio_laws() -> Proof:
    """The ratio of Corollary 2.3 for the other kinds of momentum and of decay."""
    b, k = beta, lr * wd
    heavy = (1 + b) / (1 - b)
    nesterov = growth_ratio("sgd", nesterov=True, **PLAIN)
    # All kinds of momentum move the weight by lr g / (1 - beta) in the end: growth per step is that, squared.
    step = one_step("sgd", nesterov=True, **PLAIN)
    _, squared = stationary_buffers(norm_growth(step.traced))
    G = sp.Symbol("|g|^2", positive=True)
    lag = b * (1 - k)
    coupled = 1 + 2 * (1 - k) * b * (1 - k * (1 - k) * W / S) / (1 - b * (1 - 2 * k))
    return Proof(
        "Ratio laws",
        "growth / sum |s|^2 for each kind of momentum, random gradients",
        {
            "heavy ball": sp.simplify(growth_ratio("sgd", **PLAIN) - heavy),
            "dampened": sp.simplify(growth_ratio("sgd", weight_decay=0.0) - heavy),
            "exponential average": sp.simplify(growth_ratio(average_momentum) - heavy),
            "projected": growth_ratio("sgdp", **PLAIN) - 1,
            "decoupled decay": sp.simplify(
                growth_ratio("sgdw", dampening=0.0) - (1 + 2 * (1 - k) * b / (1 - lag))
            ),
            "coupled decay: a function of |w|^2 / |s|^2": sp.simplify(
                growth_ratio("sgd", dampening=0.0) - coupled
            ),
            "Nesterov": sp.simplify(
                nesterov - (1 + 2 * b**2 * (1 + b - b**2) / ((1 - b) * (1 + 2 * b - 2 * b**3)))
            ),
            "Nesterov grows by (lr |g| / (1 - beta))^2 per step": sp.simplify(
                squared * nesterov - lr**2 * G / (1 - b) ** 2
            ),
        },
        remark=f"at beta = 0.9: 19 for heavy balls, {float(nesterov.subs(b, 0.9)):.2f} for Nesterov, whose steps are longer; none for "
        "coupled decay, which enters the momentum: 1 + 2 (1 - k) beta (1 - k (1 - k) |w|^2 / |s|^2) / (1 - beta (1 - 2 k)), "
        "k = lr weight_decay",
    )


def equilibria_of_the_literature() -> Proof:
    """The derived equilibria against Wan et al. 2021 and Kosson et al. 2023.

    Wan et al., *Spherical Motion Dynamics*: SGD with momentum and coupled decay, |w|^4 = gamma^2 lr / (wd (1-b)(2 - lr wd / (1+b))),
    rotation sqrt(2 lr wd / (1+b)). Kosson et al., *Rotational Equilibrium*: AdamW, |w|^2 = lr d / (2 wd), rotation
    sqrt(2 lr wd (1-b1) / (1+b1)).
    """
    sgdm, sgd = equilibrium("sgd", dampening=0.0), equilibrium("sgd", momentum=0.0, dampening=0.0)
    adamw = equilibrium("adamw", eps=0.0)
    wan = GAMMA**2 * lr / (wd * (1 - beta) * (2 - lr * wd / (1 + beta)))
    kosson = 2 * lr * wd * (1 - beta1) / (1 + beta1)
    return Proof(
        "Equilibria",
        "norm and rotation under decay and random gradients, against the literature",
        {
            "SGD: rotation sqrt(2 lr wd) (Wan, exactly)": tidy(sgd.squared_rotation - 2 * lr * wd),
            "SGDM: |w|^4 (Wan, exactly)": sp.simplify(sgdm.fourth_power - wan),
            "SGDM: rotation sqrt(2 lr wd / (1 + beta)) (Wan, Kosson, exactly)": sp.simplify(
                sgdm.squared_rotation - 2 * lr * wd / (1 + beta)
            ),
            "AdamW: |w|^2 = lr d / (2 wd) (Kosson, for small lr)": sp.simplify(
                adamw.leading(adamw.fourth_power) - (lr * DIMENSION / 2 / wd) ** 2
            ),
            "AdamW: rotation (Kosson, for small lr)": sp.simplify(
                adamw.leading(adamw.squared_rotation) - kosson
            ),
        },
        remark="SGDM agrees to all orders; AdamW's squared rotation is Kosson's times 1 / (1 - lr wd beta1 / (1 + beta1))",
    )


def matched_decay() -> Proof:
    """With equal decay a projected optimizer turns faster, by what its decay ratio leaves of 19.

    Without projection the squared rotation carries the factor (1 - beta) / (1 + beta), the inverse of Corollary 2.3's; with it, the
    factor wd_ratio. They match at wd_ratio = (1 - beta) / (1 + beta) = 1/19 for beta = 0.9; the release's 0.1 turns 1.38 times faster.
    """
    adamw, adamp = equilibrium("adamw", eps=0.0), equilibrium("adamp", eps=0.0)
    sgdm, sgdp = equilibrium("sgd", dampening=0.0), equilibrium("sgdp", dampening=0.0)
    matched = (1 - beta1) / (1 + beta1)
    faster = (adamp.squared_rotation / adamw.leading(adamw.squared_rotation)).subs(
        {rho: sp.Rational(1, 10), beta1: sp.Rational(9, 10)}
    )
    return Proof(
        "Matched decay",
        "AdamP turns as AdamW does, and SGDP as SGDM, for wd_ratio = (1 - beta) / (1 + beta)",
        {
            "AdamP: rotation sqrt(2 lr wd ratio), exactly": sp.simplify(
                adamp.squared_rotation - 2 * lr * wd * rho
            ),
            "SGDP: rotation sqrt(2 lr wd ratio / (1 - beta)), exactly": sp.simplify(
                sgdp.squared_rotation - 2 * lr * wd * rho / (1 - beta)
            ),
            "AdamW = AdamP at the matched ratio (small lr)": sp.simplify(
                adamw.leading(adamw.squared_rotation) - adamp.squared_rotation.subs(rho, matched)
            ),
            "SGDM = SGDP at the matched ratio": sp.simplify(
                sgdm.squared_rotation - sgdp.squared_rotation.subs(rho, (1 - beta) / (1 + beta))
            ),
            "0.1 at beta = 0.9: squared rotation 1.9-fold": faster - sp.Rational(19, 10),
        },
        remark="1/19 at beta = 0.9; the release's 0.1 turns sqrt(1.9) = 1.38 times faster",
    )
