"""The table of operations: one row each, with one column for each backend.

`spherenorm.record` records a step as calls of aten's overloads. A row joins the overloads that mean
the same, and says how each backend writes the operation: a C++ kernel, the batched executor, an
exported file, and a norm-growth law. A column has a form, or one of three words instead:

    DERIVED        the backend composes the operation from others, by the row's `derived`
    REGISTERED     the backend has a function of its own for it, and checks so when it is imported
    NotHere(why)   the backend refuses the operation, and says why

A new operation is one row. A row without a word for one of the backends is an error at import.

    from spherenorm.operations import OPERATIONS, of_overload
    print(of_overload("aten.clamp_min.default").name)  # maximum
    print(OPERATIONS["square"].cpp)  # {0} * {0}
"""

from __future__ import annotations

import enum
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

__all__ = [
    "DERIVED",
    "OPERATIONS",
    "REDUCTIONS",
    "REGISTERED",
    "Batched",
    "NotHere",
    "Operation",
    "Python",
    "Reduction",
    "check_registered",
    "of_overload",
]

Returns = Literal["value", "comparison", "boolean", "select"]
Column = Literal["cpp", "export", "law"]
"""A column in which a row may say REGISTERED."""


class Form(enum.Enum):
    """The place of an operation that is not written in a backend's column."""

    DERIVED = enum.auto()
    REGISTERED = enum.auto()


DERIVED, REGISTERED = Form


@dataclass(frozen=True)
class NotHere:
    """The absence of an operation in a backend.

    Attributes:
        reason: why, as it stands in error messages; empty for a column that nobody has filled.
    """

    reason: str = ""


@dataclass(frozen=True)
class Batched:
    """An operation of the batched executor.

    Attributes:
        tensors: the operation on tensors.
        numbers: the operation on numbers of numpy in double, which the host computes.
        mixes_numbers: `tensors` takes Python numbers beside tensors; else they become tensors.
        mixes_dtypes: `tensors` takes tensors of float32 and float64 together.
    """

    tensors: Callable[..., Any]
    numbers: Callable[..., Any]
    mixes_numbers: bool = False
    mixes_dtypes: bool = True


@dataclass(frozen=True)
class Python:
    """An operation in an exported file, as templates.

    {0}, {1}, {2} are the arguments that are tensors or numbers, {arguments} is all of them as they
    stand in a call, and {others} is all but the first.

    Attributes:
        tensors: the expression if an argument is a tensor.
        numbers: the expression of Python numbers; None if there is none.
    """

    tensors: str
    numbers: str | None = None


@dataclass(frozen=True)
class Operation:
    """An operation on one entry of each argument, or on whole tensors.

    Attributes:
        name: the operation's name in this table.
        overloads: the overloads of aten that mean the operation, such as "add.Tensor".
        cpp: the expression in C++ and CUDA on one entry, a template: {0}, {1}, {2} are the
            arguments, and {kind} is the type that is computed in.
        batched: the operation in the batched executor. Both executors run one graph, so that a row
            without a template in `cpp` is in both or in neither.
        export: the expression in an exported file.
        law: DERIVED or REGISTERED: the rule on formal vectors stands in `spherenorm_theory`, which
            this package does not import.
        derived: composes the operation from others: a function of the backend, `ops`, whose methods
            are the operations, and of the arguments. It computes the same value in torch's own
            order, which matters where a product overflows.
        returns: "value" (a number of numbers), "comparison" (a boolean of numbers), "boolean" (a
            boolean of booleans), or "select" (the second or the third argument, by the first).
        variable: the name of the result in generated code, where the rule's source has none.
        results: the names of the results, if the operation returns several tensors.
    """

    name: str
    overloads: tuple[str, ...]
    cpp: str | Form | NotHere
    batched: Batched | Form | NotHere
    export: Python | Form | NotHere
    law: Form | NotHere
    derived: Callable[..., Any] | None = None
    returns: Returns = "value"
    variable: str = ""
    results: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        columns = {
            "cpp": self.cpp, "batched": self.batched, "export": self.export, "law": self.law
        }  # fmt: skip
        for column, form in columns.items():
            if form == NotHere():
                raise TypeError(
                    f"Operation: the row {self.name!r} has no {column}; "
                    f"write the operation's form there, or {column}=NotHere(reason)"
                )
            if form is DERIVED and self.derived is None:
                raise TypeError(
                    f"Operation: the row {self.name!r} has {column}=DERIVED and no derivation; "
                    "write derived=lambda ops, x: ..."
                )
        if isinstance(self.cpp, str) is not isinstance(self.batched, Batched):
            raise TypeError(
                f"Operation: the row {self.name!r} has a form in one of cpp and batched only; "
                "both executors run the same graph, so write both"
            )

    def accepts(self, n_arguments: int, options: Mapping[str, Any]) -> bool:
        """Return whether graphs can express a call with so many arguments and these options."""
        if not isinstance(self.cpp, str):
            return self.cpp is DERIVED
        other_options = [name for name in options if (name, options[name]) != ("alpha", 1)]
        has_last = f"{{{n_arguments - 1}}}" in self.cpp
        has_more = f"{{{n_arguments}}}" in self.cpp
        return has_last and not has_more and not other_options


@dataclass(frozen=True)
class Reduction:
    """An operation over many entries, whose partial results combine.

    Attributes:
        name: the reduction's name in this table.
        start: the value of the reduction over no entries.
        cpp: the statement that combines a partial result {1} into {0}. (Batched code adds partial
            results up: "any" is then a sum above 0.)
        openmp: the reduction's sign in a clause of OpenMP.
    """

    name: str
    start: str
    cpp: str
    openmp: str


# Derivations


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


def _mean(ops: Any, x: Any, dims: Any = None, keepdim: bool = False) -> Any:
    return ops.div(ops.sum(x, dims, keepdim), ops.count(x, dims))


# Kinds of rows


def _row(
    name: str,
    overloads: str = "",
    *,
    cpp: str | Form | NotHere = NotHere(),
    batched: Batched | Form | NotHere = NotHere(),
    export: Python | Form | NotHere = NotHere(),
    law: Form | NotHere = NotHere(),
    derived: Callable[..., Any] | None = None,
    returns: Returns = "value",
    variable: str = "",
    results: tuple[str, ...] = (),
) -> Operation:
    if not isinstance(cpp, str):
        batched = cpp
    return Operation(
        name, tuple(overloads.split()), cpp, batched, export, law, derived, returns,
        variable or name, results,
    )  # fmt: skip


def _operator(function: Callable[..., Any], numbers: Callable[..., Any] | None = None) -> Batched:
    """Return the batched form of an operator of Python, which tensors and numbers have alike."""
    return Batched(function, numbers or function, mixes_numbers=True)


def _entry_function(name: str, variable: str = "", **columns: Any) -> Operation:
    """Return the row of a function of one entry, which has one name everywhere."""
    if "batched" not in columns:
        columns["batched"] = Batched(getattr(torch, name), getattr(np, name))
    columns = {
        "cpp": f"std::{name}({{0}})",
        "export": Python(f"{{0}}.{name}()", f"math.{name}({{0}})"),
        "law": REGISTERED,
        **columns,
    }
    return _row(name, f"{name}.default", variable=variable, **columns)


def _comparison(name: str, sign: str, variable: str = "mask") -> Operation:
    form = f"{{0}} {sign} {{1}}"
    return _row(
        name, f"{name}.Tensor {name}.Scalar", returns="comparison", variable=variable,
        cpp=form, batched=_operator(getattr(operator, name)), export=Python(form, form),
        law=REGISTERED,
    )  # fmt: skip


def _outside_graphs(name: str, overloads: str, reason: str, **columns: Any) -> Operation:
    """Return the row of an operation that no executor has."""
    return _row(name, overloads, cpp=NotHere(reason), **columns)


_NO_RECIPE = "no recipe of the library has it"
_NO_LAW = NotHere("no recipe with a law has it")
_MATRICES = "a graph has values per entry, row or weight, and no matrices"
_SHAPES = "a graph does not know where in the weight an entry is"
_BITS = "a graph has no whole numbers, whose products wrap around"
_NO_FORMAL = NotHere("no law needs it yet")

_ROWS = (
    # Arithmetic.
    _row(
        "add", "add.Tensor add.Scalar", variable="combined",
        cpp="{0} + {1}", batched=_operator(operator.add), export=REGISTERED, law=REGISTERED,
    ),
    _row(
        "sub", "sub.Tensor sub.Scalar", variable="difference",
        cpp="{0} - {1}", batched=_operator(operator.sub), export=REGISTERED, law=DERIVED,
        derived=lambda ops, x, y, alpha=1: ops.add(x, y, -alpha),
    ),
    _row(
        "rsub", "rsub.Tensor rsub.Scalar", variable="difference",
        cpp="{1} - {0}", batched=_operator(lambda x, y: y - x), export=REGISTERED, law=DERIVED,
        derived=lambda ops, x, y, alpha=1: ops.sub(y, x, alpha),
    ),
    _row(
        "mul", "mul.Tensor mul.Scalar", variable="product",
        cpp="{0} * {1}", batched=_operator(operator.mul), export=REGISTERED, law=REGISTERED,
    ),
    _row(
        "div", "div.Tensor div.Scalar", variable="ratio",
        cpp="{0} / {1}", batched=_operator(operator.truediv, np.divide),
        export=Python("{0} / {1}", "{0} / {1}"), law=REGISTERED,
    ),
    _row(
        "neg", "neg.default", variable="negated",
        cpp="-{0}", batched=_operator(operator.neg), export=Python("-{0}", "-{0}"), law=REGISTERED,
    ),
    _row(
        "remainder", "remainder.Tensor remainder.Scalar",
        cpp=NotHere(_NO_RECIPE), export=Python("{0} % {1}", "{0} % {1}"), law=REGISTERED,
    ),
    _row(
        "addcmul", "addcmul.default", variable="combined",
        cpp="fused({1}, {2}, {0})", batched=Batched(torch.addcmul, lambda x, y, z: x + y * z),
        export=REGISTERED, law=DERIVED,
        derived=lambda ops, x, y, z, value=1: ops.add(x, ops.mul(y, z), value),
    ),
    _row(
        "addcdiv", "addcdiv.default", cpp=DERIVED, export=REGISTERED, law=REGISTERED,
        derived=_addcdiv,
    ),
    _row(
        "lerp", "lerp.Scalar lerp.Tensor", variable="average",
        cpp="lerp({0}, {1}, {2})",
        batched=Batched(
            torch.lerp,
            lambda x, y, w: x + w * (y - x) if w < 0.5 else y - (y - x) * (1 - w),
            mixes_dtypes=False,
        ),
        export=REGISTERED, law=DERIVED,
        derived=lambda ops, x, y, weight: ops.add(ops.mul(x, 1 - weight), ops.mul(y, weight)),
    ),
    # Functions.
    _entry_function("abs", "magnitude", export=Python("{0}.abs()", "abs({0})")),
    _entry_function(
        "sign", cpp="{kind}(({0} > 0) - ({0} < 0))",
        export=Python("{0}.sign()", "math.copysign(bool({0}), {0})"),
    ),
    _entry_function(
        "square", cpp="{0} * {0}", export=Python("{0}.square()", "{0} ** 2"), law=DERIVED,
        derived=lambda ops, x: ops.mul(x, x),
    ),
    _entry_function("sqrt", "root"),
    _entry_function("reciprocal", cpp="{kind}(1) / {0}", export=Python("1 / {0}", "1 / {0}")),
    _entry_function(
        "rsqrt", cpp="{kind}(1) / std::sqrt({0})",
        batched=Batched(torch.rsqrt, lambda x: 1 / np.sqrt(x)),
        export=Python("{0}.rsqrt()", "1 / math.sqrt({0})"), law=DERIVED,
        derived=lambda ops, x: ops.reciprocal(ops.sqrt(x)),
    ),
    _entry_function("exp"),
    _entry_function("log"),
    _entry_function("log1p", law=DERIVED, derived=lambda ops, x: ops.log(ops.add(x, 1))),
    _entry_function("sin"),
    _entry_function("cos"),
    _entry_function("tanh"),
    _entry_function("atan", batched=Batched(torch.atan, np.arctan), law=_NO_LAW),
    _entry_function(
        "sinc", cpp="({0} == 0 ? {kind}(1) : {kind}(std::sin(M_PI * {0}) / (M_PI * {0})))",
        export=Python("{0}.sinc()"),
    ),
    _entry_function(
        "sigmoid", cpp=DERIVED, batched=DERIVED, export=Python("{0}.sigmoid()"), law=DERIVED,
        derived=lambda ops, x: ops.reciprocal(ops.add(ops.exp(ops.neg(x)), 1)),
    ),
    _row(
        "softplus", "softplus.default",
        cpp=DERIVED, export=Python("torch.nn.functional.softplus({arguments})"), law=DERIVED,
        derived=_softplus,
    ),
    _row(
        "pow", "pow.Scalar pow.Tensor_Tensor pow.Tensor_Scalar", variable="power",
        cpp="{kind}(std::pow({0}, {1}))", batched=_operator(operator.pow, np.power),
        export=Python("{0} ** {1}", "{0} ** {1}"), law=REGISTERED,
    ),
    _row(
        "maximum", "maximum.default clamp_min.default clamp_min.Tensor",
        cpp="({0} > {1} || {0} != {0} ? {0} : {1})", batched=Batched(torch.maximum, np.maximum),
        export=REGISTERED, law=REGISTERED,
    ),
    _row(
        "minimum", "minimum.default clamp_max.default clamp_max.Tensor",
        cpp="({0} < {1} || {0} != {0} ? {0} : {1})", batched=Batched(torch.minimum, np.minimum),
        export=REGISTERED, law=REGISTERED,
    ),
    _row(
        "clamp", "clamp.default clamp.Tensor", variable="clamped",
        cpp=DERIVED, export=REGISTERED, law=REGISTERED, derived=_clamp,
    ),
    *(
        _outside_graphs(
            name, f"{name}.default", _NO_RECIPE, law=_NO_LAW,
            export=Python(f"{{0}}.{name}()", f"math.{name}({{0}})"),
        )
        for name in ("expm1", "tan", "acos", "asin", "floor", "ceil")
    ),
    _outside_graphs(
        "floor_divide", "floor_divide.default floor_divide.Scalar", _NO_RECIPE, law=_NO_LAW,
        export=Python("{0} // {1}", "{0} // {1}"),
    ),
    *(
        _outside_graphs(
            name, f"{name}.default", _NO_RECIPE, law=_NO_LAW, variable="mask",
            export=Python(f"{{0}}.{name}()", f"math.{name}({{0}})"),
        )
        for name in ("isinf", "isnan", "isfinite")
    ),
    # Decisions.
    _comparison("lt", "<"),
    _comparison("le", "<="),
    _comparison("gt", ">"),
    _comparison("ge", ">="),
    _comparison("eq", "==", variable="is_zero"),
    _comparison("ne", "!="),
    _row(
        "logical_and", "logical_and.default bitwise_and.Tensor", returns="boolean",
        cpp="({0} && {1})", batched=_operator(operator.and_),
        export=Python("{0} & {1}", "{0} and {1}"), law=REGISTERED, variable="mask",
    ),
    _row(
        "logical_or", "logical_or.default bitwise_or.Tensor", returns="boolean",
        cpp="({0} || {1})", batched=_operator(operator.or_),
        export=Python("{0} | {1}", "{0} or {1}"), law=REGISTERED, variable="mask",
    ),
    _row(
        "logical_not", "logical_not.default bitwise_not.default", returns="boolean",
        cpp="!{0}", batched=Batched(torch.logical_not, np.logical_not),
        export=Python("~{0}", "not {0}"), law=REGISTERED, variable="mask",
    ),
    _row(
        "where", "where.self", returns="select", variable="selected",
        cpp="({0} ? {1} : {2})",
        batched=Batched(torch.where, lambda condition, x, y: x if condition else y),
        export=REGISTERED, law=REGISTERED,
    ),
    # Over several entries.
    _row(
        "sum", "sum.default sum.dim_IntList", variable="total",
        cpp=REGISTERED, export=Python("{0}.sum({others})", "{0}"), law=REGISTERED,
    ),
    _row(
        "any", "any.default any.dim", variable="any_true",
        cpp=REGISTERED, export=Python("{0}.any({others})", "{0}"), law=REGISTERED,
    ),
    _row(
        "all", "all.default all.dim", variable="all_true",
        cpp=REGISTERED, export=Python("{0}.all({others})", "{0}"), law=REGISTERED,
    ),
    _row(
        "linalg_vector_norm", "linalg_vector_norm.default", variable="norm",
        cpp=DERIVED, export=Python("torch.linalg.vector_norm({arguments})", "abs({0})"),
        law=DERIVED, derived=_norm,
    ),
    _row(
        "mean", "mean.default mean.dim",
        cpp=DERIVED, export=Python("{0}.mean({others})", "{0}"), law=DERIVED, derived=_mean,
    ),
    *(
        _outside_graphs(
            name, overloads, "only sums and any are reduced", law=_NO_LAW,
            export=Python(f"{{0}}.{name}({{others}})", numbers),
        )
        for name, overloads, numbers in (
            ("amax", "amax.default", "{0}"),
            ("amin", "amin.default", "{0}"),
            ("prod", "prod.default prod.dim_int", "{0}"),
            ("cumsum", "cumsum.default", None),
        )
    ),
    # Constants.
    _row("scalar_tensor", "scalar_tensor.default", cpp=REGISTERED, export=REGISTERED,
         law=REGISTERED),
    _row("full", "full.default", cpp=REGISTERED, export=REGISTERED, law=REGISTERED),
    _row("full_like", "full_like.default", cpp=REGISTERED, export=REGISTERED, law=REGISTERED),
    _row("new_full", "new_full.default", cpp=DERIVED, export=REGISTERED, law=DERIVED,
         derived=lambda ops, _, size, value: ops.full(size, value)),
    _row("zeros", "zeros.default", cpp=DERIVED, export=REGISTERED, law=DERIVED,
         derived=lambda ops, size: ops.full(size, 0)),
    _row("ones", "ones.default", cpp=DERIVED, export=REGISTERED, law=DERIVED,
         derived=lambda ops, size: ops.full(size, 1)),
    _row("zeros_like", "zeros_like.default", cpp=DERIVED, export=REGISTERED, law=DERIVED,
         derived=lambda ops, x: ops.full_like(x, 0)),
    _row("ones_like", "ones_like.default", cpp=DERIVED, export=REGISTERED, law=DERIVED,
         derived=lambda ops, x: ops.full_like(x, 1), variable="ones"),
    _outside_graphs("eye", "eye.default eye.m", _MATRICES, law=REGISTERED,
                    export=NotHere("no recipe makes one within a step")),
    # Copies.
    _row("copy", "clone.default detach.default alias.default lift_fresh.default "
         "lift_fresh_copy.default", cpp=REGISTERED, export=REGISTERED, law=REGISTERED),
    _row("convert", "_to_copy.default", cpp=REGISTERED, export=REGISTERED, law=REGISTERED),
    _row("cast", cpp="{0}", batched=_operator(lambda x: x, np.float32),
         export=NotHere("files compute in float64"), law=NotHere("laws are exact")),
    # Matrices and shapes.
    _outside_graphs(
        "matmul", "mm.default bmm.default mv.default dot.default vdot.default", _MATRICES,
        export=Python("{0} @ {1}", "{0} * {1}"), law=REGISTERED, variable="product",
    ),
    _outside_graphs(
        "addmm", "addmm.default addmv.default baddbmm.default", _MATRICES,
        export=NotHere("float64, in which files are written, adds and multiplies apart"),
        law=REGISTERED,
    ),
    *(
        _outside_graphs(name, overloads, _SHAPES, export=REGISTERED, law=law, variable=variable)
        for name, overloads, law, variable in (
            ("reshape", "view.default _unsafe_view.default reshape.default", REGISTERED, "matrix"),
            ("expand", "expand.default", REGISTERED, "expanded"),
            ("unsqueeze", "unsqueeze.default", REGISTERED, "matrix"),
            ("squeeze", "squeeze.default squeeze.dim squeeze.dims", REGISTERED, "squeezed"),
            ("t", "t.default", REGISTERED, "transposed"),
            ("permute", "permute.default", REGISTERED, "transposed"),
            ("transpose", "transpose.int", REGISTERED, "transposed"),
            ("select", "select.int", REGISTERED, "selected"),
            ("slice", "slice.Tensor", NotHere("some entries of a unit are no unit"), "part"),
            ("index", "index.Tensor", _NO_FORMAL, "selected"),
        )
    ),
    *(
        _outside_graphs(
            name, f"{name}.default", _SHAPES, law=_NO_FORMAL, variable=variable,
            export=Python(f"{{0}}.{name}({{others}})"),
        )
        for name, variable in (("index_select", "selected"), ("flip", "reversed"))
    ),
    *(
        _outside_graphs(
            name, overload, _MATRICES, law=_NO_FORMAL, export=Python(form), results=results
        )
        for name, overload, form, results in (
            ("eigh", "_linalg_eigh.default", "torch.linalg.eigh({0})",
             ("eigenvalues", "eigenvectors")),
            ("qr", "linalg_qr.default", "torch.linalg.qr({arguments})", ("basis", "triangle")),
            ("svd", "_linalg_svd.default", "torch.linalg.svd({0}, full_matrices=False)",
             ("left", "singular_values", "right")),
            ("sort", "sort.default", "{0}.sort({others})", ("ordered", "order")),
        )
    ),
    # Bits, for rounding at random.
    _outside_graphs("arange", "arange.default", _SHAPES, export=REGISTERED, law=_NO_FORMAL,
                    variable="index"),
    *(
        _outside_graphs(
            name, overload, _BITS, law=_NO_FORMAL, export=Python(form), variable="bits"
        )
        for name, overload, form in (
            ("bits", "view.dtype", "{0}.view({others})"),
            ("bitwise_and", "bitwise_and.Scalar", "{0} & {1}"),
            ("bitwise_xor", "bitwise_xor.Tensor", "{0} ^ {1}"),
            ("right_shift", "__rshift__.Scalar", "{0} >> {1}"),
        )
    ),
)  # fmt: skip

OPERATIONS = {row.name: row for row in _ROWS}
"""By name. "cast" is no operation of aten: it rounds a scalar to float32."""

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

_NAME_OF_OVERLOAD = {overload: row.name for row in _ROWS for overload in row.overloads}


def of_overload(name: str) -> Operation | None:
    """Return the row of an overload such as "aten.add.Tensor" or "aten.add_.Tensor", else None.

    An operation of another library has no row, whatever its name.
    """
    library, packet, overload = name.split(".")
    if library != "aten":
        return None
    # The whole name comes first, since the underscores of __rshift__ do not say "in place".
    row_name = _NAME_OF_OVERLOAD.get(f"{packet}.{overload}") or _NAME_OF_OVERLOAD.get(
        f"{packet.removesuffix('_')}.{overload}", ""
    )
    return OPERATIONS.get(row_name)


def check_registered(column: Column, names: Iterable[str]) -> None:
    """Require that a backend has registered a function for each row that says so, and no others.

    A backend calls it when it is imported.

    Args:
        column: the backend's column.
        names: names of the rows for which the backend has functions. A row with a form in the table
            may have one, too, for calls with options.

    Raises:
        TypeError: a row says REGISTERED and has no function; or a function has no row.

    Example:
        >>> from spherenorm.operations import check_registered
        >>> try:
        ...     check_registered("law", ["add"])
        ... except TypeError as error:
        ...     print(str(error)[:50])
        law: no function is registered for mul, div, neg,
    """
    names = set(names)
    promised = [row.name for row in _ROWS if getattr(row, column) is REGISTERED]
    missing = [name for name in promised if name not in names]
    if missing:
        raise TypeError(
            f"{column}: no function is registered for {', '.join(missing)}, whose rows in "
            f"spherenorm.operations say REGISTERED; register one, or write {column}=NotHere(reason)"
        )
    unknown = sorted(
        name
        for name in names
        if name not in OPERATIONS or isinstance(getattr(OPERATIONS[name], column), NotHere)
    )
    if unknown:
        raise TypeError(
            f"{column}: functions are registered for {', '.join(unknown)}, which have no row in "
            f"spherenorm.operations with {column}=REGISTERED; write it"
        )
