"""The recorder: one run of a function of tensors, written down as the operations of torch.

`spherenorm.compile` makes kernels of the record of a rule's step, and `spherenorm_theory` reads it
on symbols.

    from spherenorm.record import record
    written = record(lambda x, y: x + 2 * y, torch.ones(3), torch.ones(3))
    print([call.name for call in written.calls])  # ['aten.mul.Tensor', 'aten.add.Tensor']
"""

from __future__ import annotations

import functools
import linecache
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spherenorm.torch_internals import OpOverload, TorchDispatchMode, pytree

__all__ = ["TORCH", "Call", "Record", "RecordError", "Recorder", "Value", "record"]

PLAIN = {bool, int, float, str, type(None), torch.dtype, torch.device, torch.layout}
"""Types of what holds no tensor."""
TORCH = str(Path(torch.__file__).parent) + os.sep
"""The folder of torch itself; a user may have one of that name, too."""


class RecordError(ValueError):
    """The function takes a number out of a tensor, which may be another in the next run."""

    MESSAGE = "its code reads a value of a tensor"


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor of the recorded run."""

    shape: torch.Size
    dtype: torch.dtype


@dataclass(frozen=True, eq=False)
class Call:
    """One operation.

    Attributes:
        function: aten's overload.
        arguments, options: its positional and keyword arguments, with a `Value` for each tensor.
        result: a `Value`, or several.
        place: file and line of the code that asked for it.
    """

    function: OpOverload
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    result: Any
    place: tuple[str, int]

    @property
    def name(self) -> str:
        """Such as "aten.add.Tensor"."""
        return str(self.function)

    @property
    def packet(self) -> str:
        """The name of aten's operation, such as "add"; the whole name of one of another library."""
        plain = self.function.namespace == "aten"
        return self.function.overloadpacket.__name__ if plain else self.name

    @property
    def line(self) -> str:
        """The line of source that asked for it: "file.py:12: x + 2 * y"."""
        file, number = self.place
        return f"{Path(file).name}:{number}: {linecache.getline(file, number).strip()}"

    @property
    def in_place(self) -> bool:
        return bool(self.function._schema.is_mutable)

    def values(self) -> list[Value]:
        """The values that it takes."""
        return _values((self.arguments, self.options))


@dataclass(frozen=True, eq=False)
class Record:
    """A recorded run.

    Attributes:
        inputs, outputs: of the function; the outputs are nested as it returned them.
        calls: in order.
        constants: copies of the tensors that the function brought along, from before it wrote into
            them.
    """

    inputs: tuple[Value, ...]
    outputs: Any
    calls: tuple[Call, ...]
    constants: dict[Value, Tensor]

    @functools.cached_property
    def needed(self) -> tuple[Call, ...]:
        """The calls that the outputs depend on, in order."""
        asked, kept = set(_values(self.outputs)), []
        for call in reversed(self.calls):
            if call.in_place or not asked.isdisjoint(_values(call.result)):
                asked.update(call.values())
                kept.append(call)
        return tuple(reversed(kept))


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down each operation while it is active.

    Args:
        read: is given each call when it has been carried out. What it raises is raised where the
            recorded code asked for the operation.
        carry_out: gives the result of an operation, by its overload and arguments.
    """

    def __init__(
        self,
        read: Callable[[Call], None] = lambda call: None,
        carry_out: Callable[..., Any] = lambda function, *args, **kwargs: function(*args, **kwargs),
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.read, self.carry_out = read, carry_out
        self.calls: list[Call] = []
        self.constants: dict[Value, Tensor] = {}
        self.place: tuple[str, int] | None = None
        """Set while a record is replayed: the place of the call there."""
        self._known: dict[int, tuple[Value, Tensor]] = {}

    def enter(self, tensor: Tensor) -> Value:
        """The value of a tensor that is new here."""
        value = Value(tensor.shape, tensor.dtype)
        self._known[id(tensor)] = value, tensor  # held, so that no other tensor gets its id
        return value

    def value(self, tensor: Tensor) -> Value:
        """The value of any tensor; one that no call has made is a constant."""
        if id(tensor) not in self._known:
            # As it is now: the code may write into it later.
            self.constants[self.enter(tensor)] = tensor.detach().clone()
        return self._known[id(tensor)][0]

    def values(self, tree: Any) -> Any:
        """`tree` with a value for each tensor."""
        return _mapped(self.value, tree)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True imports torch._dynamo, for seconds; records are of eager code

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RecordError(RecordError.MESSAGE)
        arguments, options = self.values(args), self.values(kwargs or {})
        result = self.carry_out(func, *args, **(kwargs or {}))
        entered = _mapped(self.value if func._schema.is_mutable else self.enter, result)
        call = Call(func, tuple(arguments), options, entered, self.place or _place())
        self.calls.append(call)
        self.read(call)
        return result


def record(function: Callable[..., Any], *inputs: Tensor) -> Record:
    """The record of `function` at `inputs`, in which no operation works in place.

    Args:
        function: of tensors; its outputs are tensors, nested in any way.
        inputs: what it runs on. A record holds for other values of the same shapes, unless the
            function decides by its inputs' values in a way that torch does not see (`.numpy()`).

    Raises:
        RecordError: the function takes a number out of a tensor.
    """
    written = _record(function, inputs)
    if not any(call.in_place for call in written.calls):
        return written
    # Of the record, not of the function: functionalization refuses functions with derivatives of
    # their own. It lets every view of a tensor that is written to see the new entries.
    recorder = Recorder()
    again = functools.partial(_replay, written, recorder)
    return _record(torch.func.functionalize(again), inputs, recorder)


def _record(
    function: Callable[..., Any], inputs: Sequence[Tensor], recorder: Recorder | None = None
) -> Record:
    recorder = recorder or Recorder()
    copies = [tensor.clone() for tensor in inputs]  # which the function may write into
    entered = tuple(recorder.enter(tensor) for tensor in copies)
    with torch.no_grad(), recorder:  # as an optimizer steps
        outputs = function(*copies)
    return Record(entered, recorder.values(outputs), tuple(recorder.calls), recorder.constants)


def _replay(written: Record, recorder: Recorder, *inputs: Tensor) -> Any:
    """Carry the calls out anew."""
    tensors: dict[Value, Any] = {
        **written.constants,
        **dict(zip(written.inputs, inputs, strict=True)),
    }

    def tensors_of(tree: Any) -> Any:
        return pytree.tree_map_only(Value, tensors.__getitem__, tree)

    for call in written.calls:
        recorder.place = call.place
        result = call.function(*tensors_of(call.arguments), **tensors_of(call.options))
        made, again = _values(call.result), pytree.tree_leaves(result)
        tensors.update(zip(made, again, strict=False))
    recorder.place = None
    return tensors_of(written.outputs)


def _mapped(function: Callable[[Tensor], Value], tree: Any) -> Any:
    """`tree` with `function` of each tensor; pytree takes as long as a small operation."""
    if isinstance(tree, Tensor):
        return function(tree)
    kind = type(tree)
    if kind in (tuple, list):
        return kind(_mapped(function, each) for each in tree)
    if kind is dict:
        return {name: _mapped(function, each) for name, each in tree.items()}
    return tree if kind in PLAIN else pytree.tree_map_only(Tensor, function, tree)


def _values(tree: Any) -> list[Value]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Value)]


def _place() -> tuple[str, int]:
    """File and line of the innermost frame outside of torch and of this file."""
    frame = sys._getframe(2)
    while frame.f_back is not None and _is_machinery(frame.f_code.co_filename):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


@functools.cache
def _is_machinery(file: str) -> bool:
    return file == __file__ or file.startswith(TORCH)
