"""Operations that are made of others: written once, for every algebra that has those."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sympy as sp

from theory.scalars import Scalars

__all__ = ["Operations"]


@dataclass
class Operations(Scalars):
    """What follows from `aten_add`, `aten_mul`, `aten_div`, `aten_sqrt`, `aten_sum`, `aten_where` and `_compare` of an algebra.

    Attributes:
        shape, entered: the shapes of the present operation's result and first argument.
    """

    shape: tuple[int, ...] = ()
    entered: tuple[int, ...] = ()

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...  # the operations of the algebra itself

    def aten_sub(self, a: Any, b: Any, alpha: Any = sp.S.One) -> Any:
        return self.aten_add(a, b, -alpha)

    def aten_rsub(self, a: Any, b: Any, alpha: Any = sp.S.One) -> Any:
        return self.aten_sub(b, a, alpha)

    def aten_lerp(self, a: Any, b: Any, weight: Any) -> Any:
        return self.aten_add(self.aten_mul(a, 1 - weight), self.aten_mul(b, weight))

    def aten_addcmul(self, a: Any, b: Any, c: Any, value: Any = sp.S.One) -> Any:
        return self.aten_add(a, self.aten_mul(b, c), value)

    def aten_addcdiv(self, a: Any, b: Any, c: Any, value: Any = sp.S.One) -> Any:
        return self.aten_add(a, self.aten_div(b, c), value)

    def aten_square(self, a: Any) -> Any:
        return self.aten_mul(a, a)

    def aten_rsqrt(self, a: Any) -> Any:
        return self.aten_reciprocal(self.aten_sqrt(a))

    def aten_linalg_vector_norm(
        self, a: Any, order: Any = 2, dims: Any = None, keepdim: bool = False
    ) -> Any:
        if order != 2:
            raise NotImplementedError(f"of all norms only the one with ord=2, got ord={order}")
        return self.aten_sqrt(self.aten_sum(self.aten_mul(a, a), dims, keepdim))

    def aten_maximum(self, a: Any, b: Any) -> Any:
        return self.aten_where(self.aten_ge(a, b), a, b)

    def aten_minimum(self, a: Any, b: Any) -> Any:
        return self.aten_where(self.aten_le(a, b), a, b)

    def aten_clamp(self, a: Any, low: Any = None, high: Any = None) -> Any:
        a = a if low is None else self.aten_maximum(a, low)
        return a if high is None else self.aten_minimum(a, high)

    def aten_clamp_min(self, a: Any, low: Any) -> Any:
        return self.aten_clamp(a, low)

    def aten_clamp_max(self, a: Any, high: Any) -> Any:
        return self.aten_clamp(a, None, high)

    def aten_zeros_like(self, a: Any, *_: Any) -> Any:
        return self.aten_full_like(a, sp.Integer(0))

    def aten_ones_like(self, a: Any, *_: Any) -> Any:
        return self.aten_full_like(a, sp.Integer(1))

    def aten_new_full(self, _: Any, size: Any, value: Any, *__: Any) -> Any:
        return self.aten_full(size, value)

    def aten_zeros(self, size: Any, *_: Any) -> Any:
        return self.aten_full(size, sp.Integer(0))

    def aten_ones(self, size: Any, *_: Any) -> Any:
        return self.aten_full(size, sp.Integer(1))

    def aten_gt(self, a: Any, b: Any) -> Any:
        return self._compare(sp.Gt, a, b)

    def aten_lt(self, a: Any, b: Any) -> Any:
        return self._compare(sp.Lt, a, b)

    def aten_ge(self, a: Any, b: Any) -> Any:
        return self._compare(sp.Ge, a, b)

    def aten_le(self, a: Any, b: Any) -> Any:
        return self._compare(sp.Le, a, b)

    def aten_eq(self, a: Any, b: Any) -> Any:
        return self._compare(sp.Eq, a, b)

    def aten_ne(self, a: Any, b: Any) -> Any:
        return self._compare(sp.Ne, a, b)
