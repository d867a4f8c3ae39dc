"""The algebra of formal vectors: one reading of a recorded step holds for every dimension at once.

| operation on vectors a, b | result |
|---|---|
| `a + 2 * b` | a vector |
| `(a * b).sum()` | the inner product <a, b>, a scalar |
| `(a * a).sqrt()` | an atom e, of which nothing is known |
| `where((a * a).sum() > 0, a, b)` | a: a sum of squares is taken as positive |
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import sympy as sp

from spherenorm_theory.algebra._atoms import DIMENSION, Entries, Product
from spherenorm_theory.algebra._entrywise import Entrywise
from spherenorm_theory.algebra._vectors import Vector

__all__ = ["Formal"]


@dataclass
class Formal(Entrywise):
    """The algebra of formal vectors.

    Linear operations give vectors, and the sum of an entrywise product is an inner product. An
    entrywise operation that is not linear gives a new atom, about which nothing is known: a law
    that is derived then holds for whatever vector stands there. See `Atoms` for the attributes.
    """

    # Sums and matrices

    def aten_sum(self, a: Any, dims: Any = None, keepdim: bool = False, **_: Any) -> Any:
        if prod(self.shape) == prod(self.entered):
            return a  # a sum over dimensions of length 1
        if prod(self.shape) > 1:
            raise NotImplementedError("a sum over some of the entries")
        if isinstance(a, Product):
            return self.aten_dot(a.a, a.b)
        return self.space.inner(a, Vector.atom("1")) if isinstance(a, Vector) else a

    def aten_mean(self, a: Any, dims: Any = None, keepdim: bool = False) -> Any:
        total = self.aten_sum(a, dims, keepdim)
        summed = isinstance(a, (Vector, Product)) and total is not a
        return total / DIMENSION if summed else total

    def aten_dot(self, a: Any, b: Any) -> Any:
        a, b = self.linear(a), self.linear(b)
        if not (isinstance(a, Vector) and isinstance(b, Vector)):
            return self.aten_mul(a, b)
        if prod(self.shape) > 1:
            raise NotImplementedError("an outer product is no combination of vectors")
        inner = self.shorten(self.space.inner(a, b))
        return self.square(inner) if a == b else inner

    aten_mm = aten_mv = aten_bmm = aten_vdot = aten_dot

    # Shapes: a weight is one unit, so that another shape of it holds the same entries

    def aten_permute(self, a: Any, *_: Any) -> Any:
        return a

    aten_view = aten__unsafe_view = aten_reshape = aten_permute
    aten_t = aten_transpose = aten_unsqueeze = aten_squeeze = aten_permute
    aten_clone = aten_permute

    def aten__to_copy(self, a: Any, *_: Any) -> Any:
        return self.linear(a)

    def aten_select(self, a: Any, *_: Any) -> Any:
        if prod(self.shape) != prod(self.entered):
            raise NotImplementedError("one entry of a vector")
        return a  # the only index of a dimension of length 1

    def aten_expand(self, a: Any, *_: Any) -> Any:
        return self.ones(a) if isinstance(a, sp.Expr) and prod(self.shape) > 1 else a

    # Constants

    def aten_eye(self, n: sp.Expr, *_: Any) -> sp.Expr:
        if n != 1:
            raise NotImplementedError("the identity matrix of more than one unit")
        return sp.Integer(1)

    def aten_scalar_tensor(self, value: Any, *_: Any) -> Any:
        return value

    def aten_full(self, size: Any, value: Any, *_: Any) -> Any:
        return value if all(n == 1 for n in size) else self.ones(value)

    def aten_full_like(self, a: Any, value: Any, *_: Any) -> Any:
        return self.ones(value) if isinstance(a, (Vector, Product)) else value

    # Decisions

    def _compare(self, relation: type[sp.Rel], a: Any, b: Any) -> Any:
        if isinstance(a, Vector) and b == 0 and relation is sp.Eq:
            return Entries(a)
        if isinstance(self.linear(a), Vector) or isinstance(self.linear(b), Vector):
            raise NotImplementedError("a comparison of each entry")
        return self.compare(relation, a, b)

    def aten_all(self, a: Any, *_: Any) -> Any:
        if not isinstance(a, Entries):
            return a
        if a.vector.terms:
            self.assume(sp.Gt, self.space.inner(a.vector, a.vector), sp.Integer(0))
        return sp.false if a.vector.terms else sp.true

    def aten_any(self, a: Any, *_: Any) -> Any:
        return a

    def aten_logical_and(self, a: Any, b: Any) -> Any:
        return sp.And(a, b)

    def aten_logical_or(self, a: Any, b: Any) -> Any:
        return sp.Or(a, b)

    def aten_logical_not(self, a: Any) -> Any:
        return sp.Not(a)

    def aten_where(self, condition: Any, a: Any, b: Any) -> Any:
        if isinstance(condition, Entries):
            raise NotImplementedError("a choice of each entry by its own value")
        a, b = self.linear(a), self.linear(b)
        if not (isinstance(a, Vector) or isinstance(b, Vector)):
            return self.where(condition, a, b)
        condition = self.settle(condition, *map(self._vector, (a, b)))
        if condition in (sp.true, sp.false):
            return self._chosen(a if condition == sp.true else b)
        switch = self.where(condition, sp.Integer(1), sp.Integer(0))
        return self.aten_add(self.aten_mul(a, switch), self.aten_mul(b, 1 - switch))

    def _chosen(self, x: Any) -> Vector:
        if not isinstance(x, Vector):
            return self.ones(x)
        return self.composite(x) if self.curved and len(x.terms) > 1 else x
