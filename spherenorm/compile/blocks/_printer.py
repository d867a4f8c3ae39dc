"""The lines of a planned pass, and Python functions made of lines."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import CodeType
from typing import Any

import numpy as np
import torch

from spherenorm.compile._graph import Node
from spherenorm.compile.blocks._calls import Call
from spherenorm.compile.blocks._values import Facts, Values
from spherenorm.operations import OPERATIONS, REDUCTIONS

__all__ = ["Printer", "make_function", "scalar_expression"]

Loads = Mapping[int, tuple[str, int | None]]
"""Inputs as {value: (name, buffer that it is converted in, or None)}."""


class Printer:
    """Prints a pass as the body of a function of S (scalars), block and buffers.

    Args:
        outputs: the new value of each tensor that is written.
        sums: (operation, value) of each tensor-wide reduction.
        saved: the row sums that later passes read.
    """

    def __init__(
        self,
        step: Facts,
        values: Values,
        outputs: Mapping[str, int],
        sums: Sequence[tuple[str, int]],
        saved: Sequence[int],
    ) -> None:
        self.step, self.values, self.nodes = step, values, values.nodes
        self.outputs, self.sums, self.saved = outputs, sums, saved

    def lines(self, needed: Iterable[int], loads: Loads, calls: Sequence[Call]) -> list[str]:
        written = {(call.into, call.result) for call in calls}
        return [*self._inputs(needed, loads), *map(self._call, calls), *self._results(written)]

    def _inputs(self, needed: Iterable[int], loads: Loads) -> Iterator[str]:
        for i in needed:
            if self.values.is_scalar(i):  # the decisions have made it one
                yield f"S[{i}] = {scalar_expression(self.nodes[i])}"
            elif i in self.values.plan.read_back:
                yield f"v{i} = {self._place_of_sums(i)}"
        for i, (name, buffer) in loads.items():
            # What another tensor takes over is copied: its place may be written to before that is.
            place = self._place(name) + (".clone()" if i in self.outputs.values() else "")
            yield (
                f"v{i} = {place}" if buffer is None else f"v{i} = buffers[{buffer}].copy_({place})"
            )

    def _call(self, call: Call) -> str:
        row, is_scalar = OPERATIONS[call.op], self.values.is_scalar
        arguments = [self._scalar(a) if is_scalar(a) else f"v{a}" for a in call.arguments]
        for k, a in enumerate(call.arguments[: row.tensors]):
            if is_scalar(a):
                kind = "torch.bool" if self.nodes[a].boolean else self.step.work
                arguments[k] = f"torch.scalar_tensor({self._scalar(a)}, dtype={kind}, device='cpu')"
        return f"v{call.result} = {row.torch.format(*arguments, out=self._place(call.into))}"

    def _results(self, written: set[tuple[Any, int]]) -> Iterator[str]:
        for i in self.saved:
            yield f"{self._place_of_sums(i)}.copy_(v{i})"
        for name, i in self.outputs.items():
            if (name, i) not in written:
                scalar = self.values.is_scalar(i)
                value = f"fill_({self._scalar(i)})" if scalar else f"copy_(v{i})"
                yield f"{self._place(name)}.{value}"
        parts = [REDUCTIONS[op].torch.format(f"v{i}") for op, i in self.sums]
        yield f"return [{', '.join(parts)}]"

    def _place(self, into: int | str | None) -> str:
        if into is None:
            return "None"
        return (
            f"buffers[{into}]" if isinstance(into, int) else f"block[{self.step.names.index(into)}]"
        )

    def _place_of_sums(self, index: int) -> str:
        return f"block[{len(self.step.names) + self.step.plan.saved[index]}]"

    def _scalar(self, index: int) -> str:
        """A scalar as an argument of an operation on tensors."""
        narrow = self.step.work is torch.float32 and not self.nodes[index].boolean
        return f"single(S[{index}])" if narrow else f"S[{index}]"


def scalar_expression(node: Node) -> str:
    """A scalar by those it is computed from, in NumPy."""
    value = OPERATIONS[node.op].numpy.format(*(f"S[{a}]" for a in node.arguments))
    return f"np.float64(np.float32({value}))" if node.single else value


def make_function(name: str, arguments: str, lines: Iterable[str]) -> Callable[..., Any]:
    """The Python function of that body."""
    source = "\n    ".join([f"def {name}({arguments}):", *lines, "pass"])
    made: dict[str, Any] = {"np": np, "torch": torch, "single": _single}
    exec(_compiled(source), made)
    function: Callable[..., Any] = made[name]
    return function


@functools.cache
def _compiled(source: str) -> CodeType:
    return compile(source, "<blocked step>", "exec")


def _single(value: float) -> float:
    """`value` as a float32 has it, infinite where torch would refuse to convert it."""
    return float(np.float32(value))
