"""Operations: one row each, with its names in torch and its form in every language of a step.

`spherenorm.record` writes a step down as calls of aten's overloads. A row joins those that mean the
same: `spherenorm.compile` prints its forms, and `spherenorm_theory` does it on symbols. A new
operation is one row.

    from spherenorm.operations import OPERATIONS, of_overload
    print(of_overload("aten.clamp_min.default").name)  # maximum
    print(OPERATIONS["square"].cpp)  # {0} * {0}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["OPERATIONS", "REDUCTIONS", "Operation", "Reduction", "of_overload"]


@dataclass(frozen=True)
class Operation:
    """An operation on one entry of each argument.

    A form is a template: {0}, {1}, {2} are the arguments, and {kind} is the type that is computed
    in.

    Attributes:
        overloads: of aten, such as "add.Tensor".
        gives: "number" of numbers, "truth" of numbers, "logic" (truth of truth), or "choice",
            which gives what its second and third argument are.
        cpp: the expression in C++.
        derived: makes it of other operations, for a reader without a form of its own: a function of
            the reader, which has these as methods, and of the arguments. Exact arithmetic of the
            same value, in torch's own order, which matters where a product overflows.
    """

    name: str
    overloads: tuple[str, ...]
    gives: Literal["number", "truth", "logic", "choice"]
    cpp: str = ""
    derived: Callable[..., Any] | None = None

    def forbids(self, arguments: int, options: Mapping[str, Any]) -> bool:
        """True if the row's form has no place for so many arguments, or for one of the options."""
        if not self.cpp:
            return self.derived is None
        strange = {name: value for name, value in options.items() if (name, value) != ("alpha", 1)}
        return (
            f"{{{arguments}}}" in self.cpp
            or f"{{{arguments - 1}}}" not in self.cpp
            or bool(strange)
        )


@dataclass(frozen=True)
class Reduction:
    """An operation over many entries.

    Attributes:
        start: of no entry. (The results of parts add up: of "any", a sum above 0 is true.)
        cpp: of two parts {0} and {1}.
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
    gives: Literal["number", "truth", "logic", "choice"] = "number",
    **own: Any,
) -> Operation:
    return Operation(name, tuple(overloads.split()), gives, cpp, **own)


def _comparison(name: str, form: str) -> Operation:
    return _row(name, f"{name}.Tensor {name}.Scalar", form, "truth")


def _norm(on: Any, x: Any, order: Any = 2, dims: Any = None, keepdim: bool = False) -> Any:
    if order != 2:
        raise NotImplementedError(f"of all norms only the one with ord=2, got ord={order}")
    return on.sqrt(on.sum(on.square(x), dims, keepdim))


def _clamp(on: Any, x: Any, low: Any = None, high: Any = None) -> Any:
    x = x if low is None else on.maximum(x, low)
    return x if high is None else on.minimum(x, high)


def _softplus(on: Any, x: Any, beta: Any = 1, threshold: Any = 20) -> Any:
    scaled = x if beta == 1 else on.mul(x, beta)
    soft = on.log1p(on.exp(scaled))
    return on.where(on.gt(scaled, threshold), x, soft if beta == 1 else on.div(soft, beta))


def _addcdiv(on: Any, x: Any, y: Any, z: Any, value: Any = 1) -> Any:
    return on.add(x, on.div(y if value == 1 else on.mul(y, value), z))


_ROWS = (
    # Arithmetic.
    _row("add", "add.Tensor add.Scalar", "{0} + {1}"),
    _row(
        "sub", "sub.Tensor sub.Scalar", "{0} - {1}",
        derived=lambda on, x, y, alpha=1: on.add(x, y, -alpha),
    ),
    _row(
        "rsub", "rsub.Tensor rsub.Scalar", "{1} - {0}",
        derived=lambda on, x, y, alpha=1: on.sub(y, x, alpha),
    ),
    _row("mul", "mul.Tensor mul.Scalar", "{0} * {1}"),
    _row("div", "div.Tensor div.Scalar", "{0} / {1}"),
    _row("neg", "neg.default", "-{0}"),
    _row(
        "addcmul", "addcmul.default", "fused({1}, {2}, {0})",
        derived=lambda on, x, y, z, value=1: on.add(x, on.mul(y, z), value),
    ),
    _row("addcdiv", "addcdiv.default", derived=_addcdiv),
    _row(
        "lerp", "lerp.Scalar lerp.Tensor", cpp="lerp({0}, {1}, {2})",
        derived=lambda on, x, y, weight: on.add(on.mul(x, 1 - weight), on.mul(y, weight)),
    ),
    # Functions.
    _row("abs", "abs.default", cpp="std::abs({0})"),
    _row("sign", "sign.default", cpp="{kind}(({0} > 0) - ({0} < 0))"),
    _row("square", "square.default", "{0} * {0}",
         derived=lambda on, x: on.mul(x, x)),
    _row("sqrt", "sqrt.default", cpp="std::sqrt({0})"),
    _row("reciprocal", "reciprocal.default", cpp="{kind}(1) / {0}"),
    _row("rsqrt", "rsqrt.default", cpp="{kind}(1) / std::sqrt({0})",
         derived=lambda on, x: on.reciprocal(on.sqrt(x))),
    _row("exp", "exp.default", cpp="std::exp({0})"),
    _row("log", "log.default", cpp="std::log({0})"),
    _row("log1p", "log1p.default", cpp="std::log1p({0})",
         derived=lambda on, x: on.log(on.add(x, 1))),
    _row("sigmoid", "sigmoid.default",
         derived=lambda on, x: on.reciprocal(on.add(on.exp(on.neg(x)), 1))),
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
        derived=lambda on, x, y: on.where(on.ge(x, y), x, y),
    ),
    _row(
        "minimum", "minimum.default clamp_max.default clamp_max.Tensor",
        cpp="({0} < {1} || {0} != {0} ? {0} : {1})",
        derived=lambda on, x, y: on.where(on.le(x, y), x, y),
    ),
    _row("clamp", "clamp.default clamp.Tensor", derived=_clamp),
    # Decisions.
    _comparison("lt", "{0} < {1}"),
    _comparison("le", "{0} <= {1}"),
    _comparison("gt", "{0} > {1}"),
    _comparison("ge", "{0} >= {1}"),
    _comparison("eq", "{0} == {1}"),
    _comparison("ne", "{0} != {1}"),
    _row("logical_and", "logical_and.default bitwise_and.Tensor", gives="logic",
         cpp="({0} && {1})"),
    _row("logical_or", "logical_or.default bitwise_or.Tensor", gives="logic",
         cpp="({0} || {1})"),
    _row("logical_not", "logical_not.default bitwise_not.default", gives="logic",
         cpp="!{0}"),
    _row("where", "where.self", gives="choice",
         cpp="({0} ? {1} : {2})"),
    # Made of several entries.
    _row("linalg_vector_norm", "linalg_vector_norm.default", derived=_norm),
    _row(
        "mean", "mean.default mean.dim",
        derived=lambda on, x, dims=None, keepdim=False: on.div(
            on.sum(x, dims, keepdim), on.count(x, dims)
        ),
    ),
    # Constants.
    _row("zeros_like", "zeros_like.default", derived=lambda on, x: on.full_like(x, 0)),
    _row("ones_like", "ones_like.default", derived=lambda on, x: on.full_like(x, 1)),
    _row("new_full", "new_full.default", derived=lambda on, _, size, value: on.full(size, value)),
    _row("zeros", "zeros.default", derived=lambda on, size: on.full(size, 0)),
    _row("ones", "ones.default", derived=lambda on, size: on.full(size, 1)),
    # Not of aten: the rounding of a scalar to float32.
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
    """The row of an overload such as "aten.add.Tensor" or "aten.add_.Tensor"; None without one.

    An operation of another library is another one, whatever its name.
    """
    library, packet, overload = name.split(".")
    found = _BY_OVERLOAD.get(f"{packet.removesuffix('_')}.{overload}")
    return found if library == "aten" else None
