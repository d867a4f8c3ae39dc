"""Corollary 2.3: momentum multiplies the growth of the norm by 1 + 2 beta / (1 - beta).

The printed proof rests on inequalities: some hold, and some fail. It splits the sums at T, after
which all A_k together are at most eps, and takes t = T + T', with T' such that
beta/(1-beta) - G(T') <= eps / (T max A_k). Here G(n) = beta + ... + beta^n. Then

    F_t = (Sum((beta/(1-beta) + r_1) A_k, k <= T) + r_2) / (M + r_3),    M = Sum(A_k, k <= T),

where r_1 = G(t-k) - beta/(1-beta), r_2 = Sum(G(t-k) A_k, T < k <= t) and
r_3 = Sum(A_k, T < k <= t).

The premises are built into the meanings of the symbols: beta in (0, 1) is 1/(1+x), some
beta^j <= 1 is 1/(1+y), and a quantity of at most c is c less some slack.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import sympy as sp

from spherenorm import Recipe
from spherenorm_theory.algebra import Claim, Induction, Kind, Proof, Refutation
from spherenorm_theory.laws import product
from spherenorm_theory.proofs._notation import P, beta, indexed, k, l, lr, read_momentum, scalar, t

x, M, A_max = sp.symbols("x M A_max", positive=True)
y, z, r_3, s_1, s_2, s_3 = sp.symbols("y z r_3 s_1 s_2 s_3", nonnegative=True)
T, wait = (sp.Symbol(name, integer=True, positive=True) for name in ("T", "T'"))
j, n = (sp.Symbol(name, integer=True, nonnegative=True) for name in "jn")
eps, R_1, r_1, r_2 = sp.symbols("eps |Sum(r_1*A_k)| |r_1| r_2", real=True)
sum_1, off, deficit = sp.symbols("Sum(r_1*A_k) |F_t-beta/(1-beta)| beta/(1-beta)-F_t", real=True)
F, G_n, bound = sp.symbols("F_t G(n) bound", real=True)
OWN, LATER, AT_INFINITY = map(scalar, ("own share", "later share", "lim ratio"))
RATIO = sp.Function("ratio")
A = indexed(P)

BETA = {beta: 1 / (1 + x)}
"""beta in (0, 1), in a form from which sympy sees that 0 < beta < 1."""

b = BETA[beta]
L = beta / (1 - beta)
"""The limit of F_t."""
FAR = beta ** (wait + 1)
"""beta^(T'+1), the greatest power that a head term still lacks."""


def corollary_2_3(recipe: str | Recipe = "sgd") -> Proof:
    """Corollary 2.3: (|w^GDM|^2 - |w_0|^2) / (|w^GD|^2 - |w_0|^2) -> 1 + 2 beta / (1 - beta).

    For summable A_k = |p_k|^2. The limit holds. Of the inequalities of its printed proof two do
    not, and with them the last one fails; the exact deficit, read off the recursion, replaces them:

        beta / (1 - beta) - F_t
            = Sum(beta^(t-k+1) A_k, k <= t) / ((1 - beta) Sum(A_k, k <= t)),

    which is at most beta^(T'+1) / (1 - beta) + beta / (1 - beta) r_3 / M, and goes to 0.
    """
    own, later = _entering(recipe)
    geometric = _sum_of_powers()
    # The shares of one A_k in all steps, with beta^(n+1) -> 0.
    powers = geometric.relation.rhs.subs(beta ** (n + 1), 0)
    ratio = (own.relation.rhs + (later.relation.rhs / beta**l) * powers) / lr**2
    limit = sp.Eq(AT_INFINITY, 1 + 2 * L)
    usual = sp.Eq(RATIO(sp.Rational(9, 10)), 19)
    return Proof(
        "Corollary 2.3",
        (
            Claim("the growth ratio", limit, Kind.DERIVED, {AT_INFINITY: ratio}),
            Claim("its usual value", usual, Kind.DERIVED, {RATIO: sp.Lambda(beta, ratio)}),
            own,
            later,
            geometric,
            _deficit(geometric),
            *proved_bounds(),
        ),
        printed_bounds(),
        under=(
            "|p_k| the same with and without momentum",
            "Sum(|p_k|^2) positive and finite",
            "momentum in (0, 1)",
        ),
        verdict="the limit is proved; two bounds of the printed proof fail, and with them its last",
    )


def _entering(recipe: str | Recipe) -> tuple[Claim, Claim]:
    """The shares of P_k in the growth of its own step, and of the l-th step after it."""
    momentum = read_momentum(recipe)
    norm, after, X = momentum.squared, momentum.cross_after, product("w", "m")
    share = sp.diff(norm, X) * sp.diff(after, P) * sp.diff(after, X) ** (l - 1)
    return (
        Claim("a step in its own growth", sp.Eq(OWN, lr**2), Kind.DERIVED, {OWN: sp.diff(norm, P)}),
        Claim(
            "and in a later one", sp.Eq(LATER, 2 * lr**2 * beta**l), Kind.DERIVED, {LATER: share}
        ),
    )


def _sum_of_powers() -> Claim:
    closed = (beta - beta ** (n + 1)) / (1 - beta)
    powers = sp.Sum(beta**l, (l, 1, n))
    step = Induction(n, {}, {})
    return Claim("a sum of powers", sp.Eq(powers, closed), Kind.INDUCTION, induction=step)


def _deficit(geometric: Claim) -> Claim:
    """The distance of F_t from its limit, exactly."""
    total = sp.Sum(A[k], (k, 0, t))
    weighted = sp.Sum(geometric.relation.rhs.subs(n, t - k) * A[k], (k, 0, t))
    lacking = sp.Sum(beta ** (t - k + 1) * A[k], (k, 0, t))
    return Claim(
        "the exact deficit",
        sp.Eq(F, L - lacking / ((1 - beta) * total)),
        Kind.DERIVED,
        {F: weighted / total},
    )


# The inequalities of the printed proof

Row: TypeAlias = tuple[str, sp.Rel, Mapping[sp.Basic, sp.Basic], sp.Expr | None]
"""The subject of a claim, its relation, the meanings of symbols, and its certificate."""


def proved_bounds() -> tuple[Claim, ...]:
    """The inequalities that hold, in the order of the proof."""
    about, below_one = "powers of the momentum", sp.Le(beta**j, 1)
    by_steps = Induction(j, {}, {}, factor=b)
    powers = Claim(about, below_one, Kind.INDUCTION, BETA, 1 - b, induction=by_steps)
    identities = (
        Claim(about, each, Kind.IDENTITY, meanings, slack)
        for about, each, meanings, slack in (*_parts(), *_exact())
    )
    return (powers, *identities)


def _parts() -> tuple[Row, ...]:
    """The bounds on r_1, on its sum with the A_k, on r_2, and on all together."""
    # eps, by the choice of T': the deficit at k = T is at most eps / (T max A_k)
    far = b ** (wait + 1) / (1 - b)
    chosen = {eps: T * A_max * (far + s_1), r_1: far / (1 + y), **BETA}
    one = sp.Le(r_1, eps / (T * A_max))
    terms = sp.Sum(1, (k, 0, T)).doit()
    head = sp.Le(R_1, (T + 1) / T * eps)
    small = {eps: r_3 + s_3, **BETA}
    tail = sp.Le(r_2, L * eps)
    # The sum of the parts, by the triangle inequality, over M + r_3 >= M.
    parts = (head.rhs - s_1) + (tail.rhs - s_2) + L * (eps - s_3)
    whole = (2 / x + (T + 1) / T) * (r_3 + s_3)
    slack = s_1 + s_2 + s_3 / x
    together = sp.Le(off, (2 * L + (T + 1) / T) * eps / M)
    as_read = {off: (parts / (M + r_3)).xreplace(small), **small}
    first = "the residues of the head, of as many terms as it has"
    positive = {G_n: (b - b / (1 + y)) / (1 - b)}
    return (
        ("a residue of the head", one, chosen, far * y / (1 + y) + s_1),
        (first, head, {R_1: terms * one.rhs * A_max - s_1}, s_1),
        ("the tail", tail, {r_2: (r_3 * L - s_2).subs(BETA), **small}, s_3 / x + s_2),
        ("the tail is positive", sp.Ge(G_n, 0), positive, y / (x * (1 + y))),
        ("all parts together", together, as_read, (whole * r_3 + slack * M) / (M * (M + r_3))),
    )


def _exact() -> tuple[Row, ...]:
    """The split of F_t, and the bound on its exact deficit, which goes to 0."""
    split = sp.Eq(F - L, (sum_1 + r_2 - L * r_3) / (M + r_3))
    # head powers are at most beta^(T'+1), those of the tail at most beta
    read = ((FAR * M - s_1) + (beta * r_3 - s_2)) / ((1 - beta) * (M + r_3))
    rest = (b ** (wait + 1) * r_3 + b * r_3**2 / M + s_1 + s_2) / ((M + r_3) * (1 - b))
    exact = sp.Le(deficit, (FAR + beta * r_3 / M) / (1 - beta))
    gone = sp.Eq(sp.Limit(sp.Limit(bound, wait, sp.oo), r_3, 0), 0)
    half = "the printed bound on the tail, up to a momentum of one half"
    return (
        ("the split", split, {F: (L * M + sum_1 + r_2) / (M + r_3)}, None),
        (
            "the exact deficit",
            exact,
            {deficit: read.subs(BETA), **BETA},
            rest.subs(1 - b, x / (1 + x)),
        ),
        ("its bound vanishes with time", gone, {bound: exact.rhs.subs(BETA)}, None),
        (half, sp.Le(L, (1 - beta) / beta), {beta: 1 / (2 + z)}, z * (z + 2) / (1 + z)),
    )


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
    tail, head = sp.Le(r_2, (1 - beta) / beta * eps), sp.Le(R_1, eps)
    whole = sp.Le(off, (L + (1 - beta) / beta + 1) * eps / M)
    few = "the residues of the head, of one term too few"
    rows = (
        ("the tail", tail, _Split(late, 1, 4, quarters), ("111/32", "2/3")),
        (few, head, _Split(even, 1, 4, quarters), ("1701/1024", "243/256")),
        ("all parts together", whole, _Split(end, 1, 8, thirds), ("2816/20451", "896/6561")),
    )
    return tuple(
        Refutation(about, each, at.values(), (sp.Rational(sides[0]), sp.Rational(sides[1])))
        for about, each, at, sides in rows
    )
