"""The formal algebra, entry by entry: a linear operation gives a vector, any other one an atom."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import sympy as sp

from spherenorm_theory.algebra._atoms import Atoms, Product
from spherenorm_theory.algebra._vectors import Vector

__all__ = ["Entrywise"]


@dataclass
class Entrywise(Atoms):
    """Operations on each entry of formal vectors, and on scalars."""

    def aten_add(self, a: Any, b: Any, alpha: Any = sp.S.One) -> Any:
        a, b = self.linear(a), self.linear(b if alpha == 1 else self.aten_mul(b, alpha))
        if isinstance(a, Vector) or isinstance(b, Vector):
            return self._vector(a) + self._vector(b)
        total = a + b
        if not self.is_nonnegative(a, b):
            return total
        one = self.is_positive(a) or self.is_positive(b)
        return self.square(total) if one else self.magnitude(total)

    def _vector(self, x: Any) -> Vector:
        return x if isinstance(x, Vector) else self.ones(x)

    def aten_neg(self, a: Any) -> Any:
        return self.aten_mul(a, sp.Integer(-1))

    def aten_mul(self, a: Any, b: Any) -> Any:
        a, b = self.linear(a), self.linear(b)
        if isinstance(a, Vector) and isinstance(b, Vector):
            return self._product(a, b)
        if isinstance(a, Vector):
            return a * b
        if isinstance(b, Vector):
            return b * a
        product = a * b
        if a == b:
            return self.magnitude(product)
        return self.signed(product, a, b) if self.is_nonnegative(a, b) else product

    def _product(self, a: Vector, b: Vector) -> Any:
        for constant, other in ((a, b), (b, a)):
            if {*constant.terms} == {"1"}:  # the same number in every entry is a scale
                return other * constant["1"]
        if prod(self.shape) > prod(self.entered) > 1:
            raise NotImplementedError("an outer product is no vector")
        return Product(a, b)

    def aten_div(self, a: Any, b: Any) -> Any:
        b = self.linear(b)
        if isinstance(b, Vector) and {*b.terms} == {"1"}:
            b = b["1"]
        if isinstance(b, Vector):
            a = self.linear(a)
            return self.atom(f"({a}) / ({b})", "u", operator.truediv, a, b)
        return self.aten_mul(a, self.aten_reciprocal(b))

    def aten_reciprocal(self, a: Any) -> Any:
        if isinstance(a, Vector):
            return self.atom(f"1/({a})", "e", np.reciprocal, a)
        return self.signed(1 / a, a) if self.is_nonnegative(a) else 1 / a

    def aten_pow(self, a: Any, b: Any) -> Any:
        a = self.linear(a)
        if b == sp.Rational(1, 2):
            return self.aten_sqrt(a)
        if b == 2:
            return self.aten_mul(a, a)
        if isinstance(a, Vector):
            return self.atom(f"({a})**{b}", "e", np.power, a, b)
        return self.signed(a**b, a) if self.is_nonnegative(a) else a**b

    def aten_sqrt(self, a: Any) -> Any:
        a = self.linear(a)
        if isinstance(a, Vector):
            return self.atom(f"sqrt({a})", "e", np.sqrt, a)
        return self.signed(self.root(a), a)

    def _apply(
        self, function: Any, entrywise: Callable[..., Any], a: Any, letter: str = "e"
    ) -> Any:
        """`function` of a scalar; of a vector, the atom for its function in every entry."""
        a = self.linear(a)
        if isinstance(a, Vector):
            return self.atom(f"{str(function).lower()}({a})", letter, entrywise, a)
        return function(a)

    def aten_abs(self, a: Any) -> Any:
        magnitude = self._apply(sp.Abs, np.abs, a)
        return magnitude if isinstance(magnitude, Vector) else self.magnitude(magnitude)

    def aten_sign(self, a: Any) -> Any:
        sign = self._apply(sp.sign, np.sign, a, "u")
        if isinstance(sign, sp.Integer) and sp.sign(self.at_zero(self.linear(a))) != sign:
            self.assume(sp.Ne, a, sp.Integer(0))
        return sign

    def aten_exp(self, a: Any) -> Any:
        return self._apply(sp.exp, np.exp, a)

    def aten_log(self, a: Any) -> Any:
        return self._apply(sp.log, np.log, a, "u")

    def aten_tanh(self, a: Any) -> Any:
        return self._apply(sp.tanh, np.tanh, a, "u")

    def aten_cos(self, a: sp.Expr) -> sp.Expr:
        return sp.cos(self.angle(a))

    def aten_sin(self, a: sp.Expr) -> sp.Expr:
        return sp.sin(self.angle(a))

    def aten_sinc(self, a: sp.Expr) -> sp.Expr:
        """sin(pi a) / (pi a), as torch defines it, at a != 0: the step is not zero."""
        angle = self.angle(sp.pi * a)
        self.assume(sp.Ne, angle, sp.Integer(0))
        return sp.sin(angle) / angle

    def aten_clamp(self, a: Any, low: Any = None, high: Any = None) -> Any:
        a = self.linear(a)
        if isinstance(a, Vector):
            return self.atom(f"clamp({a}, {low}, {high})", "u", np.clip, a, low, high)
        return super().aten_clamp(a, low, high)
