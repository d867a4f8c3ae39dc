"""Operations on each entry of formal vectors: linear ones give vectors, any others atoms."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import partial, partialmethod
from typing import Any

import sympy as sp

from spherenorm.operations import OPERATIONS
from spherenorm_theory.algebra.formal import Formal, Made, Product
from spherenorm_theory.algebra.symbols import DIMENSION, Norm, Vector, exact


def exact_or_same(argument: Any) -> Any:
    if not isinstance(argument, (int, float)) or isinstance(argument, bool):
        return argument
    if not math.isfinite(argument):
        raise NotImplementedError("a number that is not finite")
    return exact(argument)


def ones(x: sp.Expr) -> Vector:
    """The vector with the scalar x in every entry."""
    return Vector({"1": x}) if x != 0 else Vector()


def as_vector(x: Any) -> Vector:
    return x if isinstance(x, Vector) else ones(x)


def _function(function: Callable[..., Any], prefix: str = "e") -> Any:
    """A function of a scalar; of a vector, the atom for its function of every entry."""

    def operation(self: Entrywise, *arguments: Any) -> Any:
        return self.apply(prefix, function, *arguments)

    return operation


class Entrywise:
    """Operations entry by entry: a linear one gives a vector, any other one an atom.

    Attributes:
        formal: the algebra.
        entered, shape: of the first argument, and of the result.
    """

    def __init__(self, formal: Formal, entered: tuple[int, ...], shape: tuple[int, ...]) -> None:
        self.formal, self.entered, self.shape = formal, entered, shape

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """An operation that the library derives from others."""
        row = OPERATIONS.get(name)
        if row is None or row.derived is None:
            raise AttributeError(f"aten_{name}")
        return partial(row.derived, self)

    @property
    def same_size(self) -> bool:
        """True if the result has as many entries as the argument."""
        return math.prod(self.shape) == math.prod(self.entered)

    def read(self, *arguments: Any) -> list[Any]:
        """Arguments as vectors and exact scalars."""
        return [self.formal.linear(exact_or_same(x)) for x in arguments]

    def apply(self, prefix: str, function: Callable[..., Any], *arguments: Any) -> Any:
        read = self.read(*arguments)
        if any(isinstance(x, Vector) for x in read):
            return self.formal.apply(prefix, function, *read)
        return function(*read)

    def add(self, a: Any, b: Any, alpha: Any = 1) -> Any:
        a, b = self.read(a, b if alpha == 1 else self.mul(b, alpha))
        if not (isinstance(a, Vector) or isinstance(b, Vector)):
            return a + b
        return as_vector(a) + as_vector(b)

    def mul(self, a: Any, b: Any) -> Any:
        a, b = self.read(a, b)
        for constant, other in ((a, b), (b, a)):
            if not isinstance(other, Vector):
                continue
            if not isinstance(constant, Vector):
                return other.scaled(constant)
            if {*constant} == {"1"}:  # the same number in every entry is a scale
                return other.scaled(constant["1"])
        if not isinstance(a, Vector):
            return a * b
        if math.prod(self.shape) > math.prod(self.entered) > 1:
            raise NotImplementedError("an outer product is no vector")
        return Product(a, b)

    def div(self, a: Any, b: Any) -> Any:
        a, b = self.read(a, b)
        if isinstance(b, Vector) and {*b} == {"1"}:
            b = b["1"]
        return (
            self.apply("u", operator.truediv, a, b) if isinstance(b, Vector) else self.mul(a, 1 / b)
        )

    def addcdiv(self, a: Any, b: Any, c: Any, value: Any = 1) -> Any:
        # The factor stays outside, so that the ratio is the same atom with any factor.
        return self.add(a, self.div(b, c), value)

    def pow(self, a: Any, b: Any) -> Any:
        (b,) = self.read(b)
        if b == sp.S.Half:
            return self.sqrt(a)
        return self.mul(a, a) if b == 2 else self.apply("e", operator.pow, a, b)

    def sqrt(self, a: Any) -> Any:
        root = self.apply("e", sp.sqrt, a)
        # The root of a square of which the sign is known: (1 - beta)^2 |g|^2.
        square = isinstance(root, sp.Pow) and root.base.is_Mul and root.base.has(Norm)
        return sp.sqrt(sp.factor(root.base)) if square else root

    def sign(self, a: Any) -> Any:
        (a,) = self.read(a)
        if not isinstance(a, Vector):
            return sp.sign(a)
        made = Made(sp.sign(self.formal.entry(a), evaluate=False), a, square=DIMENSION)
        return self.formal.atom("u", made)

    neg = partialmethod(mul, -1)
    abs, exp, cos = _function(sp.Abs), _function(sp.exp), _function(sp.cos)
    log, tanh, sin = (_function(each, "u") for each in (sp.log, sp.tanh, sp.sin))
    remainder, reciprocal = _function(sp.Mod, "u"), _function(lambda x: 1 / x)

    def sinc(self, a: sp.Expr) -> sp.Expr:
        """sin(pi a) / (pi a), as torch defines it, at a != 0: the step is not zero."""
        self.formal.facts.assume_norms(a)
        return sp.sin(sp.pi * a) / (sp.pi * a)

    def clamp(self, a: Any, low: Any = None, high: Any = None) -> Any:
        (a,) = self.read(a)
        if not isinstance(a, Vector):
            derived = OPERATIONS["clamp"].derived
            assert derived is not None
            return derived(self, a, low, high)

        def clipped(x: sp.Expr) -> sp.Expr:
            ends = [(low, sp.Lt), (high, sp.Gt)]
            found = [(end, beyond(x, end)) for end, beyond in ends if end is not None]
            return sp.Piecewise(*found, (x, True))

        return self.apply("u", clipped, a)

    clamp_min = clamp

    def clamp_max(self, a: Any, high: Any) -> Any:
        return self.clamp(a, None, high)
