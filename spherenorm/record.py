"""The recorder: one run of a function of tensors, as a list of torch operations.

`spherenorm.compile` makes kernels of the record of a rule's step, and `spherenorm_theory` reads it
on symbols.

    from spherenorm.record import record
    recorded = record(lambda x, y: x + 2 * y, torch.ones(3), torch.ones(3))
    print([call.name for call in recorded.calls])  # ['aten.mul.Tensor', 'aten.add.Tensor']
"""

from __future__ import annotations

import ast
import functools
import itertools
import linecache
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor

from spherenorm.torch_internals import OpOverload, TorchDispatchMode, pytree

__all__ = [
    "TORCH_FOLDER",
    "Call",
    "Record",
    "Recorder",
    "Source",
    "TensorRef",
    "Unsupported",
    "record",
]

TENSORLESS_TYPES = {bool, int, float, str, type(None), torch.dtype, torch.device, torch.layout}
"""Types of arguments that hold no tensor."""
TORCH_FOLDER = str(Path(torch.__file__).parent) + os.sep
"""The folder of torch itself. A user's folder may be called torch, too."""
READS_A_VALUE = "its code reads a value of a tensor"
"""The reason against a record of code that branches on a number: the next run may branch
otherwise."""


class Unsupported(ValueError):  # noqa: N818
    """A step cannot be recorded, compiled or run by an executor; the message is the reason."""


@dataclass(frozen=True, eq=False)
class TensorRef:
    """The stand-in for a tensor of the recorded run, which has its shape and dtype."""

    shape: torch.Size
    dtype: torch.dtype


MAX_FRAMES = 5
"""Frames of a call that are kept. A result gets its name few functions above the operation."""


@dataclass(frozen=True, eq=False)
class Source:
    """The place in the code that called an operation.

    Attributes:
        file, line: path and line number of the innermost frame outside of torch.
        frames: the code of that frame and of those around it, and the instruction that was running.
    """

    file: str
    line: int
    frames: tuple[tuple[CodeType, int], ...] = ()

    def __str__(self) -> str:
        text = linecache.getline(self.file, self.line).strip()
        return f"{Path(self.file).name}:{self.line}: {text}"

    @property
    def variable(self) -> str:
        """The name that the code gives to the result: "ratio" in `ratio = x / y`; "" if none.

        A function that returns the result passes the question on to its caller.
        """
        for code, instruction in self.frames:
            target = _targets(code.co_filename).get(_position(code, instruction), "")
            if target is not RETURNED:
                return target
        return ""


RETURNED = "return"
"""In the place of a variable: the value is returned. No variable has the name of a keyword."""

Position = tuple[int | None, int | None, int | None, int | None]
"""First line, last line, first column and last column of an expression."""


def _position(code: CodeType, instruction: int) -> Position:
    positions = itertools.islice(code.co_positions(), instruction // 2, None)
    return next(positions, (None, None, None, None))


@functools.lru_cache(maxsize=256)
def _targets(file: str) -> dict[Position, str]:
    """Return the variable, or the argument of `replace`, to which each expression is assigned."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return {}
    targets: dict[Position, str] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                targets[_position_of(value)] = name
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
                for target, value in zip(names, values, strict=False):
                    if isinstance(target, ast.Name):
                        targets[_position_of(value)] = target.id
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                targets[_position_of(value)] = name
            case ast.Return(value=ast.expr() as value):
                targets[_position_of(value)] = RETURNED
            case ast.Call(func=ast.Attribute(attr="replace"), keywords=keywords):
                for keyword in keywords:
                    targets[_position_of(keyword.value)] = keyword.arg or ""
    return targets


def _position_of(node: ast.expr) -> Position:
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset


@dataclass(frozen=True, eq=False)
class Call:
    """An operation that ran.

    Attributes:
        function: the overload of aten.
        arguments, options: positional and keyword arguments, with a `TensorRef` for each tensor.
        result: the `TensorRef` of the result, or several in a tuple or list.
        source: the place in the code that called the operation.
    """

    function: OpOverload
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    result: Any
    source: Source

    @property
    def name(self) -> str:
        """The full name, such as "aten.add.Tensor"."""
        return str(self.function)

    @property
    def packet(self) -> str:
        """The name of aten's operation, such as "add"; the full name in another library."""
        if self.function.namespace != "aten":
            return self.name
        return str(self.function.overloadpacket.__name__)

    @property
    def line(self) -> str:
        """The line of source that called the operation: "file.py:12: x + 2 * y"."""
        return str(self.source)

    @property
    def in_place(self) -> bool:
        """True if the operation writes into one of its arguments."""
        return bool(self.function._schema.is_mutable)

    def input_refs(self) -> list[TensorRef]:
        """List the references to tensors among the arguments."""
        return _refs_in((self.arguments, self.options))


@dataclass(frozen=True, eq=False)
class Record:
    """A recorded run.

    Attributes:
        inputs: the function's arguments.
        outputs: the function's results, nested as it returned them.
        calls: the operations in order.
        constants: copies of tensors that the function closed over, from before it wrote into them.
    """

    inputs: tuple[TensorRef, ...]
    outputs: Any
    calls: tuple[Call, ...]
    constants: dict[TensorRef, Tensor]

    @functools.cached_property
    def live_calls(self) -> tuple[Call, ...]:
        """The calls that the outputs depend on, in order."""
        live_refs, live_calls = set(_refs_in(self.outputs)), []
        for call in reversed(self.calls):
            if call.in_place or not live_refs.isdisjoint(_refs_in(call.result)):
                live_refs.update(call.input_refs())
                live_calls.append(call)
        return tuple(reversed(live_calls))


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records each operation while it is active.

    Args:
        on_call: is called with each call after it ran. What it raises is raised where the recorded
            code called the operation.
        execute: runs an operation, from its overload and arguments.
    """

    def __init__(
        self,
        on_call: Callable[[Call], None] = lambda call: None,
        execute: Callable[..., Any] = lambda function, *args, **kwargs: function(*args, **kwargs),
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.on_call, self.execute = on_call, execute
        self.calls: list[Call] = []
        self.constants: dict[TensorRef, Tensor] = {}
        self.replayed_source: Source | None = None
        """Set while a record is replayed: the source of the replayed call."""
        self._by_id: dict[int, tuple[TensorRef, Tensor]] = {}

    def add_input(self, tensor: Tensor) -> TensorRef:
        """Return a new reference to a tensor that the recorded code starts from."""
        ref = TensorRef(tensor.shape, tensor.dtype)
        # The tensor is kept alive, so that no other tensor gets its id.
        self._by_id[id(tensor)] = ref, tensor
        return ref

    def ref_of(self, tensor: Tensor) -> TensorRef:
        """Return the reference to a tensor; one that is neither input nor result is a constant."""
        if id(tensor) not in self._by_id:
            # A copy, since the code may write into the constant later.
            self.constants[self.add_input(tensor)] = tensor.detach().clone()
        return self._by_id[id(tensor)][0]

    def refs_in(self, tree: Any) -> Any:
        """Return `tree` with a reference in the place of each tensor."""
        return _map_tensors(self.ref_of, tree)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # True imports torch._dynamo, which takes seconds; records are of eager code.
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            raise Unsupported(READS_A_VALUE)
        arguments, options = self.refs_in(args), self.refs_in(kwargs or {})
        result = self.execute(func, *args, **(kwargs or {}))
        to_ref = self.ref_of if func._schema.is_mutable else self.add_input
        source = self.replayed_source or _calling_source()
        call = Call(func, tuple(arguments), options, _map_tensors(to_ref, result), source)
        self.calls.append(call)
        self.on_call(call)
        return result


def record(function: Callable[..., Any], *inputs: Tensor) -> Record:
    """Run `function` once and return its record, in which no operation works in place.

    Args:
        function: a function of tensors, which returns tensors, nested in any way.
        inputs: the arguments. The record holds for other values of the same shapes, unless the
            function decides by its inputs' values in a way that torch does not see (`.numpy()`).

    Raises:
        Unsupported: the function takes a number out of a tensor.
    """
    eager = _record(function, inputs)
    if not any(call.in_place for call in eager.calls):
        return eager
    # The record is made functional, not the function: functionalization refuses functions with
    # derivatives of their own. It lets every view of a tensor that is written see the new entries.
    recorder = Recorder()
    replay = functools.partial(_replay, eager, recorder)
    return _record(torch.func.functionalize(replay), inputs, recorder)


def _record(
    function: Callable[..., Any], inputs: Sequence[Tensor], recorder: Recorder | None = None
) -> Record:
    recorder = recorder or Recorder()
    copies = [tensor.clone() for tensor in inputs]  # into which the function may write
    input_refs = tuple(recorder.add_input(tensor) for tensor in copies)
    with torch.no_grad(), recorder:  # as an optimizer steps
        outputs = function(*copies)
    calls = tuple(recorder.calls)
    return Record(input_refs, recorder.refs_in(outputs), calls, recorder.constants)


def _replay(recorded: Record, recorder: Recorder, *inputs: Tensor) -> Any:
    """Run the calls of a record on other inputs."""
    tensors: dict[TensorRef, Any] = {
        **recorded.constants,
        **dict(zip(recorded.inputs, inputs, strict=True)),
    }

    def tensors_of(tree: Any) -> Any:
        return pytree.tree_map_only(TensorRef, tensors.__getitem__, tree)

    for call in recorded.calls:
        recorder.replayed_source = call.source
        result = call.function(*tensors_of(call.arguments), **tensors_of(call.options))
        tensors.update(zip(_refs_in(call.result), pytree.tree_leaves(result), strict=False))
    recorder.replayed_source = None
    return tensors_of(recorded.outputs)


def _map_tensors(function: Callable[[Tensor], TensorRef], tree: Any) -> Any:
    """Replace each tensor of `tree`. (pytree takes as long as a small operation.)"""
    if isinstance(tree, Tensor):
        return function(tree)
    cls = type(tree)
    if cls in (tuple, list):
        return cls(_map_tensors(function, item) for item in tree)
    if cls is dict:
        return {name: _map_tensors(function, item) for name, item in tree.items()}
    return tree if cls in TENSORLESS_TYPES else pytree.tree_map_only(Tensor, function, tree)


def _refs_in(tree: Any) -> list[TensorRef]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, TensorRef)]


def _calling_source() -> Source:
    """Return the innermost frames outside of torch and of this file."""
    frame = sys._getframe(2)
    while frame.f_back is not None and _is_internal(frame.f_code.co_filename):
        frame = frame.f_back
    frames: list[tuple[CodeType, int]] = []
    caller: FrameType | None = frame
    while caller is not None and len(frames) < MAX_FRAMES:
        frames.append((caller.f_code, caller.f_lasti))
        caller = caller.f_back
    return Source(frame.f_code.co_filename, frame.f_lineno, tuple(frames))


@functools.cache
def _is_internal(file: str) -> bool:
    return file == __file__ or file.startswith(TORCH_FOLDER)
