"""The inequalities in the proof of Corollary 2.3: those that hold, and the printed ones that fail.

The proof splits the sums at T, after which all A_k together are at most eps, and takes t = T + T',
with T' such that beta/(1-beta) - G(T') <= eps / (T max A_k). Here G(n) = beta + ... + beta^n. Then

    F_t = (Sum((beta/(1-beta) + r_1) A_k, k <= T) + r_2) / (M + r_3),    M = Sum(A_k, k <= T),

where r_1 = G(t-k) - beta/(1-beta), r_2 = Sum(G(t-k) A_k, T < k <= t) and
r_3 = Sum(A_k, T < k <= t).

The premises are built into the meanings of the symbols: beta in (0, 1) is 1/(1+x), some
beta^j <= 1 is 1/(1+y), and a quantity of at most c is c less some slack.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import sympy as sp

from spherenorm_theory.algebra import Claim, Induction, Kind, Refutation
from spherenorm_theory.proofs._notation import beta

x, M, A_max = sp.symbols("x M A_max", positive=True)
y, z, r_3, s_1, s_2, s_3 = sp.symbols("y z r_3 s_1 s_2 s_3", nonnegative=True)
T, wait = (sp.Symbol(name, integer=True, positive=True) for name in ("T", "T'"))
j, k = (sp.Symbol(name, integer=True, nonnegative=True) for name in "jk")
eps, R_1, r_1, r_2 = sp.symbols("eps |Sum(r_1*A_k)| |r_1| r_2", real=True)
sum_1, off, deficit = sp.symbols("Sum(r_1*A_k) |F_t-beta/(1-beta)| beta/(1-beta)-F_t", real=True)
F, G_n, bound = sp.symbols("F_t G(n) bound", real=True)

BETA = {beta: 1 / (1 + x)}
"""beta in (0, 1), in a form from which sympy sees that 0 < beta < 1."""

b = BETA[beta]
L = beta / (1 - beta)
FAR = beta ** (wait + 1)
"""beta^(T'+1), the greatest power that a head term still lacks."""


def proved_bounds() -> tuple[Claim, ...]:
    """The inequalities that hold, in the order of the proof."""
    powers = Claim(
        "powers of the momentum",
        sp.Le(beta**j, 1),
        Kind.INDUCTION,
        BETA,
        difference=1 - b,
        induction=Induction(j, {}, {}, factor=b),
    )
    parts = _parts()
    return (powers, *parts, _whole(*parts[1:3]), *_exact())


def _parts() -> tuple[Claim, ...]:
    """The bounds on r_1, on its sum with the A_k, and on r_2."""
    # eps, by the choice of T': the deficit at k = T is at most eps / (T max A_k)
    far = b ** (wait + 1) / (1 - b)
    chosen = {eps: T * A_max * (far + s_1), r_1: far / (1 + y), **BETA}
    one = Claim(
        "a residue of the head",
        sp.Le(r_1, eps / (T * A_max)),
        Kind.IDENTITY,
        chosen,
        difference=far * y / (1 + y) + s_1,
    )
    terms = sp.Sum(1, (k, 0, T)).doit()
    head = Claim(
        "the residues of the head, of as many terms as it has",
        sp.Le(R_1, (T + 1) / T * eps),
        Kind.IDENTITY,
        {R_1: terms * one.relation.rhs * A_max - s_1},
        difference=s_1,
    )
    tail = Claim(
        "the tail",
        sp.Le(r_2, L * eps),
        Kind.IDENTITY,
        {r_2: (r_3 * L - s_2).subs(BETA), eps: r_3 + s_3, **BETA},
        difference=s_3 / x + s_2,
    )
    positive = Claim(
        "the tail is positive",
        sp.Ge(G_n, 0),
        Kind.IDENTITY,
        {G_n: (b - b / (1 + y)) / (1 - b)},
        difference=y / (x * (1 + y)),
    )
    return one, head, tail, positive


def _whole(head: Claim, tail: Claim) -> Claim:
    """The sum of the parts, by the triangle inequality, over M + r_3 >= M."""
    parts = (head.relation.rhs - s_1) + (tail.relation.rhs - s_2) + L * (eps - s_3)
    premises = {eps: r_3 + s_3, **BETA}
    whole = (2 / x + (T + 1) / T) * (r_3 + s_3)
    slack = s_1 + s_2 + s_3 / x
    return Claim(
        "all parts together",
        sp.Le(off, (2 * L + (T + 1) / T) * eps / M),
        Kind.IDENTITY,
        {off: (parts / (M + r_3)).xreplace(premises), **premises},
        difference=(whole * r_3 + slack * M) / (M * (M + r_3)),
    )


def _exact() -> tuple[Claim, ...]:
    """The split of F_t, and the bound on its exact deficit, which goes to 0."""
    split = Claim(
        "the split",
        sp.Eq(F - L, (sum_1 + r_2 - L * r_3) / (M + r_3)),
        Kind.IDENTITY,
        {F: (L * M + sum_1 + r_2) / (M + r_3)},
    )
    # head powers are at most beta^(T'+1), those of the tail at most beta
    read = ((FAR * M - s_1) + (beta * r_3 - s_2)) / ((1 - beta) * (M + r_3))
    rest = (b ** (wait + 1) * r_3 + b * r_3**2 / M + s_1 + s_2) / ((M + r_3) * (1 - b))
    exact = Claim(
        "the exact deficit",
        sp.Le(deficit, (FAR + beta * r_3 / M) / (1 - beta)),
        Kind.IDENTITY,
        {deficit: read.subs(BETA), **BETA},
        difference=rest.subs(1 - b, x / (1 + x)),
    )
    gone = Claim(
        "its bound vanishes with time",
        sp.Eq(sp.Limit(sp.Limit(bound, wait, sp.oo), r_3, 0), 0),
        Kind.IDENTITY,
        {bound: exact.relation.rhs.subs(BETA)},
    )
    half = Claim(
        "the printed bound on the tail, up to a momentum of one half",
        sp.Le(L, (1 - beta) / beta),
        Kind.IDENTITY,
        {beta: 1 / (2 + z)},
        difference=z * (z + 2) / (1 + z),
    )
    return split, exact, gone, half


@dataclass(frozen=True)
class _Split:
    """The quantities of the proof for numbers A_k, with the smallest eps that its choices allow.

    Attributes:
        A: the A_k other than 0, by k.
        T, wait: the times T and T'.
        beta: the momentum.
    """

    A: Mapping[int, sp.Expr]
    T: int
    wait: int
    beta: sp.Expr

    def G(self, n: int) -> sp.Expr:  # noqa: N802  (the symbol of the proof)
        return sp.Add(*(self.beta**i for i in range(1, n + 1)))

    @property
    def limit(self) -> sp.Expr:
        return self.beta / (1 - self.beta)

    @property
    def eps(self) -> sp.Expr:
        far = self.limit - self.G(self.wait)
        return sp.Max(self.r_3, self.T * sp.Max(*self.A.values()) * far)

    @property
    def r_3(self) -> sp.Expr:
        return sp.Add(*(A for i, A in self.A.items() if i > self.T))

    def values(self) -> dict[sp.Basic, sp.Expr]:
        """The values of the symbols of the bounds."""
        t = self.T + self.wait
        total = sp.Add(*self.A.values())
        weighted = sp.Add(*(self.G(t - i) * A for i, A in self.A.items()))
        head = {i: A for i, A in self.A.items() if i <= self.T}
        return {
            beta: self.beta,
            eps: self.eps,
            M: sp.Add(*head.values()),
            off: sp.Abs(weighted / total - self.limit),
            R_1: sp.Add(*(sp.Abs(self.G(t - i) - self.limit) * A for i, A in head.items())),
            r_2: sp.Add(*(self.G(t - i) * A for i, A in self.A.items() if i > self.T)),
        }


def printed_bounds() -> tuple[Refutation, ...]:
    """The printed bounds that fail: on the tail, on the head, and the last one, with them."""
    quarters, thirds, one = sp.Rational(3, 4), sp.Rational(2, 3), sp.Integer(1)
    late = {0: 2 * one, 1: 2 * one, 2: 2 * one}  # the whole tail is one term, right after T
    even = {0: one, 1: one}  # no tail
    end = {0: one, 1: one, 9: thirds**9 / (1 - thirds)}  # the whole tail is one term, at t
    return (
        Refutation(
            "the tail",
            sp.Le(r_2, (1 - beta) / beta * eps),
            _Split(late, 1, 4, quarters).values(),
            (sp.Rational(111, 32), sp.Rational(2, 3)),
        ),
        Refutation(
            "the residues of the head, of one term too few",
            sp.Le(R_1, eps),
            _Split(even, 1, 4, quarters).values(),
            (sp.Rational(1701, 1024), sp.Rational(243, 256)),
        ),
        Refutation(
            "all parts together",
            sp.Le(off, (L + (1 - beta) / beta + 1) * eps / M),
            _Split(end, 1, 8, thirds).values(),
            (sp.Rational(2816, 20451), sp.Rational(896, 6561)),
        ),
    )
