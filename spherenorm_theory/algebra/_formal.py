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
from math import prod
from typing import Any, ClassVar

import numpy as np
import sympy as sp
from sympy.logic.boolalg import Boolean

from spherenorm_theory.algebra import _assumptions as scalars
from spherenorm_theory.algebra._assumptions import Assumptions
from spherenorm_theory.algebra._lookup import COMPARE, derived
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


@dataclass
class Formal:
    """The algebra of formal vectors: the atoms of a step, and the space that they span.

    Attributes:
        facts: the assumptions on scalars.
        space: the inner products that are known; the atom "1" has 1 in every entry.
        mean_field: replace the entrywise product of two vectors by its mean over the entries,
            <a, b> / d. Adam's second moment is then a scalar; this is exact if all entries have
            the same second moment.
        opaque: the origin of each atom of an entrywise operation, in text.
        meanings: for each of these atoms, the function of numpy's arrays and its arguments.
        curved: give a vector that `where` has chosen an atom of its own. A manifold chooses its
            tangent vectors so, and arcs then stay short formulas: the products of such an atom
            with the others are known, and its square has a name.
        composites: the vectors that these atoms stand for.
        shape, entered: the shapes of the present operation's result and first argument.
        operations: the functions of this algebra, by the names of aten.
    """

    facts: Assumptions = field(default_factory=Assumptions)
    space: Space = field(default_factory=lambda: Space({("1", "1"): DIMENSION}))
    mean_field: bool = False
    opaque: dict[str, str] = field(default_factory=dict)
    meanings: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = field(default_factory=dict)
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
            if known == origin and self.meanings[name][1] == arguments:
                return Vector.atom(name)
        name = self.facts.free(letter, self.opaque, bare=True)
        self.opaque[name] = origin
        self.meanings[name] = function, arguments
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
        """`x` as one vector or scalar, also in the mean field: what each entry is compared by."""
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
        return square if factor == 1 else _mul(self, square, factor)


def _ratio(a: Vector, b: Vector) -> sp.Expr | None:
    """The number c with a = c b, if there is one."""
    if not b.terms or a.terms.keys() != b.terms.keys():
        return None
    factors = {sp.cancel(a[name] / b[name]) for name in b.terms}
    return factors.pop() if len(factors) == 1 else None


def _ones(x: sp.Expr) -> Vector:
    """The vector with the scalar x in every entry."""
    return Vector({"1": x}) if x != 0 else Vector()


def _vector(x: Any) -> Vector:
    return x if isinstance(x, Vector) else _ones(x)


# Entry by entry: a linear operation gives a vector, any other one an atom


def _add(formal: Formal, a: Any, b: Any, alpha: Any = sp.S.One) -> Any:
    a, b = formal.linear(a), formal.linear(b if alpha == 1 else _mul(formal, b, alpha))
    if isinstance(a, Vector) or isinstance(b, Vector):
        return _vector(a) + _vector(b)
    total, facts = a + b, formal.facts
    if not facts.is_nonnegative(a, b):
        return total
    one = facts.is_positive(a) or facts.is_positive(b)
    (facts.squares if one else facts.magnitudes).add(total)
    return total


def _neg(formal: Formal, a: Any) -> Any:
    return _mul(formal, a, sp.Integer(-1))


def _mul(formal: Formal, a: Any, b: Any) -> Any:
    a, b = formal.linear(a), formal.linear(b)
    if isinstance(a, Vector) and isinstance(b, Vector):
        return _product(formal, a, b)
    if isinstance(a, Vector):
        return a * b
    if isinstance(b, Vector):
        return b * a
    product, facts = a * b, formal.facts
    if a == b:
        facts.magnitudes.add(product)
        return product
    return scalars.signed(facts, product, a, b) if facts.is_nonnegative(a, b) else product


def _product(formal: Formal, a: Vector, b: Vector) -> Any:
    for constant, other in ((a, b), (b, a)):
        if {*constant.terms} == {"1"}:  # the same number in every entry is a scale
            return other * constant["1"]
    if prod(formal.shape) > prod(formal.entered) > 1:
        raise NotImplementedError("an outer product is no vector")
    return Product(a, b)


def _div(formal: Formal, a: Any, b: Any) -> Any:
    b = formal.linear(b)
    if isinstance(b, Vector) and {*b.terms} == {"1"}:
        b = b["1"]
    if isinstance(b, Vector):
        a = formal.linear(a)
        return formal.atom(f"({a}) / ({b})", "u", operator.truediv, a, b)
    return _mul(formal, a, _reciprocal(formal, b))


def _addcdiv(formal: Formal, a: Any, b: Any, c: Any, value: Any = sp.S.One) -> Any:
    # The factor stays outside, so that the ratio is the same atom with any factor.
    return _add(formal, a, _div(formal, b, c), value)


def _reciprocal(formal: Formal, a: Any) -> Any:
    if isinstance(a, Vector):
        return formal.atom(f"1/({a})", "e", np.reciprocal, a)
    return scalars.signed(formal.facts, 1 / a, a) if formal.facts.is_nonnegative(a) else 1 / a


def _pow(formal: Formal, a: Any, b: Any) -> Any:
    a = formal.linear(a)
    if b == sp.Rational(1, 2):
        return _sqrt(formal, a)
    if b == 2:
        return _mul(formal, a, a)
    if isinstance(a, Vector):
        return formal.atom(f"({a})**{b}", "e", np.power, a, b)
    return scalars.signed(formal.facts, a**b, a) if formal.facts.is_nonnegative(a) else a**b


def _sqrt(formal: Formal, a: Any) -> Any:
    a = formal.linear(a)
    if isinstance(a, Vector):
        return formal.atom(f"sqrt({a})", "e", np.sqrt, a)
    return scalars.signed(formal.facts, scalars.root(formal.facts, a), a)


def _apply(function: Any, entrywise: Callable[..., Any], letter: str = "e") -> Callable[..., Any]:
    """`function` of a scalar; of a vector, the atom for its function in every entry."""

    def operation(formal: Formal, a: Any) -> Any:
        a = formal.linear(a)
        if isinstance(a, Vector):
            return formal.atom(f"{str(function).lower()}({a})", letter, entrywise, a)
        return function(a)

    return operation


def _abs(formal: Formal, a: Any) -> Any:
    magnitude = _apply(sp.Abs, np.abs)(formal, a)
    if not isinstance(magnitude, Vector):
        formal.facts.magnitudes.add(magnitude)
    return magnitude


def _sign(formal: Formal, a: Any) -> Any:
    sign, facts = _apply(sp.sign, np.sign, "u")(formal, a), formal.facts
    if isinstance(sign, sp.Integer) and sp.sign(scalars.at_zero(facts, formal.linear(a))) != sign:
        facts.assume(sp.Ne, a, sp.Integer(0))
    return sign


def _cos(formal: Formal, a: sp.Expr) -> sp.Expr:
    return sp.cos(scalars.angle(formal.facts, a))


def _sin(formal: Formal, a: sp.Expr) -> sp.Expr:
    return sp.sin(scalars.angle(formal.facts, a))


def _sinc(formal: Formal, a: sp.Expr) -> sp.Expr:
    """sin(pi a) / (pi a), as torch defines it, at a != 0: the step is not zero."""
    angle = scalars.angle(formal.facts, sp.pi * a)
    formal.facts.assume(sp.Ne, angle, sp.Integer(0))
    return sp.sin(angle) / angle


def _clamp(formal: Formal, a: Any, low: Any = None, high: Any = None) -> Any:
    a = formal.linear(a)
    if isinstance(a, Vector):
        return formal.atom(f"clamp({a}, {low}, {high})", "u", np.clip, a, low, high)
    return derived("clamp", formal)(a, low, high)


# Sums and matrices


def _sum(formal: Formal, a: Any, dims: Any = None, keepdim: bool = False, **_: Any) -> Any:
    if prod(formal.shape) == prod(formal.entered):
        return a  # a sum over dimensions of length 1
    if prod(formal.shape) > 1:
        raise NotImplementedError("a sum over some of the entries")
    a = formal.linear(a) if isinstance(a, Entries) else a
    if isinstance(a, Product):
        return _dot(formal, a.a, a.b)
    return formal.space.inner(a, Vector.atom("1")) if isinstance(a, Vector) else a


def _mean(formal: Formal, a: Any, dims: Any = None, keepdim: bool = False) -> Any:
    total = _sum(formal, a, dims, keepdim)
    summed = isinstance(a, (Vector, Product)) and total is not a
    return total / DIMENSION if summed else total


def _dot(formal: Formal, a: Any, b: Any) -> Any:
    a, b = formal.linear(a), formal.linear(b)
    if not (isinstance(a, Vector) and isinstance(b, Vector)):
        return _mul(formal, a, b)
    if prod(formal.shape) > 1:
        raise NotImplementedError("an outer product is no combination of vectors")
    inner = scalars.shorten(formal.facts, formal.space.inner(a, b))
    if a == b:
        formal.facts.squares.add(inner)
    return inner


# Shapes and constants: a weight is one unit, so that another shape of it holds the same entries


def _select(formal: Formal, a: Any, *_: Any) -> Any:
    if prod(formal.shape) != prod(formal.entered):
        raise NotImplementedError("one entry of a vector")
    return a  # the only index of a dimension of length 1


def _expand(formal: Formal, a: Any, *_: Any) -> Any:
    return _ones(a) if isinstance(a, sp.Expr) and prod(formal.shape) > 1 else a


def _eye(formal: Formal, n: sp.Expr, *_: Any) -> sp.Expr:
    if n != 1:
        raise NotImplementedError("the identity matrix of more than one unit")
    return sp.Integer(1)


def _full(formal: Formal, size: Any, value: Any, *_: Any) -> Any:
    return value if all(n == 1 for n in size) else _ones(value)


def _full_like(formal: Formal, a: Any, value: Any, *_: Any) -> Any:
    return _ones(value) if isinstance(a, (Vector, Product)) else value


# Decisions


def _compare(formal: Formal, relation: type[sp.Rel], a: Any, b: Any) -> Any:
    if not any(isinstance(x, (Vector, Product, Entries)) for x in (a, b)):
        return scalars.compare(formal.facts, relation, *map(formal.linear, (a, b)))
    a, b = formal.entry(a), formal.entry(b)
    zero = a if isinstance(a, Vector) and b == 0 and relation is sp.Eq else None
    return Entries(f"{a} {scalars.SHOWN[relation]} {b}", COMPARE[relation], (a, b), zero)


def _all(formal: Formal, a: Any, *_: Any) -> Any:
    if not isinstance(a, Entries):
        return a
    if a.zero is None:
        raise NotImplementedError("whether a condition holds for all entries")
    if a.zero.terms:
        formal.facts.assume(sp.Gt, formal.space.inner(a.zero, a.zero), sp.Integer(0))
    return sp.false if a.zero.terms else sp.true


def _any(formal: Formal, a: Any, *_: Any) -> Any:
    if isinstance(a, Entries):
        raise NotImplementedError("whether a condition holds for any entry")
    return a


def _logical(sign: str, of_scalars: Any, entrywise: Callable[..., Any]) -> Callable[..., Any]:
    """Logic of scalars by sympy; of conditions on entries, the condition on each entry."""

    def operation(formal: Formal, *conditions: Any) -> Any:
        if not any(isinstance(each, Entries) for each in conditions):
            return of_scalars(*conditions)
        texts = [f"({each})" for each in conditions]
        text = f" {sign} ".join(texts) if len(texts) > 1 else f"{sign} {texts[0]}"
        return Entries(text, entrywise, conditions)

    return operation


def _extreme(name: str, entrywise: Callable[..., Any]) -> Callable[..., Any]:
    """The greater or smaller of two numbers; of vectors, the atom of that of each entry."""

    def operation(formal: Formal, a: Any, b: Any) -> Any:
        a, b = formal.linear(a), formal.linear(b)
        if isinstance(a, Vector) or isinstance(b, Vector):
            return formal.atom(f"{name}({a}, {b})", "e", entrywise, a, b)
        return derived(name, formal)(a, b)

    return operation


def _remainder(formal: Formal, a: Any, b: Any) -> Any:
    a, b = formal.linear(a), formal.linear(b)
    if isinstance(a, Vector) or isinstance(b, Vector):
        return formal.atom(f"({a}) % ({b})", "u", np.remainder, a, b)
    if b.free_symbols:
        formal.facts.assume(sp.Ne, b, sp.Integer(0))
    return sp.Mod(a, b)


def _where(formal: Formal, condition: Any, a: Any, b: Any) -> Any:
    if isinstance(condition, Entries):
        a, b = formal.entry(a), formal.entry(b)
        return formal.atom(f"where({condition}, {a}, {b})", "u", np.where, condition, a, b)
    a, b = formal.linear(a), formal.linear(b)
    if not (isinstance(a, Vector) or isinstance(b, Vector)):
        return scalars.where(formal.facts, condition, a, b)
    condition = scalars.settle(formal.facts, condition, *map(_vector, (a, b)))
    if condition in (sp.true, sp.false):
        chosen = _vector(a if condition == sp.true else b)
        return formal.composite(chosen) if formal.curved and len(chosen.terms) > 1 else chosen
    switch = scalars.where(formal.facts, condition, sp.Integer(1), sp.Integer(0))
    return _add(formal, _mul(formal, a, switch), _mul(formal, b, 1 - switch))


def _same(formal: Formal, a: Any, *_: Any) -> Any:
    return a


Formal.operations = {
    **{"add": _add, "neg": _neg, "mul": _mul, "div": _div, "addcdiv": _addcdiv},
    **{"reciprocal": _reciprocal, "pow": _pow, "sqrt": _sqrt, "abs": _abs, "sign": _sign},
    **{"exp": _apply(sp.exp, np.exp), "log": _apply(sp.log, np.log, "u")},
    **{"tanh": _apply(sp.tanh, np.tanh, "u"), "cos": _cos, "sin": _sin, "sinc": _sinc},
    **{"clamp": _clamp, "clamp_min": _clamp, "sum": _sum, "mean": _mean},
    "clamp_max": lambda formal, a, high: _clamp(formal, a, None, high),
    **dict.fromkeys(("dot", "vdot", "mm", "mv", "bmm"), _dot),
    **dict.fromkeys(("view", "_unsafe_view", "reshape", "unsqueeze", "squeeze"), _same),
    **dict.fromkeys(("permute", "t", "transpose", "clone", "scalar_tensor"), _same),
    "_to_copy": lambda formal, a, *_: formal.linear(a),
    **{"select": _select, "expand": _expand},
    **{"eye": _eye, "full": _full, "full_like": _full_like},
    **{"compare": _compare, "all": _all, "any": _any, "where": _where, "remainder": _remainder},
    "maximum": _extreme("maximum", np.maximum),
    "minimum": _extreme("minimum", np.minimum),
    "logical_and": _logical("and", sp.And, np.logical_and),
    "logical_or": _logical("or", sp.Or, np.logical_or),
    "logical_not": _logical("not", sp.Not, np.logical_not),
}
