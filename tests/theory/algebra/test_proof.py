"""Claims and proofs: what a proof needs, what decides a claim, and how both are printed."""

from dataclasses import replace

import pytest
import sympy as sp

from spherenorm_theory import Proof
from spherenorm_theory.algebra import Claim, Induction, Kind, Refutation, latex, vanishes

a, b = sp.symbols("a b", positive=True)
x = sp.Symbol("x", real=True)
n, k = sp.symbols("n k", integer=True, nonnegative=True)
MEANS = Claim("means", sp.Le(2 * a * b, a**2 + b**2), Kind.IDENTITY, difference=(a - b) ** 2)


def test_a_proof_needs_a_claim():
    with pytest.raises(ValueError, match="needs a claim"):
        Proof("empty", ())


def test_an_inequality_needs_its_difference():
    assert MEANS.holds
    assert not replace(MEANS, difference=None).holds
    assert not replace(MEANS, difference=2 * (a - b) ** 2).holds
    assert not replace(MEANS, relation=sp.Lt(2 * a * b, a**2 + b**2)).holds
    assert not Claim("x", sp.Ge(x, 0), Kind.IDENTITY, difference=x).holds


def test_a_strict_inequality_is_said_to_be_one():
    strict = Claim("more", sp.Gt(a + b, b, evaluate=False), Kind.IDENTITY, difference=a)
    assert strict.holds
    assert not replace(strict, relation=sp.Ge(a + b, b, evaluate=False)).holds


def test_a_statement_is_a_relation():
    with pytest.raises(TypeError, match="must be a relation, got True"):
        Claim("more", sp.Gt(a + b, b), Kind.IDENTITY)


def test_symbols_are_known_by_name():
    positive, real = sp.Symbol("lr", positive=True), sp.Symbol("lr", real=True)
    assert Claim("same", sp.Eq(x, positive**2), Kind.DERIVED, {x: real**2}).holds


def test_induction_needs_its_start_and_its_step():
    y = sp.IndexedBase("y")
    statement = sp.Eq(y[n], sp.Sum(a ** (n - k), (k, 1, n)))
    step = Induction(n, {y[0]: sp.Integer(0)}, {y[n + 1]: a * y[n] + 1}, factor=a)
    assert Claim("y", statement, Kind.INDUCTION, induction=step).holds
    for wrong in (
        replace(step, start={y[0]: sp.Integer(1)}),
        replace(step, after={y[n + 1]: a * y[n] + 2}),
    ):
        assert not Claim("y", statement, Kind.INDUCTION, induction=wrong).holds


@pytest.mark.parametrize(
    "at", [{a: sp.Integer(1), b: sp.Integer(2)}, {a: sp.Integer(2), b: sp.Integer(1)}]
)
def test_a_refutation_refutes(at):
    refutation = Refutation("order", sp.Le(a, b), at, (at[a], at[b]))
    assert refutation.holds is bool(at[a] > at[b])
    assert not replace(refutation, sides=(sp.Integer(3), sp.Integer(1))).holds


@pytest.mark.parametrize(
    ("expression", "zero"),
    [
        (sp.Sum(b**k, (k, 0, n + 2)) - sp.Sum(b**k, (k, 0, n)) - b ** (n + 1) * (1 + b), True),
        (sp.Sum(b**k, (k, 0, n)) - sp.Sum(b**k, (k, 1, n)), False),
        (sp.Sum(a * k, (k, 0, n)) - a * sp.Sum(k, (k, 0, n)), True),
        (sp.sin(x) ** 2 + sp.cos(x) ** 2 - 1, True),
        ((a + b) ** 2 - a**2 - b**2, False),
        (sp.Limit((1 + a * x) ** (1 / x), x, 0) - sp.exp(a), True),
        (x - sp.Symbol("y", real=True), False),
    ],
)
def test_vanishes(expression, zero):
    assert vanishes(expression) is zero


def test_text_and_latex_are_those_of_the_relation():
    proof = Proof("means", (MEANS,), under=(sp.Ne(a, b),))
    assert "2*a*b <= a^2 + b^2" in str(proof)
    assert proof.status == "identity under {a != b}"
    assert proof.latex() == r"2 a b \leq a^{2} + b^{2}"
    assert proof.latex({"a": r"\alpha"}) == r"2 \alpha b \leq \alpha^{2} + b^{2}"
    broken = replace(proof, claims=(replace(MEANS, relation=sp.Le(3 * a * b, a**2 + b**2)),))
    assert broken.status == "NOT proved: means"


def test_letters_of_the_users_choice():
    lr, inner = map(sp.Symbol, ("lr", "<w,m>"))
    product = lr * inner * sp.Symbol("momentum") * sp.Symbol("|w'|^2")
    assert latex(product, {"lr": r"\alpha", "w": r"\theta", "momentum": r"\mu"}) == (
        r"\langle \theta, m\rangle \alpha \mu \|\theta'\|^2"
    )
    over_time = sp.IndexedBase(inner)[n + 1]
    assert latex(over_time) == r"\langle w_{n + 1}, m_{n + 1}\rangle"


def test_no_letter_stands_for_two_names():
    both = sp.Symbol("momentum") + sp.Symbol("beta")
    assert latex(both) == r"\beta + \mathrm{momentum}"
    assert latex(both, {"momentum": r"\beta"}) == r"\mathrm{beta} + \beta"
    with pytest.raises(ValueError, match="'beta' and 'momentum' cannot both be"):
        latex(both, {"momentum": "x", "beta": "x"})
