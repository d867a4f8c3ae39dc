"""The statements of the paper, each proved from the recorded step of a recipe.

Every function takes the recipe that it is about, so that a recipe with a fault can be shown to
fail. Notation: p_t is the momentum after the gradient of step t entered, and q_t is its projection.

Source: Heo et al., *AdamP*, ICLR 2021, arXiv:2006.08217.
"""

from __future__ import annotations

import sympy as sp
import torch

from spherenorm import Recipe
from spherenorm_theory.algebra.claims import Claim, Induction, Kind, Proof, Refutation, read_as
from spherenorm_theory.algebra.hyper_parameters import resolve_recipe
from spherenorm_theory.algebra.symbols import Inner, Norm, Vector, product
from spherenorm_theory.laws.law import norm_growth
from spherenorm_theory.proofs.notation import (
    AT_REST,
    CONSTANT,
    PLAIN,
    W_NEXT,
    G,
    MomentumStep,
    P,
    P_t,
    Q,
    W,
    W_t,
    X_t,
    beta,
    claims,
    indexed,
    k,
    l,
    lr,
    of_float,
    read,
    read_momentum,
    scalar,
    t,
    w,
)

lr_t, M_t = indexed(lr), indexed(Inner("w", "m"))
FROM_REST = (AT_REST, CONSTANT)


def lemma_2_1(recipe: str | Recipe = "sgd") -> Proof:
    """Lemma 2.1: gradient descent grows the norm by the squared step.

    |w'|^2 = |w|^2 + lr^2 |g|^2.
    """
    step, grown = norm_growth(recipe, momentum=0.0, **PLAIN).step, lr**2 * G
    statements = {
        "the norm after a step": sp.Eq(W_NEXT, W + grown),
        "monotone": (sp.Gt(W_NEXT, W), grown),
    }
    under = (*step.hypotheses, sp.Gt(Norm("g"), 0, evaluate=False))
    return Proof("Lemma 2.1", read(step, {"w'": step.weight}, statements, under))


def lemma_2_2(recipe: str | Recipe = "sgd") -> Proof:
    """Lemma 2.2: with momentum, |w_{t+1}|^2 = |w_t|^2 + lr^2 P_t + 2 lr^2 sum_{k<t} beta^(t-k) P_k.

    As in the paper, it remains to prove <w_t, p_t> = -lr sum_{k<t} beta^(t-k) P_k, by induction for
    symbolic t.
    """
    momentum = read_momentum(recipe)
    past = sp.Sum(beta ** (t - k) * P_t[k], (k, 0, t - 1))
    cross = _cross_term(momentum, past)
    grown = {W_t[t + 1]: _after(momentum, cross.relation.rhs / momentum.share)}
    term = 2 * lr**2 * past
    lemma = sp.Eq(W_t[t + 1], W_t[t] + lr**2 * P_t[t] + term)
    faster = sp.Ge(W_t[t + 1], W_t[t] + lr**2 * P_t[t])
    X, under = Inner("w", "p"), (*momentum.under, *FROM_REST)
    one = sp.Eq(W_NEXT, W + lr**2 * P - 2 * lr * X)
    shown = {W_NEXT: momentum.squared, X: momentum.cross}
    return Proof(
        "Lemma 2.2",
        (
            Claim("the norm at every step", lemma, Kind.INDUCTION, grown, under=under),
            Claim("one step", one, Kind.DERIVED, shown, under=momentum.under),
            cross,
            Claim("momentum adds growth", faster, Kind.INDUCTION, grown, term, under=under),
        ),
    )


def _cross_term(momentum: MomentumStep, past: sp.Expr) -> Claim:
    """<w_t, p_t>, by induction from the first step on."""
    share = momentum.share
    after = share * read_as(momentum.cross_after, {momentum.X: X_t[t] / share, P: P_t[t]})
    start = momentum.cross.subs(momentum.X, 0)
    return Claim(
        "the cross term",
        sp.Eq(X_t[t], -lr * past),
        Kind.INDUCTION,
        induction=Induction(
            t,
            start={X_t[0]: start},
            after={X_t[t + 1]: after},
            factor=sp.diff(after, X_t[t]),
        ),
        under=(*momentum.under, *FROM_REST),
    )


def _after(momentum: MomentumStep, cross: sp.Expr, rate: sp.Expr = lr) -> sp.Expr:
    """|w_{t+1}|^2 with `cross` for <w_t, m_t>."""
    return read_as(momentum.squared, {W: W_t[t], P: P_t[t], momentum.X: cross, lr: rate})


def lemma_2_2_scheduled(recipe: str | Recipe = "sgd") -> Proof:
    """Lemma 2.2 under a learning-rate schedule, of which the paper's lemma, at one rate, is a case.

    Each old term keeps the rate of its own step; one rate for all terms is another reading.
    """
    momentum = read_momentum(recipe)
    carried = read_as(momentum.cross_after, {momentum.X: M_t[t], P: P_t[t], lr: lr_t[t]})
    under = (*momentum.under, AT_REST, "momentum constant")
    cross = Claim(
        "the cross term",
        sp.Eq(M_t[t], -sp.Sum(lr_t[k] * beta ** (t - 1 - k) * P_t[k], (k, 0, t - 1))),
        Kind.INDUCTION,
        induction=Induction(t, {M_t[0]: 0}, {M_t[t + 1]: carried}, factor=sp.diff(carried, M_t[t])),
        under=under,
    )
    past = sp.Sum(lr_t[k] * beta ** (t - k) * P_t[k], (k, 0, t - 1))
    lemma = sp.Eq(W_t[t + 1], W_t[t] + lr_t[t] ** 2 * P_t[t] + 2 * lr_t[t] * past)
    grown = {W_t[t + 1]: _after(momentum, cross.relation.rhs, lr_t[t])}
    return Proof(
        "Lemma 2.2 under a schedule",
        (Claim("the norm at every step", lemma, Kind.INDUCTION, grown, under=under), cross),
        (_one_rate(momentum),),
        remark="after a decay of the rate the old terms weigh more than at the present rate: "
        "the norm keeps growing by past, larger steps",
    )


def _one_rate(momentum: MomentumStep) -> Refutation:
    """The lemma with lr_t for lr, against three recorded steps."""
    past = sp.Sum(beta ** (t - k) * P_t[k], (k, 0, t - 1))
    growth = lr_t[t] ** 2 * P_t[t] + 2 * lr_t[t] ** 2 * past
    rates, lengths = (sp.Rational(1, 2), sp.Rational(1, 3), sp.Rational(1, 5)), (3, 5, 2)
    numbers = {beta: sp.Rational(1, 2), W_t[2]: sp.Integer(7)}
    cross: sp.Expr = sp.S.Zero
    for n, (rate, length) in enumerate(zip(rates, lengths, strict=True)):
        numbers |= {lr_t[n]: rate, P_t[n]: sp.Integer(length)}
        step = {momentum.X: cross, lr: rate, P: sp.Integer(length), beta: numbers[beta]}
        after = read_as(momentum.squared, {**step, W: numbers[W_t[2]]})
        cross = read_as(momentum.cross_after, step)
    return Refutation(
        "the present rate for all terms",
        sp.Eq(W_t[t + 1], W_t[t] + growth),
        {t: sp.Integer(2), **numbers, W_t[3]: after},
        (sp.Rational(2269, 300), sp.Rational(367, 50)),
    )


def effective_step(recipe: str | Recipe = "sgd") -> Proof:
    """Eq. 5: the effective step |w'/|w'| - w/|w|| is about |w' - w| / |w'|.

    Exactly, |effective step|^2 = |w' - w|^2 / |w'|^2 + (1 - |w| / |w'|)^2 for a step orthogonal to
    w, with the relative error lr^2 |g|^2 / (4 |w|^2) + ...
    """
    step = norm_growth(recipe, momentum=0.0, **PLAIN).step
    norm, turned = step.inner(step.weight, step.weight), step.inner(w, step.weight)
    moved = step.inner(step.weight - w, step.weight - w)
    # ratio = |w'| / |w| = sqrt(1 + x), where x = lr^2 |g|^2 / |w|^2
    x, ratio, exactly, approximate = (
        sp.Symbol(name, positive=True) for name in ("x", "ratio", "effective^2", "approximate^2")
    )
    by = {G: (ratio**2 - 1) * W / lr**2}
    record = {
        exactly: 2 - 2 * read_as(turned, by) / (W * ratio),
        approximate: read_as(moved, by) / (W * ratio**2),
    }
    growing = {name: meaning.subs(ratio, sp.sqrt(1 + x)) for name, meaning in record.items()}
    gap = (1 - 1 / ratio) ** 2
    relative = sp.Limit((exactly / approximate - 1) / x, x, 0)
    size = {x: lr**2 * G / W, ratio: sp.sqrt(1 + lr**2 * G / W)}
    under = step.hypotheses
    steps = {
        "both effective steps": sp.Eq(exactly, approximate + gap),
        "an underestimate": (sp.Ge(exactly, approximate), gap),
    }
    grown = {"growth": sp.Eq(scalar("|w'|^2"), ratio**2 * W)}
    error = {"relative error of the square": sp.Eq(relative, sp.Rational(1, 4))}
    return Proof(
        "Eq. 5",
        (
            *claims(Kind.DERIVED, record, steps, under),
            *claims(Kind.DERIVED, {scalar("|w'|^2"): norm, **size}, grown, under),
            *claims(Kind.IDENTITY, size, {"size of the step": sp.Eq(ratio**2, 1 + x)}),
            *claims(Kind.DERIVED, growing, error, under),
        ),
        remark="a step along the weight moves no direction at all, so the cosine of weight and "
        "step has to vanish with the rate",
    )


OWN, LATER, AT_INFINITY, F = map(scalar, ("own share", "later share", "lim ratio", "F_t"))
RATIO = sp.Function("ratio")
n = sp.Symbol("n", integer=True, nonnegative=True)


def corollary_2_3(recipe: str | Recipe = "sgd") -> Proof:
    """Corollary 2.3: (|w^GDM|^2 - |w_0|^2) / (|w^GD|^2 - |w_0|^2) -> 1 + 2 beta / (1 - beta).

    For summable A_k = |p_k|^2. The ratio is 1 + 2 F_t with F_t = sum (beta + ... + beta^(t-k)) A_k
    / sum A_k, whose deficit is exactly

        beta / (1 - beta) - F_t
            = Sum(beta^(t-k+1) A_k, k <= t) / ((1 - beta) Sum(A_k, k <= t)),

    which goes to 0. (Two inequalities of the printed proof fail, and with them its last; see
    docs/theory.md.)
    """
    own, later = _entering(recipe)
    closed = (beta - beta ** (n + 1)) / (1 - beta)
    powers, step = sp.Sum(beta**l, (l, 1, n)), Induction(n, {}, {})
    geometric = Claim("a sum of powers", sp.Eq(powers, closed), Kind.INDUCTION, induction=step)
    # The shares of one A_k in all steps, with beta^(n+1) -> 0.
    whole = closed.subs(beta ** (n + 1), 0)
    ratio = (own.relation.rhs + (later.relation.rhs / beta**l) * whole) / lr**2
    total = sp.Sum(P_t[k], (k, 0, t))
    weighted = sp.Sum(closed.subs(n, t - k) * P_t[k], (k, 0, t))
    lacking = sp.Sum(beta ** (t - k + 1) * P_t[k], (k, 0, t))
    deficit = sp.Eq(F, beta / (1 - beta) - lacking / ((1 - beta) * total))
    limit = sp.Eq(AT_INFINITY, 1 + 2 * beta / (1 - beta))
    usual = sp.Eq(RATIO(sp.Rational(9, 10)), 19)
    under = (*own.under, "|p_k| the same with and without momentum",
             "Sum(|p_k|^2) positive and finite", "momentum in (0, 1)")  # fmt: skip
    return Proof(
        "Corollary 2.3",
        (
            Claim("the growth ratio", limit, Kind.DERIVED, {AT_INFINITY: ratio}, under=under),
            Claim("its usual value", usual, Kind.DERIVED, {RATIO: sp.Lambda(beta, ratio)}),
            own,
            later,
            geometric,
            Claim("the exact deficit", deficit, Kind.DERIVED, {F: weighted / total}),
        ),
        remark="the limit holds; of the inequalities of the printed proof two do not",
    )


def _entering(recipe: str | Recipe) -> tuple[Claim, Claim]:
    """The shares of P_k in the growth of its own step, and of the l-th step after it."""
    momentum = read_momentum(recipe)
    X = Inner("w", "m")
    norm, after = sp.expand(momentum.squared), sp.expand(momentum.cross_after)
    entering, kept = after.coeff(Norm("p"), 2), sp.diff(after, X)
    share = sp.diff(norm, X) * entering * kept ** (l - 1)
    own = {OWN: norm.coeff(Norm("p"), 2)}
    of_own, of_later = sp.Eq(OWN, lr**2), sp.Eq(LATER, 2 * lr**2 * beta**l)
    under = momentum.under
    return (
        Claim("a step in its own growth", of_own, Kind.DERIVED, own, under=under),
        Claim("and in a later one", of_later, Kind.DERIVED, {LATER: share}, under=under),
    )


X = Inner("w", "p")
TAN_O, TAN_P = (sp.Symbol(f"tan_{name}", real=True) for name in "op")


def equation_14(recipe: str | Recipe = "sgdp") -> Proof:
    """Eq. 14: |w'|^2 = |w|^2 + lr^2 |q|^2 <= |w|^2 + lr^2 |p|^2, with q the projected momentum."""
    step = norm_growth(recipe, **PLAIN).step
    p, q = step.states["m"], (w - step.weight) * (1 / lr)
    assert isinstance(p, Vector)
    lost = X**2 / W
    statements = {
        "the norm": sp.Eq(W_NEXT, W + lr**2 * Q),
        "the bound": (sp.Le(W_NEXT, W + lr**2 * P), lr**2 * lost),
        "the step is orthogonal": sp.Eq(Inner("w", "q"), 0),
        "the share that is lost": sp.Eq(Q, P - lost),
        "it is radial": sp.Eq(sp.Symbol("p - q"), X / W * sp.Symbol("w")),
    }
    vectors = {"w'": step.weight, "p": p, "q": q, "p - q": p - q}
    return Proof(
        "Eq. 14",
        read(step, vectors, statements),
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
    return Proof(
        "Prop. 3.1",
        _great_circle(plain, projected),
        _no_shortest_arc(plain, projected),
        remark="so after momentum the projected step turns further: the effective step grows, "
        "as intended",
    )


def _great_circle(plain: str | Recipe, projected: str | Recipe) -> tuple[Claim, ...]:
    original, kept = (norm_growth(each, **PLAIN).step for each in (plain, projected))
    p = kept.states["m"]
    assert isinstance(p, Vector)
    o, pr = original.weight, kept.weight
    q = (w - pr) * (1 / lr)
    vectors = {"p": p, "q": q, "w^o": o, "w^p": pr}
    pairs = [("w", "w^o"), ("w", "w^p"), ("w^o", "q"), ("w^p", "q")]
    w_o, w_p, q_o, q_p = (product(*pair) for pair in pairs)
    statements = {
        "the projected step is in the span of weight and original step": sp.Eq(
            sp.Symbol("w^p"), sp.Symbol("w^o") + lr * X / W * sp.Symbol("w")
        ),
        "the original turns along the tangent": sp.Eq(q_o, -lr * Q),
        "the projected turns as far along it": sp.Eq(q_p, -lr * Q),
        "the original along the weight": sp.Eq(w_o, W - lr * X),
        "the projected along the weight": sp.Eq(w_p, W),
        "the signed area from the original to the projected": sp.Eq(
            w_p * q_o - w_o * q_p, -(lr**2) * Q * X
        ),
    }
    under = (*original.hypotheses, *kept.hypotheses)
    # In the plane of w and q: along w by <w, .>, across it by -<., q>.
    record = {tan: -kept.inner(v, q) / kept.inner(w, v) for tan, v in ((TAN_O, o), (TAN_P, pr))}
    record |= {X: kept.inner(w, p), W: kept.inner(w, w)}
    angles = {"the angles from the weight": sp.Eq(TAN_P, (1 - lr * X / W) * TAN_O)}
    span, *others = read(kept, vectors, statements, under)
    return span, *claims(Kind.DERIVED, record, angles, under), *others


def _no_shortest_arc(plain: str | Recipe, projected: str | Recipe) -> tuple[Refutation, ...]:
    def turn(of: str | Recipe, momentum: tuple[int, int], grad: tuple[int, int]) -> list[sp.Expr]:
        """w' of the rule's code for w = (1, 0), lr = 1 and beta m = `momentum`."""
        rule = resolve_recipe(of)(lr=1.0, momentum=0.5, **PLAIN)
        weight, gradient, buffer = (
            torch.tensor([x], dtype=torch.float64) for x in ((1, 0), grad, momentum)
        )
        new, _ = rule.step(weight, gradient, {rule.keys[0]: 2 * buffer})
        return [of_float(x) for x in new[0]]

    # p = (-1, 1)
    o, p = turn(plain, (-1, 0), (0, 1)), turn(projected, (-1, 0), (0, 1))
    tangents = {TAN_P: sp.Abs(p[1] / p[0]), TAN_O: sp.Abs(o[1] / o[0])}
    # p = (1, 0)
    nowhere = turn(plain, (1, 0), (0, 0))
    length = scalar("|w^o|^2")
    return (
        Refutation(
            "the projected step lies between weight and original step",
            sp.Le(TAN_P, TAN_O),
            {**tangents, lr: sp.S.One, X: sp.S.NegativeOne},
            (sp.S.One, sp.Rational(1, 2)),
        ),
        Refutation(
            "the original step has a direction",
            sp.Ne(length, 0),
            {length: sp.Add(*(c**2 for c in nowhere)), lr: sp.S.One, X: sp.S.One},
            (sp.S.Zero, sp.S.Zero),
        ),
    )
