"""Formal vectors: one reading of a recorded step holds for every dimension at once.

| operation on vectors a, b | result |
|---|---|
| `a + 2 * b` | a vector |
| `(a * b).sum()` | the inner product <a, b>, a scalar |
| `(a + b).norm()` | the norm of a letter p that stands for a + b |
| `(a * a).sqrt()` | an atom e, of which nothing is known |
| `Orthogonalize()(a)` | an atom O, of which the length is known |

A linear operation on vectors gives a vector. Anything else that is done to each entry gives an
*atom*: a new vector of which nothing is known but the formula of its entries, so that a law that is
derived holds for whatever vector stands there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy as sp
from sympy.logic.boolalg import Boolean

from spherenorm import Rule
from spherenorm_theory.facts import Facts
from spherenorm_theory.printing import show
from spherenorm_theory.symbols import (
    DIMENSION,
    MAX_OPS,
    Inner,
    Norm,
    Vector,
    canonical_form,
    check_size,
    is_entry,
    product,
)

NAMES = "pqrxyz"
"""The letters of combinations whose norm is taken; then p2, q2, ..."""


@dataclass(frozen=True)
class Product:
    """The entrywise product of two vectors: its sum is their inner product."""

    a: Vector
    b: Vector

    def __str__(self) -> str:
        return f"({show(self.a)}) * ({show(self.b)})"


@dataclass(frozen=True)
class OpaqueVector:
    """An atom that an operation made.

    Attributes:
        formula: of each entry; sign(m), or such as factor(m) for the direction of a rule.
        argument: the vector of which it is a function of degree 0, if it is one: a positive factor
            changes nothing.
        square: |u|^2, where it is known.
        rule, place: of a letter, the rule that it stands for, and its place in the recipe.
    """

    formula: sp.Expr
    argument: Vector | None = None
    square: sp.Expr | None = None
    rule: Rule | None = None
    rule_index: int = -1


@dataclass
class Products:
    """Atoms, their inner products, and the letters of combinations.

    Attributes:
        facts: of scalars, known and assumed.
        known: inner products that are given, such as <w, g> = 0, by the pair in either order.
        taken: names of states and hyper-parameters, which no atom repeats.
        named: the combinations whose norms were taken, by their letters.
        opaque: the atoms that operations made.
    """

    facts: Facts = field(default_factory=Facts)
    given_products: dict[tuple[str, str], sp.Expr] = field(default_factory=dict)
    reserved_names: frozenset[str] = frozenset()
    combinations: dict[str, Vector] = field(default_factory=dict)
    opaque_vectors: dict[str, OpaqueVector] = field(default_factory=dict)

    def gram(self, a: str, b: str) -> sp.Expr:
        """<a, b> of two atoms."""
        for pair in ((a, b), (b, a)):
            if pair in self.given_products:
                return self.given_products[pair]
        if a == b:
            return DIMENSION if a == "1" else Norm(a) ** 2
        if named := [x for x in (a, b) if x in self.combinations]:
            # By the later letter, whose meaning may hold the other one.
            late = max(named, key=[*self.combinations].index)
            other = b if late == a else a
            whole = sp.expand(self.inner(self.combinations[late], Vector.atom(other)))
            self.given_products[late, other] = (
                canonical_form(whole) if other == "w" or whole == 0 else product(a, b)
            )
            return self.given_products[late, other]
        return product(a, b)

    def inner(self, a: Vector, b: Vector) -> sp.Expr:
        """<a, b> by bilinearity."""
        return sp.Add(*(x * y * self.gram(i, j) for i, x in a.items() for j, y in b.items()))

    def dot(self, a: Vector, b: Vector) -> sp.Expr:
        """<a, b>; where it is the square of a combination's norm, by a letter."""
        factor = a.ratio_to(b) if len(a) > 1 else None
        if factor is None:
            return self.inner(a, b)
        b = self.letter(b)
        return factor * self.inner(b, b)

    def letter(self, vector: Vector) -> Vector:
        """The letter of a combination, times a number where it is a multiple of a named one."""
        folded: Vector = self.replace_by_name(vector)
        if len(folded) == 1:
            return folded
        common = sp.gcd_list([sp.factor(c) for c in vector.values()])
        common = common if common.is_positive and not common.has(Norm) else sp.S.One
        whole = vector.map(lambda c: sp.factor_terms(sp.cancel(c / common)))
        tidied = whole.map(canonical_form)
        if len(tidied) < len(whole):
            return self.letter(tidied).scaled(common) if len(tidied) > 1 else tidied.scaled(common)
        name = self._free(NAMES)
        self.combinations[name] = whole
        return Vector({name: common})

    def _free(self, letters: str) -> str:
        used = {*self.combinations, *self.opaque_vectors, *self.reserved_names, "w", "g", "s"}
        rounds = (f"{x}{n}" if n > 1 else x for n in range(1, len(used) + 3) for x in letters)
        return next(name for name in rounds if name not in used)

    def replace_by_name(self, vector: Any) -> Any:
        """A multiple of a named combination, by its letter; anything else as it is."""
        if isinstance(vector, Vector) and len(vector) > 1:
            for name, whole in self.combinations.items():
                if (factor := vector.ratio_to(whole)) is not None:
                    return Vector({name: factor})
        return vector

    def expand_names(self, vector: Vector) -> Vector:
        """The vector without letters of combinations, as it stands."""
        while found := [a for a in vector if a in self.combinations]:
            for name in found:
                vector = vector.without(name) + self.combinations[name].scaled(vector[name])
        return vector

    def expand_names_canonical(self, vector: Vector) -> Vector:
        """The vector without letters of combinations, in tidy form."""
        return (
            self.expand_names(vector).map(canonical_form)
            if {*vector} & {*self.combinations}
            else vector
        )

    def square(self, name: str) -> sp.Expr | None:
        """|p|^2 in products, for a letter p of a combination; |u|^2 of an atom, where known."""
        if name in self.combinations:
            return self.inner(self.combinations[name], self.combinations[name])
        return self.opaque_vectors[name].square if name in self.opaque_vectors else None

    def expand_products(self, expression: sp.Expr, cases: bool = False) -> sp.Expr:
        """The expression with the products of combinations written out, as it stands.

        Args:
            expression: of products.
            cases: write out the cases that it leaves open, too.
        """

        def meaning(symbol: sp.Symbol) -> sp.Expr | None:
            late = [x for x in self.combinations if x in (getattr(symbol, n, "") for n in "ab")]
            if isinstance(symbol, Norm) and late:
                return sp.sqrt(self.square(symbol.a))
            if isinstance(symbol, Inner) and late:
                other = symbol.b if symbol.a == late[-1] else symbol.a
                return self.inner(self.combinations[late[-1]], Vector.atom(other))
            return self.facts.open_branches.get(symbol) if cases else None

        expression = sp.sympify(expression)
        while found := {s: x for s in expression.free_symbols if (x := meaning(s)) is not None}:
            expression = expression.xreplace(found)
        return expression

    def expand_and_simplify(self, expression: sp.Expr, most: int = MAX_OPS) -> sp.Expr:
        """The expression with the products of combinations written out, in tidy form.

        Raises:
            GrowthError: it has more than `most` operations then.
        """
        whole = self.expand_products(expression)
        check_size(whole, most)
        return canonical_form(whole)


@dataclass
class VectorAlgebra(Products):
    """The algebra in which a step is read: products, and the atoms that operations make.

    Attributes:
        mean_field: replace the entrywise product of two vectors by its mean over the entries,
            <a, b> / d. Adam's second moment is then a scalar; this is exact if all entries have
            the same second moment.
        letters: the rules that are letters, by their places.
    """

    mean_field: bool = False
    opaque_rules: Sequence[Rule] = ()

    def entry(self, x: Any) -> Any:
        """The formula of each entry of a value; magnitudes are written out."""
        if isinstance(x, Product):
            return self.entry(x.a) * self.entry(x.b)
        if not isinstance(x, Vector):
            return x
        inside = (sp.Symbol(a) for a in x if a in self.opaque_vectors and a.startswith("e"))
        return x.formula.xreplace({s: self.opaque_vectors[s.name].formula for s in inside})

    def apply(self, prefix: str, function: Callable[..., Any], *arguments: Any) -> Vector:
        """The atom of a function of each entry: u of a direction, e of a magnitude."""
        return self.atom(prefix, OpaqueVector(function(*map(self.entry, arguments))))

    def atom(self, prefix: str, made: OpaqueVector) -> Vector:
        """The atom of an operation; the same operation gives the same atom."""
        check_size(made.formula)
        for name, known in self.opaque_vectors.items():
            if known.formula == made.formula and known.rule_index == made.rule_index:
                return Vector.atom(name)
            similar_shape = (
                known.formula.func == made.formula.func and known.rule_index == made.rule_index
            )
            if similar_shape and made.argument is not None and known.argument is not None:
                factor = made.argument.ratio_to(known.argument)
                if factor is not None and self.facts.is_positive(factor):
                    return Vector.atom(name)
        name = self._free(prefix)
        self.opaque_vectors[name] = made
        return Vector.atom(name)

    def linear(self, x: Any) -> Any:
        """`x`, with an entrywise product replaced by an atom or, in the mean field, by a scalar.

        A truth value is 1 or 0.
        """
        if is_entrywise(x):
            return self.apply("e", lambda: sp.Piecewise((1, x), (0, True)))
        if isinstance(x, Boolean) and not isinstance(x, sp.Expr):
            return self.facts.where(x, sp.S.One, sp.S.Zero)
        if not isinstance(x, Product):
            return x
        if self.mean_field:
            return self.dot(x.a, x.b) / DIMENSION
        factor = x.a.ratio_to(x.b)
        if factor is None:
            return self.apply("u", lambda: self.entry(x))
        return self.apply("e", lambda b: b**2, x.b).scaled(factor)


def is_entrywise(x: Any) -> bool:
    """True for a condition on each entry, such as m > 0."""
    return isinstance(x, Boolean) and any(map(is_entry, x.free_symbols))
