"""Stage 1, trace: run the rule's own code once, and lower each call of torch to a node.

The code runs on meta tensors, which have shapes and dtypes but no memory. So the rule stays the one
definition of its step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from spherenorm.compile.graph import COPIES, METHODS, Extent, GraphBuilder, Node, StepGraph
from spherenorm.compile.interface import cached
from spherenorm.compile.rule_key import RuleKey
from spherenorm.numerics import compute_dtype
from spherenorm.operations import NotHere, of_overload
from spherenorm.record import READS_A_VALUE, Call, Recorder, Source, TensorRef, Unsupported
from spherenorm.rule import Rule
from spherenorm.rules.watch import without_watches
from spherenorm.torch_internals import OpOverload

REDUCTIONS_WITH_DTYPE = {"sum", "mean", "linalg_vector_norm"}
"""Operations that may be asked to sum in another dtype."""
STORAGE_OPTIONS = {"dtype", "layout", "device", "pin_memory", "memory_format", "non_blocking"}
"""Options that say how a tensor is stored; a dtype that matters shows in the result."""
NUMBER_TYPES = (bool, int, float)


def trace(key: RuleKey, shape: tuple[int, ...], dtype: torch.dtype) -> StepGraph:
    """Return the graph of one step of a weight.

    Args:
        key: of the rule, whose hyper-parameters become the first arguments of the graph.
        shape: of the weight; nothing of that size is allocated.
        dtype: of the weight.

    Raises:
        Unsupported: naming the rule and the operation.
    """
    try:
        return _trace(key, shape, dtype)
    except Unsupported as error:
        raise Unsupported(f"{_rule_that_raised(error, key.rule)}: {error}") from error
    except Exception as error:
        if not key.foreign:
            raise
        # A user's rule may do what a meta tensor refuses, or be wrong. Its own code then works, or
        # raises the real error.
        reason = READS_A_VALUE if "meta tensor" in str(error) else str(error)
        raise Unsupported(f"{_rule_that_raised(error, key.rule)}: {reason}") from error


def _rule_that_raised(error: BaseException, rule: Rule) -> str:
    """Return the name of the innermost rule whose code raised `error`."""
    name, frame = type(rule).__name__, error.__traceback__
    while frame is not None:
        running = frame.tb_frame.f_locals.get("self")
        if isinstance(running, Rule):
            name = type(running).__name__
        frame = frame.tb_next
    return name


def _trace(key: RuleKey, shape: tuple[int, ...], dtype: torch.dtype) -> StepGraph:
    with torch.device("meta"):
        scalars = [torch.empty((), dtype=scalar_dtype) for scalar_dtype in key.dtypes]
    rule = key.with_scalars(scalars)
    graph = _trace_rule(without_watches(rule), scalars, shape, dtype)
    if rule.optional_keys:
        graph.add_watched(_trace_rule(rule, scalars, shape, dtype), rule.optional_keys)
    return graph


def _trace_rule(
    rule: Rule, scalars: Sequence[Tensor], shape: tuple[int, ...], dtype: torch.dtype
) -> StepGraph:
    """Return the graph of a rule whose hyper-parameters are `scalars`."""
    with torch.device("meta"):
        weight, grad = torch.empty(shape, dtype=dtype), torch.empty(shape, dtype=dtype)
        # Copies, since a rule may return one tensor for two states, or the weight.
        state = {name: value.clone() for name, value in rule.init(weight).items()}
        extents = _state_extents(rule, shape, dtype)
    _check_states(state, shape, dtype)

    lowering = Lowering(GraphBuilder(len(scalars), shape), dtype)
    recorder = Recorder(on_call=lowering.lower, execute=run_on_meta)
    lowering.add_input(recorder.add_input(weight), "weight", Extent.FULL)
    lowering.add_input(recorder.add_input(grad), "grad", Extent.FULL)
    for index, scalar in enumerate(scalars):
        lowering.add_input(recorder.add_input(scalar), "argument", Extent.SCALAR, index)
    for name, value in state.items():
        lowering.add_input(recorder.add_input(value), "state", extents[name], name)

    with torch.no_grad(), torch.device("meta"), recorder:
        new_weight, new_state = rule.step(weight, grad, state)

    graph = lowering.builder.graph
    graph.outputs["weight"] = lowering.output(recorder.ref_of(new_weight), weight)
    for name, value in state.items():
        graph.outputs[name] = lowering.output(recorder.ref_of(new_state[name]), value)
        graph.states[name] = value.shape, value.dtype
    return graph


def _check_states(state: Mapping[str, Tensor], shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Refuse states that kernels cannot hold: counters are double, others of the compute dtype."""
    for name, value in state.items():
        is_counter = value.ndim == 0 and value.dtype is torch.float64
        if name in ("weight", "grad"):
            raise Unsupported(f"a state called {name}")
        if value.dtype is not compute_dtype(dtype) and not is_counter:
            raise Unsupported(f"a state {name} of dtype {value.dtype}")
        if value.ndim == 0 and shape and not is_counter:
            raise Unsupported(f"a counter {name} of dtype {value.dtype}")


def _state_extents(rule: Rule, shape: tuple[int, ...], dtype: torch.dtype) -> dict[str, Extent]:
    # Dimensions of different lengths tell a state per unit from one per entry. A 0-dim weight is
    # probed with one dimension, which tells its states from counters.
    probe = torch.empty([7 + d for d in range(max(len(shape), 1))], dtype=dtype)
    try:
        states = rule.init(probe)
    except ValueError as error:
        raise Unsupported("a view that not every shape has") from error
    return {name: _state_extent(value.shape, probe.shape) for name, value in states.items()}


def _state_extent(shape: torch.Size, weight: torch.Size) -> Extent:
    if not shape:
        return Extent.SCALAR
    if shape == weight:
        return Extent.FULL
    if tuple(shape) == (*weight[:1], *[1] * (len(weight) - 1)):
        return Extent.ROW
    raise Unsupported(f"a state of shape {tuple(shape)} for a weight of shape {tuple(weight)}")


class Lowering:
    """Turns each call of a recorded step into a node, as the call is made.

    Args:
        builder: of the graph.
        dtype: of the weight.

    Attributes:
        builder: holds the graph so far.
    """

    def __init__(self, builder: GraphBuilder, dtype: torch.dtype) -> None:
        self.builder = builder
        self.storage_dtype, self.compute_dtype = dtype, compute_dtype(dtype)
        self._nodes: dict[TensorRef, Node] = {}

    def add_input(self, value: TensorRef, op: str, extent: Extent, detail: Any = None) -> None:
        """Add the node of a tensor that the step starts from."""
        if value.shape != self.builder.shape_of(extent):
            raise Unsupported(f"{op} {detail or ''} of shape {tuple(value.shape)}")
        self._nodes[value] = self.builder.node(op, (), extent, detail=detail)

    def lower(self, call: Call) -> None:
        """Add the node of a call's result."""
        if call.in_place or not isinstance(call.result, TensorRef):
            raise Unsupported(f"{call.name} in the step")
        self.builder.result_dtype = call.result.dtype
        self.builder.rounds_to_float32 = self._computing_dtype(call) is torch.float32
        nodes = self.builder.graph.nodes
        n_before = len(nodes)
        node = self._node_of(call)
        self._check(call, call.result, node)
        sources, source = self.builder.graph.sources, call.source
        for inner in nodes[n_before:]:  # of an operation that is composed of others
            sources[inner.index] = source if inner is node else Source(source.file, source.line)
        self._nodes[call.result] = node

    def output(self, value: TensorRef, old: Tensor) -> int:
        """Return the node index of a result that replaces the tensor `old`."""
        fits = value.shape == old.shape and value.dtype is old.dtype
        if value not in self._nodes or not fits:
            raise Unsupported(f"a result of shape {tuple(value.shape)} and {value.dtype}")
        return self._nodes[value].index

    def _computing_dtype(self, call: Call) -> torch.dtype:
        """Return the dtype of a result; for a comparison, the one in which numbers compare."""
        row = of_overload(call.name)
        if row is None or row.returns != "comparison":
            return call.result.dtype  # type: ignore[no-any-return]
        tensors = [x for x in call.arguments if isinstance(x, TensorRef)]
        compared = [x for x in tensors if not self._is_number_for_torch(self._node_or_same(x))]
        if not compared:
            return torch.float64
        metas = [torch.empty(x.shape, dtype=x.dtype, device="meta") for x in compared]
        return torch.result_type(metas[0], metas[1] if len(metas) > 1 else 1.0)

    def _is_number_for_torch(self, node: Node) -> bool:
        """Return whether a node depends on kernel arguments alone, which are numbers in a rule."""
        arguments = [self.builder.graph.nodes[index] for index in node.arguments]
        if not arguments:
            return node.op == "argument"
        return all(map(self._is_number_for_torch, arguments))

    def _node_of(self, call: Call) -> Node:
        row = of_overload(call.name)
        if row is None:
            raise Unsupported(f"{call.name} in the step")
        if isinstance(row.cpp, NotHere):
            raise Unsupported(f"{call.name} in the step: {row.cpp.reason}")
        if row.name in COPIES:
            source_dtype = call.arguments[0].dtype
            if source_dtype.is_floating_point and not call.result.dtype.is_floating_point:
                raise Unsupported(f"{call.name} to {call.result.dtype}")
            return self._converted(self._node_or_same(call.arguments[0]))
        options = {
            option: value
            for option, value in call.options.items()
            if option not in STORAGE_OPTIONS and value is not None
        }
        if row.name in METHODS:
            method: Callable[..., Node] = functools.partial(METHODS[row.name], self.builder)
        elif row.accepts(len(call.arguments), options):
            method = functools.partial(self.builder.apply, row)
            options.pop("alpha", None)  # which is 1
        else:
            raise Unsupported(f"{call.name} in the step")
        if row.name in REDUCTIONS_WITH_DTYPE:
            asked_dtype = call.options.get("dtype")
            if asked_dtype not in (None, self.compute_dtype):
                raise Unsupported(f"{call.name} in {asked_dtype}")
        try:
            return method(*map(self._node_or_same, call.arguments), **options)
        except NotImplementedError as error:  # of a row's derivation
            raise Unsupported(str(error)) from error

    def _node_or_same(self, argument: Any) -> Any:
        """Return the node of a tensor, and anything else as it is."""
        if not isinstance(argument, TensorRef):
            return argument
        if argument not in self._nodes:
            raise Unsupported(f"a tensor of its own, of shape {tuple(argument.shape)}")
        node = self._nodes[argument]
        in_half = argument.dtype is self.storage_dtype and argument.dtype is not self.compute_dtype
        if in_half and node.op not in ("weight", "grad"):
            raise Unsupported(f"{argument.dtype} within the step")
        return node

    def _check(self, call: Call, result: TensorRef, node: Node) -> None:
        """Refuse a node that does not stand for the very tensor that the call made.

        torch would broadcast a tensor of another shape along other dimensions, and round one of
        another dtype in between. A graph knows of neither.
        """
        is_scalar = node.extent is Extent.SCALAR
        if not is_scalar and result.shape != self.builder.shape_of(node.extent):
            raise Unsupported(f"{call.name} to the shape {tuple(result.shape)}")
        if node.boolean:
            dtypes = {torch.bool}
        else:
            dtypes = {self.compute_dtype}
            if is_scalar:
                dtypes.add(torch.float64)
            n_hyper_parameters = self.builder.graph.n_hyper_parameters
            if is_scalar and node.op == "argument" and node.detail >= n_hyper_parameters:
                dtypes.add(torch.int64)
            row = of_overload(call.name)
            if row is not None and row.name in COPIES:
                dtypes.add(self.storage_dtype)
        if result.dtype not in dtypes:
            raise Unsupported(f"{call.name} to {result.dtype}")

    def _converted(self, source: Node) -> Node:
        """Return a node whose dtype changes to that of the result."""
        builder = self.builder
        if builder.result_dtype.is_floating_point:
            source = builder.as_value(source)
        is_double = not source.rounds_to_float32 and not source.boolean
        is_computed_scalar = source.extent is Extent.SCALAR and bool(source.arguments)
        rounds = builder.rounds_to_float32 and is_double and is_computed_scalar
        return builder.cast(source) if rounds else source


def run_on_meta(function: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Return the result of `function` on the meta device.

    torch takes 100 us for an operation on meta tensors, in Python, and the record of a step has a
    hundred of them per shape. For elementwise ones the shape is a broadcast and the dtype is
    cached.
    """
    tensors = [x for x in args if isinstance(x, Tensor)]
    elementwise = torch.Tag.pointwise in function.tags and not function._schema.is_mutable
    on_meta = any(x.is_meta for x in tensors) and all(x.is_contiguous() for x in tensors)
    if not (elementwise and on_meta) or any(isinstance(x, list) for x in args):
        return function(*args, **kwargs)
    kinds = *map(_dtype_kind, args), *((name, _dtype_kind(x)) for name, x in kwargs.items())
    dtype = cached(
        ("result dtype", function, *kinds),
        lambda: getattr(function(*args, **kwargs), "dtype", None),
    )
    if dtype is None:
        return function(*args, **kwargs)
    shape = torch.broadcast_shapes(*(x.shape for x in tensors))  # type: ignore[no-untyped-call]
    return torch.empty(shape, dtype=dtype, device="meta")


def _dtype_kind(x: Any) -> Any:
    """Return the part of an argument that decides the dtype of the result."""
    if isinstance(x, Tensor):
        return x.dtype, x.ndim == 0
    return type(x) if isinstance(x, NUMBER_TYPES) else x
