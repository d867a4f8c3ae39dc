"""How often a scale-invariance test takes a random direction for an orthogonal one."""

from __future__ import annotations

from dataclasses import dataclass

import sympy as sp
import torch
from mpmath import betainc, erf, sqrt  # type: ignore[import-untyped]

from spherenorm import Update
from spherenorm import rules as r
from spherenorm.chain import Chain, chain
from spherenorm.rule import Scalar
from theory.one_step import one_step
from theory.proof import Proof
from theory.trace import trace

__all__ = [
    "Counted",
    "count_false_positives",
    "detection_threshold",
    "false_positive_law",
    "false_positive_rate",
]


def _projected(delta: Scalar = 0.1) -> Chain:
    return chain(r.ScaleInvarianceTest(delta), r.RadialProjection())


def detection_threshold(dimension: int) -> sp.Expr:
    """The squared cosine below which the traced test passes, in terms of delta."""
    step = one_step(trace(_projected, dimension=dimension), scale_invariant=False)
    (relation,) = {*step.algebra.failed}
    bound = sp.Lt(relation.lhs, relation.rhs).rhs
    space = step.algebra.space
    return sp.cancel(bound**2 / (space.gram("w", "w") * space.gram("g", "g")))


def false_positive_rate(
    delta: float = 0.1, dimension: int | None = None, channels: int = 1
) -> float:
    """P(every channel of a weight passes the test) for isotropic random gradients.

    The cosine of a fixed and a random direction in R^d has cos^2 ~ Beta(1/2, (d-1)/2), so one unit passes with probability

        I_{delta^2/d}(1/2, (d-1)/2)  ->  erf(delta / sqrt(2)) = P(|N(0, 1)| < delta)  as d -> oo,

    and the greatest cosine of c independent channels stays below the threshold with that to the power c.

    Args:
        delta: the threshold of the test.
        dimension: entries of a unit; None is the limit.
        channels: units that all have to pass.
    """
    if not delta > 0:
        raise ValueError(f"delta must be positive, got {delta!r}")
    if channels < 1 or (dimension is not None and dimension < 2):
        raise ValueError(
            f"need channels >= 1 and dimension >= 2, got channels={channels!r}, dimension={dimension!r}"
        )
    if dimension is None:
        one = erf(delta / sqrt(2))
    else:
        one = betainc(0.5, (dimension - 1) / 2, 0, min(1.0, delta**2 / dimension), regularized=True)
    return float(one) ** channels


def false_positive_law() -> Proof:
    """The false-positive law: threshold from the traced test, exact law in dimension d, limit erf(delta / sqrt 2)."""
    delta, x = sp.symbols("delta x", positive=True)
    d = sp.Symbol("d", positive=True)
    c = sp.Symbol("c", real=True)
    # The density of c = cos in R^d, from the area of the zone of a sphere.
    density = (
        sp.gamma(d / 2) / (sp.sqrt(sp.pi) * sp.gamma((d - 1) / 2)) * (1 - c**2) ** ((d - 3) / 2)
    )
    residuals = {
        f"threshold of the code, d = {n}": sp.cancel(detection_threshold(n) - delta**2 / n)
        for n in (2, 3, 7)
    }
    for n in (3, 5):
        residuals[f"density integrates to 1, d = {n}"] = (
            sp.integrate(sp.expand(density.subs(d, n)), (c, -1, 1)) - 1
        )
        zone = 2 * sp.integrate(sp.expand(density.subs(d, n)), (c, 0, x))
        beta = sp.diff(zone, x) - 2 * x * (x**2) ** sp.Rational(-1, 2) * (1 - x**2) ** sp.Rational(
            n - 3, 2
        ) / sp.beta(sp.Rational(1, 2), sp.Rational(n - 1, 2))
        residuals[f"cos^2 is Beta(1/2, (d-1)/2), d = {n}"] = sp.simplify(beta.rewrite(sp.gamma))
    kernel = sp.exp((d - 3) / 2 * sp.log(1 - x**2 / d))
    residuals["kernel -> exp(-x^2 / 2), x = sqrt(d) cos"] = sp.simplify(
        sp.limit(kernel, d, sp.oo) - sp.exp(-(x**2) / 2)
    )
    # Dominated convergence: log(1 - y) <= -y bounds the kernel by exp(-x^2 / 4) from d = 6 on, so its integral converges too, and
    # the density's constant, which makes the integral 1, is the reciprocal.
    e = sp.Symbol("e", nonnegative=True)
    margin = sp.factor(sp.cancel((d - 3) / (2 * d) - sp.Rational(1, 4)).subs(d, 6 + e))
    whole = sp.integrate(sp.exp(-(x**2) / 2), (x, -sp.oo, sp.oo))
    residuals["twice the constant -> sqrt(2 / pi)"] = sp.simplify(2 / whole - sp.sqrt(2 / sp.pi))
    normal = sp.integrate(sp.sqrt(2 / sp.pi) * sp.exp(-(x**2) / 2), (x, 0, delta))
    residuals["so the rate is erf(delta / sqrt 2)"] = sp.simplify(
        normal - sp.erf(delta / sp.sqrt(2))
    )
    return Proof(
        "False positives",
        "P(pass) = I_{delta^2/d}(1/2, (d-1)/2) -> erf(delta/sqrt 2); to the power c for c channels",
        residuals,
        {"kernel <= exp(-x^2 / 4), d >= 6": margin},
        remark=f"at delta = 0.1: {false_positive_rate(0.1):.2%} for a whole layer, {false_positive_rate(0.1, None, 8):.0e} for 8 channels",
    )


@dataclass(frozen=True)
class Counted:
    """A predicted rate and the count that tests it."""

    predicted: float
    passed_test: int
    trials: int

    @property
    def measured(self) -> float:
        return self.passed_test / self.trials

    @property
    def deviations(self) -> float:
        """The difference in standard deviations of the count (a binomial; at least one count, where none is expected)."""
        spread = max((self.predicted * (1 - self.predicted) * self.trials) ** 0.5, 1.0)
        return float(abs(self.passed_test - self.predicted * self.trials) / spread)

    @property
    def passed(self) -> bool:
        """Within 4 standard deviations: a true law fails this once in 16000 seeds."""
        return self.deviations <= 4

    def __str__(self) -> str:
        return f"predicted {self.predicted:.4%}, measured {self.measured:.4%} of {self.trials} ({self.deviations:.1f} sigma)"


def count_false_positives(
    delta: float = 0.1,
    dimension: int = 64,
    channels: int = 1,
    view: str = "channel",
    trials: int = 20_000,
    seed: int = 0,
) -> Counted:
    """Count how often the test flags a (channels, dimension) weight for a Gaussian gradient, in one view."""
    generator = torch.Generator().manual_seed(seed)
    weight, grads = (
        torch.randn(*shape, dtype=torch.float64, generator=generator)
        for shape in ((channels, dimension), (trials, channels, dimension))
    )
    test = r.ScaleInvarianceTest(delta, views=(view,))

    def flagged(grad: torch.Tensor) -> torch.Tensor:
        update, _ = test.update(Update(weight, grad, grad), {})
        assert update.invariance is not None
        return update.invariance.flags[0].any()

    count = int(torch.func.vmap(flagged)(grads).sum())
    if view == "layer":
        return Counted(false_positive_rate(delta, channels * dimension), count, trials)
    return Counted(false_positive_rate(delta, dimension, channels), count, trials)
