"""Calls of torch that make the values of a pass, and the places that their results go to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from spherenorm.compile._graph import INPUTS, Extent, Node
from spherenorm.compile.blocks._values import Values

__all__ = ["Call", "fuse", "place"]


@dataclass(frozen=True)
class Call:
    """One operation on the values of a block.

    Attributes:
        op: of `OPERATIONS`.
        arguments: indices of values; numbers among them are scalars.
        result: the index of the value it makes.
        into: the place of the result: a buffer's number, the name of an output that is written in
            place, or None for a new tensor.
    """

    op: str
    arguments: tuple[int, ...]
    result: int
    into: int | str | None = None


def fuse(values: Values, order: Sequence[int], kept: Collection[int]) -> list[Call]:
    """Calls that make the values of `order`; a product that only one sum uses becomes part of it.

    Args:
        kept: the values that are asked for themselves.
    """
    fusion = _Fusion(values, order, kept)
    for index in order:
        node = values.nodes[index]
        if node.op not in INPUTS and node.extent is not Extent.SCALAR:
            fusion.add(node)
    # Each sum is taken at once, while its terms are in cache and before their buffer is needed
    # again.
    position = {index: k for k, index in enumerate(fusion.calls)}

    def turn(call: Call) -> float:
        if call.op == "sum":
            return position.get(call.arguments[0], -1) + 0.5
        return position[call.result]

    return sorted(fusion.calls.values(), key=turn)


class _Fusion:
    """Calls by their results."""

    def __init__(self, values: Values, order: Sequence[int], kept: Collection[int]) -> None:
        self.values, self.kept = values, kept
        self.uses = Counter(a for i in order for a in values.nodes[i].arguments)
        self.calls: dict[int, Call] = {}

    def add(self, node: Node) -> None:
        op, arguments = self._in_order(node)
        if op in ("add", "sub") and not self.values.is_scalar(arguments[0]):
            product = self._take_product(arguments[1], node.extent)
            if product is None and op == "add":
                product = self._take_product(arguments[0], node.extent)
                arguments = arguments[::-1] if product else arguments
            if product is not None:
                op, arguments = f"{op}_product", (arguments[0], *product)
        elif op == "addcmul" and self.values.is_scalar(arguments[2]):
            op = "add_scaled"
        elif op == "addcmul":
            x, y, z = arguments
            if (product := self._take_product(y, node.extent)) is not None:
                op, arguments = "addcmul_scaled", (x, product[0], z, product[1])
        self.calls[node.index] = Call(op, arguments, node.index)

    def _in_order(self, node: Node) -> tuple[str, tuple[int, ...]]:
        """An operation with numbers after tensors, where it may have them so."""
        op, arguments, is_scalar = node.op, node.arguments, self.values.is_scalar
        if op == "rsub":
            return "sub", arguments[::-1]
        if op in ("add", "mul") and is_scalar(arguments[0]):
            return op, arguments[::-1]
        if op == "addcmul" and is_scalar(arguments[1]):
            return op, (arguments[0], arguments[2], arguments[1])
        return op, arguments

    def _take_product(self, index: int, extent: Extent) -> tuple[int, int] | None:
        """(x, s) of a product s x with a number s that only one call uses, which takes it over."""
        call = self.calls.get(index)
        if call is None or call.op != "mul" or self.uses[index] != 1 or index in self.kept:
            return None
        x, scale = call.arguments
        if self.values.nodes[index].extent is not extent or not self.values.is_scalar(scale):
            return None
        del self.calls[index]
        return x, scale


def place(
    values: Values,
    needed: Sequence[int],
    calls: Sequence[Call],
    outputs: Mapping[str, int],
    kept: Collection[int],
    converted: Collection[str],
) -> tuple[dict[int, tuple[str, int | None]], list[Call], int]:
    """Put each result over a state's old value after its last read, or into a free buffer.

    Args:
        needed: the values of the pass; kept: those that are asked for themselves.
        outputs: the new value of each tensor that is written.
        converted: the tensors that are kept in another dtype than is computed in.

    Returns:
        The inputs as {value: (name, buffer of its conversion or None)}, the calls, and the number
        of buffers.
    """
    inputs, loads = values.graph.inputs, {}
    last_read = {a: k for k, call in enumerate(calls) for a in call.arguments}
    last_read |= dict.fromkeys(kept, len(calls))
    buffers = _Buffers()
    for name, node in inputs.items():
        if node.index in needed:
            loads[node.index] = name, buffers.take(node.index) if name in converted else None
    placed = []
    for k, call in enumerate(calls):
        buffers.free(a for a in set(call.arguments) if last_read[a] == k)
        node = values.nodes[call.result]
        into: int | str | None = None
        if node.extent is Extent.FULL and not node.boolean:
            mine = [
                name for name, i in outputs.items() if i == call.result and name not in converted
            ]
            over = (name for name in mine if last_read.get(inputs[name].index, -1) <= k)
            into = next(over, None)
            into = buffers.take(call.result) if into is None else into
        placed.append(replace(call, into=into))
    return loads, placed, buffers.count


class _Buffers:
    """The values that buffers hold.

    Attributes:
        count: the number of buffers that were ever needed.
    """

    def __init__(self) -> None:
        self.count = 0
        self._held: dict[int, int] = {}
        self._free: list[int] = []

    def take(self, value: int) -> int:
        if not self._free:
            self._free.append(self.count)
            self.count += 1
        self._held[value] = self._free.pop()
        return self._held[value]

    def free(self, values: Iterable[int]) -> None:
        self._free += [self._held.pop(value) for value in values if value in self._held]
