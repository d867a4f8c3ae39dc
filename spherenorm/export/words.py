"""Torch as text: an expression for each operation of a record that `export` can write.

A value is a tensor, or a number of the host: what is computed from hyper-parameters and the counter
of steps alone is Python's arithmetic.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Text:
    """A value as text.

    Attributes:
        text: the expression.
        host: it is a number of Python's, not a tensor.
        shape: of the tensor.
        boolean: its entries are truth values.
        shared: the tensor may be an input, or a view of one.
        made_by: the operation that it is the value of.
    """

    text: str
    host: bool = False
    shape: torch.Size | None = None
    boolean: bool = False
    shared: bool = False
    made_by: str = ""

    def __str__(self) -> str:
        return f"({self.text})"  # of which `ast.unparse` leaves those that are needed


INFIX = {
    "add": "{} + {}", "sub": "{} - {}", "mul": "{} * {}", "div": "{} / {}", "pow": "{} ** {}",
    "lt": "{} < {}", "le": "{} <= {}", "gt": "{} > {}", "ge": "{} >= {}", "eq": "{} == {}",
    "ne": "{} != {}", "rsub": "{1} - {0}", "neg": "-{}", "mm": "{} @ {}", "bmm": "{} @ {}",
    "mv": "{} @ {}", "dot": "{} @ {}", "reciprocal": "1 / {}", "remainder": "{} % {}",
}  # fmt: skip
LOGIC = {
    "logical_and": ("{} & {}", "{} and {}"), "bitwise_and": ("{} & {}", "{} and {}"),
    "logical_or": ("{} | {}", "{} or {}"), "bitwise_or": ("{} | {}", "{} or {}"),
    "logical_not": ("~{}", "not {}"), "bitwise_not": ("~{}", "not {}"),
}  # fmt: skip
METHODS = {
    "sqrt", "rsqrt", "abs", "sign", "exp", "log", "log1p", "expm1", "sin", "cos", "tan", "tanh",
    "atan", "acos", "asin", "sigmoid", "square", "sinc", "amax", "amin", "sum", "mean", "any",
    "all", "cumsum", "prod",
}  # fmt: skip
SAME = {"detach", "clone", "alias", "contiguous", "lift_fresh"}
RESHAPES = {"view", "_unsafe_view", "reshape", "expand"}
FUNCTIONS = {"ones_like", "zeros_like", "maximum", "minimum", "where", "lerp"}
HOST = {"abs": "abs({})", "sign": "math.copysign(bool({0}), {0})", "any": "{}", "all": "{}",
        "square": "{0} ** 2", "rsqrt": "1 / math.sqrt({})", "maximum": "max({}, {})",
        "minimum": "min({}, {})", "sum": "{}"}  # fmt: skip


class NoWordError(ValueError):
    """An operation that `export` cannot write."""


def word(name: str, result: Any, args: Sequence[Any], options: dict[str, Any]) -> Text:
    """The text of a call.

    Args:
        name: aten's operation, such as "add".
        result: its value, or several.
        args, options: its arguments: a `Text` for each value and each number.

    Raises:
        NoWordError: there is none.
    """
    if not hasattr(result, "shape"):
        raise NoWordError(f"{name}, which has several results")
    values = [each for each in args if isinstance(each, Text)]
    host = all(each.host for each in values) and not result.shape
    boolean, shape = result.dtype is torch.bool, result.shape

    def made(text: str, **more: Any) -> Text:
        return Text(text, host, shape, boolean, made_by=name, **more)

    if name in SAME or (name in RESHAPES and values[0].shape == shape) or _is_cast(name, values):
        return values[0]
    if name in _VIEWS:
        return made(_VIEWS[name](args, options, shape), shared=values[0].shared)
    if name in LOGIC:
        return made(LOGIC[name][host].format(*values))
    if name in ("add", "sub", "rsub", "addcmul", "addcdiv"):
        scale = options.get("alpha", options.get("value"))
        scale = args[2] if name == "rsub" and len(args) > 2 else scale
        x, *others = values[: 3 if name.startswith("addc") else 2]
        if name.startswith("addc"):
            joined = f"{others[0]} {'*' if name == 'addcmul' else '/'} {others[1]}"
            name, others = "add", [Text(joined)]
        if scale is not None and scale.text != "1":
            others[0] = Text(f"{scale} * {others[0]}")
        if name == "add" and others[0].text == "0" and x.shape == shape:
            return x
        return made(INFIX[name].format(x, *others))
    if name == "mul" and values[1].text == "1" and values[0].shape == shape and not boolean:
        return values[0]
    if name in INFIX:
        return made(INFIX[name].format(*values))
    if name == "lerp" and (values[0].host or values[1].host):
        return made("{0} + {2} * ({1} - {0})".format(*values))
    if name == "where":
        both = values[1].host and values[2].host
        for i in (1, 2):  # a branch that is a tensor; of two numbers, torch would make float32
            if values[i].host and not host and (values[0].host or (both and i == 1)):
                values[i] = Text(f"weight.new_full((), {values[i].text})")
        if values[0].host:
            shared = values[1].shared or values[2].shared
            return made("{1} if {0} else {2}".format(*values), shared=shared)
    if name in ("clamp", "clamp_min", "clamp_max"):
        return made(_clamp(name, values[0], args[1:], options, host))
    if name in ("maximum", "minimum") and any(x.host for x in values) and not host:
        x, bound = sorted(values, key=lambda each: each.host)
        side = "min" if name == "maximum" else "max"
        return made(f"{x}.clamp({side}={bound.text})")
    if host and (name in HOST or name in METHODS):
        known = HOST.get(name, f"math.{name}({{}})")
        return made(known.format(*(values[:2] if "max" in name or "min" in name else values[:1])))
    if name in ("zeros", "ones", "scalar_tensor", "full") and host:
        return Text(
            {"zeros": "0.0", "ones": "1.0"}.get(name) or args[-1].text, True, shape, boolean
        )
    if name == "softplus":
        return made(f"torch.nn.functional.softplus({_listed(args, options)})")
    if name == "new_full":
        return made(f"{args[0]}.new_full({_listed(args[1:3], {})})")
    if name == "full_like":
        return made(f"torch.full_like({_listed(args, {})})")
    if name.endswith("_like") and values[0].boolean and not boolean:
        return made(f"torch.{name}({values[0].text}, dtype=weight.dtype)")
    if name in FUNCTIONS:
        return made(f"torch.{name}({_listed(values, {})})")
    if name in METHODS:
        return made(f"{values[0]}.{name}({_listed(args[1:], options)})")
    if name == "_to_copy" and boolean == values[0].boolean:
        return made(f"{values[0]}.to({options['dtype'].text})")
    if name == "_to_copy":
        return made(f"{values[0]}.to(weight.dtype)")
    raise NoWordError(name)


def _is_cast(name: str, values: Sequence[Text]) -> bool:
    return name == "_to_copy" and values[0].host


def _clamp(name: str, x: Text, bounds: Sequence[Any], options: dict[str, Any], host: bool) -> str:
    sides = ("max",) if name == "clamp_max" else ("min", "max")
    given = {**dict(zip(sides, bounds, strict=False)), **options}
    given = {side: bound for side, bound in given.items() if _shown(bound) != "None"}
    if host:
        text = x.text
        for side, bound in given.items():
            text = f"{'max' if side == 'min' else 'min'}({text}, {_shown(bound)})"
        return text
    return f"{x}.clamp({_listed((), given)})"


def _listed(args: Sequence[Any], options: dict[str, Any]) -> str:
    named = [f"{key}={_shown(value)}" for key, value in options.items()]
    return ", ".join([*map(_shown, args), *named])


def _shown(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_shown, value))}]"
    return value.text if isinstance(value, Text) else repr(value)


def _permuted(args: Sequence[Any], options: dict[str, Any], shape: Any) -> str:
    dims = [int(each.text) for each in args[1]]
    last = [*range(len(dims) - 2), len(dims) - 1, len(dims) - 2]
    return f"{args[0]}.mT" if dims == last else f"{args[0]}.permute({_shown(args[1])})"


def _transposed(args: Sequence[Any], options: dict[str, Any], shape: Any) -> str:
    dims = sorted(int(each.text) % len(shape) for each in args[1:])
    both = [len(shape) - 2, len(shape) - 1]
    return f"{args[0]}.mT" if dims == both else f"{args[0]}.transpose({_listed(args[1:], {})})"


def _sliced(args: Sequence[Any], options: dict[str, Any], shape: Any) -> str:
    dim, *ends = [each.text for each in args[1:]]
    start, end, *step = [*ends, "0", str(sys.maxsize)][: max(len(ends), 2)]
    parts = ["" if start == "0" else start, "" if end == str(sys.maxsize) else end, *step]
    return f"{args[0]}[{':, ' * (int(dim) % len(shape))}{':'.join(parts)}]"


def _sized(method: str) -> Callable[..., str]:
    return lambda args, options, shape: f"{args[0]}.{method}({_listed(args[1:], options)})"


_VIEWS: dict[str, Callable[..., str]] = {
    "view": _sized("reshape"), "_unsafe_view": _sized("reshape"), "reshape": _sized("reshape"),
    "expand": _sized("expand"), "unsqueeze": _sized("unsqueeze"), "squeeze": _sized("squeeze"),
    "t": lambda args, options, shape: f"{args[0]}.mT", "permute": _permuted,
    "transpose": _transposed, "select": _sized("select"), "slice": _sliced,
}  # fmt: skip

_OF_SIZES: dict[str, Callable[..., float]] = {
    "{0}": lambda x: x,
    "1 / {0}": lambda x: 1 / x,
    "math.sqrt({0})": math.sqrt,
    "1 / math.sqrt({0})": lambda x: 1 / math.sqrt(x),
}


def of_shape(values: Sequence[float], shapes: Sequence[tuple[int, ...]]) -> str | None:
    """A number that differs with a weight's shape, as a function of it; None if none is known.

    Example:
        >>> of_shape([3.0, 4.0], [(2, 9), (2, 16)])
        'math.sqrt(columns)'
    """
    sizes: dict[str, Sequence[float]] = {"size": [math.prod(s) for s in shapes]}
    if len(shapes[0]) == 2:
        rows, columns = ([s[i] for s in shapes] for i in (0, 1))
        pairs = list(zip(rows, columns, strict=True))
        sizes = {"rows": rows, "columns": columns, "rows * columns": sizes["size"]}
        sizes["rows / columns"] = [m / n for m, n in pairs]
    for known, numbers in sizes.items():
        for form, function in _OF_SIZES.items():
            ratios = [v / function(x) for v, x in zip(values, numbers, strict=True)]
            if all(math.isclose(r, ratios[0], rel_tol=1e-13) for r in ratios):
                inside = known if form.count("(") or known.isidentifier() else f"({known})"
                text = form.format(inside)
                if math.isclose(ratios[0], 1, rel_tol=1e-13):
                    return text
                return f"{ratios[0]!r} * {text}" if "/" not in text else f"{ratios[0]!r} * ({text})"
    return None
