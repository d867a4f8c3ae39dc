"""From a step's graph to Triton kernels that step many weights of a GPU together.

A batch is all weights that share a kernel. For every stage of the schedule there are two launches, whatever the number of
weights: `advanceN`, one program per weight, adds up what pass N - 1 has left, in a fixed order, and computes the scalars
that are known from there on; `passN`, one program per tile of a weight, does the walking. Scalars stay on the device, in
float64, in a row of S per weight; a pass that a decision makes needless returns at once. The host waits for nothing.

A tile is a run of entries where a pass has no values per row, else a few whole rows, all in registers; only rows too long
for that are walked over in several loops, which make values again from the inputs instead of keeping them: writes wait for
the last loop. What does not depend on the recipe stands in `prelude.py`, the launching in `launch.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from spherenorm.compile.graph import INPUTS, Extent, Node, StepGraph
from spherenorm.compile.guard import UnsupportedRuleError
from spherenorm.compile.schedule import REDUCTIONS, Operands, Pass, Schedule, schedule

__all__ = ["BLOCK", "COLUMNS", "TILES", "WALK", "Layout", "emit"]

TYPES = {
    torch.float32: "tl.float32",
    torch.float64: "tl.float64",
    torch.bfloat16: "tl.bfloat16",
    torch.float16: "tl.float16",
}
"""What weights and gradients are kept in; half precision is computed with in float32."""
BLOCK = 1024
"""The entries of a tile of a pass without values per row: 4 for each thread, so that registers let several programs share
a multiprocessor (AdamP's last pass takes 122 of them, of twice the tile 247)."""
TILES = ((64, 16), (16, 64), (4, 256), (1, 1024))
"""The other tiles, (rows, columns); the first that is wide enough is taken."""
WALK = (1, 1024)
"""The tile that is moved along rows too long for all of these."""
COLUMNS = ("rows", "cols", "first_row", "flat_first", "flat_count", "tile_first", "tile_count")
"""What the kernels are told of a weight besides its pointers: its shape; the rows before it in the batch; its first program
and the number of its programs in a pass over runs of entries and in one over rows."""

# `kind.` is the type that is computed in.
EXPRESSIONS = {
    "neg": "-{0}", "abs": "tl.abs({0})", "reciprocal": "1.0 / {0}", "sqrt": "tl.sqrt({0})", "rsqrt": "1.0 / tl.sqrt({0})",
    "square": "{0} * {0}", "sign": "({0} > 0).to(kind) - ({0} < 0).to(kind)", "exp": "tl.exp({0})", "log": "tl.log({0})",
    "sin": "tl.sin({0})", "cos": "tl.cos({0})", "not": "({0} == 0)",
    "sinc": "tl.where({0} == 0, 1.0, tl.sin({0} * 3.141592653589793) / tl.where({0} == 0, 1.0, {0} * 3.141592653589793))",
    "add": "{0} + {1}", "sub": "{0} - {1}", "rsub": "{1} - {0}", "mul": "{0} * {1}", "div": "{0} / {1}",
    "max": "tl.where(({0} > {1}) | ({0} != {0}), {0}, {1})", "min": "tl.where(({0} < {1}) | ({0} != {0}), {0}, {1})",
    "pow": "power({0}, {1}).to(kind)", "lt": "{0} < {1}", "le": "{0} <= {1}", "gt": "{0} > {1}", "ge": "{0} >= {1}",
    "eq": "{0} == {1}", "ne": "{0} != {1}", "and": "{0} & {1}", "or": "{0} | {1}", "where": "tl.where({0}, {1}, {2})",
    "cast": "{0}", "addcmul": "{0} + {1} * {2}", "lerp": "tl.where({2} < 0.5, {0} + {2} * ({1} - {0}), {1} - ({1} - {0}) * (1.0 - {2}))",
}  # fmt: skip
# In float32, Triton's own division and square root are approximate.
ROUNDED = {
    "reciprocal": "tl.div_rn(1.0, {0})", "sqrt": "tl.sqrt_rn({0})",
    "rsqrt": "tl.div_rn(1.0, tl.sqrt_rn({0}))", "div": "tl.div_rn({0}, {1})",
}  # fmt: skip
LOGIC = {"and", "or", "not", "where"}
# Of a tile, and of two tiles after each other.
REDUCE = {
    "sum": "tl.sum(tl.where({1}, {0}, 0.0){2})",
    "any": "tl.max(tl.where({1}, {0}, 0.0){2})",
    "all": "tl.min(tl.where({1}, {0}, 1.0){2})",
}
COMBINE = {"sum": "{0} + {1}", "any": "tl.maximum({0}, {1})", "all": "tl.minimum({0}, {1})"}


@dataclass(frozen=True)
class Layout:
    """How the kernels are launched.

    Attributes:
        source: a Python module with the kernels `advance0`, `pass0`, `advance1`, ..., in the order of their launches.
        states: the states whose pointers follow those of weight and gradient.
        flat: for each pass, whether its tiles are runs of entries.
        scalars: float64 values per weight; saved: per row; reductions: per program.
    """

    source: str
    states: tuple[str, ...]
    flat: tuple[bool, ...]
    scalars: int
    saved: int
    reductions: int


def emit(graph: StepGraph, numbers: int, dtype: torch.dtype) -> Layout:
    """The kernels of a graph whose first `numbers` arguments are hyper-parameters, for weights of that type.

    Raises:
        UnsupportedRuleError: naming the operation or the type.
    """
    if dtype not in TYPES:
        raise UnsupportedRuleError(f"weights of {dtype}")
    kernels = _Kernels(graph, schedule(graph), numbers, TYPES[dtype])
    return Layout(
        kernels.source(),
        kernels.operands.states,
        tuple(each.flat for each in kernels.passes),
        len(graph.nodes),
        len(kernels.plan.saved),
        kernels.reductions,
    )


class _Kernels:
    """What the kernels share: names of values, where things lie, and the scalars."""

    def __init__(self, graph: StepGraph, plan: Schedule, numbers: int, stored: str) -> None:
        self.graph, self.nodes, self.plan, self.numbers, self.stored = (
            graph,
            graph.nodes,
            plan,
            numbers,
            stored,
        )
        self.real = "tl.float64" if stored == "tl.float64" else "tl.float32"
        self.operands = Operands(graph)
        self.reductions = max([1, *(len(each.targets) for each in plan.passes[:-1])])
        self.passes = [_Pass(self, number, each) for number, each in enumerate(plan.passes)]

    def source(self) -> str:
        out = [
            "import triton",
            "import triton.language as tl",
            "",
            "from spherenorm.compile.prelude import power, total_all, total_any, total_sum",
        ]
        for stage, each in enumerate(self.passes):
            out += [*self._advance(stage), *each.source()]
        return "\n".join([*out, ""])

    def name(self, index: int, inside: Extent) -> str:
        """What a value is called among values of extent `inside`; among entries narrower ones are converted beforehand."""
        extent = self.nodes[index].extent
        if inside is Extent.FULL and extent is not Extent.FULL:
            return f"t{index}"
        return f"s{index}" if extent is Extent.SCALAR else f"v{index}"

    def expression(self, node: Node) -> str:
        kind = self.kind(node)
        names = [self.name(a, node.extent) for a in node.arguments]
        if node.op not in LOGIC:
            names = [
                f"{name}.to({kind})" if self.nodes[a].boolean else name
                for name, a in zip(names, node.arguments, strict=True)
            ]
        templates = EXPRESSIONS | ROUNDED if kind == "tl.float32" else EXPRESSIONS
        if node.op not in templates:
            raise UnsupportedRuleError(f"{node.op} in a Triton kernel")
        value = templates[node.op].format(*names).replace("kind", kind)
        return _rounded(f"({value})") if node.single and kind == "tl.float64" else value

    def kind(self, node: Node) -> str:
        return self.real if node.extent is Extent.FULL else "tl.float64"

    def at(self, name: str) -> str:
        return f"tl.load(shape + {COLUMNS.index(name)})"

    def pointer(self, name: str, kind: str) -> str:
        return f"tl.load(pointers + {self.operands.place[name]}).to(tl.pointer_type({kind}))"

    def scalar(self, index: int) -> str:
        """A scalar that an earlier launch has computed."""
        # (by way of an integer, since the interpreter cannot join a float's comparison with a row's)
        truth = ".to(tl.int32) != 0" if self.nodes[index].boolean else ""
        return f"tl.load(S + {index}){truth}"

    def of_tensor(self) -> list[str]:
        """The parts of what the kernels are given that concern the tensor at hand."""
        return [
            f"pointers += tensor * {len(self.operands.place)}",
            f"shape += tensor * {len(COLUMNS)}",
            f"S += tensor * {len(self.nodes)}",
        ]

    def _advance(self, stage: int) -> list[str]:
        """The scalars that are known once `stage` passes are over; the last stage writes scalar states."""
        out = [
            "@triton.jit",
            f"def advance{stage}(pointers, shape, literals, numbers, S, partial):",
            "tensor = tl.program_id(0)",
            *self.of_tensor(),
            f"literals += tensor * {len(self.graph.literals)}",
        ]
        here: dict[int, str] = {}
        if stage > 0:
            before = self.passes[stage - 1]
            tiling = "flat" if before.flat else "tile"
            out += [
                f"partial += {self.at(f'{tiling}_first')} * {self.reductions}",
                f"count = {self.at(f'{tiling}_count')}",
            ]
            if before.plan.gate is not None:
                out.append(f"count = tl.where({before.wanted()}, count, 0)")
            totals = {
                n: f"total_{n.op}(partial + {k}, count, {self.reductions})"
                for k, n in before.reductions
            }
            here = {n.index: _rounded(total) if n.single else total for n, total in totals.items()}
        for node in self.nodes:
            if node.index in self.plan.scalars and self.plan.stage[node.index] == stage:
                here[node.index] = self._scalar_value(node)
        writes = {}
        if stage == len(self.passes) - 1:
            outputs = self.graph.outputs.items()
            writes = {
                name: i
                for name, i in outputs
                if name != "weight" and self.nodes[i].extent is Extent.SCALAR
            }
        asked = {
            a
            for index in here
            if self.nodes[index].op not in REDUCTIONS
            for a in self.nodes[index].arguments
        } | set(writes.values())
        out += [f"s{index} = {self.scalar(index)}" for index in sorted(asked - here.keys())]
        for index, value in here.items():
            out += [
                f"s{index} = {value}",
                f"tl.store(S + {index}, s{index}{'.to(tl.float64)' if self.nodes[index].boolean else ''})",
            ]
        if writes:
            # Every warp has read the old values before one of them writes the new.
            out.append("tl.debug_barrier()")
        out += [
            f"tl.store({self.pointer(name, 'tl.float64')}, s{index})"
            for name, index in writes.items()
        ]
        return _function(out)

    def _scalar_value(self, node: Node) -> str:
        if node.op == "number":
            return (
                f"tl.load(numbers + {node.detail})"
                if node.detail < self.numbers
                else f"tl.load(literals + {node.detail - self.numbers})"
            )
        if node.op == "state":
            return f"tl.load({self.pointer(node.detail, 'tl.float64')})"
        return self.expression(node)


class _Pass:
    """One pass as the kernel `passN`."""

    def __init__(self, kernels: _Kernels, number: int, plan: Pass) -> None:
        self.kernels, self.nodes, self.number, self.plan = kernels, kernels.nodes, number, plan
        self.last = number == len(kernels.plan.passes) - 1
        self.reductions = [] if self.last else list(enumerate(plan.targets))
        self.full = [self.nodes[i] for i in plan.nodes if self.nodes[i].extent is Extent.FULL]
        self.rows = [self.nodes[i] for i in plan.nodes if self.nodes[i].extent is Extent.ROW]
        self.flat = not self.rows
        self.loops = 1 + max((plan.level[n.index] for n in self.full), default=-1)

    def wanted(self) -> str:
        """Whether the pass's gate has fallen so that it is needed."""
        assert self.plan.gate is not None
        index, way = self.plan.gate
        return f"tl.load(S + {index}) {'!=' if way else '=='} 0"

    def source(self) -> list[str]:
        arguments = "pointers, shape, S, saved, partial, block"
        tiles: list[str] = []
        if self.flat:
            calls = [f"tile{self.number}({arguments})"]
            tiles = _function(
                [
                    "@triton.jit",
                    f"def tile{self.number}({arguments}):",
                    *self._run(),
                    *self._body(looped=False),
                ]
            )
        else:
            shape = "ROWS: tl.constexpr, COLS: tl.constexpr"
            for name, looped in (("tile", False), ("walk", True)):
                head = ["@triton.jit", f"def {name}{self.number}({arguments}, {shape}):"]
                tiles += _function([*head, *self._rows(looped), *self._body(looped)])
            calls = [f"cols = {self.kernels.at('cols')}"]
            for i, (rows, cols) in enumerate(TILES):
                calls += [
                    f"{'el' if i else ''}if cols <= {cols}:",
                    f"    tile{self.number}({arguments}, {rows}, {cols})",
                ]
            calls += ["else:", f"    walk{self.number}({arguments}, {WALK[0]}, {WALK[1]})"]
        out = [
            "@triton.jit",
            f"def pass{self.number}(items, pointers, shape, S, saved, partial):",
            "item = tl.program_id(0)",
            "tensor = tl.load(items + item)",
            *self.kernels.of_tensor(),
            f"partial += item * {self.kernels.reductions}",
            f"block = item - {self.kernels.at('flat_first' if self.flat else 'tile_first')}",
        ]
        if self.plan.gate is not None:
            out.append(f"if {self.wanted()}:")
            calls = [f"    {line}" for line in calls]
        return [*tiles, *_function([*out, *calls])]

    def _run(self) -> list[str]:
        """Places are counted from a program's first entry, in 32 bits: cheaper to keep for every entry than addresses."""
        rows, cols = self.kernels.at("rows"), self.kernels.at("cols")
        return [
            f"first = block * {BLOCK}",
            f"at = tl.arange(0, {BLOCK})",
            f"inside = at < {rows} * {cols} - first",
        ]

    def _rows(self, looped: bool) -> list[str]:
        cols = self.kernels.at("cols")
        out = [
            f"cols = {cols}",
            "r = block * ROWS + tl.arange(0, ROWS)",
            f"in_rows = r < {self.kernels.at('rows')}",
            "first = block * ROWS * cols",
            "start = tl.arange(0, ROWS)[:, None] * cols.to(tl.int32)",
        ]
        return out if looped else [*out, *self._columns("tl.arange(0, COLS)")]

    @staticmethod
    def _columns(columns: str) -> list[str]:
        return [
            f"j = {columns}",
            "at = start + j[None, :]",
            "inside = in_rows[:, None] & (j < cols)[None, :]",
        ]

    def _body(self, looped: bool) -> list[str]:
        operands = self.kernels.operands
        outside = sorted(
            {
                a
                for n in [*self.full, *self.rows]
                for a in n.arguments
                if self.nodes[a].extent is Extent.SCALAR
            }
        )
        out = []
        for a in outside:
            out.append(f"s{a} = {self.kernels.scalar(a)}")
            if any(a in n.arguments for n in self.full):
                out.append(self._converted(a, f"s{a}"))
        touched = {n.name for n in [*self.full, *self.rows] if n.op in INPUTS} | {
            name for name, _ in self._writes()
        }
        for name in sorted(touched, key=operands.place.__getitem__):
            kind = self.kernels.stored if name in ("weight", "grad") else self.kernels.real
            shift = " + first" if operands.old[name].extent is Extent.FULL else ""
            out.append(f"p{operands.place[name]} = {self.kernels.pointer(name, kind)}{shift}")
        known: set[int] = set()
        for loop in range(self.loops + 1):
            out += self._row_values(loop)
            if loop < self.loops:
                out += self._loop(loop, looped, known)
        return out + self._results()

    def _writes(self) -> list[tuple[str, int]]:
        """(output, node) of what the pass writes per row and per entry."""
        return [
            (name, i)
            for name, i in self.kernels.graph.outputs.items()
            if self.last and i in self.plan.level and i != self._old(name)
        ]

    def _old(self, name: str) -> int:
        return self.kernels.operands.old[name].index

    def _converted(self, index: int, value: str) -> str:
        """What tiles use of a narrower value: its truth, or what it is in the type of entries; of a row, as a column."""
        column = "[:, None]" if self.nodes[index].extent is Extent.ROW else ""
        return f"t{index} = {value}{'' if self.nodes[index].boolean else f'.to({self.kernels.real})'}{column}"

    def _row_values(self, loop: int) -> list[str]:
        """Row values that need the sums of `loop` loops; the sums themselves are there by then."""
        out = []
        for n in self.rows:
            if self.plan.level[n.index] != loop:
                continue
            if n.index in self.plan.read_back:
                out.append(f"v{n.index} = tl.load({self._saved(n.index)}, mask=in_rows, other=0.0)")
            elif n.op == "state":
                place = self.kernels.operands.place[n.detail]
                out.append(
                    f"v{n.index} = tl.load(p{place} + r, mask=in_rows, other=0.0).to(tl.float64)"
                )
            elif n.op != "sum":
                out.append(f"v{n.index} = {self.kernels.expression(n)}")
            if any(n.index in f.arguments for f in self.full):
                out.append(self._converted(n.index, f"v{n.index}"))
        return out

    def _saved(self, index: int) -> str:
        """Where the row sums lie that one pass leaves to others."""
        plan = self.kernels.plan
        return f"saved + ({self.kernels.at('first_row')} + r) * {len(plan.saved)} + {plan.saved[index]}"

    def _loop(self, loop: int, looped: bool, known: set[int]) -> list[str]:
        """The sums over entries of level `loop`, and in the last loop the writes, with what they need.

        Args:
            known: the entries that this tile has computed already; those of another loop are gone.
        """
        row_sums = {
            n.arguments[0]: n
            for n in self.rows
            if n.op == "sum" and n.index not in self.plan.read_back
        }
        row_sums = {source: n for source, n in row_sums.items() if self.plan.level[source] == loop}
        totals = [
            (k, n)
            for k, n in self.reductions
            if self._is_entry(n.arguments[0]) and self.plan.level[n.arguments[0]] == loop
        ]
        from_rows = [(k, n) for k, n in totals if n.op == "sum" and n.arguments[0] in row_sums]
        totals = [each for each in totals if each not in from_rows]
        writes = [
            (name, index)
            for name, index in self._writes()
            if self._is_entry(index) and loop == self.loops - 1
        ]
        body = self._values(
            [*row_sums, *(n.arguments[0] for _, n in totals), *(index for _, index in writes)],
            set() if looped else known,
        )
        # (sum, how it is combined, what a tile adds, what it starts from)
        sums = [
            (
                f"v{n.index}",
                "sum",
                self._reduced("sum", source, ", axis=1"),
                "tl.zeros([ROWS], tl.float64)",
            )
            for source, n in row_sums.items()
        ]
        start = {"sum": "0.0", "any": "0.0", "all": "1.0"}
        sums += [
            (
                f"part{k}",
                n.op,
                self._reduced(n.op, n.arguments[0], ""),
                f"tl.full([], {start[n.op]}, tl.float64)",
            )
            for k, n in totals
        ]
        stores = [
            f"tl.store(p{self.kernels.operands.place[name]} + at, {self._stored(name, index)}, mask=inside)"
            for name, index in writes
        ]
        out: list[str] = []
        if looped and (sums or stores):
            body = [*self._columns("j0 + tl.arange(0, COLS)"), *body]
            body += [
                f"{name} = {COMBINE[op].format(name, value)}" for name, op, value, _ in sums
            ] + stores
            out += [f"{name} = {beginning}" for name, _, _, beginning in sums]
            out += ["for j0 in range(0, cols, COLS):", *(f"    {line}" for line in body)]
        elif not looped:
            out += [*body, *(f"{name} = {value}" for name, _, value, _ in sums), *stores]
        out += [
            f"v{n.index} = {_rounded(f'v{n.index}')}" for n in row_sums.values() if n.single and out
        ]
        return out + [
            f"part{k} = tl.sum(v{row_sums[n.arguments[0]].index}, axis=0)" for k, n in from_rows
        ]

    def _is_entry(self, index: int) -> bool:
        return self.nodes[index].extent is Extent.FULL

    def _reduced(self, op: str, source: int, axis: str, inside: str = "inside") -> str:
        """A tile's reduction, in float64; taken in the type of its entries."""
        value = f"v{source}"
        if self.nodes[source].boolean:
            value += f".to({self.kernels.kind(self.nodes[source])})"
        return REDUCE[op].format(value, inside, axis) + ".to(tl.float64)"

    def _stored(self, name: str, index: int) -> str:
        return f"v{index}.to({self.kernels.stored if name == 'weight' else self.kernels.real})"

    def _values(self, roots: list[int], known: set[int]) -> list[str]:
        """The entries that `roots` ask for, in order; they join what is known."""
        needed: set[int] = set()
        pending = list(roots)
        while pending:
            index = pending.pop()
            if index not in needed | known and self._is_entry(index):
                needed.add(index)
                pending.extend(self.nodes[index].arguments)
        known |= needed
        out = []
        for index in sorted(needed):
            node = self.nodes[index]
            if node.op in INPUTS:
                place = self.kernels.operands.place[node.name]
                out.append(
                    f"v{index} = tl.load(p{place} + at, mask=inside, other=0.0).to({self.kernels.real})"
                )
            else:
                out.append(f"v{index} = {self.kernels.expression(node)}")
        return out

    def _results(self) -> list[str]:
        """What the rows come to, and the program's share of reductions."""
        out = []
        for k, n in self.reductions:
            if self.nodes[n.arguments[0]].extent is Extent.ROW:
                out.append(f"part{k} = {self._reduced(n.op, n.arguments[0], '', 'in_rows')}")
            out.append(f"tl.store(partial + {k}, part{k})")
        for index in self.kernels.plan.saved:
            if index in self.plan.level and index not in self.plan.read_back:
                out.append(f"tl.store({self._saved(index)}, v{index}, mask=in_rows)")
        rows = [(name, index) for name, index in self._writes() if not self._is_entry(index)]
        if rows:
            # Several threads may have read the same row; all of them have before one writes it.
            out.append("tl.debug_barrier()")
        out += [
            f"tl.store(p{self.kernels.operands.place[name]} + r, {self._stored(name, index)}, mask=in_rows)"
            for name, index in rows
        ]
        return out


def _rounded(value: str) -> str:
    """A float64 value as the rule's own float32 has it."""
    return f"{value}.to(tl.float32).to(tl.float64)"


def _function(lines: list[str]) -> list[str]:
    """A decorator, a signature, and the body below it, indented."""
    decorator, signature, *body = lines
    return ["", "", decorator, signature, *(f"    {line}" for line in body)]
