"""One pass as a C++ function: loops over the entries of each row, and the values between them."""

from __future__ import annotations

from spherenorm.compile._graph import INPUTS, Extent
from spherenorm.compile._schedule import Loop
from spherenorm.compile.cpp._names import Names
from spherenorm.compile.cpp._storage import Storage
from spherenorm.operations import REDUCTIONS

__all__ = ["PrintedPass"]


class PrintedPass:
    """Pass `number` as a function `passN(part)`."""

    def __init__(self, names: Names, number: int) -> None:
        self.names, self.number, self.plan = names, number, names.plan.passes[number]
        self.storage = Storage(names, self.plan)
        self.scratch = self.storage.scratch

    def source(self) -> str:
        out = [
            f"static void pass{self.number}(const Part& part) {{",
            "const double* const S = part.S; (void)S;",
        ]
        out += [
            self.names.converted(a, f"S[{a}]")
            for a in self.plan.outside(self.names.graph, self.plan.full)
        ]
        out += [f"double part{k} = {REDUCTIONS[n.op].start_cpp};" for k, n in self.plan.reductions]
        out += [
            "for (int64_t r = part.first; r < part.end; ++r) {",
            "const int64_t offset = r * part.cols;",
            "const int64_t length = smaller(part.cols, part.numel - offset); (void)length;",
            *self._pointers(),
        ]
        for number, loop in enumerate(self.plan.loops):
            out += self._row_values(loop)
            out += self._loop(number, loop)
        out += [*self._row_results(), "}"]
        out += [f"part.partial[{k}] = part{k};" for k, _ in self.plan.reductions]
        return "\n".join([*out, "}"])

    def _pointers(self) -> list[str]:
        """Of the present row: tensors with a value per entry, and scratch rows."""
        out = []
        for name, place in self.names.operands.place.items():
            if self.names.operands.old[name].extent is Extent.FULL:
                kind = "stored" if name in ("weight", "grad") else "real"
                start = f"reinterpret_cast<{kind}*>(part.P[{place}]) + offset"
                out.append(f"{kind}* __restrict const p{place} = {start}; (void)p{place};")
        return out + [
            f"real* __restrict const k{index} = part.scratch + {place} * part.cols;"
            for index, place in self.scratch.items()
        ]

    def _row_values(self, loop: Loop) -> list[str]:
        out = []
        for n in loop.rows:
            if n.index in self.plan.read_back:
                place = self.names.plan.saved[n.index]
                out.append(f"const double v{n.index} = part.saved[{place} * part.rows + r];")
            elif n.op == "state":
                place = self.names.operands.place[n.detail]
                state = f"reinterpret_cast<const real*>(part.P[{place}])[r]"
                out.append(f"const double v{n.index} = {state};")
            elif n.op != "sum":
                kind = "bool" if n.boolean else "double"
                out.append(f"const {kind} v{n.index} = {self.names.expression(n, Extent.ROW)};")
            if any(n.index in f.arguments for f in self.plan.full):
                out.append(self.names.converted(n.index, f"v{n.index}"))
        return out

    def _row_results(self) -> list[str]:
        """The share of the row in reductions, the sums that it leaves, and its new states."""
        out = [
            REDUCTIONS[n.op].cpp.format(f"part{k}", f"v{n.arguments[0]}")
            for k, n in self.plan.row_totals
        ]
        out += [
            f"part.saved[{place} * part.rows + r] = v{i};"
            for i, place in self.names.plan.saved.items()
            if i in self.plan.level and i not in self.plan.read_back
        ]
        for name, n in self.plan.writes:
            if n.extent is Extent.ROW:
                place = self.names.operands.place[name]
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
            kind = "bool" if self.names.nodes[index].boolean else "real"
            body.append(f"const {kind} v{index} = {values[index]};")
            if index in self.scratch and self.plan.level[index] == number:
                body.append(f"k{index}[j] = v{index};")
        # (accumulator within a block, accumulator beyond it, operation, what is accumulated)
        sums = [(f"a{n.index}", f"v{n.index}", n.op, n.arguments[0]) for n in loop.row_sums]
        sums += [(f"b{k}", f"part{k}", n.op, n.arguments[0]) for k, n in loop.totals]
        rows = [(REDUCTIONS[op], block, beyond, source) for block, beyond, op, source in sums]
        body += [row.cpp.format(block, f"v{source}") for row, block, _, source in rows]
        body += [f"store(p{self.names.operands.place[name]}[j], v{i});" for name, i in stores]
        clauses = "".join(f" reduction({row.openmp}:{block})" for row, block, _, _ in rows)
        return [
            *(f"double v{n.index} = 0;" for n in loop.row_sums),
            "for (int64_t j0 = 0; j0 < length; j0 += BLOCK) {",
            "const int64_t j1 = smaller(j0 + BLOCK, length);",
            *(
                f"{'real' if row.name == 'sum' else 'int'} {block} = {row.start_cpp};"
                for row, block, _, _ in rows
            ),
            f"#pragma omp simd{clauses}",
            "for (int64_t j = j0; j < j1; ++j) {",
            *body,
            "}",
            *(row.cpp.format(beyond, block) for row, block, beyond, _ in rows),
            "}",
            *(f"v{n.index} = rounded(v{n.index});" for n in loop.row_sums if n.single),
            *(f"part{k} += v{loop.row_sum(n).index};" for k, n in loop.from_rows),
        ]
