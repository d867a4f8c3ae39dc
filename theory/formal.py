"""The algebra of formal vectors, in which a traced graph is read for every dimension at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any, ClassVar

import sympy as sp

from theory.operations import Operations
from theory.symbols import Space, Vector, tidy

__all__ = ["Entries", "Formal", "Product"]

ONE = sp.Integer(1)


@dataclass(frozen=True)
class Product:
    """The entrywise product of two vectors, times a scalar: its sum is their inner product."""

    a: Vector
    b: Vector


def _multiple(a: Vector, b: Vector) -> sp.Expr | None:
    """The number c with a = c b, if there is one."""
    if not b.terms or a.terms.keys() != b.terms.keys():
        return None
    factors = {sp.cancel(a[name] / b[name]) for name in b.terms}
    return factors.pop() if len(factors) == 1 else None


@dataclass(frozen=True)
class Entries:
    """A statement about every entry of a vector, such as `m == 0`; `.all()` asks whether the vector is zero."""

    vector: Vector


@dataclass
class Formal(Operations):
    """The algebra of formal vectors: linear operations stay vectors, a sum of an entrywise product is an inner product.

    An entrywise operation that is not linear gives a new atom, about which nothing is known: what is derived then holds
    for whatever vector stands there. With `mean_field`, the entrywise product of two vectors is replaced by its mean over
    the entries, <a, b> / d, which makes Adam's second moment a scalar: exact if the entries have equal second moments.

    Attributes:
        opaque: how each such atom came about.
        curved: give a vector that `where` has chosen, as a geometry does with its tangent vectors, an atom of its own, so that
            arcs stay short formulas: its products with the other atoms are known, its square has a name.
        composites: what these atoms stand for.
    """

    space: Space = field(default_factory=lambda: Space({("1", "1"): Formal.dimension}))
    mean_field: bool = False
    opaque: dict[str, str] = field(default_factory=dict)
    curved: bool = False
    composites: dict[str, Vector] = field(default_factory=dict)

    dimension: ClassVar[sp.Symbol] = sp.Symbol("d", positive=True)

    def atom(self, origin: str, letter: str = "e") -> Vector:
        """The atom for an entrywise expression, u for a direction, e for a magnitude; the same expression gives the same atom."""
        for name, known in self.opaque.items():
            if known == origin:
                return Vector.atom(name)
        count = sum(name.startswith(letter) for name in self.opaque)
        name = f"{letter}{count + 1}" if count else letter
        self.opaque[name] = origin
        return Vector.atom(name)

    def composite(self, vector: Vector) -> Vector:
        """An atom for a combination of atoms."""
        for name, known in self.composites.items():
            if known == vector:
                return Vector.atom(name)
        name = f"d{len(self.composites) + 1}"
        for other in ("w", "g", *self.composites, *vector.terms):
            self.space.known[name, other] = tidy(self.space.inner(vector, Vector.atom(other)))
        self.composites[name] = vector
        self.definitions[self.space.gram(name, name)] = self.space.inner(vector, vector)
        return Vector.atom(name)

    def linear(self, x: Any) -> Any:
        """`x` with an entrywise product made an atom (or, in the mean field, a scalar)."""
        if not isinstance(x, Product):
            return x
        factor = _multiple(x.a, x.b)
        if factor is not None:  # c b^2
            square = (
                self.square(self.space.inner(x.b, x.b) / self.dimension)
                if self.mean_field
                else self.atom(f"({x.b})^2")
            )
            return square if factor == 1 else self.aten_mul(square, factor)
        if self.mean_field:
            return self.space.inner(x.a, x.b) / self.dimension
        return self.atom(f"({x.a}) * ({x.b})", "u")

    def ones(self, x: sp.Expr) -> Vector:
        return Vector({"1": x}) if x != 0 else Vector()

    # Arithmetic

    def aten_add(self, a: Any, b: Any, alpha: Any = ONE) -> Any:
        a, b = self.linear(a), self.linear(b if alpha == 1 else self.aten_mul(b, alpha))
        if isinstance(a, Vector) or isinstance(b, Vector):
            return (a if isinstance(a, Vector) else self.ones(a)) + (
                b if isinstance(b, Vector) else self.ones(b)
            )
        total = a + b
        return self.square(total) if self.is_nonnegative(a, b) else total

    def aten_neg(self, a: Any) -> Any:
        return self.aten_mul(a, sp.Integer(-1))

    def aten_mul(self, a: Any, b: Any) -> Any:
        a, b = self.linear(a), self.linear(b)
        if isinstance(a, Vector) and isinstance(b, Vector):
            for x, y in ((a, b), (b, a)):
                if {*x.terms} == {"1"}:  # a constant in every entry scales
                    return y * x["1"]
            if prod(self.shape) > prod(self.entered) > 1:
                raise NotImplementedError("an outer product is no vector")
            return Product(a, b)
        if isinstance(a, Vector):
            return a * b
        if isinstance(b, Vector):
            return b * a
        product = a * b
        return self.square(product) if a == b or self.is_nonnegative(a, b) else product

    def aten_div(self, a: Any, b: Any) -> Any:
        b = self.linear(b)
        if isinstance(b, Vector) and {*b.terms} == {"1"}:
            b = b["1"]
        if isinstance(b, Vector):
            return self.atom(f"({self.linear(a)}) / ({b})", "u")
        return self.aten_mul(a, self.aten_reciprocal(b))

    def aten_reciprocal(self, a: Any) -> Any:
        if isinstance(a, Vector):
            return self.atom(f"1/({a})")
        return self.square(1 / a) if self.is_nonnegative(a) else 1 / a

    def aten_pow(self, a: Any, b: Any) -> Any:
        a = self.linear(a)
        if b == sp.Rational(1, 2):
            return self.aten_sqrt(a)
        if b == 2:
            return self.aten_mul(a, a)
        if isinstance(a, Vector):
            return self.atom(f"({a})**{b}")
        return self.square(a**b) if self.is_nonnegative(a) else a**b

    def aten_sqrt(self, a: Any) -> Any:
        a = self.linear(a)
        return self.atom(f"sqrt({a})") if isinstance(a, Vector) else self.square(self.root(a))

    def _entrywise(self, function: Any, a: Any, letter: str = "e") -> Any:
        """`function` of a number; of a vector, an atom for its function in every entry."""
        a = self.linear(a)
        return (
            self.atom(f"{str(function).lower()}({a})", letter)
            if isinstance(a, Vector)
            else function(a)
        )

    def aten_abs(self, a: Any) -> Any:
        magnitude = self._entrywise(sp.Abs, a)
        return magnitude if isinstance(magnitude, Vector) else self.square(magnitude)

    def aten_sign(self, a: Any) -> Any:
        return self._entrywise(sp.sign, a, "u")

    def aten_exp(self, a: Any) -> Any:
        return self._entrywise(sp.exp, a)

    def aten_log(self, a: Any) -> Any:
        return self._entrywise(sp.log, a, "u")

    def aten_tanh(self, a: Any) -> Any:
        return self._entrywise(sp.tanh, a, "u")

    def aten_cos(self, a: sp.Expr) -> sp.Expr:
        return sp.cos(self.angle(a))

    def aten_sin(self, a: sp.Expr) -> sp.Expr:
        return sp.sin(self.angle(a))

    def aten_sinc(self, a: sp.Expr) -> sp.Expr:
        """sin(pi a) / (pi a), as torch defines it, at a != 0: the step is not zero."""
        angle = self.angle(sp.pi * a)
        return sp.sin(angle) / angle

    # Reductions and matrices

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
        return (
            total / self.dimension if isinstance(a, (Vector, Product)) and total is not a else total
        )

    def aten_dot(self, a: Any, b: Any) -> Any:
        a, b = self.linear(a), self.linear(b)
        if not (isinstance(a, Vector) and isinstance(b, Vector)):
            return self.aten_mul(a, b)
        if prod(self.shape) > 1:
            raise NotImplementedError("an outer product is no combination of vectors")
        inner = self.space.inner(a, b)
        return self.square(inner) if a == b else inner

    aten_mm = aten_mv = aten_bmm = aten_vdot = aten_dot

    def aten_select(self, a: Any, *_: Any) -> Any:
        if prod(self.shape) != prod(self.entered):
            raise NotImplementedError("one entry of a vector")
        return a  # the only index of a dimension of length 1

    def aten_permute(self, a: Any, *_: Any) -> Any:
        return a

    def aten_expand(self, a: Any, *_: Any) -> Any:
        return self.ones(a) if isinstance(a, sp.Expr) and prod(self.shape) > 1 else a

    aten_view = aten__unsafe_view = aten_reshape = aten_t = aten_transpose = aten_unsqueeze = (
        aten_squeeze
    ) = aten_permute
    aten_clone = aten_detach = aten_alias = aten__to_copy = aten_lift_fresh_copy = aten_permute

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
            self.assume(f"{a.vector} != 0")
        return sp.false if a.vector.terms else sp.true

    def aten_any(self, a: Any, *_: Any) -> Any:
        return a

    def aten_bitwise_and(self, a: Any, b: Any) -> Any:
        return sp.And(a, b)

    def aten_bitwise_or(self, a: Any, b: Any) -> Any:
        return sp.Or(a, b)

    def aten_bitwise_not(self, a: Any) -> Any:
        return sp.Not(a)

    aten_logical_and, aten_logical_or, aten_logical_not = (
        aten_bitwise_and,
        aten_bitwise_or,
        aten_bitwise_not,
    )

    def aten_where(self, condition: Any, a: Any, b: Any) -> Any:
        a, b = self.linear(a), self.linear(b)
        if isinstance(a, Vector) or isinstance(b, Vector):
            if condition in (sp.true, sp.false):
                chosen = a if condition == sp.true else b
                if not isinstance(chosen, Vector):
                    return self.ones(chosen)
                return self.composite(chosen) if self.curved and len(chosen.terms) > 1 else chosen
            switch = self.where(condition, sp.Integer(1), sp.Integer(0))
            return self.aten_add(self.aten_mul(a, switch), self.aten_mul(b, 1 - switch))
        return self.where(condition, a, b)

    def aten_clamp(self, a: Any, low: Any = None, high: Any = None) -> Any:
        a = self.linear(a)
        return (
            self.atom(f"clamp({a}, {low}, {high})", "u")
            if isinstance(a, Vector)
            else super().aten_clamp(a, low, high)
        )
