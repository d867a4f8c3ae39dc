"""The table of operations: one row each, with its overloads in torch and its form in C++.

`spherenorm.record` records a step as calls of aten's overloads. A row joins the overloads that mean
the same: `spherenorm.compile` prints its C++ form, and `spherenorm_theory` runs its derivation on
symbols. A new operation is one row.

    from spherenorm.operations import OPERATIONS, of_overload
    print(of_overload("aten.clamp_min.default").name)  # maximum
    print(OPERATIONS["square"].cpp)  # {0} * {0}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["OPERATIONS", "REDUCTIONS", "Operation", "Reduction", "of_overload"]

Returns = Literal["value", "comparison", "boolean", "select"]


@dataclass(frozen=True)
class Operation:
    """An operation on one entry of each argument.

    Attributes:
        name: the operation's name in this table.
        overloads: of aten, such as "add.Tensor".
        returns: "value" (a number of numbers), "comparison" (a boolean of numbers), "boolean" (a
            boolean of booleans), or "select" (the second or the third argument, by the first).
        cpp: the expression in C++, a template: {0}, {1}, {2} are the arguments, and {kind} is the
            type that is computed in.
        derived: composes the operation from others, for a backend without a form of its own: a
            function of the backend, `ops`, whose methods are the operations, and of the arguments.
            It computes the same value in torch's own order, which matters where a product
            overflows.
    """

    name: str
    overloads: tuple[str, ...]
    returns: Returns
    cpp: str = ""
    derived: Callable[..., Any] | None = None

    def accepts(self, n_arguments: int, options: Mapping[str, Any]) -> bool:
        """Return whether the row can express a call with so many arguments and these options."""
        if not self.cpp:
            return self.derived is not None
        other_options = [name for name in options if (name, options[name]) != ("alpha", 1)]
        has_last = f"{{{n_arguments - 1}}}" in self.cpp
        has_more = f"{{{n_arguments}}}" in self.cpp
        return has_last and not has_more and not other_options


@dataclass(frozen=True)
class Reduction:
    """An operation over many entries, whose partial results combine.

    Attributes:
        name: the reduction's name in this table.
        start: its value over no entries.
        cpp: the statement that combines a partial result {1} into {0}. (Batched code adds partial
            results up: "any" is then a sum above 0.)
        openmp: its sign in a reduction clause.
    """

    name: str
    start: str
    cpp: str
    openmp: str


def _row(
    name: str,
    overloads: str = "",
    cpp: str = "",
    returns: Returns = "value",
    derived: Callable[..., Any] | None = None,
) -> Operation:
    return Operation(name, tuple(overloads.split()), returns, cpp, derived)


def _comparison(name: str, form: str) -> Operation:
    return _row(name, f"{name}.Tensor {name}.Scalar", form, "comparison")


def _norm(ops: Any, x: Any, order: Any = 2, dims: Any = None, keepdim: bool = False) -> Any:
    if order != 2:
        raise NotImplementedError(f"a norm other than ord=2, got ord={order}")
    return ops.sqrt(ops.sum(ops.square(x), dims, keepdim))


def _clamp(ops: Any, x: Any, low: Any = None, high: Any = None) -> Any:
    x = x if low is None else ops.maximum(x, low)
    return x if high is None else ops.minimum(x, high)


def _softplus(ops: Any, x: Any, beta: Any = 1, threshold: Any = 20) -> Any:
    scaled = x if beta == 1 else ops.mul(x, beta)
    soft = ops.log1p(ops.exp(scaled))
    return ops.where(ops.gt(scaled, threshold), x, soft if beta == 1 else ops.div(soft, beta))


def _addcdiv(ops: Any, x: Any, y: Any, z: Any, value: Any = 1) -> Any:
    return ops.add(x, ops.div(y if value == 1 else ops.mul(y, value), z))


_ROWS = (
    # Arithmetic.
    _row("add", "add.Tensor add.Scalar", "{0} + {1}"),
    _row(
        "sub", "sub.Tensor sub.Scalar", "{0} - {1}",
        derived=lambda ops, x, y, alpha=1: ops.add(x, y, -alpha),
    ),
    _row(
        "rsub", "rsub.Tensor rsub.Scalar", "{1} - {0}",
        derived=lambda ops, x, y, alpha=1: ops.sub(y, x, alpha),
    ),
    _row("mul", "mul.Tensor mul.Scalar", "{0} * {1}"),
    _row("div", "div.Tensor div.Scalar", "{0} / {1}"),
    _row("neg", "neg.default", "-{0}"),
    _row(
        "addcmul", "addcmul.default", "fused({1}, {2}, {0})",
        derived=lambda ops, x, y, z, value=1: ops.add(x, ops.mul(y, z), value),
    ),
    _row("addcdiv", "addcdiv.default", derived=_addcdiv),
    _row(
        "lerp", "lerp.Scalar lerp.Tensor", cpp="lerp({0}, {1}, {2})",
        derived=lambda ops, x, y, weight: ops.add(ops.mul(x, 1 - weight), ops.mul(y, weight)),
    ),
    # Functions.
    _row("abs", "abs.default", cpp="std::abs({0})"),
    _row("sign", "sign.default", cpp="{kind}(({0} > 0) - ({0} < 0))"),
    _row("square", "square.default", "{0} * {0}",
         derived=lambda ops, x: ops.mul(x, x)),
    _row("sqrt", "sqrt.default", cpp="std::sqrt({0})"),
    _row("reciprocal", "reciprocal.default", cpp="{kind}(1) / {0}"),
    _row("rsqrt", "rsqrt.default", cpp="{kind}(1) / std::sqrt({0})",
         derived=lambda ops, x: ops.reciprocal(ops.sqrt(x))),
    _row("exp", "exp.default", cpp="std::exp({0})"),
    _row("log", "log.default", cpp="std::log({0})"),
    _row("log1p", "log1p.default", cpp="std::log1p({0})",
         derived=lambda ops, x: ops.log(ops.add(x, 1))),
    _row("sigmoid", "sigmoid.default",
         derived=lambda ops, x: ops.reciprocal(ops.add(ops.exp(ops.neg(x)), 1))),
    _row("softplus", "softplus.default", derived=_softplus),
    _row("sin", "sin.default", cpp="std::sin({0})"),
    _row("cos", "cos.default", cpp="std::cos({0})"),
    _row("tanh", "tanh.default", cpp="std::tanh({0})"),
    _row(
        "sinc", "sinc.default",
        cpp="({0} == 0 ? {kind}(1) : {kind}(std::sin(M_PI * {0}) / (M_PI * {0})))",
    ),
    _row("pow", "pow.Scalar pow.Tensor_Tensor pow.Tensor_Scalar",
         cpp="{kind}(std::pow({0}, {1}))"),
    _row(
        "maximum", "maximum.default clamp_min.default clamp_min.Tensor",
        cpp="({0} > {1} || {0} != {0} ? {0} : {1})",
        derived=lambda ops, x, y: ops.where(ops.ge(x, y), x, y),
    ),
    _row(
        "minimum", "minimum.default clamp_max.default clamp_max.Tensor",
        cpp="({0} < {1} || {0} != {0} ? {0} : {1})",
        derived=lambda ops, x, y: ops.where(ops.le(x, y), x, y),
    ),
    _row("clamp", "clamp.default clamp.Tensor", derived=_clamp),
    # Decisions.
    _comparison("lt", "{0} < {1}"),
    _comparison("le", "{0} <= {1}"),
    _comparison("gt", "{0} > {1}"),
    _comparison("ge", "{0} >= {1}"),
    _comparison("eq", "{0} == {1}"),
    _comparison("ne", "{0} != {1}"),
    _row("logical_and", "logical_and.default bitwise_and.Tensor", returns="boolean",
         cpp="({0} && {1})"),
    _row("logical_or", "logical_or.default bitwise_or.Tensor", returns="boolean",
         cpp="({0} || {1})"),
    _row("logical_not", "logical_not.default bitwise_not.default", returns="boolean",
         cpp="!{0}"),
    _row("where", "where.self", returns="select",
         cpp="({0} ? {1} : {2})"),
    # Over several entries.
    _row("linalg_vector_norm", "linalg_vector_norm.default", derived=_norm),
    _row(
        "mean", "mean.default mean.dim",
        derived=lambda ops, x, dims=None, keepdim=False: ops.div(
            ops.sum(x, dims, keepdim), ops.count(x, dims)
        ),
    ),
    # Constants.
    _row("zeros_like", "zeros_like.default", derived=lambda ops, x: ops.full_like(x, 0)),
    _row("ones_like", "ones_like.default", derived=lambda ops, x: ops.full_like(x, 1)),
    _row("new_full", "new_full.default", derived=lambda ops, _, size, value: ops.full(size, value)),
    _row("zeros", "zeros.default", derived=lambda ops, size: ops.full(size, 0)),
    _row("ones", "ones.default", derived=lambda ops, size: ops.full(size, 1)),
    # Not an operation of aten: rounds a scalar to float32.
    _row("cast", "", "{0}"),
)  # fmt: skip

OPERATIONS = {row.name: row for row in _ROWS}
"""By name."""

REDUCTIONS = {
    row.name: row
    for row in (
        Reduction(
            "sum", start="0", cpp="{0} += {1};", openmp="+",
        ),
        Reduction(
            "any", start="0", cpp="{0} = {0} || {1};", openmp="||",
        ),
    )
}  # fmt: skip
"""By name."""

_BY_OVERLOAD = {overload: row for row in _ROWS for overload in row.overloads}


def of_overload(name: str) -> Operation | None:
    """Return the row of an overload such as "aten.add.Tensor" or "aten.add_.Tensor", else None.

    An operation of another library has no row, whatever its name.
    """
    library, packet, overload = name.split(".")
    if library != "aten":
        return None
    return _BY_OVERLOAD.get(f"{packet.removesuffix('_')}.{overload}")
