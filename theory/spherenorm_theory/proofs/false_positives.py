"""The false-positive law: the rate at which random directions pass the test."""

from __future__ import annotations

import sympy as sp

from spherenorm_theory.algebra.claims import Claim, Kind, Proof
from spherenorm_theory.laws.detection import derive_threshold
from spherenorm_theory.proofs.notation import claims, scalar

delta, x, d = sp.symbols("delta x d", positive=True)
KERNEL, THRESHOLD, SLOPE = map(scalar, ("kernel", "threshold^2", "density at the threshold"))
RATE = sp.Function("rate")

LAW = sp.betainc_regularized(sp.Rational(1, 2), (d - 1) / 2, 0, delta**2 / d)
UNIFORM = ("a direction uniform on the sphere", "one unit")


def density(c: sp.Expr) -> sp.Expr:
    """The density of c = cos in R^d, from the area of the zone of a sphere."""
    area = sp.gamma(d / 2) / (sp.sqrt(sp.pi) * sp.gamma((d - 1) / 2))
    return area * (1 - c**2) ** ((d - 3) / 2)


def false_positive_law() -> Proof:
    """The threshold from the recorded test, the exact law in dimension d, and what is left of it.

    P(pass) = I_{delta^2/d}(1/2, (d-1)/2): its slope in delta is the density of the cosine at both
    ends of the interval that passes, and it is 0 at delta = 0. For large d the density of
    sqrt(d) cos is normal, and its integral erf(delta / sqrt 2); that the rate itself goes there
    follows by dominated convergence, of which the bound is shown.

    Example:
        >>> proof = false_positive_law()
        >>> print(proof.statement.relation.lhs)
        Derivative(betainc_regularized(1/2, d/2 - 1/2, 0, delta**2/d), delta)
    """
    edge = delta / sp.sqrt(d)
    threshold = {THRESHOLD: derive_threshold(3)}
    exact = {"its slope is the density at the ends": sp.Eq(
        sp.Derivative(LAW, delta), 2 * density(edge) / sp.sqrt(d))}  # fmt: skip
    start = {"and none passes at a threshold of 0": sp.Eq(RATE(0), 0)}
    printed = {"the threshold of the code": sp.Eq(THRESHOLD, delta**2 / d)}
    return Proof(
        "False positives",
        (
            *claims(Kind.IDENTITY, {}, exact, UNIFORM),
            *claims(Kind.IDENTITY, {RATE: sp.Lambda(delta, LAW)}, start),
            *_limit(),
            *claims(Kind.DERIVED, threshold, printed),
            _bound(),
        ),
        remark="of several channels all must pass: the rate to their number's power",
    )


def _limit() -> tuple[Claim, ...]:
    """The density of x = sqrt(d) cos for large d is the normal one, and what that integrates to."""
    normal = sp.exp(-(x**2) / 2)
    whole = sp.integrate(normal, (x, -sp.oo, sp.oo))
    integral = sp.Integral(2 / whole * normal, (x, 0, delta))
    statements = {
        "the kernel of the density for large d": sp.Eq(sp.Limit(KERNEL, d, sp.oo), normal),
        "the integral of the normal density": sp.Eq(integral, sp.erf(delta / sp.sqrt(2))),
    }
    record = {KERNEL: sp.exp((d - 3) / 2 * sp.log(1 - x**2 / d))}
    return claims(Kind.IDENTITY, record, statements)


def _bound() -> Claim:
    """The premise of dominated convergence, which holds from d = 6 on.

    log(1 - y) <= -y bounds the kernel by exp(-x^2 / 4), so that its integral converges too, and the
    density's constant, which makes the integral 1, is the reciprocal.
    """
    e = sp.Symbol("e", nonnegative=True)
    bound = sp.Ge((d - 3) / (2 * d), sp.Rational(1, 4)), e / (4 * (6 + e))
    about = "the exponent of a bound on the kernel"
    return claims(Kind.IDENTITY, {d: 6 + e}, {about: bound})[0]
