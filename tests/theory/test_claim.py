"""Claims and proofs: what a proof needs, what decides a claim, and how both are printed."""

from dataclasses import replace

import pytest
import sympy as sp

from spherenorm_theory import Proof
from spherenorm_theory.claim import Claim, Induction, ProofKind, Refutation, vanishes
from spherenorm_theory.printing import latex, show
from spherenorm_theory.symbols import Inner, Norm, Vector
from spherenorm_theory.vectors import AtomKind, OpaqueVector, VectorAlgebra

a, b = sp.symbols("a b", positive=True)
x = sp.Symbol("x", real=True)
n, k = sp.symbols("n k", integer=True, nonnegative=True)
MEANS = Claim("means", sp.Le(2 * a * b, a**2 + b**2), ProofKind.IDENTITY, difference=(a - b) ** 2)


def test_a_proof_needs_a_claim():
    with pytest.raises(ValueError, match="needs a claim"):
        Proof("empty", ())


def test_an_inequality_needs_its_difference():
    assert MEANS.holds
    assert not replace(MEANS, difference=None).holds
    assert not replace(MEANS, difference=2 * (a - b) ** 2).holds
    assert not replace(MEANS, relation=sp.Lt(2 * a * b, a**2 + b**2)).holds
    assert not Claim("x", sp.Ge(x, 0), ProofKind.IDENTITY, difference=x).holds


def test_a_strict_inequality_is_said_to_be_one():
    strict = Claim("more", sp.Gt(a + b, b, evaluate=False), ProofKind.IDENTITY, difference=a)
    assert strict.holds
    assert not replace(strict, relation=sp.Ge(a + b, b, evaluate=False)).holds


def test_a_statement_is_a_relation():
    with pytest.raises(TypeError, match="must be a relation, got True"):
        Claim("more", sp.Gt(a + b, b), ProofKind.IDENTITY)


def test_symbols_of_one_name_and_other_assumptions_are_two():
    """sqrt(x^2) is x of a positive x alone: a name shows nothing."""
    positive, real = sp.Symbol("lr", positive=True), sp.Symbol("lr", real=True)
    assert Claim("same", sp.Eq(x, positive**2), ProofKind.DERIVED, {x: positive**2}).holds
    assert not Claim("same", sp.Eq(x, positive**2), ProofKind.DERIVED, {x: real**2}).holds


def test_a_squared_norm_is_read_in_all_its_powers():
    square = Norm("w") ** 2
    claim = Claim(
        "read", sp.Eq(square**2 + Norm("w"), a**2 + sp.sqrt(a)), ProofKind.DERIVED, {square: a}
    )
    assert claim.holds


def test_induction_needs_its_start_and_its_step():
    y = sp.IndexedBase("y")
    statement = sp.Eq(y[n], sp.Sum(a ** (n - k), (k, 1, n)))
    step = Induction(n, {y[0]: sp.Integer(0)}, {y[n + 1]: a * y[n] + 1}, factor=a)
    assert Claim("y", statement, ProofKind.INDUCTION, induction=step).holds
    for wrong in (
        replace(step, start={y[0]: sp.Integer(1)}),
        replace(step, after={y[n + 1]: a * y[n] + 2}),
    ):
        assert not Claim("y", statement, ProofKind.INDUCTION, induction=wrong).holds


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
    claim = replace(MEANS, hypotheses=(sp.Ne(a, b),))
    proof = Proof("means", (claim,))
    assert "2 a b <= a^2 + b^2" in str(proof)
    assert proof.status == "identity under {a != b}"
    assert proof.latex() == r"2 a b \leq a^{2} + b^{2}"
    assert proof.latex({"a": r"\alpha"}) == r"2 \alpha b \leq \alpha^{2} + b^{2}"
    broken = replace(proof, claims=(replace(MEANS, relation=sp.Le(3 * a * b, a**2 + b**2)),))
    assert broken.status == "not proved: means"


lr, wd = sp.symbols("lr weight_decay", positive=True)
w, s, m, W, S = (*(sp.IndexedBase(Norm(x)) for x in "ws"), Inner("w", "m"), Norm("w"), Norm("s"))


@pytest.mark.parametrize(
    ("formula", "text", "tex"),
    [
        ((1 - lr * wd) ** 2 * W**2 + S**2, "(1 - lr wd)^2 |w|^2 + |s|^2",
         r"\left(1 - \eta \lambda\right)^{2} \|w\|^{2} + \|s\|^{2}"),
        (-S**2 / lr + m, "-|s|^2/lr + <w, m>", r"-\frac{\|s\|^{2}}{\eta} + \langle w, m \rangle"),
        (sp.sqrt(1 + a), "sqrt(1 + a)", r"\sqrt{1 + a}"),
        (2 / sp.pi, "2/pi", r"\frac{2}{\pi}"),
        (-1 / (1 + sp.exp(-a)), "-1/(1 + exp(-a))", r"-\frac{1}{1 + e^{-a}}"),
        (1 / (1 + a) ** 2, "(1 + a)^(-2)", r"\frac{1}{\left(1 + a\right)^{2}}"),
        (w[n + 1] ** 2, "|w_{n+1}|^2", r"\|w_{n+1}\|^{2}"),
        (sp.Sum(a ** (n - k) * s[k] ** 2, (k, 0, n - 1)), "Sum_{k<n} a^(n - k) |s_k|^2",
         r"\sum_{k < n} a^{n - k} \|s_{k}\|^{2}".replace("s_{k}", "s_k")),
        (Vector({"w": 1 - lr * wd, "g": -lr}), "(1 - lr wd) w - lr g",
         r"\left(1 - \eta \lambda\right) w - \eta g"),
    ],
)  # fmt: skip
def test_formulas_in_both_languages(formula, text, tex):
    assert show(formula) == text
    assert latex(formula) == tex


def test_letters_of_the_users_choice():
    product = lr * m * sp.Symbol("momentum", positive=True) * Norm("w'") ** 2
    chosen = {"lr": r"\alpha", "w": r"\theta", "momentum": r"\mu"}
    assert latex(product, chosen) == r"\alpha \mu \|\theta'\|^{2} \langle \theta, m \rangle"


def test_no_letter_stands_for_two_names():
    total = sp.Symbol("momentum") + sp.Symbol("beta")
    assert latex(total) == r"\beta + \mathrm{momentum}"
    assert show(total) == "beta + momentum"
    with pytest.raises(ValueError, match="'beta' and 'momentum' cannot both be"):
        latex(total, {"momentum": "x", "beta": "x"})


def test_products_and_norms():
    assert Inner("m", "w") == Inner("w", "m")
    assert sp.sqrt(Norm("p") ** 2) == Norm("p")
    v, g = Vector.atom("w"), Vector.atom("g")
    space = VectorAlgebra(given_products={("w", "g"): sp.S.Zero})
    assert space.inner(v + g, v - g) == Norm("w") ** 2 - Norm("g") ** 2
    assert (v - v) == {}
    total = space.inner(v + g.scaled(lr), v + g.scaled(lr), name_norms=True)
    assert total == Norm("p") ** 2
    assert space.square("p") == Norm("w") ** 2 + lr**2 * Norm("g") ** 2


def test_a_function_of_degree_0_has_one_atom_for_each_rule():
    """Two rules of one name may differ in what they compute, such as the scale of a factor."""
    algebra = VectorAlgebra()

    def add_factor(argument, rule_index):
        formula = sp.Function("factor")(argument.formula)
        opaque = OpaqueVector(AtomKind.ORTHOGONAL_FACTOR, formula, argument, rule_index=rule_index)
        return algebra.add_opaque(opaque)

    m = Vector.atom("m")
    assert add_factor(m, 0) == add_factor(m, 0) == add_factor(m.scaled(lr), 0) == {"O": 1}
    assert add_factor(m, 1) == add_factor(m.scaled(lr), 1) == {"O2": 1}
    assert add_factor(m.scaled(sp.S.NegativeOne), 0) == {"O3": 1}
