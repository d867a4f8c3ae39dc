"""False positives: random directions that a scale-invariance test takes for orthogonal ones."""

from __future__ import annotations

import sympy as sp
from mpmath import betainc, erf, sqrt  # type: ignore[import-untyped]

from spherenorm import Chain, Scalar, chain
from spherenorm import rules as r
from spherenorm_theory.algebra.recording import trace
from spherenorm_theory.algebra.symbols import Norm
from spherenorm_theory.laws.step import one_step


def _projected(delta: Scalar = 0.1) -> Chain:
    return chain(r.ScaleInvarianceTest(delta), r.RadialProjection())


def derive_threshold(dimension: int) -> sp.Expr:
    """The squared cosine below which the recorded test passes, in terms of delta."""
    step = one_step(trace(_projected, dimension=dimension), scale_invariant=False)
    (relation,) = {*step.facts.failed}
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
