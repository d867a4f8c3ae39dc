"""The statements of the paper, each proved from the traced step of a recipe (Heo et al., AdamP, ICLR 2021).

Every function takes the recipe that it is about, so that a recipe with a fault in it can be shown to fail.
Notation: p_t is the momentum after the gradient of step t entered, P_t = |p_t|^2, q_t the projected one.
"""

from __future__ import annotations

from typing import Any

import sympy as sp

from spherenorm.registry import Recipe
from theory.bounds import corollary_2_3_bounds
from theory.coordinates import step_in_coordinates
from theory.norm_growth import NormGrowth, W, in_terms_of, norm_growth
from theory.one_step import OneStep, one_step
from theory.proof import Proof
from theory.symbols import Vector, tidy
from theory.trace import trace

__all__ = [
    "corollary_2_3",
    "effective_step",
    "equation_14",
    "lemma_2_1",
    "lemma_2_2",
    "lemma_2_2_scheduled",
    "proposition_3_1",
]

PLAIN: dict[str, Any] = {"weight_decay": 0.0, "dampening": 0.0}
"""The paper's momentum has neither decay nor dampening."""

lr, beta = sp.Symbol("lr", positive=True), sp.Symbol("momentum", positive=True)
x = sp.Symbol("x", positive=True)
P = sp.Symbol("|p|^2", positive=True)
t, k, l = sp.symbols("t k l", integer=True, nonnegative=True)  # noqa: E741
w, g, m = map(Vector.atom, "wgm")

BETA_BELOW_1 = {beta: 1 / (1 + x)}
"""beta in (0, 1), in a form from which sympy sees that 0 < beta < 1."""


def lemma_2_1(recipe: str | Recipe = "sgd") -> Proof:
    """Lemma 2.1: gradient descent grows the norm by the squared step, |w'|^2 = |w|^2 + lr^2 |g|^2."""
    step = one_step(recipe, momentum=0.0, **PLAIN)
    squared = step.inner(step.weight, step.weight)
    return Proof(
        "Lemma 2.1",
        "|w_{t+1}|^2 = |w_t|^2 + lr^2 |g_t|^2",
        {"|w'|^2": tidy(squared - W - lr**2 * step.inner(g, g))},
        remark="gradient descent; monotone, strictly while g != 0",
    )


def _momentum(recipe: str | Recipe) -> tuple[OneStep, Vector, sp.Expr, sp.Expr]:
    """The step of SGD with momentum, p = m', |w'|^2 and <w', m'> in terms of |w|^2, <w, m> and P."""
    step = one_step(recipe, **PLAIN)
    p = step.states["m"]
    assert isinstance(p, Vector)
    squared = in_terms_of(step, p, "p", step.weight, step.weight)
    return step, p, squared, in_terms_of(step, p, "p", step.weight, p)


def lemma_2_2(recipe: str | Recipe = "sgd", unroll: int = 8) -> Proof:
    """Lemma 2.2: with momentum, |w_{t+1}|^2 = |w_t|^2 + lr^2 P_t + 2 lr^2 sum_{k<t} beta^(t-k) P_k.

    As in the paper, it remains to prove <w_t, p_t> = -lr sum_{k<t} beta^(t-k) P_k: by induction for symbolic t, and once
    more by running the derived one-step recursion from the traced first step for t = 0 .. `unroll`.
    """
    step, p, squared, after = _momentum(recipe)
    start = one_step(recipe, first=True, **PLAIN)
    X = step.inner(w, m)
    cross = step.inner(w, p)
    residuals = {
        "one step, given <w, p>": tidy(squared - (W + lr**2 * P - 2 * lr * cross)),
        "t = 0: <w_0, p_0> = 0": start.inner(w, start.states["m"]),
    }
    # Induction: <w_t, p_t> = beta X_t, and X_{t+1} = a X_t + b P_t with a, b read off the trace.
    a, b = sp.diff(after, X), sp.diff(after, P)
    ratio = sp.diff(cross, X)
    summand = -lr * beta ** (t - k)
    residuals |= {
        "the recursion is linear": tidy(after - a * X - b * P),
        "induction, summands k < t": sp.simplify(a * summand - summand.subs(t, t + 1)),
        "induction, summand k = t": sp.simplify(ratio * b - summand.subs(t, t + 1).subs(k, t)),
    }
    history = sp.symbols(f"P0:{unroll + 1}", positive=True)
    norm, X_t = W, sp.Integer(0)
    for time, P_t in enumerate(history):
        values = {X: X_t, P: P_t}
        grown = squared.subs({W: norm}).subs(values)
        printed = (
            norm
            + lr**2 * P_t
            + 2 * lr**2 * sum(beta ** (time - i) * history[i] for i in range(time))
        )
        residuals[f"unrolled, t = {time}"] = sp.expand(grown - printed)
        if residuals[f"unrolled, t = {time}"] != 0:
            break
        norm, X_t = sp.expand(grown), sp.expand(after.subs(values))
    return Proof(
        "Lemma 2.2",
        "|w_{t+1}|^2 = |w_t|^2 + lr^2 |p_t|^2 + 2 lr^2 Sum(beta^(t-k) |p_k|^2, k < t)",
        residuals,
        remark="constant learning rate, no decay, gradients orthogonal to their weights; the added term is a sum of squares",
    )


def lemma_2_2_scheduled(recipe: str | Recipe = "sgd") -> Proof:
    """Lemma 2.2 under a learning-rate schedule, which the paper's experiments use and its lemma leaves out."""
    law: NormGrowth = norm_growth(recipe, **PLAIN)
    step, _, _, after = _momentum(recipe)
    X = step.inner(w, m)
    residuals = {f"closed form, {name}": r for name, r in law.induction(("lr",)).items()}
    # Two steps with rates e0, e1: the cross term of step 1 carries the rate of step 0.
    e0, e1, P0, P1 = sp.symbols("e0 e1 P0 P1", positive=True)
    X_1 = after.subs({lr: e0, X: 0, P: P0})
    squared = in_terms_of(step, step.states["m"], "p", step.weight, step.weight)
    growth = squared.subs({lr: e1, X: X_1, P: P1}) - W
    corrected = e1**2 * P1 + 2 * e1 * e0 * beta * P0
    printed = e1**2 * P1 + 2 * e1**2 * beta * P0
    residuals["t = 1: |w_2|^2 - |w_1|^2"] = sp.expand(growth - corrected)
    gap = (printed - corrected).subs(
        {e0: 1, e1: sp.Rational(1, 10), P0: 1, P1: 1, beta: sp.Rational(9, 10)}
    )
    return Proof(
        "Lemma 2.2 under a schedule",
        "Lemma 2.2 with lr_t for lr",
        residuals,
        counterexamples={
            f"rates 1, 1/10, beta = 9/10, |p_0| = |p_1| = 1: printed minus true growth is {gap}": sp.Ne(
                gap, 0
            )
        },
        corrected="|w_{t+1}|^2 = |w_t|^2 + lr_t^2 |p_t|^2 + 2 lr_t Sum(lr_k beta^(t-k) |p_k|^2, k < t)",
        remark="after a decay of the rate by r the old terms weigh 1/r times as much: the norm keeps growing by past, larger steps",
    )


def corollary_2_3(recipe: str | Recipe = "sgd") -> Proof:
    """Corollary 2.3: (|w^GDM|^2 - |w_0|^2) / (|w^GD|^2 - |w_0|^2) -> 1 + 2 beta / (1 - beta), for summable P_k = A_k.

    The limit holds. Of the inequalities of its printed proof (`theory.bounds`) two do not, and with them the last; the exact
    deficit, read off the recursion, replaces them:

        beta / (1 - beta) - F_t = Sum(beta^(t-k+1) A_k, k <= t) / ((1 - beta) Sum(A_k, k <= t)),

    which is at most beta^(t-T+1) / (1 - beta) + beta / (1 - beta) * (tail after T) / Sum(A_k, k <= T), and goes to 0.
    """
    step, _, squared, after = _momentum(recipe)
    X = step.inner(w, m)
    a, b, c, d = sp.diff(after, X), sp.diff(after, P), sp.diff(squared, X), sp.diff(squared, P)
    n, T = (
        sp.Symbol("n", integer=True, nonnegative=True),
        sp.Symbol("T", integer=True, positive=True),
    )
    b_ = beta.subs(BETA_BELOW_1)
    limit = beta / (1 - beta)

    # P_k enters the growth of step k by d, and that of step k + l by c b a^(l-1); n later steps add up to lr^2 (1 + 2 G(n)),
    # G(n) = beta + ... + beta^n, in closed form by its differences.
    closed = (b_ - b_ ** (n + 1)) / (1 - b_)
    deficit = b_ ** (n + 1) / (1 - b_)
    residuals = {
        "P_k enters its own step by lr^2": tidy(d - lr**2),
        "and the l-th step after it by 2 lr^2 beta^l": sp.simplify(
            c * b * a ** (l - 1) - 2 * lr**2 * beta**l
        ),
        "G(0) = 0": closed.subs(n, 0),
        "G(n) - G(n-1) = beta^n": sp.simplify(closed - closed.subs(n, n - 1) - b_**n),
        "deficit of G is beta^(n+1) / (1 - beta)": sp.simplify(
            limit.subs(BETA_BELOW_1) - closed - deficit
        ),
        "deficit at k <= T over that at k = T is beta^(T-k)": sp.simplify(
            deficit.subs(n, T + k) / deficit.subs(n, T) - b_**k
        ),
        "1 - beta^(n+1) exceeds 1 - beta^n by (1 - beta) beta^n": sp.simplify(
            (1 - b_ ** (n + 1)) - (1 - b_**n) - (1 - b_) * b_**n
        ),
        "beta^n -> 0": sp.limit(b_**n, n, sp.oo),
    }
    nonnegative = {
        "1 - beta": sp.simplify(1 - b_),
        "each power": b_**l,
        "the deficit": sp.simplify(deficit),
    }
    entered = lr**2 * (1 + 2 * closed)

    # Exactly, for P_k = r^k: the deficit is (beta^(T+1) - beta r^T) / ((1 - beta)(beta - r)) over (1 - r^T) / (1 - r).
    r, p_, q_ = sp.Symbol("r", positive=True), sp.Symbol("p"), sp.Symbol("q")
    for size in (1, 2, 5):
        direct = sum(entered.subs(n, size - 1 - i) * r**i for i in range(size)) / (
            lr**2 * sum(r**i for i in range(size))
        )
        residuals[f"geometric P_k, t = {size}"] = sp.cancel(
            sp.expand_power_base(direct) - _geometric(r, b_, b_**size, r**size)
        )
    residuals["geometric P_k, t -> oo"] = sp.cancel(
        _geometric(r, beta, p_, q_).subs({p_: 0, q_: 0}) - (1 + 2 * limit)
    )
    residuals["beta = 9/10 gives 19"] = (1 + 2 * limit).subs(beta, sp.Rational(9, 10)) - 19

    # The printed bounds: |r_2| <= (1 - beta) eps / beta, T max A_k for T + 1 terms, and what follows from the two.
    zeros, terms = corollary_2_3_bounds()
    residuals |= zeros
    nonnegative |= terms
    nine, late = sp.Rational(9, 10), 20
    r_2 = sum(nine**i for i in range(1, late))  # A_{T+1} = eps = 1, T' = 20
    r_1 = [
        nine ** (late + 2 - i) / (1 - nine) for i in (0, 1)
    ]  # A_0 = A_1 = 1, T = 1, eps as small as Eq. (bound 2) allows
    ends = {
        0: sp.Integer(1),
        1: sp.Integer(1),
        61: nine**61 / (1 - nine),
    }  # the same with T' = 60 and all of the tail, eps, at t = 61
    missing = sum(nine ** (62 - i) * A for i, A in ends.items()) / (1 - nine) / sum(ends.values())
    printed = (nine / (1 - nine) + (1 - nine) / nine + 1) * ends[61] / 2
    return Proof(
        "Corollary 2.3",
        "growth ratio -> 1 + 2 beta / (1 - beta), 19 at beta = 0.9",
        residuals,
        nonnegative,
        counterexamples={
            f"bound on r_2: beta = 9/10, T' = 20, all of the tail at T + 1: r_2 = {float(r_2):.2f} eps > eps / 9": r_2
            > (1 - nine) / nine,
            "T max A_k for the T + 1 terms k = 0..T: T = 1, A_0 = A_1 = 1: their sum exceeds eps": sum(
                r_1
            )
            > r_1[1],
            f"the last bound: beta = 9/10, T = 1, T' = 60, A_0 = A_1 = 1, A_61 = eps: {float(missing):.4f} > {float(printed):.4f}": (
                missing > printed
            ),
        },
        verdict="the limit is proved; two bounds of the printed proof fail, and with them its last",
        corrected="the limit stands: |r_2| <= beta eps / (1 - beta), (T + 1) max A_k, "
        "|F_t - beta / (1 - beta)| <= (2 beta / (1 - beta) + (T + 1) / T) eps / Sum(A_k, k <= T); "
        "the exact deficit is Sum(beta^(t-k+1) A_k) / ((1 - beta) Sum(A_k))",
        remark="the ratio is 0/0 at t = 0; constant P_k give the same limit",
    )


def _geometric(r: sp.Expr, b: sp.Expr, b_T: sp.Expr, r_T: sp.Expr) -> sp.Expr:
    """The ratio of Corollary 2.3 after T steps with P_k = r^k, b_T = b^T, r_T = r^T."""
    deficit = b * (b_T - r_T) / (b - r) / (1 - b)
    return 1 + 2 * (b / (1 - b) - deficit * (1 - r) / (1 - r_T))


def equation_14(recipe: str | Recipe = "sgdp") -> Proof:
    """Eq. 14: |w'|^2 = |w|^2 + lr^2 |q|^2 <= |w|^2 + lr^2 |p|^2, with q the projected momentum."""
    step = one_step(recipe, **PLAIN)
    p = step.states["m"]
    assert isinstance(p, Vector)
    q = (w - step.weight) * (1 / lr)
    lost = step.inner(p, p) - step.inner(q, q)
    X, M = step.inner(w, p), W
    return Proof(
        "Eq. 14",
        "|w_{t+1}|^2 = |w_t|^2 + lr^2 |q_t|^2 <= |w_t|^2 + lr^2 |p_t|^2",
        {
            "<w, q> = 0": step.inner(w, q),
            "|w'|^2": tidy(step.inner(step.weight, step.weight) - W - lr**2 * step.inner(q, q)),
            "|p|^2 - |q|^2 = <w, p>^2 / |w|^2": tidy(lost - X**2 / M),
            "p - q is radial": tidy(
                sum(abs(c) for a, c in (p - q).terms.items() if a != "w") + sp.Integer(0)
            ),
        },
        {"<w, p>^2 / |w|^2": X**2 / M},
        remark="compares one step from one w and p; equality only for <w, p> = 0",
    )


def proposition_3_1(plain: str | Recipe = "sgd", projected: str | Recipe = "sgdp") -> Proof:
    """Prop. 3.1: the projected step lies on the great circle of w_t and the original step.

    With a = <w, p> / |w|^2: w^p = w^o + lr a w, so it lies in span(w_t, w^o), on the side of w_t that w^o turns to, at an angle
    tan(theta_p) = (1 - lr a) tan(theta_o). For a < 0, which is what momentum brings (Lemma 2.2), it lies *beyond* w^o.
    """
    original, kept = one_step(plain, **PLAIN), one_step(projected, **PLAIN)
    p = kept.states["m"]
    assert isinstance(p, Vector)
    o, pr = original.weight, kept.weight
    wp = kept.inner(w, p)
    q = (w - pr) * (1 / lr)
    off = (pr - o - w * (lr * wp / W)).map(tidy)
    turned_o, turned_p = kept.inner(o, q), kept.inner(pr, q)
    area = tidy(kept.inner(pr, w) * -turned_o - kept.inner(o, w) * -turned_p)

    def turn(of: str | Recipe, momentum: tuple[int, int], grad: tuple[int, int]) -> list[sp.Expr]:
        """w' for w = (1, 0), lr = 1 and beta m = `momentum`."""
        traced = trace(of, dimension=2, **PLAIN)
        half = sp.Rational(1, 2)
        numbers = dict.fromkeys(traced.symbols, half) | {"lr": sp.Integer(1)}
        new, _, _ = step_in_coordinates(
            traced, [1, 0], list(grad), m=[2 * c for c in momentum], **numbers
        )
        return [sp.sympify(c) for c in new[0]]

    beyond = turn(plain, (-1, 0), (0, 1)), turn(projected, (-1, 0), (0, 1))
    nowhere = turn(plain, (1, 0), (0, 0))
    return Proof(
        "Prop. 3.1",
        "the projected step lies on the geodesic through w_t and the original step",
        {
            "w^p - w^o is lr <w,p>/|w|^2 w: in the span": sp.Add(
                *(sp.Abs(c) for c in off.terms.values())
            ),
            "both turn by the same tangential vector": tidy(turned_o - turned_p),
            "<w, w^p> = |w|^2": tidy(kept.inner(w, pr) - W),
            "<w, w^o> = |w|^2 - lr <w, p>": tidy(kept.inner(w, o) - W + lr * wp),
            "w^p is beyond w^o iff <w, p> < 0: signed area": tidy(
                area - lr**2 * kept.inner(q, q) * wp
            ),
        },
        counterexamples={
            f"shortest arc: w = (1, 0), p = (-1, 1), lr = 1: w^o = {beyond[0]}, w^p = {beyond[1]} lies beyond it": sp.Lt(
                sp.Abs(beyond[0][1] / beyond[0][0]), sp.Abs(beyond[1][1] / beyond[1][0])
            ),
            f"w = (1, 0), p = (1, 0), lr = 1: w^o = {nowhere} has no direction, no geodesic is defined": sp.And(
                *(sp.Eq(c, 0) for c in nowhere)
            ),
        },
        verdict="proved for the great circle, as its proof reads; fails as the shortest arc",
        corrected="on the great circle, same side, tan(theta_p) = (1 - lr <w,p>/|w|^2) tan(theta_o); between w_t and w^o iff <w,p> >= 0",
        remark="so after momentum (<w,p> <= 0) the projected step turns further: the effective step grows, as intended",
    )


def effective_step(recipe: str | Recipe = "sgd") -> Proof:
    """Eq. 5: the effective step |w'/|w'| - w/|w|| is about |w' - w| / |w'|, for a step orthogonal to w.

    Exactly, |effective step|^2 = |w' - w|^2 / |w'|^2 + (1 - |w| / |w'|)^2: relative error lr^2 |g|^2 / (4 |w|^2) + ...
    """
    step = one_step(recipe, momentum=0.0, **PLAIN)
    squared = step.inner(step.weight, step.weight)
    rho = sp.Symbol(
        "rho", positive=True
    )  # |w'| / |w| = sqrt(1 + lr^2 |g|^2 / |w|^2) for an orthogonal step
    turned = step.inner(w, step.weight)
    moved = step.inner(step.weight - w, step.weight - w)
    by = {step.inner(g, g): (rho**2 - 1) * W / lr**2}
    effective = 2 - 2 * turned.subs(by) / (W * rho)
    approximate = moved.subs(by) / (W * rho**2)
    relative = sp.series((effective / approximate - 1).subs(rho, sp.sqrt(1 + x)), x, 0, 2).removeO()
    return Proof(
        "Eq. 5",
        "|effective step| ~ |w' - w| / |w'|",
        {
            "|w'|^2 = rho^2 |w|^2": tidy(squared.subs(by) - rho**2 * W),
            "exact minus approximate is (1 - |w|/|w'|)^2": tidy(
                effective - approximate - (1 - 1 / rho) ** 2
            ),
            "relative error of the square is x / 4 + O(x^2), x = lr^2 |g|^2 / |w|^2": sp.simplify(
                relative - x / 4
            ),
        },
        remark="an underestimate; needs <w, p> = O(lr) (true by Lemma 2.2): a radial step p = w moves no direction at all",
    )
