"""Print one recorded operation as a Python expression.

A value is a tensor, or a Python number if it depends on hyper-parameters and the step count alone:

    torch.lerp(exp_avg, grad, 1 - beta1)    # a tensor
    1 - beta1**step                         # a number
"""

from __future__ import annotations

import ast
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch

from spherenorm.numerics import HALF_DTYPES
from spherenorm.operations import NotHere, Operation, Python, check_registered, of_overload
from spherenorm.record import Call, TensorRef

Printer = TypeVar("Printer", bound="Callable[[RecordedCall], Expression]")


class UnsupportedOpError(ValueError):
    """An operation, or a number, for which there is no expression."""


@dataclass(frozen=True)
class Expression:
    """A value of a recorded step, as Python text.

    Attributes:
        text: the expression.
        is_number: True for a Python number or bool, False for a tensor.
        shape: the shape of the tensor.
        is_boolean: True if the entries are booleans.
        may_alias: True if the tensor may share memory with the weight, the gradient or a state.
        variable: the name of a variable that would hold the value.
        is_branch: a number chooses one of two tensors.
        is_wide: the tensor is float64 whatever the weight is.
    """

    text: str
    is_number: bool = False
    shape: torch.Size | None = None
    is_boolean: bool = False
    may_alias: bool = False
    variable: str = ""
    is_branch: bool = False
    is_wide: bool = False

    def __str__(self) -> str:
        return f"({self.text})"  # `unparse` removes the parentheses that are not needed


Operands = Sequence[Expression]
Options = Mapping[str, Any]


@dataclass(frozen=True)
class RecordedCall:
    """A recorded operation, with expressions in the place of its tensors and numbers.

    Attributes:
        row: the operation's.
        arguments, options: positional and keyword arguments.
        shape: the shape of the result.
        dtype: the dtype of the result in the record.
        is_number: the result is a Python number.
    """

    row: Operation
    arguments: Sequence[Any]
    options: Options
    shape: torch.Size
    dtype: torch.dtype
    is_number: bool

    @property
    def is_boolean(self) -> bool:
        """True if the entries of the result are booleans."""
        return self.dtype is torch.bool

    @property
    def operands(self) -> Operands:
        """The positional arguments that are tensors or numbers."""
        return [x for x in self.arguments if isinstance(x, Expression)]

    def value(self, text: str, may_alias: bool = False) -> Expression:
        """Return the expression of the result."""
        return Expression(
            text, self.is_number, self.shape, self.is_boolean, may_alias, self.row.variable
        )


PRINTERS: dict[str, Callable[[RecordedCall], Expression]] = {}
"""Functions that print the operations whose rows say REGISTERED, by name."""


def prints(*names: str) -> Callable[[Printer], Printer]:
    """Register the function that prints some operations."""

    def add_printer(printer: Printer) -> Printer:
        PRINTERS.update(dict.fromkeys(names, printer))
        return printer

    return add_printer


def expression(call: Call, arguments: Sequence[Any], options: Options) -> Expression:
    """Return the expression of an operation.

    Args:
        call: as recorded.
        arguments: the positional arguments, with an `Expression` for each value and each number.
        options: the keyword arguments, likewise.

    Raises:
        UnsupportedOpError: there is no expression.
    """
    row = of_overload(call.name)
    result = call.result[0] if row is not None and row.results else call.result
    if not hasattr(result, "shape"):
        raise UnsupportedOpError(f"{call.packet}, which returns several tensors,")
    if row is None:
        raise UnsupportedOpError(call.name.removeprefix("aten.").removesuffix(".default"))
    if isinstance(row.export, NotHere):
        raise UnsupportedOpError(f"{call.packet} ({row.export.reason})")
    operands = [x for x in arguments if isinstance(x, Expression)]
    is_number = all(operand.is_number for operand in operands) and not result.shape
    if is_number and result.dtype in (torch.float32, *HALF_DTYPES):
        constant = _print_short_number(call, row, arguments)
        if constant:
            return Expression(constant, True, result.shape)
    recorded = RecordedCall(row, arguments, options, result.shape, result.dtype, is_number)
    if not isinstance(row.export, Python):
        return PRINTERS[row.name](recorded)
    template = row.export.numbers if is_number else row.export.tensors
    if template is None:
        raise UnsupportedOpError(f"{call.packet} of a number")
    text = template.format(
        *operands,
        arguments=_print_arguments(arguments, options),
        others=_print_arguments(arguments[1:], options),
    )
    return recorded.value(text)


# Python numbers, which have the precision of float64


def _print_short_number(call: Call, row: Operation, arguments: Sequence[Any]) -> str:
    """Return the constant that an operation in less than float64 makes of constants.

    The constant 0.1 is 0.10000000149011612 in float32. "" if there are other operands, and the
    operation rounds none, so that its expression has the same value.

    Raises:
        UnsupportedOpError: the operation rounds a number that is no constant.
    """
    values = []
    is_constant = True
    for value, argument in zip(call.arguments, arguments, strict=True):
        if isinstance(value, TensorRef):
            try:
                number = ast.literal_eval(argument.text)
            except ValueError:
                is_constant = False
                break
            value = torch.tensor(number, dtype=value.dtype)  # noqa: PLW2901
        values.append(value)
    if is_constant:
        return repr(call.function(*values, **call.options).item())
    if row.name in ("where", "copy", "neg", "abs", "reshape"):
        return ""
    raise UnsupportedOpError(
        f"{row.name} of numbers in {call.result.dtype} (compute in the dtype of the step count t, "
        "as in (t > 100).to(t.dtype) * 0.1)"
    )


def _constant(call: RecordedCall, number: Expression | str) -> Expression:
    """Return a number as a boolean, an int or a float, as the dtype of the result says."""
    text = number if isinstance(number, str) else number.text
    if not call.dtype.is_floating_point:
        convert = bool if call.is_boolean else int
        try:
            text = repr(convert(float(text)))
        except ValueError:
            text = f"{convert.__name__}({text})"
    return Expression(text, True, call.shape, call.is_boolean)


# Sums and products


@prints("add", "sub", "rsub", "addcmul", "addcdiv")
def _print_sum(call: RecordedCall) -> Expression:
    """Print x + scale * y; also x - scale * y, and x + scale * (y * z) or (y / z)."""
    name, arguments = call.row.name, call.arguments
    scale = call.options.get("alpha", call.options.get("value"))
    if name == "rsub" and len(arguments) > 2:
        scale = arguments[2]
    x, y = arguments[0], arguments[1]
    if name == "addcmul":
        y = Expression(f"{arguments[1]} * {arguments[2]}")
    elif name == "addcdiv":
        y = Expression(f"{arguments[1]} / {arguments[2]}")
    if scale is not None and scale.text != "1":
        y = Expression(f"{scale} * {y}")
    if name == "sub":
        return call.value(f"{x} - {y}")
    if name == "rsub":
        return call.value(f"{y} - {x}")
    if y.text == "0" and x.shape == call.shape:
        return x  # type: ignore[no-any-return]
    return call.value(f"{x} + {y}")


@prints("mul")
def _print_product(call: RecordedCall) -> Expression:
    x, y = call.operands
    if y.text == "1" and x.shape == call.shape and not call.is_boolean:
        return x
    return call.value(f"{x} * {y}")


@prints("lerp")
def _print_lerp(call: RecordedCall) -> Expression:
    x, y, weight = call.operands
    if x.is_number or y.is_number:
        return call.value(f"{x} + {weight} * ({y} - {x})")
    return call.value(f"torch.lerp({_print_arguments(call.operands)})")


# Decisions


@prints("where")
def _print_where(call: RecordedCall) -> Expression:
    condition, if_true, if_false = call.operands

    def as_tensor(operand: Expression, other: Expression) -> Expression:
        if call.shape and other.shape == call.shape:
            return Expression(f"torch.full_like({other.text}, {operand.text})")
        return Expression(f"weight.new_full((), {operand.text})")

    may_alias = if_true.may_alias or if_false.may_alias
    # torch.where of two numbers returns float32, and one of two branches of Python's `if` must not
    # be a number if the other one is a tensor.
    both_are_numbers = if_true.is_number and if_false.is_number
    if not call.is_number:
        if if_true.is_number and (condition.is_number or both_are_numbers):
            if_true = as_tensor(if_true, if_false)
        if if_false.is_number and condition.is_number:
            if_false = as_tensor(if_false, if_true)
    if condition.is_number:
        value = call.value(f"{if_true} if {condition} else {if_false}", may_alias)
        return replace(value, is_branch=not call.is_number)
    return call.value(f"torch.where({condition.text}, {if_true.text}, {if_false.text})")


@prints("maximum", "minimum")
def _print_extreme(call: RecordedCall) -> Expression:
    name, operands = call.row.name, call.operands
    if call.is_number:
        function = "max" if name == "maximum" else "min"
        return call.value(f"{function}({operands[0].text}, {operands[1].text})")
    tensor, bound = sorted(operands, key=lambda operand: operand.is_number)
    if bound.is_number:
        side = "min" if name == "maximum" else "max"
        return call.value(f"{tensor}.clamp({side}={bound.text})")
    return call.value(f"torch.{name}({_print_arguments(operands)})")


@prints("clamp")
def _print_clamp(call: RecordedCall) -> Expression:
    x, *bounds = call.arguments
    limits = {**dict(zip(("min", "max"), bounds, strict=False)), **call.options}
    limits = {side: bound for side, bound in limits.items() if _print_argument(bound) != "None"}
    if not call.is_number:
        return call.value(f"{x}.clamp({_print_arguments((), limits)})")
    text = x.text
    for side, bound in limits.items():
        function = "max" if side == "min" else "min"
        text = f"{function}({text}, {_print_argument(bound)})"
    return call.value(text)


# Constants


@prints("zeros", "ones", "full", "scalar_tensor")
def _print_number(call: RecordedCall) -> Expression:
    if not call.is_number:
        raise UnsupportedOpError(call.row.name)
    return _constant(call, {"zeros": "0.0", "ones": "1.0"}.get(call.row.name) or call.arguments[-1])


@prints("arange")
def _print_arange(call: RecordedCall) -> Expression:
    dtype = call.options["dtype"].text
    text = f"torch.arange({call.arguments[0].text}, dtype={dtype}, device=weight.device)"
    return replace(call.value(text), is_number=False)


@prints("new_full")
def _print_new_full(call: RecordedCall) -> Expression:
    if call.is_number:
        return _constant(call, call.arguments[-1])
    return call.value(f"{call.arguments[0]}.new_full({_print_arguments(call.arguments[1:3])})")


@prints("zeros_like", "ones_like", "full_like")
def _print_constant_like(call: RecordedCall) -> Expression:
    operands = call.operands
    if call.is_number:
        fill = {"zeros_like": "0.0", "ones_like": "1.0"}.get(call.row.name) or operands[1]
        return _constant(call, fill)
    dtype = call.options.get("dtype")
    keeps_dtype = dtype is None or (
        dtype.text == "weight.dtype" and not operands[0].is_boolean and not operands[0].is_wide
    )
    options = {} if keeps_dtype else {"dtype": dtype}
    return call.value(f"torch.{call.row.name}({_print_arguments(operands, options)})")


# Copies


@prints("copy")
def _print_copy(call: RecordedCall) -> Expression:
    return call.operands[0]


@prints("convert")
def _print_conversion(call: RecordedCall) -> Expression:
    x, dtype = call.operands[0], call.options["dtype"].text
    if x.is_number and dtype == "torch.int32":
        # A tensor, since products of int32 wrap around, and those of Python's numbers do not.
        text = f"weight.new_full((), int({x.text}), dtype={dtype})"
        return replace(call.value(text), is_number=False)
    if x.is_number:
        is_exact = call.dtype is torch.float64 or (x.is_boolean and call.is_boolean)
        return x if is_exact else _constant(call, x)
    return call.value(f"{x}.to({dtype})")


def convert_float(x: Expression, dtype: str) -> Expression:
    """Return a tensor of floats in another dtype, and a number as it is.

    Args:
        x: the tensor or number.
        dtype: the expression of the dtype.
    """
    if x.is_number:
        return x
    is_wide = dtype == "torch.float64"
    text = f"{x}.double()" if is_wide else f"{x}.to({dtype})"
    # A tensor that has the dtype already is returned as it is, with its memory.
    variable = f"{x.text}_{dtype.rpartition('.')[2]}" if x.text.isidentifier() else "converted"
    return Expression(
        text, shape=x.shape, may_alias=x.may_alias, variable=variable, is_wide=is_wide
    )


def _print_arguments(arguments: Sequence[Any], options: Options | None = None) -> str:
    keywords = [f"{key}={_print_argument(value)}" for key, value in (options or {}).items()]
    return ", ".join([*map(_print_argument, arguments), *keywords])


def _print_argument(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_print_argument, value))}]"
    return value.text if isinstance(value, Expression) else repr(value)


# Views


def _print_view(call: RecordedCall, method: str, *arguments: Any) -> Expression:
    x = call.operands[0]
    return call.value(f"{x}.{method}({_print_arguments(arguments)})", x.may_alias)


@prints("reshape", "expand")
def _print_reshape(call: RecordedCall) -> Expression:
    x = call.operands[0]
    return x if x.shape == call.shape else _print_view(call, call.row.name, *call.arguments[1:])


@prints("unsqueeze", "squeeze", "select")
def _print_method(call: RecordedCall) -> Expression:
    return _print_view(call, call.row.name, *call.arguments[1:])


@prints("t", "permute", "transpose")
def _print_transpose(call: RecordedCall) -> Expression:
    x, n_dims = call.operands[0], len(call.shape)
    last_two = [n_dims - 2, n_dims - 1]
    if call.row.name == "permute":
        dims = [int(dim.text) for dim in call.arguments[1]]
        if dims == sorted(dims):
            return x
        is_matrix_transpose = dims == [*range(n_dims - 2), *reversed(last_two)]
    else:
        dims = sorted(int(dim.text) % n_dims for dim in call.arguments[1:])
        is_matrix_transpose = call.row.name == "t" or dims == last_two
    if is_matrix_transpose:
        return call.value(f"{x}.mT", x.may_alias)
    return _print_view(call, call.row.name, *call.arguments[1:])


@prints("slice")
def _print_slice(call: RecordedCall) -> Expression:
    x, end_of_dim = call.operands[0], str(sys.maxsize)
    dim, *bounds = [argument.text for argument in call.arguments[1:]]
    start, end, *step = [*bounds, "0", end_of_dim][: max(len(bounds), 2)]
    parts = ["" if start == "0" else start, "" if end == end_of_dim else end, *step]
    whole_dims = ":, " * (int(dim) % len(call.shape))
    return call.value(f"{x}[{whole_dims}{':'.join(parts)}]", x.may_alias)


@prints("index")
def _print_index(call: RecordedCall) -> Expression:
    x, indices = call.arguments
    places = [":" if index.text == "None" else index.text for index in indices]
    return call.value(f"{x}[{', '.join(places)}]")


check_registered("export", PRINTERS)


# Numbers that differ between shapes

_FUNCTIONS_OF_A_SIZE: dict[str, Callable[..., float]] = {
    "{0}": lambda size: size,
    "1 / {0}": lambda size: 1 / size,
    "math.sqrt({0})": math.sqrt,
    "1 / math.sqrt({0})": lambda size: 1 / math.sqrt(size),
}


def function_of_shape(values: Sequence[float], shapes: Sequence[tuple[int, ...]]) -> str | None:
    """Return a number that differs between shapes as a function of the shape, or None.

    Args:
        values: the number at each shape.
        shapes: shapes of one or two dimensions.

    Example:
        >>> function_of_shape([3.0, 4.0], [(2, 9), (2, 16)])
        'math.sqrt(columns)'
    """
    sizes: dict[str, Sequence[float]] = {"size": [math.prod(shape) for shape in shapes]}
    if len(shapes[0]) == 2:
        rows = [shape[0] for shape in shapes]
        columns = [shape[1] for shape in shapes]
        aspect_ratios = [m / n for m, n in zip(rows, columns, strict=True)]
        sizes = {
            "rows": rows,
            "columns": columns,
            "rows * columns": sizes["size"],
            "rows / columns": aspect_ratios,
        }
    for size, numbers in sizes.items():
        for form, function in _FUNCTIONS_OF_A_SIZE.items():
            factors = [v / function(x) for v, x in zip(values, numbers, strict=True)]
            if not all(math.isclose(factor, factors[0], rel_tol=1e-13) for factor in factors):
                continue
            is_call_or_name = "(" in form or size.isidentifier()
            text = form.format(size if is_call_or_name else f"({size})")
            factor = factors[0]
            if math.isclose(factor, 1, rel_tol=1e-13):
                return text
            short = float(f"{factor:.12g}")
            if math.isclose(factor, short, rel_tol=4e-16):
                factor = short  # 0.5 and not 0.5000000000000001
            return f"{factor!r} * ({text})" if "/" in text else f"{factor!r} * {text}"
    return None
