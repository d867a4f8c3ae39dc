"""The step of a rule as a graph of scalar, per-unit and elementwise values: what a compiler needs to know of it.

The graph is traced from the rule's own `step`, so the rule stays the one definition. Numbers that depend on a weight's
shape (delta / sqrt(dim)) and hyper-parameters become arguments, so that all shapes and values share one kernel.
"""

from __future__ import annotations

import enum
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from spherenorm.compile.guard import Guard, UnsupportedRuleError
from spherenorm.rule import Rule

__all__ = ["INPUTS", "Extent", "Node", "StepGraph", "trace"]


class Extent(enum.IntEnum):
    """How many values a node has for a weight of shape (C, ...): one, one per index of dimension 0, or one per entry."""

    SCALAR = 0
    ROW = 1
    FULL = 2


@dataclass(frozen=True)
class Node:
    """One value of the step.

    Attributes:
        index: its place in the graph; arguments have smaller ones.
        op: "weight", "grad", "state", "number" (an argument of the kernel), "sum", "any", "all", or an elementwise operation.
        arguments: indices of the nodes it is computed from.
        extent: how many values it has.
        boolean: whether they are truth values.
        single: whether a scalar or a row, which back ends keep in double, is rounded to float32,
            as the rule's own code rounds it.
        detail: a state's name, or a number's place among the arguments.
    """

    index: int
    op: str
    arguments: tuple[int, ...]
    extent: Extent
    boolean: bool = False
    single: bool = False
    detail: Any = None

    @property
    def name(self) -> str:
        """The tensor that an input is the value of before the step."""
        return str(self.detail) if self.op == "state" else self.op


INPUTS = {"weight", "grad", "state"}


@dataclass
class StepGraph:
    """The nodes of one step; `outputs` are the indices of the new weight ("weight") and of the new states by name.

    `literals` are the numbers that the trace found besides the hyper-parameters; they follow those among the kernel's
    arguments and may differ from shape to shape, while the nodes do not. `states` are the shape and dtype of each state.
    """

    nodes: list[Node] = field(default_factory=list)
    outputs: dict[str, int] = field(default_factory=dict)
    literals: list[float] = field(default_factory=list)
    states: dict[str, tuple[torch.Size, torch.dtype]] = field(default_factory=dict)

    @property
    def inputs(self) -> dict[str, Node]:
        """ "weight", "grad" and each state, by name."""
        return {n.name: n for n in self.nodes if n.op in INPUTS}


ELEMENTWISE = {
    "aten.add.Tensor": "add", "aten.add.Scalar": "add", "aten.sub.Tensor": "sub", "aten.sub.Scalar": "sub",
    "aten.rsub.Scalar": "rsub", "aten.rsub.Tensor": "rsub", "aten.mul.Tensor": "mul", "aten.mul.Scalar": "mul",
    "aten.div.Tensor": "div", "aten.div.Scalar": "div", "aten.neg.default": "neg", "aten.abs.default": "abs",
    "aten.reciprocal.default": "reciprocal", "aten.sqrt.default": "sqrt", "aten.rsqrt.default": "rsqrt",
    "aten.square.default": "square", "aten.sign.default": "sign", "aten.exp.default": "exp", "aten.log.default": "log",
    "aten.sin.default": "sin", "aten.cos.default": "cos", "aten.tanh.default": "tanh", "aten.sinc.default": "sinc",
    "aten.maximum.default": "max", "aten.minimum.default": "min", "aten.clamp_min.default": "max", "aten.clamp_max.default": "min",
    "aten.clamp_min.Tensor": "max", "aten.clamp_max.Tensor": "min",
    "aten.lt.Tensor": "lt", "aten.lt.Scalar": "lt", "aten.le.Tensor": "le", "aten.le.Scalar": "le",
    "aten.gt.Tensor": "gt", "aten.gt.Scalar": "gt", "aten.ge.Tensor": "ge", "aten.ge.Scalar": "ge",
    "aten.eq.Tensor": "eq", "aten.eq.Scalar": "eq", "aten.ne.Tensor": "ne", "aten.ne.Scalar": "ne",
    "aten.bitwise_and.Tensor": "and", "aten.logical_and.default": "and", "aten.bitwise_or.Tensor": "or",
    "aten.logical_or.default": "or", "aten.bitwise_not.default": "not", "aten.logical_not.default": "not",
    "aten.where.self": "where", "aten.lerp.Scalar": "lerp", "aten.lerp.Tensor": "lerp",
    "aten.pow.Scalar": "pow", "aten.pow.Tensor_Tensor": "pow", "aten.pow.Tensor_Scalar": "pow",
}  # fmt: skip
TERNARY = {"aten.where.self", "aten.lerp.Scalar", "aten.lerp.Tensor"}
COMPARISONS = {"lt", "le", "gt", "ge", "eq", "ne"}
LOGIC = {"and", "or", "not"}
TRANSPARENT = {
    "aten._to_copy.default",
    "aten.detach.default",
    "aten.alias.default",
    "aten.clone.default",
    "aten.lift_fresh_copy.default",
}
CONSTANT = {"aten.scalar_tensor.default": 0, "aten.full.default": 1, "aten.full_like.default": 1}


def _euclidean_norm(
    x: Tensor, order: float = 2, dim: Any = None, keepdim: bool = False, **options: Any
) -> Tensor:
    if order != 2 or any(v is not None for v in options.values()):
        raise UnsupportedRuleError(f"a norm of order {order} with {options}")
    return _summed(x.square(), dim, keepdim).sqrt()


def _mean(x: Tensor, dim: Any = None, keepdim: bool = False, **options: Any) -> Tensor:
    if any(v is not None for v in options.values()):
        raise UnsupportedRuleError(f"a mean with {options}")
    total = _summed(x, dim, keepdim)
    return total / (x.numel() / total.numel() if x.numel() else math.nan)


def _summed(x: Tensor, dim: Any, keepdim: bool) -> Tensor:
    return x.sum(list(range(x.ndim)) if dim is None else dim, keepdim=keepdim)


def _clamp(x: Tensor, low: Any = None, high: Any = None) -> Tensor:
    x = x if low is None else x.clamp_min(low)
    return x if high is None else x.clamp_max(high)


DERIVED: dict[str, Callable[..., Tensor]] = {
    "aten.addcdiv.default": lambda x, y, z, value=1: x + y / z if value == 1 else x + value * y / z,
    "aten.clamp.default": _clamp,
    "aten.clamp.Tensor": _clamp,
    "aten.mean.default": _mean,
    "aten.mean.dim": _mean,
    "aten.linalg_vector_norm.default": _euclidean_norm,
}
"""Operations that are traced as others, in torch's own order, which matters where a product overflows."""


def trace(guard: Guard, shape: tuple[int, ...], dtype: torch.dtype) -> StepGraph:
    """The graph of one step of a weight of that shape.

    Args:
        guard: the rule, whose numbers become the arguments of the graph.
        shape, dtype: of the weight; nothing of that size is allocated.

    Raises:
        UnsupportedRuleError: naming the rule and the operation.
    """
    try:
        return _trace(guard, shape, dtype)
    except UnsupportedRuleError as error:
        raise UnsupportedRuleError(f"{culprit(error, guard.rule)}: {error}") from error
    except Exception as error:
        if not guard.foreign:
            raise
        # A user's rule may do what a tensor without memory refuses, or be wrong: its own code says so.
        why = "its code reads a value of a tensor" if "meta tensor" in str(error) else str(error)
        raise UnsupportedRuleError(f"{culprit(error, guard.rule)}: {why}") from error


def culprit(error: BaseException, rule: Rule) -> str:
    """The name of the innermost rule whose code raised `error`."""
    name, frame = type(rule).__name__, error.__traceback__
    while frame is not None:
        owner = frame.tb_frame.f_locals.get("self")
        name = type(owner).__name__ if isinstance(owner, Rule) else name
        frame = frame.tb_next
    return name


def _trace(guard: Guard, shape: tuple[int, ...], dtype: torch.dtype) -> StepGraph:
    with torch.device("meta"):
        weight, grad = torch.empty(shape, dtype=dtype), torch.empty(shape, dtype=dtype)
        numbers = [torch.empty((), dtype=kept) for kept in guard.dtypes]
        rule = guard.with_numbers(numbers)
        # A rule may give one tensor twice, or the weight; here each is told from the others.
        state = {name: value.clone() for name, value in rule.init(weight).items()}
        extents = _state_extents(rule, shape, dtype)
    for name, value in state.items():
        if name in ("weight", "grad"):
            raise UnsupportedRuleError(f"a state called {name}")
        # Counters are kept in double, everything else in the type that is computed in.
        if value.dtype is not _computed_in(dtype) and not (
            value.ndim == 0 and value.dtype is torch.float64
        ):
            raise UnsupportedRuleError(f"a state {name} of dtype {value.dtype}")
        if value.ndim == 0 and shape and value.dtype is not torch.float64:
            raise UnsupportedRuleError(f"a counter {name} of dtype {value.dtype}")
    recorder = _Recorder(len(numbers), shape, dtype)
    recorder.input(weight, "weight", Extent.FULL)
    recorder.input(grad, "grad", Extent.FULL)
    for place, number in enumerate(numbers):
        recorder.input(number, "number", Extent.SCALAR, place)
    for name, value in state.items():
        recorder.input(value, "state", extents[name], name)
    with torch.no_grad(), torch.device("meta"), recorder:
        moved, new = rule.step(weight, grad, state)
    recorder.graph.outputs = {
        "weight": recorder.output(moved, weight),
        **{name: recorder.output(new[name], value) for name, value in state.items()},
    }
    recorder.graph.states = {name: (value.shape, value.dtype) for name, value in state.items()}
    return recorder.graph


def _computed_in(dtype: torch.dtype) -> torch.dtype:
    """What a rule computes in for a weight of that type."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def _distinct(shape: tuple[int, ...]) -> list[int]:
    """Multiples of the lengths of `shape` that differ: they tell a state per unit from one per entry.

    Being multiples, they have the groups of indices that a view asks of `shape`.
    """
    lengths: list[int] = []
    for length in shape:
        factors = range(2, len(shape) + 3)
        lengths.append(next(n for f in factors if (n := max(length, 1) * f) not in lengths))
    return lengths


def _state_extents(rule: Rule, shape: tuple[int, ...], dtype: torch.dtype) -> dict[str, Extent]:
    # A 0-dim weight is asked for as one of one dimension, to tell its states from counters.
    probe = torch.empty(_distinct(shape or (1,)), dtype=dtype)
    try:
        states = rule.init(probe)
    except ValueError as error:
        if shape:
            raise
        raise UnsupportedRuleError("a view that no vector has, on a 0-dim weight") from error
    return {name: _state_extent(value.shape, probe.shape) for name, value in states.items()}


def _state_extent(shape: torch.Size, weight: torch.Size) -> Extent:
    if not shape:
        return Extent.SCALAR
    if shape == weight:
        return Extent.FULL
    if tuple(shape) == (*weight[:1], *[1] * (len(weight) - 1)):
        return Extent.ROW
    raise UnsupportedRuleError(
        f"a state of shape {tuple(shape)} for a weight of shape {tuple(weight)}"
    )


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down each operation as it is called, on tensors without memory, with common subexpressions merged.

    (make_fx would do, but takes 0.7 ms for each operation, and here every new shape is traced.)
    """

    def __init__(self, count: int, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph, self.count, self.shape, self.ndim = StepGraph(), count, shape, len(shape)
        self.stored, self.computed = dtype, _computed_in(dtype)
        self.known: dict[Any, int] = {}
        self.reals: dict[int, int] = {}
        self.single = False
        """True while the present operation gives float32."""
        self.of: dict[int, tuple[int, Tensor]] = {}

    def input(self, tensor: Tensor, op: str, extent: Extent, detail: Any = None) -> None:
        """Give a tensor that the step starts from its node."""
        index = self._node(op, (), extent, False, detail)
        if tensor.shape != self._shape(extent):
            raise UnsupportedRuleError(f"{op} {detail or ''} of shape {tuple(tensor.shape)}")
        self.of[id(tensor)] = index, tensor

    def _shape(self, extent: Extent) -> tuple[int, ...]:
        row = (*self.shape[:1], *[1] * (self.ndim - 1))
        return {Extent.FULL: self.shape, Extent.ROW: row, Extent.SCALAR: ()}[extent]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if str(func) in DERIVED:
            with self:
                return DERIVED[str(func)](*args, **(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        if func._schema.is_mutable or not isinstance(result, Tensor):
            raise UnsupportedRuleError(f"{func} in the step")
        self.single = result.dtype is torch.float32
        index = self._translate(str(func), args, kwargs or {}, result)
        self._check(str(func), index, result)
        self.of[id(result)] = index, result  # held, so that no other gets its id
        return result

    def _check(self, name: str, index: int, result: Tensor) -> None:
        """Whether the node stands for that very tensor: one of another shape would be broadcast along other dimensions, one
        of another type rounded in between, and of that a graph knows nothing."""
        node = self.graph.nodes[index]
        if node.extent is not Extent.SCALAR and result.shape != self._shape(node.extent):
            raise UnsupportedRuleError(f"{name} to the shape {tuple(result.shape)}")
        types = {torch.bool} if node.boolean else {self.computed}
        if not node.boolean and node.extent is Extent.SCALAR:
            literal = node.op == "number" and node.detail >= self.count
            types |= {torch.float64, torch.int64} if literal else {torch.float64}
        if not node.boolean and name in TRANSPARENT:
            types |= {self.stored}
        if result.dtype not in types:
            raise UnsupportedRuleError(f"{name} to {result.dtype}")

    def _node(
        self, op: str, arguments: tuple[int, ...], extent: Extent, boolean: bool, detail: Any = None
    ) -> int:
        single = self.single and not boolean and bool(arguments)
        key = (op, arguments, extent, single, detail)
        if key not in self.known:
            self.known[key] = len(self.graph.nodes)
            self.graph.nodes.append(
                Node(len(self.graph.nodes), op, arguments, extent, boolean, single, detail)
            )
        return self.known[key]

    def _literal(self, value: float, dtype: torch.dtype = torch.float64) -> int:
        kept = {torch.float32: np.float32, torch.float64: np.float64}.get(dtype, int)(value)
        self.graph.literals.append(float(kept))
        return self._node(
            "number", (), Extent.SCALAR, False, self.count + len(self.graph.literals) - 1
        )

    def value(self, argument: Any) -> int:
        """The node of a tensor or a number."""
        if isinstance(argument, Tensor) and id(argument) in self.of:
            index = self.of[id(argument)][0]
            if (
                argument.dtype is not self.computed
                and argument.dtype is self.stored
                and self.graph.nodes[index].op not in ("weight", "grad")
            ):
                raise UnsupportedRuleError(f"{argument.dtype} within the step")
            return index
        if isinstance(argument, bool | int | float):
            return self._literal(argument)
        raise UnsupportedRuleError(f"an argument {argument!r}")

    def output(self, tensor: Tensor, before: Tensor) -> int:
        """The node of a result, which takes the place of the tensor `before`."""
        if (
            id(tensor) not in self.of
            or tensor.shape != before.shape
            or tensor.dtype is not before.dtype
        ):
            raise UnsupportedRuleError(
                f"a result of shape {tuple(tensor.shape)} and {tensor.dtype}"
            )
        return self.of[id(tensor)][0]

    def _translate(
        self, name: str, arguments: Any, options: Mapping[str, Any], result: Tensor
    ) -> int:
        if name in TRANSPARENT:
            source = (
                self._real(self.value(arguments[0]))
                if result.dtype.is_floating_point
                else self.value(arguments[0])
            )
            node = self.graph.nodes[source]
            rounds = (
                self.single
                and node.extent is Extent.SCALAR
                and not node.single
                and not node.boolean
            )
            return self._elementwise("cast", (source,)) if rounds and node.arguments else source
        if name in CONSTANT:
            return self._literal(arguments[CONSTANT[name]], result.dtype)
        if name in ("aten.zeros_like.default", "aten.ones_like.default"):
            return self._literal(float("ones" in name))
        if name in ("aten.any.default", "aten.all.default"):
            source = self.value(arguments[0])
            if not self.graph.nodes[source].boolean:
                raise UnsupportedRuleError(f"{name} of numbers")
            if self.graph.nodes[source].extent is Extent.SCALAR:
                return source
            return self._node(name.split(".")[1], (source,), Extent.SCALAR, True)
        if name in ("aten.sum.default", "aten.sum.dim_IntList"):
            if options.get("dtype") not in (None, self.computed):
                raise UnsupportedRuleError(f"a sum in {options['dtype']}")
            return self._sum(
                self.value(arguments[0]),
                range(self.ndim) if name == "aten.sum.default" else arguments[1],
            )
        if name == "aten.pow.Tensor_Scalar" and arguments[1] in (2, 0.5, 1):
            source = self._real(self.value(arguments[0]))
            return (
                source
                if arguments[1] == 1
                else self._elementwise("square" if arguments[1] == 2 else "sqrt", (source,))
            )
        if name == "aten.addcmul.default":
            return self._fused(arguments, options.get("value", 1))
        if name in ("aten.add.Tensor", "aten.sub.Tensor") and options.get("alpha", 1) != 1:
            sign = 1 if name == "aten.add.Tensor" else -1
            return self._fused((*arguments, sign * options["alpha"]), 1)
        alpha = options.get("alpha", 1)
        known = name in ELEMENTWISE and not options.get("rounding_mode")
        # (rsub takes its alpha as a third argument)
        if not known or alpha != 1 or (len(arguments) > 2 and name not in TERNARY):
            raise UnsupportedRuleError(f"{name} in the step")
        return self._elementwise(ELEMENTWISE[name], tuple(self.value(a) for a in arguments))

    def _fused(self, arguments: Any, value: Any) -> int:
        """x + (value y) z, whose last product torch adds without rounding it in between."""
        x, y, z = (self._real(self.value(a)) for a in arguments)
        if value != 1:
            y = self._elementwise("mul", (y, self.value(value)))
        return self._elementwise("addcmul", (x, y, z))

    def _elementwise(self, op: str, sources: tuple[int, ...]) -> int:
        kinds = [self.graph.nodes[s].boolean for s in sources]
        if op in LOGIC and not all(kinds):
            raise UnsupportedRuleError(f"{op} of numbers")
        chosen = op == "where" and all(kinds[1:])
        if op not in LOGIC and not chosen:
            kept = 1 if op == "where" else 0
            sources = (*sources[:kept], *(self._real(s) for s in sources[kept:]))
        extent = max(self.graph.nodes[s].extent for s in sources)
        return self._node(op, sources, extent, op in LOGIC or op in COMPARISONS or chosen)

    def _real(self, index: int) -> int:
        """A truth value as the number 1 or 0."""
        if not self.graph.nodes[index].boolean:
            return index
        if index not in self.reals:
            self.reals[index] = self._elementwise(
                "where", (index, self._literal(1.0), self._literal(0.0))
            )
        return self.reals[index]

    def _sum(self, source: int, dims: Any) -> int:
        extent = self.graph.nodes[source].extent
        rows = set(range(1, self.ndim))
        reduced = {operator.index(d) % max(self.ndim, 1) for d in dims} or rows | {
            0
        }  # none stands for all
        if reduced == rows | {0} and extent is not Extent.SCALAR:
            return self._node("sum", (source,), Extent.SCALAR, False)
        if reduced == rows and rows and extent is Extent.FULL:
            return self._node("sum", (source,), Extent.ROW, False)
        raise UnsupportedRuleError(f"a sum over dimensions {sorted(reduced)} of {self.ndim}")
