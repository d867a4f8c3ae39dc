"""Print one recorded operation as a Python expression.

A value is a tensor, or a Python number if it depends on hyper-parameters and the step count alone:

    torch.lerp(exp_avg, grad, 1 - beta1)    # a tensor
    1 - beta1**step                         # a number
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch


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
        op: the name of the operation that returned the value.
    """

    text: str
    is_number: bool = False
    shape: torch.Size | None = None
    is_boolean: bool = False
    may_alias: bool = False
    op: str = ""

    def __str__(self) -> str:
        return f"({self.text})"  # `unparse` removes the parentheses that are not needed


# Operators have one form for tensors and numbers.
INFIX = {
    "add": "{} + {}", "sub": "{} - {}", "mul": "{} * {}", "div": "{} / {}", "pow": "{} ** {}",
    "lt": "{} < {}", "le": "{} <= {}", "gt": "{} > {}", "ge": "{} >= {}", "eq": "{} == {}",
    "ne": "{} != {}", "rsub": "{1} - {0}", "neg": "-{}", "mm": "{} @ {}", "bmm": "{} @ {}",
    "mv": "{} @ {}", "dot": "{} @ {}", "reciprocal": "1 / {}", "remainder": "{} % {}",
}  # fmt: skip
# Logic has a form for tensors, and one for Python bools.
LOGIC = {
    "logical_and": ("{} & {}", "{} and {}"), "bitwise_and": ("{} & {}", "{} and {}"),
    "logical_or": ("{} | {}", "{} or {}"), "bitwise_or": ("{} | {}", "{} or {}"),
    "logical_not": ("~{}", "not {}"), "bitwise_not": ("~{}", "not {}"),
}  # fmt: skip
TENSOR_METHODS = {
    "sqrt", "rsqrt", "abs", "sign", "exp", "log", "log1p", "expm1", "sin", "cos", "tan", "tanh",
    "atan", "acos", "asin", "sigmoid", "square", "sinc", "amax", "amin", "sum", "mean", "any",
    "all", "cumsum", "prod",
}  # fmt: skip
TORCH_FUNCTIONS = {"ones_like", "zeros_like", "maximum", "minimum", "where", "lerp"}
# Other operations on numbers are functions of `math` with torch's name.
NUMBER_FORMS = {
    "abs": "abs({})", "sign": "math.copysign(bool({0}), {0})", "any": "{}", "all": "{}",
    "square": "{0} ** 2", "rsqrt": "1 / math.sqrt({})", "maximum": "max({}, {})",
    "minimum": "min({}, {})", "sum": "{}",
}  # fmt: skip
NUMBER_CONSTANTS = {"zeros": "0.0", "ones": "1.0"}
IDENTITIES = {"detach", "clone", "alias", "contiguous", "lift_fresh"}
RESHAPES = {"view", "_unsafe_view", "reshape", "expand"}


def expression(op: str, result: Any, args: Sequence[Any], options: dict[str, Any]) -> Expression:
    """Return the expression of an operation.

    Args:
        op: the name of the operation in aten, such as "add".
        result: the recorded value, or several.
        args: the positional arguments, with an `Expression` for each value and each number.
        options: the keyword arguments, likewise.

    Raises:
        UnsupportedOpError: there is no expression.
    """
    if not hasattr(result, "shape"):
        raise UnsupportedOpError(f"{op}, which returns several tensors,")
    operands = [arg for arg in args if isinstance(arg, Expression)]
    is_number = all(operand.is_number for operand in operands) and not result.shape
    is_boolean, shape = result.dtype is torch.bool, result.shape

    def value(text: str, may_alias: bool = False) -> Expression:
        return Expression(text, is_number, shape, is_boolean, may_alias, op)

    if _returns_first_operand(op, operands, shape, is_boolean):
        return operands[0]
    if op in _VIEWS:
        return value(_VIEWS[op](args, options, shape), may_alias=operands[0].may_alias)
    if op in LOGIC:
        tensor_form, number_form = LOGIC[op]
        return value((number_form if is_number else tensor_form).format(*operands))
    if op in ("add", "sub", "rsub", "addcmul", "addcdiv"):
        return _sum(op, args, options, value)
    if op in INFIX:
        return value(INFIX[op].format(*operands))
    if op == "lerp" and (operands[0].is_number or operands[1].is_number):
        return value("{0} + {2} * ({1} - {0})".format(*operands))
    if op == "where":
        return _where(operands, is_number, value)
    if op in ("clamp", "clamp_min", "clamp_max"):
        return value(_clamp(op, operands[0], args[1:], options, is_number))
    if op in ("maximum", "minimum") and not is_number and any(x.is_number for x in operands):
        tensor, bound = sorted(operands, key=lambda operand: operand.is_number)
        side = "min" if op == "maximum" else "max"
        return value(f"{tensor}.clamp({side}={bound.text})")
    if is_number and (op in NUMBER_FORMS or op in TENSOR_METHODS):
        n_operands = 2 if op in ("maximum", "minimum", "amax", "amin") else 1
        form = NUMBER_FORMS.get(op, f"math.{op}({{}})")
        return value(form.format(*operands[:n_operands]))
    if is_number and op in ("zeros", "ones", "scalar_tensor", "full"):
        text = NUMBER_CONSTANTS.get(op) or args[-1].text
        return Expression(text, True, shape, is_boolean)
    return value(_tensor_call(op, args, operands, options, is_boolean))


def _returns_first_operand(
    op: str, operands: Sequence[Expression], shape: torch.Size, is_boolean: bool
) -> bool:
    """Return True if the operation copies, reshapes to the same shape, or multiplies by 1."""
    if op in IDENTITIES:
        return True
    if op == "_to_copy":
        return operands[0].is_number
    if op in RESHAPES:
        return operands[0].shape == shape
    if op == "mul":
        return operands[1].text == "1" and operands[0].shape == shape and not is_boolean
    return False


def _sum(
    op: str, args: Sequence[Any], options: dict[str, Any], value: Callable[..., Expression]
) -> Expression:
    """Return x + scale * y; also x - scale * y, and x + scale * (y * z) or (y / z)."""
    scale = options.get("alpha", options.get("value"))
    if op == "rsub" and len(args) > 2:
        scale = args[2]
    x, y = args[0], args[1]
    form = INFIX["add"]
    if op == "addcmul":
        y = Expression(f"{args[1]} * {args[2]}")
    elif op == "addcdiv":
        y = Expression(f"{args[1]} / {args[2]}")
    else:
        form = INFIX[op]
    if scale is not None and scale.text != "1":
        y = Expression(f"{scale} * {y}")
    result = value(form.format(x, y))
    if form == INFIX["add"] and y.text == "0" and x.shape == result.shape:
        return x  # type: ignore[no-any-return]
    return result


def _where(
    operands: Sequence[Expression], is_number: bool, value: Callable[..., Expression]
) -> Expression:
    condition, if_true, if_false = operands

    def as_tensor(operand: Expression) -> Expression:
        return Expression(f"weight.new_full((), {operand.text})")

    may_alias = if_true.may_alias or if_false.may_alias
    # torch.where of two numbers returns float32, and one of two branches of Python's `if` must not
    # be a number if the other one is a tensor.
    both_are_numbers = if_true.is_number and if_false.is_number
    if not is_number:
        if if_true.is_number and (condition.is_number or both_are_numbers):
            if_true = as_tensor(if_true)
        if if_false.is_number and condition.is_number:
            if_false = as_tensor(if_false)
    if condition.is_number:
        return value(f"{if_true} if {condition} else {if_false}", may_alias=may_alias)
    return value(f"torch.where({condition.text}, {if_true.text}, {if_false.text})")


def _clamp(
    op: str, x: Expression, bounds: Sequence[Any], options: dict[str, Any], is_number: bool
) -> str:
    sides = ("max",) if op == "clamp_max" else ("min", "max")
    limits = {**dict(zip(sides, bounds, strict=False)), **options}
    limits = {side: bound for side, bound in limits.items() if _argument(bound) != "None"}
    if not is_number:
        return f"{x}.clamp({_arguments((), limits)})"
    text = x.text
    for side, bound in limits.items():
        function = "max" if side == "min" else "min"
        text = f"{function}({text}, {_argument(bound)})"
    return text


def _tensor_call(
    op: str,
    args: Sequence[Any],
    operands: Sequence[Expression],
    options: dict[str, Any],
    is_boolean: bool,
) -> str:
    """Return the call of a function of torch, or of a method of a tensor.

    Raises:
        UnsupportedOpError: there is none.
    """
    if op == "softplus":
        return f"torch.nn.functional.softplus({_arguments(args, options)})"
    if op == "new_full":
        return f"{args[0]}.new_full({_arguments(args[1:3])})"
    if op == "full_like":
        return f"torch.full_like({_arguments(args)})"
    if op.endswith("_like") and operands[0].is_boolean and not is_boolean:
        return f"torch.{op}({operands[0].text}, dtype=weight.dtype)"
    if op in TORCH_FUNCTIONS:
        return f"torch.{op}({_arguments(operands)})"
    if op in TENSOR_METHODS:
        return f"{operands[0]}.{op}({_arguments(args[1:], options)})"
    if op == "_to_copy":
        dtype = options["dtype"].text if is_boolean == operands[0].is_boolean else "weight.dtype"
        return f"{operands[0]}.to({dtype})"
    raise UnsupportedOpError(op)


def _arguments(args: Sequence[Any], options: Mapping[str, Any] | None = None) -> str:
    keywords = [f"{key}={_argument(value)}" for key, value in (options or {}).items()]
    return ", ".join([*map(_argument, args), *keywords])


def _argument(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_argument, value))}]"
    return value.text if isinstance(value, Expression) else repr(value)


# Views


def _permute(args: Sequence[Any], options: dict[str, Any], shape: Any) -> str:
    dims = [int(dim.text) for dim in args[1]]
    matrix_transpose = [*range(len(dims) - 2), len(dims) - 1, len(dims) - 2]
    if dims == matrix_transpose:
        return f"{args[0]}.mT"
    return f"{args[0]}.permute({_argument(args[1])})"


def _transpose(args: Sequence[Any], options: dict[str, Any], shape: Any) -> str:
    dims = sorted(int(dim.text) % len(shape) for dim in args[1:])
    if dims == [len(shape) - 2, len(shape) - 1]:
        return f"{args[0]}.mT"
    return f"{args[0]}.transpose({_arguments(args[1:])})"


def _slice(args: Sequence[Any], options: dict[str, Any], shape: Any) -> str:
    end_of_dim = str(sys.maxsize)
    dim, *bounds = [arg.text for arg in args[1:]]
    start, end, *step = [*bounds, "0", end_of_dim][: max(len(bounds), 2)]
    parts = ["" if start == "0" else start, "" if end == end_of_dim else end, *step]
    return f"{args[0]}[{':, ' * (int(dim) % len(shape))}{':'.join(parts)}]"


def _method(name: str) -> Callable[..., str]:
    return lambda args, options, shape: f"{args[0]}.{name}({_arguments(args[1:], options)})"


_VIEWS: dict[str, Callable[..., str]] = {
    "view": _method("reshape"), "_unsafe_view": _method("reshape"), "reshape": _method("reshape"),
    "expand": _method("expand"), "unsqueeze": _method("unsqueeze"), "squeeze": _method("squeeze"),
    "t": lambda args, options, shape: f"{args[0]}.mT", "permute": _permute,
    "transpose": _transpose, "select": _method("select"), "slice": _slice,
}  # fmt: skip


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
            if math.isclose(factors[0], 1, rel_tol=1e-13):
                return text
            return f"{factors[0]!r} * ({text})" if "/" in text else f"{factors[0]!r} * {text}"
    return None
