"""The words of Triton: expressions of values, and the places of what kernels are given."""

from __future__ import annotations

from spherenorm.compile._graph import INPUTS, Extent, Node
from spherenorm.compile._guard import UnsupportedRuleError
from spherenorm.compile._printer import Words
from spherenorm.compile._schedule import Gate, Schedule
from spherenorm.operations import OPERATIONS, REDUCTIONS

COLUMNS = ("rows", "cols", "first_row", "flat_first", "flat_count", "tile_first", "tile_count")
"""A weight's facts besides its pointers: its shape; the rows before it in the batch; its first
program and the number of its programs, in a pass over runs of entries and in one over rows."""


class TritonWords(Words):
    """Scalars are s3 in float64, values of a row in float64, those of a tile in `real`."""

    scalar, given, literal = "s{}", "tl.load(numbers + {})", "tl.load(literals + {})"

    def __init__(self, plan: Schedule, stored: str) -> None:
        super().__init__(plan)
        self.stored = stored
        self.real = "tl.float64" if stored == "tl.float64" else "tl.float32"

    def expression(self, node: Node) -> str:
        kind, row = self.kind(node), OPERATIONS[node.op]
        names = [self.name(a, node.extent) for a in node.arguments]
        if row.gives in ("number", "truth"):
            names = [
                f"{name}.to({kind})" if self.nodes[a].boolean else name
                for name, a in zip(names, node.arguments, strict=True)
            ]
        template = (kind == "tl.float32" and row.triton_float32) or row.triton
        if not template:
            raise UnsupportedRuleError(f"{node.op} in a Triton kernel")
        value = template.format(*names, kind=kind)
        return rounded(f"({value})") if node.single and kind == "tl.float64" else value

    def kind(self, node: Node) -> str:
        """The type that a value is computed in."""
        return self.real if node.extent is Extent.FULL else "tl.float64"

    def converted(self, index: int, value: str) -> str:
        # A row's value is a column.
        node = self.nodes[index]
        kind = "" if node.boolean else f".to({self.real})"
        return f"t{index} = {value}{kind}{'[:, None]' if node.extent is Extent.ROW else ''}"

    def at(self, column: str) -> str:
        """A fact of the weight at hand."""
        return f"tl.load(shape + {COLUMNS.index(column)})"

    def pointer(self, name: str, kind: str) -> str:
        """The first entry of a tensor of the weight at hand."""
        return f"tl.load(pointers + {self.place[name]}).to(tl.pointer_type({kind}))"

    def counter(self, name: str) -> str:
        return f"tl.load({self.pointer(name, 'tl.float64')})"

    def row_value(self, node: Node, value: str) -> str:
        return f"v{node.index} = {value}"

    def row_state(self, name: str) -> str:
        state = f"tl.load(p{self.place[name]} + r, mask=in_rows, other=0.0)"
        return f"{state}.to(tl.float64)"

    def left(self, index: int) -> str:
        return f"tl.load({self.saved(index)}, mask=in_rows, other=0.0)"

    def saved(self, index: int) -> str:
        """The place of the row sums that one pass leaves to others."""
        place = self.plan.saved[index]
        return f"saved + ({self.at('first_row')} + r) * {len(self.plan.saved)} + {place}"

    def known(self, index: int) -> str:
        """A scalar that an earlier launch has computed."""
        # (an integer, since the interpreter cannot join a float's comparison with a row's)
        truth = ".to(tl.int32) != 0" if self.nodes[index].boolean else ""
        return f"tl.load(S + {index}){truth}"

    def wanted(self, gate: Gate) -> str:
        """True if the decision has the value at which the pass is needed."""
        index, way = gate
        return f"tl.load(S + {index}) {'!=' if way else '=='} 0"

    def entry(self, index: int) -> str:
        """A value of a tile: read, or computed."""
        node = self.nodes[index]
        if node.op not in INPUTS:
            return self.expression(node)
        place = self.place[node.name]
        return f"tl.load(p{place} + at, mask=inside, other=0.0).to({self.real})"

    def reduced(self, op: str, source: int, axis: str, inside: str = "inside") -> str:
        """A tile's reduction, in float64; taken in the type of its entries."""
        node = self.nodes[source]
        value = f"v{source}{f'.to({self.kind(node)})' if node.boolean else ''}"
        return REDUCTIONS[op].triton_tile.format(value, inside, axis) + ".to(tl.float64)"

    def store(self, name: str, index: int, at: str, mask: str) -> str:
        """Write a value to its tensor, in the type that this is kept in."""
        kept = self.stored if name == "weight" else self.real
        return f"tl.store(p{self.place[name]} + {at}, v{index}.to({kept}), mask={mask})"

    def of_tensor(self) -> list[str]:
        """Step to the part of the kernels' tables that concerns the weight at hand."""
        return [
            f"pointers += tensor * {len(self.place)}",
            f"shape += tensor * {len(COLUMNS)}",
            f"S += tensor * {len(self.nodes)}",
        ]


def rounded(value: str) -> str:
    """A float64 value as the rule's own float32 has it."""
    return f"{value}.to(tl.float32).to(tl.float64)"
