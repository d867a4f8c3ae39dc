"""The false-positive law: the rate at which random directions pass the test."""

from __future__ import annotations

import sympy as sp

from spherenorm_theory.algebra import Claim, Kind, Proof, Slope
from spherenorm_theory.laws import derive_threshold
from spherenorm_theory.proofs._notation import claims, scalar

delta, x, d = sp.symbols("delta x d", positive=True)
c = sp.Symbol("c", real=True)
LIMIT, KERNEL, THRESHOLD = map(scalar, ("lim P(pass)", "kernel", "threshold^2"))

# The density of c = cos in R^d, from the area of the zone of a sphere.
DENSITY = sp.gamma(d / 2) / (sp.sqrt(sp.pi) * sp.gamma((d - 1) / 2)) * (1 - c**2) ** ((d - 3) / 2)


def false_positive_law() -> Proof:
    """The threshold from the recorded test, the exact law in dimension d, the limit for large d.

    P(pass) = I_{delta^2/d}(1/2, (d-1)/2) -> erf(delta / sqrt 2).

    Example:
        >>> proof = false_positive_law()
        >>> print(proof.statement.relation.rhs)
        betainc_regularized(1/2, d/2 - 1/2, 0, delta**2/d)
    """
    edge = delta / sp.sqrt(d)
    law = sp.betainc_regularized(sp.Rational(1, 2), (d - 1) / 2, 0, delta**2 / d)
    exact = Claim(
        "the rate in dimension d, from the density of the cosine",
        sp.Eq(sp.Integral(DENSITY, (c, -edge, edge)), law),
        Kind.IDENTITY,
        induction=Slope(delta, sp.Integer(0)),
    )
    threshold = {THRESHOLD: derive_threshold(3)}
    printed = {"the threshold of the code": sp.Eq(THRESHOLD, delta**2 / d)}
    return Proof(
        "False positives",
        (exact, *_limit(), *claims(Kind.DERIVED, threshold, printed), *_convergence()),
        under=("a direction uniform on the sphere", "one unit"),
        remark="of several channels all must pass: the rate to their number's power",
    )


def _limit() -> tuple[Claim, ...]:
    """The density of x = sqrt(d) cos for large d is the normal one."""
    normal = sp.exp(-(x**2) / 2)
    whole = sp.integrate(normal, (x, -sp.oo, sp.oo))
    record = {
        LIMIT: sp.integrate(2 / whole * normal, (x, 0, delta)),
        KERNEL: sp.exp((d - 3) / 2 * sp.log(1 - x**2 / d)),
    }
    statements = {
        "the rate for large d": sp.Eq(LIMIT, sp.erf(delta / sp.sqrt(2))),
        "its kernel": sp.Eq(sp.Limit(KERNEL, d, sp.oo), normal),
    }
    return claims(Kind.IDENTITY, record, statements)


def _convergence() -> tuple[Claim, ...]:
    """The premise of dominated convergence, which holds from d = 6 on.

    log(1 - y) <= -y bounds the kernel by exp(-x^2 / 4), so that its integral converges too, and the
    density's constant, which makes the integral 1, is the reciprocal.
    """
    e = sp.Symbol("e", nonnegative=True)
    bound = sp.Ge((d - 3) / (2 * d), sp.Rational(1, 4)), e / (4 * (6 + e))
    about = "the exponent of a bound on the kernel"
    return claims(Kind.IDENTITY, {d: 6 + e}, {about: bound})
