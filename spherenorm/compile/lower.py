"""From a rule to the graph of its step: the record of its own code, lowered call by call.

The code runs once, on tensors without memory. So the rule stays the one definition of its step.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from spherenorm.compile.graph import Extent, GrowingGraph, Node, StepGraph
from spherenorm.compile.key import RuleKey, UnsupportedRuleError
from spherenorm.numerics import compute_dtype
from spherenorm.operations import OPERATIONS, of_overload
from spherenorm.record import Call, Recorder, RecordError, Value
from spherenorm.rule import Rule
from spherenorm.torch_internals import OpOverload

UNCHANGED = {"_to_copy", "detach", "alias", "clone", "lift_fresh_copy"}
"""Operations of aten that give the entries they take, perhaps in another dtype."""
REDUCED = {"sum", "mean", "linalg_vector_norm"}
"""Operations of aten that may be asked to sum in another dtype."""
STORAGE = {"dtype", "layout", "device", "pin_memory", "memory_format", "non_blocking"}
"""Options that say how a tensor is stored; a dtype that matters shows in the result."""
NUMBERS = (bool, int, float)
_dtypes: dict[Any, torch.dtype] = {}
"""The dtype of a result, by the operation and the kinds of its arguments."""


def lower(key: RuleKey, shape: tuple[int, ...], dtype: torch.dtype) -> StepGraph:
    """The graph of one step of a weight of that shape.

    Args:
        key: of the rule, whose numbers become the arguments of the graph.
        shape, dtype: of the weight; nothing of that size is allocated.

    Raises:
        UnsupportedRuleError: naming the rule and the operation.
    """
    try:
        return _lower(key, shape, dtype)
    except (UnsupportedRuleError, RecordError) as error:
        raise UnsupportedRuleError(f"{_culprit(error, key.rule)}: {error}") from error
    except Exception as error:
        if not key.foreign:
            raise
        # A user's rule may do what a tensor without memory refuses, or be wrong. Its own code then
        # works or raises the real error.
        why = RecordError.MESSAGE if "meta tensor" in str(error) else str(error)
        raise UnsupportedRuleError(f"{_culprit(error, key.rule)}: {why}") from error


def _culprit(error: BaseException, rule: Rule) -> str:
    """The name of the innermost rule whose code raised `error`."""
    name, frame = type(rule).__name__, error.__traceback__
    while frame is not None:
        owner = frame.tb_frame.f_locals.get("self")
        name = type(owner).__name__ if isinstance(owner, Rule) else name
        frame = frame.tb_next
    return name


def _lower(key: RuleKey, shape: tuple[int, ...], dtype: torch.dtype) -> StepGraph:
    with torch.device("meta"):
        weight, grad = torch.empty(shape, dtype=dtype), torch.empty(shape, dtype=dtype)
        numbers = [torch.empty((), dtype=kept) for kept in key.dtypes]
        rule = key.with_numbers(numbers)
        # A rule may give one tensor twice, or the weight; here each is told from the others.
        state = {name: value.clone() for name, value in rule.init(weight).items()}
        extents = _state_extents(rule, shape, dtype)
    _check_states(state, shape, dtype)
    lowering = _Lowering(len(numbers), shape, dtype)
    recorder = Recorder(lowering.read, carried_out)

    entered: list[tuple[Tensor, str, Extent, Any]] = [
        (weight, "weight", Extent.FULL, None),
        (grad, "grad", Extent.FULL, None),
        *((number, "number", Extent.SCALAR, place) for place, number in enumerate(numbers)),
        *((value, "state", extents[name], name) for name, value in state.items()),
    ]
    for tensor, op, extent, detail in entered:
        lowering.enter(recorder.enter(tensor), op, extent, detail)
    with torch.no_grad(), torch.device("meta"), recorder:
        moved, new = rule.step(weight, grad, state)
    lowering.graph.outputs = {
        "weight": lowering.output(recorder.value(moved), weight),
        **{name: lowering.output(recorder.value(new[name]), old) for name, old in state.items()},
    }
    lowering.graph.states = {name: (value.shape, value.dtype) for name, value in state.items()}
    return lowering.graph


def _check_states(state: Mapping[str, Tensor], shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Refuse states that kernels cannot keep: counters are double, others are of working dtype."""
    for name, value in state.items():
        counter = value.ndim == 0 and value.dtype is torch.float64
        if name in ("weight", "grad"):
            raise UnsupportedRuleError(f"a state called {name}")
        if value.dtype is not compute_dtype(dtype) and not counter:
            raise UnsupportedRuleError(f"a state {name} of dtype {value.dtype}")
        if value.ndim == 0 and shape and not counter:
            raise UnsupportedRuleError(f"a counter {name} of dtype {value.dtype}")


def _state_extents(rule: Rule, shape: tuple[int, ...], dtype: torch.dtype) -> dict[str, Extent]:
    # Lengths that differ tell a state per unit from one per entry; and a 0-dim weight is asked for
    # as one of one dimension, to tell its states from counters.
    probe = torch.empty([7 + d for d in range(max(len(shape), 1))], dtype=dtype)
    try:
        states = rule.init(probe)
    except ValueError as error:
        raise UnsupportedRuleError("a view that not every shape has") from error
    return {name: _state_extent(value.shape, probe.shape) for name, value in states.items()}


def _state_extent(shape: torch.Size, weight: torch.Size) -> Extent:
    if not shape:
        return Extent.SCALAR
    if shape == weight:
        return Extent.FULL
    if tuple(shape) == (*weight[:1], *[1] * (len(weight) - 1)):
        return Extent.ROW
    held = f"a state of shape {tuple(shape)} for a weight of shape {tuple(weight)}"
    raise UnsupportedRuleError(held)


class GraphBuilder(GrowingGraph):
    """Lowers operations of aten that are more than a row; each is a method under its name there."""

    dtype = torch.float64
    """Of the result of the call at hand."""

    def scalar_tensor(self, value: Any) -> Node:
        return self.literal(value, self.dtype)

    def full(self, size_or_like: Any, value: Any) -> Node:
        return self.literal(value, self.dtype)

    full_like = full

    def add(self, x: Any, y: Any, alpha: Any = 1) -> Node:
        return self.apply(OPERATIONS["add"], x, y) if alpha == 1 else self.addcmul(x, y, alpha)

    def sub(self, x: Any, y: Any, alpha: Any = 1) -> Node:
        return self.apply(OPERATIONS["sub"], x, y) if alpha == 1 else self.addcmul(x, y, -alpha)

    def addcmul(self, x: Any, y: Any, z: Any, value: Any = 1) -> Node:
        """x + (value y) z, whose last product torch adds without rounding it in between."""
        if value != 1:
            y = self.mul(y, value)
        return self.apply(OPERATIONS["addcmul"], x, y, z)

    def pow(self, x: Any, exponent: Any) -> Node:
        special = {2: "square", 0.5: "sqrt", 1: "number"}
        if isinstance(x, Node) and not isinstance(exponent, Node) and exponent in special:
            power: Node = getattr(self, special[exponent])(x)
            return power
        return self.apply(OPERATIONS["pow"], x, exponent)

    def any(self, x: Node, *dims: Any) -> Node:
        if dims:
            raise NotImplementedError("a decision along a dimension")
        if not x.boolean:
            raise NotImplementedError("any or all of numbers")
        return x if x.extent is Extent.SCALAR else self.node("any", (x,), Extent.SCALAR, True)

    def all(self, x: Node, *dims: Any) -> Node:
        return self.logical_not(self.any(self.logical_not(x), *dims))

    def sum(self, x: Node, dims: Any = None, keepdim: bool = False) -> Node:
        reduced, rows = self._reduced(dims), set(range(1, self.ndim))
        if reduced == rows | {0} and x.extent is not Extent.SCALAR:
            return self.node("sum", (x,), Extent.SCALAR)
        if reduced == rows and rows and x.extent is Extent.FULL:
            return self.node("sum", (x,), Extent.ROW)
        raise NotImplementedError(f"a sum over dimensions {sorted(reduced)} of {self.ndim}")

    def count(self, x: Node, dims: Any = None) -> float:
        """The number of entries that a sum of `x` over `dims` adds; nan of no entries at all."""
        lengths = dict(enumerate(self.shape_of(x.extent)))
        added = math.prod(lengths.get(d, 1) for d in self._reduced(dims))
        return added if math.prod(lengths.values()) else math.nan

    def _reduced(self, dims: Any) -> set[int]:
        every = set(range(max(self.ndim, 1)))
        return {operator.index(d) % max(self.ndim, 1) for d in dims or ()} or every


class _Lowering(GraphBuilder):
    """Lowers each call of a record as it is made.

    A method whose name is that of an operation of aten lowers its calls; the rows of `OPERATIONS`
    are done for the rest.
    """

    def __init__(self, count: int, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        super().__init__(count, shape)
        self.stored, self.computed = dtype, compute_dtype(dtype)
        self._nodes: dict[Value, Node] = {}

    def enter(self, value: Value, op: str, extent: Extent, detail: Any = None) -> None:
        """Give a tensor that the step starts from its node."""
        if value.shape != self.shape_of(extent):
            raise UnsupportedRuleError(f"{op} {detail or ''} of shape {tuple(value.shape)}")
        self._nodes[value] = self.node(op, (), extent, detail=detail)

    def read(self, call: Call) -> None:
        """Make the node of a call's result."""
        if call.in_place or not isinstance(call.result, Value):
            raise UnsupportedRuleError(f"{call.name} in the step")
        self.dtype, self.single = call.result.dtype, self._compared_in(call) is torch.float32
        node = self._lowered(call)
        self._check(call, call.result, node)
        self._nodes[call.result] = node

    def _compared_in(self, call: Call) -> torch.dtype:
        """The dtype of a result; of a truth value, that in which numbers are compared."""
        row, dtype = of_overload(call.name), call.result.dtype
        if row is None or row.gives != "truth":
            return dtype  # type: ignore[no-any-return]
        tensors = [x for x in call.arguments if isinstance(x, Value)]
        measured = [x for x in tensors if not self._is_given(self._argument(x))]
        if not measured:
            return torch.float64
        first, *others = [torch.empty(x.shape, dtype=x.dtype, device="meta") for x in measured]
        return torch.result_type(first, others[0] if others else 1.0)

    def _is_given(self, node: Node) -> bool:
        """True of a function of hyper-parameters and literals alone, a number for torch."""
        arguments = [self.graph.nodes[index] for index in node.arguments]
        return all(map(self._is_given, arguments)) if arguments else node.op == "number"

    def output(self, value: Value, before: Tensor) -> int:
        """The node of a result, which takes the place of the tensor `before`."""
        alike = value.shape == before.shape and value.dtype is before.dtype
        if value not in self._nodes or not alike:
            raise UnsupportedRuleError(f"a result of shape {tuple(value.shape)} and {value.dtype}")
        return self._nodes[value].index

    def _lowered(self, call: Call) -> Node:
        name, row = call.packet, of_overload(call.name)
        if name in UNCHANGED:
            source = call.arguments[0].dtype
            if source.is_floating_point and not self.dtype.is_floating_point:
                raise UnsupportedRuleError(f"{call.name} to {self.dtype}")
            return self._unchanged(self._argument(call.arguments[0]))
        options = {k: v for k, v in call.options.items() if k not in STORAGE and v is not None}
        lowered = vars(GraphBuilder).get(name)
        if lowered is not None:
            lowered = functools.partial(lowered, self)
        elif row is not None and not row.forbids(len(call.arguments), options):
            lowered = functools.partial(self.apply, row)
            options.pop("alpha", None)  # which is 1
        else:
            raise UnsupportedRuleError(f"{call.name} in the step")
        if name in REDUCED and call.options.get("dtype") not in (None, self.computed):
            raise UnsupportedRuleError(f"{call.name} in {call.options['dtype']}")
        try:
            node: Node = lowered(*map(self._argument, call.arguments), **options)
        except NotImplementedError as error:
            raise UnsupportedRuleError(str(error)) from error
        return node

    def _argument(self, argument: Any) -> Any:
        """A node in the place of a tensor; anything else as it is."""
        if not isinstance(argument, Value):
            return argument
        if argument not in self._nodes:
            raise UnsupportedRuleError(f"a tensor of its own, of shape {tuple(argument.shape)}")
        node = self._nodes[argument]
        halved = argument.dtype is not self.computed and argument.dtype is self.stored
        if halved and node.op not in ("weight", "grad"):
            raise UnsupportedRuleError(f"{argument.dtype} within the step")
        return node

    def _check(self, call: Call, result: Value, node: Node) -> None:
        """Refuse a node that does not stand for the very tensor that the call made.

        A tensor of another shape would be broadcast along other dimensions, and one of another
        dtype is rounded in between. A graph knows of neither.
        """
        if node.extent is not Extent.SCALAR and result.shape != self.shape_of(node.extent):
            raise UnsupportedRuleError(f"{call.name} to the shape {tuple(result.shape)}")
        dtypes = {torch.bool} if node.boolean else {self.computed}
        if not node.boolean and node.extent is Extent.SCALAR:
            literal = node.op == "number" and node.detail >= self.given
            dtypes |= {torch.float64, torch.int64} if literal else {torch.float64}
        if not node.boolean and call.packet in UNCHANGED:
            dtypes |= {self.stored}
        if result.dtype not in dtypes:
            raise UnsupportedRuleError(f"{call.name} to {result.dtype}")

    def _unchanged(self, source: Node) -> Node:
        if self.dtype.is_floating_point:
            source = self.number(source)
        double = source.extent is Extent.SCALAR and not source.single and not source.boolean
        return self.cast(source) if self.single and double and source.arguments else source


def carried_out(function: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """The result of `function`, on the meta device.

    torch takes 100 us for each operation on tensors without memory, in Python, and the record of a
    step has a hundred of them per shape. Of those on entries, shape and dtype are soon known.
    """
    tensors = [x for x in args if isinstance(x, Tensor)]
    entrywise = torch.Tag.pointwise in function.tags and not function._schema.is_mutable
    plain = any(x.is_meta for x in tensors) and all(x.is_contiguous() for x in tensors)
    if not (entrywise and plain) or any(isinstance(x, list) for x in args):
        return function(*args, **kwargs)
    key = function, *map(_kind, args), *((name, _kind(x)) for name, x in kwargs.items())
    if key not in _dtypes:
        result = function(*args, **kwargs)
        if isinstance(result, Tensor):
            _dtypes[key] = result.dtype
        return result
    shape = torch.broadcast_shapes(*(x.shape for x in tensors))  # type: ignore[no-untyped-call]
    return torch.empty(shape, dtype=_dtypes[key], device="meta")


def _kind(x: Any) -> Any:
    """The part of an argument that decides the dtype of the result."""
    if isinstance(x, Tensor):
        return x.dtype, x.ndim == 0
    return type(x) if isinstance(x, NUMBERS) else x
