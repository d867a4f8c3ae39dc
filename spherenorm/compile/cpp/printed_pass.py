"""One pass as a C++ function: loops over the entries of each row, and the values between them."""

from __future__ import annotations

from spherenorm.compile.graph import INPUTS, Extent, Node
from spherenorm.compile.schedule import Loop, Pass, Schedule
from spherenorm.operations import OPERATIONS, REDUCTIONS


class CppWords:
    """The values of a step in C++.

    Scalars are S[3] in double, values of a row v3 in double, those of an entry v3 in `real`. Loops
    over entries convert narrower values beforehand, to t3; a truth is a mask m3 too.
    """

    def __init__(self, plan: Schedule) -> None:
        self.plan, self.nodes, self.place = plan, plan.graph.nodes, plan.place

    def name(self, index: int, inside: Extent) -> str:
        """The name of a value among values of extent `inside`."""
        extent = self.nodes[index].extent
        if inside is Extent.FULL and extent is not Extent.FULL:
            return f"t{index}"
        return f"S[{index}]" if extent is Extent.SCALAR else f"v{index}"

    def source_of_scalar(self, node: Node, numbers: int) -> str:
        """The source of a scalar, if `numbers` of the kernel's arguments are the rule's."""
        if node.op == "number":
            place = node.detail
            return f"H[{place}]" if place < numbers else f"L[{place - numbers}]"
        if node.op == "state":
            return f"*reinterpret_cast<const double*>(P[{self.place[node.detail]}])"
        return self.expression(node)

    def row_values(self, walk: Pass, loop: Loop) -> list[str]:
        """The values per row that are known before a loop."""
        out = []
        for n in loop.rows:
            kind = "bool" if n.boolean else "double"
            if n.index in walk.read_back:
                value = self.left(n.index)
            elif n.op == "state":
                value = f"reinterpret_cast<const real*>(part.P[{self.place[n.detail]}])[r]"
            else:
                value = "" if n.op == "sum" else self.expression(n)
            out += [f"const {kind} v{n.index} = {value};"] if value else []
            out += [self.converted(n.index, f"v{n.index}")] if walk.in_entries(n.index) else []
        return out

    def expression(self, node: Node) -> str:
        """A value by those that it is computed from."""
        names = [self.name(a, node.extent) for a in node.arguments]
        entry = node.extent is Extent.FULL
        decided = node.op == "where" and self.nodes[node.arguments[0]].extent is not Extent.FULL
        if decided and entry and not node.boolean:
            return f"choose(m{node.arguments[0]}, {names[1]}, {names[2]})"
        value = OPERATIONS[node.op].cpp.format(*names, kind="real" if entry else "double")
        return f"rounded({value})" if node.single and not entry else value

    def converted(self, index: int, value: str) -> str:
        """A narrower value as loops over entries use it."""
        if not self.nodes[index].boolean:
            return f"const real t{index} = {value};"
        return (
            f"const bool t{index} = {value}; const mask m{index} = -mask(t{index}); (void)m{index};"
        )

    def left(self, index: int) -> str:
        """A row sum that an earlier pass has left."""
        return f"part.saved[{self.plan.saved[index]} * part.rows + r]"


class Storage:
    """The loop of each write, and the place of what a later loop needs again.

    A value of an earlier loop waits in a scratch row.

    Attributes:
        scratch: the scratch row of each value that has one.
    """

    def __init__(self, words: CppWords, plan: Pass) -> None:
        self.words, self.nodes, self.plan = words, words.nodes, plan
        self._writes = [
            (name, n.index, self._due(name, n.index)) for name, n in plan.written(Extent.FULL)
        ]
        self.scratch = self._scratch()

    def stores(self, loop: int) -> list[tuple[str, int]]:
        """(output, value) of the writes in a loop."""
        return [(name, index) for name, index, due in self._writes if due == loop]

    def values(self, loop: int, roots: list[int]) -> dict[int, str]:
        """The source of each entry that `roots` ask for in a loop."""
        values: dict[int, str] = {}
        pending = list(roots)
        while pending:
            node = self.nodes[pending.pop()]
            index = node.index
            if index in values or node.extent is not Extent.FULL:
                continue
            earlier = self.plan.level[index] < loop
            if node.op in INPUTS:
                values[index] = f"load(p{self.words.place[node.name]}[j])"
            elif earlier and index in self.scratch:
                values[index] = f"k{index}[j]"
            else:
                values[index] = self.words.expression(node)
                pending.extend(node.arguments)
        return values

    def _due(self, name: str, index: int) -> int:
        """The loop of a write: it waits until the old value has been read for the last time."""
        old = self.words.plan.graph.inputs[name].index
        reads = [self.plan.level[n.index] for n in self.plan.full if old in n.arguments]
        return max([self.plan.level[index], *reads])

    def _scratch(self) -> dict[int, int]:
        level = self.plan.level
        needed = {
            a for n in self.plan.full for a in n.arguments if level.get(a, 0) < level[n.index]
        }
        needed |= {index for _, index, loop in self._writes if loop > level[index]}
        entries = {n.index for n in self.plan.full if n.op not in INPUTS}
        return {index: k for k, index in enumerate(sorted(needed & entries))}


class PrintedPass:
    """Pass `number` as a function `passN(part)`."""

    def __init__(self, words: CppWords, number: int) -> None:
        self.words, self.number, self.plan = words, number, words.plan.passes[number]
        self.storage = Storage(words, self.plan)
        self.scratch = self.storage.scratch

    def source(self) -> str:
        out = [
            f"static void pass{self.number}(const Part& part) {{",
            "const double* const S = part.S; (void)S;",
        ]
        out += [self.words.converted(a, f"S[{a}]") for a in self.words.plan.outside(self.plan.full)]
        out += [f"double part{k} = {REDUCTIONS[n.op].start};" for k, n in self.plan.reductions]
        out += [
            "for (int64_t r = part.first; r < part.end; ++r) {",
            "const int64_t offset = r * part.cols;",
            "const int64_t length = smaller(part.cols, part.numel - offset); (void)length;",
            *self._pointers(),
        ]
        for number, loop in enumerate(self.plan.loops):
            out += [*self.words.row_values(self.plan, loop), *self._loop(number, loop)]
        out += [*self._row_results(), "}"]
        out += [f"part.partial[{k}] = part{k};" for k, _ in self.plan.reductions]
        return "\n".join([*out, "}"])

    def _pointers(self) -> list[str]:
        """Of the present row: tensors with a value per entry, and scratch rows."""
        out = []
        for name, place in self.words.place.items():
            if self.words.plan.graph.inputs[name].extent is Extent.FULL:
                kind = "stored" if name in ("weight", "grad") else "real"
                start = f"reinterpret_cast<{kind}*>(part.P[{place}]) + offset"
                out.append(f"{kind}* __restrict const p{place} = {start}; (void)p{place};")
        return out + [
            f"real* __restrict const k{index} = part.scratch + {place} * part.cols;"
            for index, place in self.scratch.items()
        ]

    def _row_results(self) -> list[str]:
        """The share of the row in reductions, the sums that it leaves, and its new states."""
        out = [
            REDUCTIONS[n.op].cpp.format(f"part{k}", f"v{n.arguments[0]}")
            for k, n in self.plan.row_totals
        ]
        out += [f"{self.words.left(i)} = v{i};" for i in self.words.plan.left_by(self.plan)]
        for name, n in self.plan.written(Extent.ROW):
            place = self.words.place[name]
            out.append(f"reinterpret_cast<real*>(part.P[{place}])[r] = v{n.index};")
        return out

    def _loop(self, number: int, loop: Loop) -> list[str]:
        """The entries of a loop, block by block, with their sums and the writes that are due."""
        computed = [n.index for n in self.plan.full if n.op not in INPUTS]
        here = [i for i in computed if self.plan.level[i] == number]
        stores = self.storage.stores(number)
        values = self.storage.values(number, [*here, *loop.reduced, *(i for _, i in stores)])
        if not values:
            return []
        body = []
        for index in sorted(values):
            kind = "bool" if self.words.nodes[index].boolean else "real"
            body.append(f"const {kind} v{index} = {values[index]};")
            if index in self.scratch and self.plan.level[index] == number:
                body.append(f"k{index}[j] = v{index};")
        # (accumulator within a block, accumulator beyond it, operation, what is accumulated)
        sums = [(f"a{n.index}", f"v{n.index}", n.op, n.arguments[0]) for n in loop.row_sums]
        sums += [(f"b{k}", f"part{k}", n.op, n.arguments[0]) for k, n in loop.totals]
        rows = [(REDUCTIONS[op], block, beyond, source) for block, beyond, op, source in sums]
        body += [row.cpp.format(block, f"v{source}") for row, block, _, source in rows]
        body += [f"store(p{self.words.place[name]}[j], v{i});" for name, i in stores]
        clauses = "".join(f" reduction({row.openmp}:{block})" for row, block, _, _ in rows)
        return [
            *(f"double v{n.index} = 0;" for n in loop.row_sums),
            "for (int64_t j0 = 0; j0 < length; j0 += BLOCK) {",
            "const int64_t j1 = smaller(j0 + BLOCK, length);",
            *(
                f"{'real' if row.name == 'sum' else 'int'} {block} = {row.start};"
                for row, block, _, _ in rows
            ),
            f"#pragma omp simd{clauses}",
            "for (int64_t j = j0; j < j1; ++j) {",
            *body,
            "}",
            *(row.cpp.format(beyond, block) for row, block, beyond, _ in rows),
            "}",
            *(f"v{n.index} = rounded(v{n.index});" for n in loop.row_sums if n.single),
            *(f"part{k} += v{n.index};" for k, n in loop.from_rows),
        ]
