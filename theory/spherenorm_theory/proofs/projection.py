"""Eq. 14 and Proposition 3.1: what the projection does to one step."""

from __future__ import annotations

import sympy as sp
import torch

from spherenorm import Recipe
from spherenorm_theory.algebra.claims import Claim, Kind, Proof, Refutation
from spherenorm_theory.algebra.hyper_parameters import resolve_recipe
from spherenorm_theory.algebra.symbols import Inner, Vector, product
from spherenorm_theory.laws.law import norm_growth
from spherenorm_theory.proofs.notation import (
    PLAIN,
    W_NEXT,
    P,
    Q,
    W,
    claims,
    lr,
    of_float,
    scalar,
    w,
)

X = Inner("w", "p")


def equation_14(recipe: str | Recipe = "sgdp") -> Proof:
    """Eq. 14: |w'|^2 = |w|^2 + lr^2 |q|^2 <= |w|^2 + lr^2 |p|^2, with q the projected momentum."""
    step = norm_growth(recipe, **PLAIN).step
    p = step.states["m"]
    assert isinstance(p, Vector)
    q = (w - step.weight) * (1 / lr)
    orthogonal, removed = Inner("w", "q"), sp.Symbol("p - q")
    record = {
        W_NEXT: step.inner(step.weight, step.weight),
        Q: step.inner(q, q),
        P: step.inner(p, p),
        X: step.inner(w, p),
        orthogonal: step.inner(w, q),
        removed: (p - q).formula,
    }
    lost = X**2 / W
    statements = {
        "the norm": sp.Eq(W_NEXT, W + lr**2 * Q),
        "the bound": (sp.Le(W_NEXT, W + lr**2 * P), lr**2 * lost),
        "the step is orthogonal": sp.Eq(orthogonal, 0),
        "the share that is lost": sp.Eq(Q, P - lost),
        "it is radial": sp.Eq(removed, X / W * sp.Symbol("w")),
    }
    return Proof(
        "Eq. 14",
        claims(Kind.DERIVED, record, statements, step.hypotheses),
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


TAN_O, TAN_P = (sp.Symbol(f"tan_{name}", real=True) for name in "op")


def _great_circle(plain: str | Recipe, projected: str | Recipe) -> tuple[Claim, ...]:
    original, kept = (norm_growth(each, **PLAIN).step for each in (plain, projected))
    p = kept.states["m"]
    assert isinstance(p, Vector)
    o, pr = original.weight, kept.weight
    q = (w - pr) * (1 / lr)
    names = {"w": w, "p": p, "q": q, "w^o": o, "w^p": pr}
    # The plane of w and q: along w by <w, .>, across it by -<., q>.
    across = {v: -kept.inner(names[v], q) / kept.inner(w, names[v]) for v in ("w^o", "w^p")}
    pairs = [("w", "p"), ("w", "w^o"), ("w", "w^p"), ("w^o", "q"), ("w^p", "q")]
    record = {
        **{product(a, b): kept.inner(names[a], names[b]) for a, b in pairs},
        Q: kept.inner(q, q),
        sp.Symbol("w^o"): o.formula,
        sp.Symbol("w^p"): pr.formula,
        TAN_O: across["w^o"],
        TAN_P: across["w^p"],
    }
    w_o, w_p, q_o, q_p = (product(*pair) for pair in pairs[1:])
    statements = {
        "the projected step is in the span of weight and original step": sp.Eq(
            sp.Symbol("w^p"), sp.Symbol("w^o") + lr * X / W * sp.Symbol("w")
        ),
        "the angles from the weight": sp.Eq(TAN_P, (1 - lr * X / W) * TAN_O),
        "the original turns along the tangent": sp.Eq(q_o, -lr * Q),
        "the projected turns as far along it": sp.Eq(q_p, -lr * Q),
        "the original along the weight": sp.Eq(w_o, W - lr * X),
        "the projected along the weight": sp.Eq(w_p, W),
        "the signed area from the original to the projected": sp.Eq(
            w_p * q_o - w_o * q_p, -(lr**2) * Q * X
        ),
    }
    return claims(Kind.DERIVED, record, statements, (*original.hypotheses, *kept.hypotheses))


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
