"""`VectorAlgebra`: vectors of which only inner products are known, in every dimension at once.

| operation on vectors a, b | result |
|---|---|
| `a + 2 * b` | a `Vector` |
| `(a * b).sum()` | the inner product <a, b>, a scalar |
| `(a + b).norm()` | the norm of a named combination p = a + b |
| `(a * a).sqrt()` | an opaque vector e, of which nothing is known |
| `Orthogonalize()(a)` | an opaque vector O, whose length is known |

A linear operation on vectors gives a linear combination of atoms. Any other operation on the
entries gives an *opaque vector*: a new atom of which only the formula of its entries is known. A
law that is derived with it holds for any vector in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
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

COMBINATION_NAMES = "pqrxyz"
"""Names of combinations whose norm is taken; after these come p2, q2, ..."""


class AtomKind(Enum):
    """The kinds of opaque vectors. The value is the first letter of their names in print."""

    DIRECTION = "u"
    """A function of the entries that may have any sign, such as sign(m) or m / sqrt(v)."""
    MAGNITUDE = "e"
    """A function of the entries that is a size, such as sqrt(v); averages of it are no momenta."""
    ORTHOGONAL_FACTOR = "O"
    """The result of `Orthogonalize`."""
    GRAFT = "N"
    """The result of `KeepNorm`: a direction with the length of its argument."""
    STIEFEL_TANGENT = "T"
    """The result of `StiefelProjection`."""

    @property
    def is_entrywise(self) -> bool:
        """True if each entry is a function of the same entry of other vectors."""
        return self in (AtomKind.DIRECTION, AtomKind.MAGNITUDE)


@dataclass(frozen=True)
class EntrywiseProduct:
    """The entrywise product of two vectors, whose sum is their inner product."""

    a: Vector
    b: Vector

    def __str__(self) -> str:
        return f"({show(self.a)}) * ({show(self.b)})"


@dataclass(frozen=True)
class OpaqueVector:
    """An atom that an operation created.

    Attributes:
        kind: the kind of operation.
        formula: each entry, such as sign(m); of a rule, its name and argument, such as factor(m).
        argument: the vector of which it is a function of degree 0, so that a positive factor of the
            argument changes nothing; None if it is no such function.
        square: |u|^2, where it is known.
        rule: the rule that it stands for, if any.
        rule_index: the position of this rule among the opaque rules of the recipe.
    """

    kind: AtomKind
    formula: sp.Expr
    argument: Vector | None = None
    square: sp.Expr | None = None
    rule: Rule | None = None
    rule_index: int = -1


@dataclass
class VectorAlgebra:
    """The algebra in which a recorded step is read: atoms, their inner products, and names.

    Attributes:
        facts: what is known and assumed of scalars.
        given_products: inner products with a given value, such as <w, g> = 0, by the pair of atoms
            in either order.
        reserved_names: names of states and hyper-parameters, which no atom repeats.
        combinations: the named linear combinations, whose norms were taken.
        opaque_vectors: the atoms that operations created, by name.
        mean_field: replace the entrywise product of two vectors by its mean over the entries,
            <a, b> / d. Adam's second moment is then a scalar, which is exact if all entries have
            the same second moment.
        opaque_rules: the rules whose results are atoms.

    Example:
        >>> algebra = VectorAlgebra(given_products={("w", "g"): sp.S.Zero})
        >>> w, g = Vector.atom("w"), Vector.atom("g")
        >>> print(show(algebra.inner(w + g, w + g)))
        |w|^2 + |g|^2
    """

    facts: Facts = field(default_factory=Facts)
    given_products: dict[tuple[str, str], sp.Expr] = field(default_factory=dict)
    reserved_names: frozenset[str] = frozenset()
    combinations: dict[str, Vector] = field(default_factory=dict)
    opaque_vectors: dict[str, OpaqueVector] = field(default_factory=dict)
    mean_field: bool = False
    opaque_rules: Sequence[Rule] = ()

    # Inner products

    def inner(self, a: Vector, b: Vector, *, name_norms: bool = False) -> sp.Expr:
        """Return <a, b> by bilinearity.

        Args:
            a: the first vector.
            b: the second vector.
            name_norms: where a = c b for a combination b, name it p and return c |p|^2.
        """
        if name_norms and len(a) > 1:
            ratio = a.ratio_to(b)
            if ratio is not None:
                named = self.name_combination(b)
                return ratio * self.inner(named, named)
        return sp.Add(
            *(x * y * self._inner_of_atoms(i, j) for i, x in a.items() for j, y in b.items())
        )

    def _inner_of_atoms(self, a: str, b: str) -> sp.Expr:
        """Return <a, b> of two atoms, with the newer one written out if it is a combination."""
        for pair in ((a, b), (b, a)):
            if pair in self.given_products:
                return self.given_products[pair]
        if a == b:
            return DIMENSION if a == "1" else Norm(a) ** 2
        in_combinations = [name for name in (a, b) if name in self.combinations]
        if not in_combinations:
            return product(a, b)
        # Expand the one that was named later, as its definition may hold the other.
        newest = max(in_combinations, key=[*self.combinations].index)
        other = b if newest == a else a
        expanded = sp.expand(self.inner(self.combinations[newest], Vector.atom(other)))
        keep_expanded = other == "w" or expanded == 0
        value = canonical_form(expanded) if keep_expanded else product(a, b)
        self.given_products[newest, other] = value
        return value

    def square(self, name: str) -> sp.Expr | None:
        """Return |p|^2 of a combination in products, or |u|^2 of an opaque vector where known."""
        if name in self.combinations:
            return self.inner(self.combinations[name], self.combinations[name])
        return self.opaque_vectors[name].square if name in self.opaque_vectors else None

    # Names of combinations

    def name_combination(self, vector: Vector) -> Vector:
        """Return c p, where the combination p = vector / c has a name, given now if need be."""
        named: Vector = self.replace_by_name(vector)
        if len(named) == 1:
            return named
        common = sp.gcd_list([sp.factor(c) for c in vector.values()])
        common = common if common.is_positive and not common.has(Norm) else sp.S.One
        reduced = vector.map(lambda c: sp.factor_terms(sp.cancel(c / common)))
        canonical = reduced.map(canonical_form)
        if len(canonical) < len(reduced):
            if len(canonical) > 1:
                canonical = self.name_combination(canonical)
            return canonical.scaled(common)
        name = self._unused_name(COMBINATION_NAMES)
        self.combinations[name] = reduced
        return Vector({name: common})

    def replace_by_name(self, value: Any) -> Any:
        """Return a multiple of a named combination by its name; any other value as it is."""
        if isinstance(value, Vector) and len(value) > 1:
            for name, combination in self.combinations.items():
                ratio = value.ratio_to(combination)
                if ratio is not None:
                    return Vector({name: ratio})
        return value

    def expand_names(self, vector: Vector, *, canonical: bool = False) -> Vector:
        """Return the vector in atoms alone, with the named combinations written out.

        Args:
            vector: a combination of atoms and of named combinations.
            canonical: bring the coefficients to their canonical form, where a name was replaced.
        """
        has_names = not self.combinations.keys().isdisjoint(vector)
        while names := [atom for atom in vector if atom in self.combinations]:
            for name in names:
                vector = vector.without(name) + self.combinations[name].scaled(vector[name])
        return vector.map(canonical_form) if canonical and has_names else vector

    def expand_products(self, expression: sp.Expr, *, open_branches: bool = False) -> sp.Expr:
        """Return the expression with the products of named combinations written out.

        Args:
            expression: a formula in inner products.
            open_branches: write out the branches that are left open, too.
        """

        def definition(symbol: sp.Symbol) -> sp.Expr | None:
            ends = (getattr(symbol, "a", ""), getattr(symbol, "b", ""))
            names = [name for name in self.combinations if name in ends]
            if isinstance(symbol, Norm) and names:
                return sp.sqrt(self.square(symbol.a))
            if isinstance(symbol, Inner) and names:
                other = symbol.b if symbol.a == names[-1] else symbol.a
                return self.inner(self.combinations[names[-1]], Vector.atom(other))
            return self.facts.open_branches.get(symbol) if open_branches else None

        expression = sp.sympify(expression)
        while True:
            candidates = {symbol: definition(symbol) for symbol in expression.free_symbols}
            definitions = {symbol: x for symbol, x in candidates.items() if x is not None}
            if not definitions:
                return expression
            expression = expression.xreplace(definitions)

    def expand_and_simplify(self, expression: sp.Expr, max_ops: int = MAX_OPS) -> sp.Expr:
        """Return the expression without named combinations, in canonical form.

        Raises:
            GrowthError: it has more than `max_ops` operations then.
        """
        expanded = self.expand_products(expression)
        check_size(expanded, max_ops)
        return canonical_form(expanded)

    # Opaque vectors

    def entry(self, value: Any) -> Any:
        """Return the formula of each entry of a value, with magnitudes written out."""
        if isinstance(value, EntrywiseProduct):
            return self.entry(value.a) * self.entry(value.b)
        if not isinstance(value, Vector):
            return value
        magnitudes = {
            sp.Symbol(atom): self.opaque_vectors[atom].formula
            for atom in value
            if self.is_magnitude(atom)
        }
        return value.formula.xreplace(magnitudes)

    def is_magnitude(self, atom: str) -> bool:
        """Tell if an atom is an opaque vector of sizes, such as sqrt(v)."""
        opaque = self.opaque_vectors.get(atom)
        return opaque is not None and opaque.kind is AtomKind.MAGNITUDE

    def apply_to_entries(
        self, kind: AtomKind, function: Callable[..., Any], *arguments: Any
    ) -> Vector:
        """Return the opaque vector whose entries are a function of the entries of `arguments`."""
        return self.add_opaque(OpaqueVector(kind, function(*map(self.entry, arguments))))

    def add_opaque(self, opaque: OpaqueVector) -> Vector:
        """Return the atom of an opaque vector; one that is known has its name already.

        Raises:
            GrowthError: its formula is too long.
        """
        check_size(opaque.formula)
        for name, earlier in self.opaque_vectors.items():
            if earlier.rule_index != opaque.rule_index:
                continue
            if earlier.formula == opaque.formula or self._is_same_direction(earlier, opaque):
                return Vector.atom(name)
        name = self._unused_name(opaque.kind.value)
        self.opaque_vectors[name] = opaque
        return Vector.atom(name)

    def _is_same_direction(self, a: OpaqueVector, b: OpaqueVector) -> bool:
        """Tell if two vectors are one function of degree 0, of arguments c x and x with c > 0."""
        if a.formula.func != b.formula.func or a.argument is None or b.argument is None:
            return False
        ratio = b.argument.ratio_to(a.argument)
        return ratio is not None and self.facts.is_positive(ratio)

    def _unused_name(self, letters: str) -> str:
        """Return the first of p, q, ..., p2, q2, ... that nothing is named."""
        used = {*self.combinations, *self.opaque_vectors, *self.reserved_names, "w", "g", "s"}
        numbered = (f"{x}{n}" if n > 1 else x for n in range(1, len(used) + 3) for x in letters)
        return next(name for name in numbered if name not in used)

    def to_linear(self, value: Any) -> Any:
        """Return a value as a vector or a scalar.

        An entrywise product becomes an opaque vector or, in the mean field, a scalar; a condition
        becomes 1 or 0.
        """
        if is_entrywise_condition(value):
            indicator = sp.Piecewise((1, value), (0, True))
            return self.apply_to_entries(AtomKind.MAGNITUDE, lambda: indicator)
        if isinstance(value, Boolean) and not isinstance(value, sp.Expr):
            return self.facts.where(value, sp.S.One, sp.S.Zero)
        if not isinstance(value, EntrywiseProduct):
            return value
        if self.mean_field:
            return self.inner(value.a, value.b, name_norms=True) / DIMENSION
        ratio = value.a.ratio_to(value.b)
        if ratio is None:
            return self.apply_to_entries(AtomKind.DIRECTION, lambda: self.entry(value))
        return self.apply_to_entries(AtomKind.MAGNITUDE, lambda b: b**2, value.b).scaled(ratio)


def is_entrywise_condition(value: Any) -> bool:
    """Tell if a value is a condition on each entry, such as m > 0."""
    return isinstance(value, Boolean) and any(map(is_entry, value.free_symbols))
