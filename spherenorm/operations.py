"""Operations: one row each, with its names in torch and its form in every language of a step.

`spherenorm.record` writes a step down as calls of aten's overloads. A row joins those that mean the
same: `spherenorm.compile` prints its forms, and `spherenorm_theory` does it on symbols. A new
operation is one row.

    from spherenorm.operations import OPERATIONS, of_overload
    print(of_overload("aten.clamp_min.default").name)  # maximum
    print(OPERATIONS["maximum"].numpy)  # np.maximum({0}, {1})
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["OPERATIONS", "REDUCTIONS", "Operation", "Reduction", "of_overload"]


@dataclass(frozen=True)
class Operation:
    """An operation on one entry of each argument.

    A form is a template: {0}, {1}, {2} are the arguments, {kind} is the type that is computed in,
    and {out} is where torch puts a result. Scalars are NumPy's doubles, in which 1 / 0 is inf as in
    a tensor.

    Attributes:
        overloads: of aten, such as "add.Tensor".
        gives: "number" of numbers, "truth" of numbers, "logic" (truth of truth), or "choice",
            which gives what its second and third argument are.
        form: the expression in all languages that have no form of their own below.
        numpy, cpp, triton: the expression of a scalar, of C++, of Triton.
        triton_float32: the expression that rounds as torch does; Triton's own is approximate there.
        torch: the call on tensors.
        tensors: how many of torch's first arguments must be tensors.
        cheap: computing it twice costs less than keeping it.
        derived: makes it of other operations, for a reader without a form of its own: a function of
            the reader, which has these as methods, and of the arguments. Exact arithmetic of the
            same value, in torch's own order, which matters where a product overflows.
    """

    name: str
    overloads: tuple[str, ...]
    gives: Literal["number", "truth", "logic", "choice"]
    numpy: str = ""
    torch: str = ""
    cpp: str = ""
    triton: str = ""
    triton_float32: str = ""
    tensors: int = 1
    cheap: bool = False
    derived: Callable[..., Any] | None = None

    def forbids(self, arguments: int, options: Mapping[str, Any]) -> bool:
        """True if the row's form has no place for so many arguments, or for one of the options."""
        if not self.numpy:
            return self.derived is None
        strange = {name: value for name, value in options.items() if (name, value) != ("alpha", 1)}
        return (
            f"{{{arguments}}}" in self.numpy
            or f"{{{arguments - 1}}}" not in self.numpy
            or bool(strange)
        )


@dataclass(frozen=True)
class Reduction:
    """An operation over many entries.

    Attributes:
        start: of no entry; start_cpp and start_triton in those languages.
        combine: of two parts, in Python; cpp and triton of {0} and {1}.
        torch: the Python number of a tensor {0}.
        openmp: its sign in a reduction clause.
        triton_tile: of a tile {0} where {1} is true, along {2}.
    """

    name: str
    start: Any
    combine: Callable[[Any, Any], Any]
    torch: str
    start_cpp: str
    cpp: str
    openmp: str
    start_triton: str
    triton: str
    triton_tile: str


def _row(
    name: str,
    overloads: str = "",
    form: str = "",
    gives: Literal["number", "truth", "logic", "choice"] = "number",
    **own: Any,
) -> Operation:
    """A row; `form` holds wherever the row has none of its own."""
    forms = {language: own.pop(language, form) for language in ("numpy", "cpp", "triton")}
    return Operation(name, tuple(overloads.split()), gives, **forms, **own)


def _unary(name: str, overloads: str, form: str = "", **own: Any) -> Operation:
    return _row(name, overloads, form, torch=f"torch.{name}({{0}}, out={{out}})", **own)


def _binary(name: str, overloads: str, form: str = "", **own: Any) -> Operation:
    return _row(name, overloads, form, torch=f"torch.{name}({{0}}, {{1}}, out={{out}})", **own)


def _comparison(name: str, form: str) -> Operation:
    return _binary(name, f"{name}.Tensor {name}.Scalar", form, gives="truth")


def _norm(on: Any, x: Any, order: Any = 2, dims: Any = None, keepdim: bool = False) -> Any:
    if order != 2:
        raise NotImplementedError(f"of all norms only the one with ord=2, got ord={order}")
    return on.sqrt(on.sum(on.square(x), dims, keepdim))


def _clamp(on: Any, x: Any, low: Any = None, high: Any = None) -> Any:
    x = x if low is None else on.maximum(x, low)
    return x if high is None else on.minimum(x, high)


def _addcdiv(on: Any, x: Any, y: Any, z: Any, value: Any = 1) -> Any:
    return on.add(x, on.div(y if value == 1 else on.mul(y, value), z))


_ROWS = (
    # Arithmetic.
    _binary("add", "add.Tensor add.Scalar", "{0} + {1}", cheap=True),
    _binary(
        "sub", "sub.Tensor sub.Scalar", "{0} - {1}", cheap=True,
        derived=lambda on, x, y, alpha=1: on.add(x, y, -alpha),
    ),
    _row(
        "rsub", "rsub.Tensor rsub.Scalar", "{1} - {0}", cheap=True,
        derived=lambda on, x, y, alpha=1: on.sub(y, x, alpha),
    ),
    _binary("mul", "mul.Tensor mul.Scalar", "{0} * {1}", cheap=True),
    _binary(
        "div", "div.Tensor div.Scalar", "{0} / {1}", triton_float32="tl.div_rn({0}, {1})",
    ),
    _unary("neg", "neg.default", "-{0}", cheap=True),
    _row(
        "addcmul", "addcmul.default", "{0} + {1} * {2}", cpp="fused({1}, {2}, {0})", cheap=True,
        torch="torch.addcmul({0}, {1}, {2}, out={out})", tensors=3,
        derived=lambda on, x, y, z, value=1: on.add(x, on.mul(y, z), value),
    ),
    _row("addcdiv", "addcdiv.default", derived=_addcdiv),
    _row(
        "lerp", "lerp.Scalar lerp.Tensor", cpp="lerp({0}, {1}, {2})",
        numpy="{0} + {2} * ({1} - {0}) if {2} < 0.5 else {1} - ({1} - {0}) * (1 - {2})",
        triton="tl.where({2} < 0.5, {0} + {2} * ({1} - {0}), {1} - ({1} - {0}) * (1.0 - {2}))",
        torch="torch.lerp({0}, {1}, {2}, out={out})", tensors=2,
        derived=lambda on, x, y, weight: on.add(on.mul(x, 1 - weight), on.mul(y, weight)),
    ),
    # Functions.
    _unary("abs", "abs.default", "abs({0})", cpp="std::abs({0})", triton="tl.abs({0})"),
    _unary("sign", "sign.default", numpy="np.float64({0} > 0) - ({0} < 0)",
           cpp="{kind}(({0} > 0) - ({0} < 0))",
           triton="({0} > 0).to({kind}) - ({0} < 0).to({kind})"),
    _unary("square", "square.default", "{0} * {0}", cheap=True,
           derived=lambda on, x: on.mul(x, x)),
    _unary("sqrt", "sqrt.default", numpy="np.sqrt({0})", cpp="std::sqrt({0})",
           triton="tl.sqrt({0})", triton_float32="tl.sqrt_rn({0})"),
    _unary("reciprocal", "reciprocal.default", numpy="1 / {0}", cpp="{kind}(1) / {0}",
           triton="1.0 / {0}", triton_float32="tl.div_rn(1.0, {0})"),
    _unary("rsqrt", "rsqrt.default", numpy="1 / np.sqrt({0})", cpp="{kind}(1) / std::sqrt({0})",
           triton="1.0 / tl.sqrt({0})", triton_float32="tl.div_rn(1.0, tl.sqrt_rn({0}))",
           derived=lambda on, x: on.reciprocal(on.sqrt(x))),
    _unary("exp", "exp.default", numpy="np.exp({0})", cpp="std::exp({0})", triton="tl.exp({0})"),
    _unary("log", "log.default", numpy="np.log({0})", cpp="std::log({0})", triton="tl.log({0})"),
    _unary("sin", "sin.default", numpy="np.sin({0})", cpp="std::sin({0})", triton="tl.sin({0})"),
    _unary("cos", "cos.default", numpy="np.cos({0})", cpp="std::cos({0})", triton="tl.cos({0})"),
    _unary("tanh", "tanh.default", numpy="np.tanh({0})", cpp="std::tanh({0})"),
    _unary(
        "sinc", "sinc.default", numpy="np.sinc({0})",
        cpp="({0} == 0 ? {kind}(1) : {kind}(std::sin(M_PI * {0}) / (M_PI * {0})))",
        triton="tl.where({0} == 0, 1.0, tl.sin({0} * 3.141592653589793)"
        " / tl.where({0} == 0, 1.0, {0} * 3.141592653589793))",
    ),
    _binary("pow", "pow.Scalar pow.Tensor_Tensor pow.Tensor_Scalar", numpy="{0} ** {1}",
            cpp="{kind}(std::pow({0}, {1}))", triton="power({0}, {1}).to({kind})"),
    _row(
        "maximum", "maximum.default clamp_min.default clamp_min.Tensor",
        numpy="np.maximum({0}, {1})", cpp="({0} > {1} || {0} != {0} ? {0} : {1})",
        triton="tl.where(({0} > {1}) | ({0} != {0}), {0}, {1})",
        torch="torch.maximum({0}, {1}, out={out})", tensors=2,
        derived=lambda on, x, y: on.where(on.ge(x, y), x, y),
    ),
    _row(
        "minimum", "minimum.default clamp_max.default clamp_max.Tensor",
        numpy="np.minimum({0}, {1})", cpp="({0} < {1} || {0} != {0} ? {0} : {1})",
        triton="tl.where(({0} < {1}) | ({0} != {0}), {0}, {1})",
        torch="torch.minimum({0}, {1}, out={out})", tensors=2,
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
    _row("logical_and", "logical_and.default bitwise_and.Tensor", gives="logic", tensors=2,
         numpy="{0} and {1}", torch="torch.logical_and({0}, {1})", cpp="({0} && {1})",
         triton="{0} & {1}"),
    _row("logical_or", "logical_or.default bitwise_or.Tensor", gives="logic", tensors=2,
         numpy="{0} or {1}", torch="torch.logical_or({0}, {1})", cpp="({0} || {1})",
         triton="{0} | {1}"),
    _row("logical_not", "logical_not.default bitwise_not.default", gives="logic",
         numpy="not {0}", torch="torch.logical_not({0})", cpp="!{0}", triton="({0} == 0)"),
    _row("where", "where.self", gives="choice", tensors=3, cheap=True,
         numpy="{1} if {0} else {2}", torch="torch.where({0}, {1}, {2}, out={out})",
         cpp="({0} ? {1} : {2})", triton="tl.where({0}, {1}, {2})"),
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
    # Not of aten: the rounding of a scalar to float32, and several operations in one call of torch.
    _row("cast", "", "{0}"),
    _row("add_scaled", torch="torch.add({0}, {1}, alpha={2}, out={out})"),
    _row("addcmul_scaled", torch="torch.addcmul({0}, {1}, {2}, value={3}, out={out})", tensors=3),
    # torch does not round the product, which is the same unless that overflows.
    _row("add_product", torch="torch.add({0}, {1}, alpha={2}, out={out}) if -1 <= {2} <= 1"
         " else torch.add({0}, {1} * {2}, out={out})"),
    _row("sub_product", torch="torch.sub({0}, {1}, alpha={2}, out={out}) if -1 <= {2} <= 1"
         " else torch.sub({0}, {1} * {2}, out={out})"),
    _row("sum", torch="{0}.sum(1, keepdim=True)"),
)  # fmt: skip

OPERATIONS = {row.name: row for row in _ROWS}
"""By name."""

REDUCTIONS = {
    row.name: row
    for row in (
        Reduction(
            "sum", 0.0, operator.add, "float({0}.sum())",
            start_cpp="0", cpp="{0} += {1};", openmp="+",
            start_triton="0.0", triton="{0} + {1}",
            triton_tile="tl.sum(tl.where({1}, {0}, 0.0){2})",
        ),
        Reduction(
            "any", False, operator.or_, "bool({0}.any())",
            start_cpp="0", cpp="{0} = {0} || {1};", openmp="||", start_triton="0.0",
            triton="tl.maximum({0}, {1})", triton_tile="tl.max(tl.where({1}, {0}, 0.0){2})",
        ),
        Reduction(
            "all", True, operator.and_, "bool({0}.all())",
            start_cpp="1", cpp="{0} = {0} && {1};", openmp="&&", start_triton="1.0",
            triton="tl.minimum({0}, {1})", triton_tile="tl.min(tl.where({1}, {0}, 1.0){2})",
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
