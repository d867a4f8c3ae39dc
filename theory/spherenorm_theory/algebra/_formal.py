"""Formal vectors: one reading of a recorded step holds for every dimension at once.

| operation on vectors a, b | result |
|---|---|
| `a + 2 * b` | a vector |
| `(a * b).sum()` | the inner product <a, b>, a scalar |
| `(a * a).sqrt()` | an atom e, of which nothing is known |
| `where((a * a).sum() > 0, a, b)` | a: a sum of squares is taken as positive |

A linear operation on vectors gives a vector. Anything else that is done to each entry gives an
*atom*: a new vector of which nothing is known but the expression that it came from, so that a law
that is derived holds for whatever vector stands there.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
import sympy as sp
from sympy.logic.boolalg import Boolean

from spherenorm_theory.algebra import _assumptions as scalars
from spherenorm_theory.algebra._assumptions import Assumptions
from spherenorm_theory.algebra._symbols import tidy
from spherenorm_theory.algebra._vectors import Space, Vector

DIMENSION = sp.Symbol("d", positive=True)
"""The number of entries of a unit."""


@dataclass(frozen=True)
class Product:
    """The entrywise product of two vectors: its sum is their inner product."""

    a: Vector
    b: Vector

    def __str__(self) -> str:
        return f"({self.a}) * ({self.b})"


@dataclass(frozen=True)
class Entries:
    """A truth value for each entry, such as m > 0; `where` by it gives an atom.

    Attributes:
        text: the condition.
        function: of numpy's arrays, and its arguments.
        zero: the vector x of the condition x = 0, which `.all()` makes one of |x|^2.
    """

    text: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    zero: Vector | None = None

    def __str__(self) -> str:
        return self.text


class Opaque(NamedTuple):
    """An entrywise operation: its text, the function of numpy's arrays, and its arguments."""

    origin: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]


@dataclass
class Formal:
    """The algebra of formal vectors: the atoms of a step, and the space that they span.

    Attributes:
        facts: the assumptions on scalars.
        space: the inner products that are known; the atom "1" has 1 in every entry.
        mean_field: replace the entrywise product of two vectors by its mean over the entries,
            <a, b> / d. Adam's second moment is then a scalar; this is exact if all entries have
            the same second moment.
        opaque: the atoms of entrywise operations.
        curved: a vector that `where` chooses becomes an atom of its own, as tangent vectors of a
            manifold do. Its products with other atoms are known and its square has a name, so that
            the formulas of arcs stay short.
        composites: the vector that each such atom stands for.
        shape, entered: the shapes of the present operation's result and first argument.
        operations: the functions of this algebra, by the names of aten.
    """

    facts: Assumptions = field(default_factory=Assumptions)
    space: Space = field(default_factory=lambda: Space({("1", "1"): DIMENSION}))
    mean_field: bool = False
    opaque: dict[str, Opaque] = field(default_factory=dict)
    curved: bool = False
    composites: dict[str, Vector] = field(default_factory=dict)
    shape: tuple[int, ...] = ()
    entered: tuple[int, ...] = ()
    operations: ClassVar[Mapping[str, Callable[..., Any]]]

    def atom(
        self, origin: str, letter: str, function: Callable[..., Any], *arguments: Any
    ) -> Vector:
        """The atom of an entrywise expression; the same expression gives the same atom.

        Args:
            origin: the expression in text.
            letter: u for a direction, e for a magnitude.
            function: the operation on numpy's arrays.
            arguments: of the operation, vectors and scalars.
        """
        for name, known in self.opaque.items():
            if (known.origin, known.arguments) == (origin, arguments):
                return Vector.atom(name)
        name = self.facts.free(letter, self.opaque, bare=True)
        self.opaque[name] = Opaque(origin, function, arguments)
        return Vector.atom(name)

    def composite(self, vector: Vector) -> Vector:
        """An atom that stands for a combination of atoms."""
        for name, known in self.composites.items():
            if known == vector:
                return Vector.atom(name)
        name = self.facts.free("d", self.composites)
        for other in ("w", "g", *self.composites, *vector.terms):
            self.space.known[name, other] = tidy(self.space.inner(vector, Vector.atom(other)))
        self.composites[name] = vector
        self.facts.definitions[self.space.gram(name, name)] = self.space.inner(vector, vector)
        return Vector.atom(name)

    def entry(self, x: Any) -> Any:
        """`x` as a vector or a scalar, in the mean field too, for what compares entries."""
        if isinstance(x, Product):
            return self.atom(str(x), "u", operator.mul, x.a, x.b)
        return self.linear(x)

    def linear(self, x: Any) -> Any:
        """`x`, with an entrywise product replaced by an atom or, in the mean field, by a scalar.

        A truth value is 1 or 0.
        """
        if isinstance(x, Entries):
            return self.atom(str(x), "e", np.multiply, x, sp.S.One)
        if isinstance(x, Boolean) and not isinstance(x, sp.Expr):
            return scalars.where(self.facts, x, sp.Integer(1), sp.Integer(0))
        if not isinstance(x, Product):
            return x
        factor = _ratio(x.a, x.b)
        if factor is None:
            return self.space.inner(x.a, x.b) / DIMENSION if self.mean_field else self.entry(x)
        if self.mean_field:
            square = self.space.inner(x.b, x.b) / DIMENSION
            self.facts.squares.add(square)
        else:
            square = self.atom(f"({x.b})^2", "e", np.square, x.b)
        if isinstance(square, Vector):
            return square * factor
        return scalars.multiply(self.facts, square, factor)


def _ratio(a: Vector, b: Vector) -> sp.Expr | None:
    """The number c with a = c b, if there is one."""
    if not b.terms or a.terms.keys() != b.terms.keys():
        return None
    factors = {sp.cancel(a[name] / b[name]) for name in b.terms}
    return factors.pop() if len(factors) == 1 else None
