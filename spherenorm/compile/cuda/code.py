"""Stage 4 for a GPU: the CUDA source of a rule, one kernel for weights of any shape.

A launch makes one pass over all weights of a batch; `kernel.hpp` tells which block takes what, and
how sums come together. The kernel has a program for each structure that the rule's graphs have, so
that vectors and matrices step in the same launches. The source is CUDA for nvcc and NVRTC, and
behind `shim.hpp` it is C++ for g++, so that tests run on a CPU what runs on a GPU.

Within a row, a GPU has no scratch row as a CPU has. What a later loop needs of an earlier one is
read back if it is a new state, which that loop has written, and is computed again if not.

Names in the source: those of `code.py`; x3 the entries of pointer 3 that a thread has read, y3
those that it writes; a3 and b0 what it has summed of a row and of the weight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from spherenorm.compile.code import (
    ExpressionPrinter,
    functions_between_passes,
    indented,
    print_function,
    print_sizes,
    read_header,
    require_separate_outputs,
    sizes_of,
)
from spherenorm.compile.graph import INPUTS, Extent, Labels, Node, StepGraph
from spherenorm.compile.schedule import Loop, Pass, schedule
from spherenorm.operations import REDUCTIONS
from spherenorm.record import Unsupported

THREADS = 256
"""Threads of a block."""
MAX_ARGUMENT_BYTES = 32_000
"""Bytes of a launch's arguments; CUDA takes 32,764 from the architecture sm_70 on."""
MAX_LITERALS = 1024
"""Literals of a launch, of which weights of one shape share theirs."""


@dataclass(frozen=True)
class Program:
    """The passes of one structure of a kernel.

    Attributes:
        states: in the order in which their pointers follow those of weight and gradient.
        sizes: by their names in the source.
        n_loops: for each pass, the launches that it takes for rows that are cut into pieces.
        is_flat: no value belongs to a row, so that a weight may be cut anywhere.
    """

    states: tuple[str, ...]
    sizes: dict[str, int]
    n_loops: tuple[int, ...]
    is_flat: bool

    def memory_of(self, rows: int, pieces: int, chunks: int) -> int:
        """Return how many numbers a weight leaves in memory, as `step_chunk` divides it."""
        sizes = self.sizes
        of_rows = sizes["SAVED"] * rows + sizes["ROW_SUMS"] * rows * pieces * (pieces > 1)
        return 1 + sizes["REDUCTIONS"] * chunks + sizes["SCALARS"] + of_rows


@dataclass(frozen=True)
class CudaSource:
    """The source of a kernel.

    Attributes:
        text: exports the kernel `step_weights`; behind `shim.hpp`, the function `launch`.
        programs: of the structures, in order.
        sizes: of the arguments of a launch, by their names in the source.
    """

    text: str
    programs: tuple[Program, ...]
    sizes: dict[str, int]


def cuda_source(graphs: Sequence[StepGraph]) -> CudaSource:
    """Print the kernel of graphs of different structures.

    Raises:
        Unsupported: a graph has no kernel.
    """
    printed = [ProgramPrinter(graph, annotated=False) for graph in graphs]
    programs = tuple(printer.program for printer in printed)
    n_literals = max(program.sizes["LITERALS"] for program in programs)
    if n_literals > MAX_LITERALS:
        raise Unsupported(f"the step has {n_literals} constants, and a launch takes {MAX_LITERALS}")
    sizes = _argument_sizes(programs, graphs[0].n_hyper_parameters)
    cases = [
        f"case {i}: return step_chunk<Program{i}>(a, w, blockIdx.x - w.first_block);"
        for i in range(len(programs))
    ]
    kernel = print_function(
        'extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)'
        " step_weights(const Arguments __grid_constant__ a)",
        "const Weight& w = a.weight[weight_of_block(a, blockIdx.x)];",
        *["switch (w.program) {", *cases, "}"],
    )
    structs = [f"struct Program{i} {{\n{p.source}\n}};" for i, p in enumerate(printed)]
    n_bytes = arguments_type(sizes).itemsize
    text = [
        *(read_header("numbers.hpp"), print_sizes(sizes), read_header("cuda/kernel.hpp")),
        f'static_assert(sizeof(Arguments) == {n_bytes}, "the host has another layout");',
        *(*structs, *kernel, *_SHIM_LAUNCH),
    ]
    return CudaSource("\n".join(text), programs, sizes)


def annotated_cuda_source(graph: StepGraph) -> str:
    """Print the program of a graph for a reader, with the rule's source as comments."""
    return indented(ProgramPrinter(graph, annotated=True).source)


_SHIM_LAUNCH = (
    "#ifndef __CUDACC__",
    *print_function(
        'extern "C" int launch(const Arguments* a, int blocks, unsigned seed, int64_t* bytes)',
        "const auto run = [](const void* x) { step_weights(*static_cast<const Arguments*>(x)); };",
        "return shim::launch(run, a, blocks, THREADS, &shared, sizeof shared, seed, bytes);",
    ),
    "#endif",
)


def _argument_sizes(programs: Sequence[Program], n_hyper_parameters: int) -> dict[str, int]:
    """Return the sizes of `Arguments`, with as many weights as there is room for."""

    def largest(name: str) -> int:
        return max(1, *(program.sizes[name] for program in programs))

    sizes = {
        "THREADS": THREADS,
        "MAX_POINTERS": largest("POINTERS"),
        "MAX_SCALARS": largest("SCALARS"),
        "MAX_REDUCTIONS": largest("REDUCTIONS"),
        "MAX_HYPER": max(1, n_hyper_parameters),
        "MAX_LITERALS": MAX_LITERALS,
        "MAX_WEIGHTS": 0,
    }
    free_bytes = MAX_ARGUMENT_BYTES - arguments_type(sizes).itemsize
    return {**sizes, "MAX_WEIGHTS": free_bytes // weight_type(sizes).itemsize}


def weight_type(sizes: Mapping[str, int]) -> np.dtype[Any]:
    """Return the struct `Weight` of `kernel.hpp`."""
    return np.dtype(
        [
            *((name, np.int64) for name in ("rows", "cols", "memory")),
            *((name, np.int32) for name in ("first_block", "chunks", "rows_of_chunk", "pieces")),
            *((name, np.int32) for name in ("team", "program", "literals", "unused")),
            ("pointer", np.int64, (sizes["MAX_POINTERS"],)),
        ]
    )


def arguments_type(sizes: Mapping[str, int]) -> np.dtype[Any]:
    """Return the struct `Arguments` of `kernel.hpp`."""
    return np.dtype(
        [
            *((name, np.int64) for name in ("pass", "loop", "count", "chunk", "memory")),
            ("H", np.float64, (sizes["MAX_HYPER"],)),
            ("H_address", np.int64, (sizes["MAX_HYPER"],)),
            ("literal", np.float64, (sizes["MAX_LITERALS"],)),
            ("weight", weight_type(sizes), (sizes["MAX_WEIGHTS"],)),
        ]
    )


class ProgramPrinter:
    """Prints one structure of a kernel, as the members of a struct.

    Args:
        graph: of the structure.
        annotated: name values after the rule's variables, and comment on them.

    Attributes:
        source: the members.
        program: what the host has to know of them.
    """

    def __init__(self, graph: StepGraph, annotated: bool) -> None:
        require_separate_outputs(graph)
        plan = schedule(graph)
        printer = ExpressionPrinter(plan, Labels(graph, annotated))
        passes = [CudaPassPrinter(printer, number) for number in range(len(plan.passes))]
        inputs = graph.inputs
        is_full = [
            name in inputs and inputs[name].extent is Extent.FULL for name in plan.pointer_index
        ]
        sizes = {
            **sizes_of(plan),
            "HYPER": graph.n_hyper_parameters,
            "ROW_SUMS": max(len(printed.row_sum_index) for printed in passes),
            "FULL": sum(full << i for i, full in enumerate(is_full)),
        }
        last_loops = [f"case {p}: return {printed.last_loop};" for p, printed in enumerate(passes)]
        lines = [
            print_sizes(sizes),
            *(printed.source() for printed in passes),
            *functions_between_passes(printer),
            *print_function(
                "FUNCTION int last_loop(int pass)",
                *["switch (pass) {", *last_loops, "default: return 0;", "}"],
            ),
        ]
        self.source = "\n".join(lines)
        n_loops = tuple(printed.last_loop + 1 for printed in passes)
        is_flat = all(pass_.flat for pass_ in plan.passes)
        self.program = Program(plan.states, sizes, n_loops, is_flat)


class CudaPassPrinter:
    """Prints one pass over a chunk as a function `passN(part)`.

    Attributes:
        row_sum_index: the index of each sum over a row among those of the pass.
        write_loop: for each output with a value per entry, the loop that writes it.
        last_loop: the one after which the rows of the pass are known.
    """

    def __init__(self, printer: ExpressionPrinter, number: int) -> None:
        self.printer, self.number = printer, number
        self.schedule, self.nodes, self.labels = printer.schedule, printer.nodes, printer.labels
        self.pass_: Pass = self.schedule.passes[number]
        self.pointer_index = self.schedule.pointer_index
        sums = [n for loop in self.pass_.loops for n in loop.row_sums]
        self.row_sum_index = {n.index: i for i, n in enumerate(sums)}
        self.write_loop = self._plan_writes()
        ends_with_rows = (
            self.pass_.row_totals
            or self.schedule.saved_by(self.pass_)
            or self.pass_.writes_of(Extent.ROW)
            or any(loop.totals_of_row_sums for loop in self.pass_.loops)
        )
        n_loops = len(self.pass_.loops)
        self.last_loop = n_loops - 1 if ends_with_rows else max(n_loops - 2, 0)

    def _plan_writes(self) -> dict[str, int]:
        """Return the loop in which each output may be written over its old value.

        That is the loop which knows it, unless a later loop reads the old value, from which it
        computes again what it needs.
        """
        inputs, level = self.schedule.graph.inputs, self.pass_.level
        write_loop = {name: level[n.index] for name, n in self.pass_.writes_of(Extent.FULL)}
        settled = False
        while not settled:
            settled = True
            for number, loop in enumerate(self.pass_.loops):
                values = self._values(number, loop, write_loop)
                for name, loop_of_write in write_loop.items():
                    if loop_of_write < number and inputs[name].index in values:
                        write_loop[name], settled = number, False
        return write_loop

    def _values(self, number: int, loop: Loop, write_loop: dict[str, int]) -> dict[int, str]:
        """Print the entries of a loop, by index."""
        writes = self.pass_.writes_of(Extent.FULL)
        due = [n.index for name, n in writes if write_loop[name] == number]
        # A weight may be stored in fewer digits than it is computed in, and is not read back.
        waiting = {
            n.index: self._entry(self.pointer_index[name])
            for name, n in writes
            if write_loop[name] < number and name != "weight" and n.op not in INPUTS
        }
        return self.printer.entry_values([*loop.reduced, *due], self._input, waiting)

    def _entry(self, pointer: int) -> str:
        return f"x{pointer}[k]"

    def _input(self, node: Node) -> str:
        return self._entry(self.pointer_index[node.name])

    def source(self) -> str:
        """Print the function."""
        pass_, printer = self.pass_, self.printer
        lines = [
            f"FUNCTION void pass{self.number}(const Part& part) {{",
            "const double* const S = part.S; (void)S;",
        ]
        for index in self.schedule.scalar_arguments(pass_.full):
            lines.append(printer.converted(index, printer.slot(index)))
        for k, n in pass_.reductions:
            lines.append(f"double part{k} = {REDUCTIONS[n.op].start};")
        lines += [
            "for (int64_t r0 = part.first; r0 < part.end; r0 += part.teams()) {",
            "const int64_t row = part.row_of_team(r0), r = smaller(row, part.end - 1); (void)r;",
            "const int64_t stop = row < part.end ? part.stop : part.start;  // no entries, no row",
            f"const bool leads = part.leads(row, {self.last_loop}); (void)leads;",
            *self._pointers(),
        ]
        for number, loop in enumerate(pass_.loops):
            lines += printer.row_values(pass_, loop)
            lines += self._loop(number, loop)
        lines += [*self._row_results(), "}"]
        loop_of_total = {k: i for i, loop in enumerate(pass_.loops) for k, _ in loop.totals}
        for k, _ in pass_.reductions:
            lines.append(f"part.total({k}, part{k}, {loop_of_total.get(k, self.last_loop)});")
        return "\n".join([*lines, "}"])

    def _pointers(self) -> list[str]:
        """Print the pointers of the current row of tensors with a value per entry."""
        lines = []
        for name, index in self.pointer_index.items():
            node = self.schedule.graph.inputs.get(name)
            if node is not None and node.extent is Extent.FULL:
                type_ = "stored" if name in ("weight", "grad") else "real"
                start = f"reinterpret_cast<{type_}*>(part.P[{index}]) + r * part.cols"
                lines.append(f"{type_}* const p{index} = {start}; (void)p{index};")
        return lines

    def _loop(self, number: int, loop: Loop) -> list[str]:
        """Print a loop over entries, with its sums and the writes that are due."""
        values = self._values(number, loop, self.write_loop)
        if not values:
            return []
        label, nodes = self.labels, self.nodes
        writes = {
            self.pointer_index[name]: n.index
            for name, n in self.pass_.writes_of(Extent.FULL)
            if self.write_loop[name] == number
        }
        read = [i for i in self.pointer_index.values() if self._entry(i) in values.values()]
        body = []
        for index, value in values.items():
            type_ = "bool" if nodes[index].boolean else "real"
            body.append(f"const {type_} v{label(index)} = {value};{label.comment(index)}")
        # (row of the reduction, what a thread sums of a row, summed entry)
        sums = [
            *((REDUCTIONS[n.op], f"a{n.index}", n) for n in loop.row_sums),
            *((REDUCTIONS[n.op], f"b{k}", n) for k, n in loop.totals),
        ]
        for row, summed, n in sums:
            body.append(f"if (k < n) {row.cpp.format(summed, f'v{label(n.arguments[0])}')}")
        body += [f"y{pointer}[k] = v{label(index)};" for pointer, index in writes.items()]
        return [
            *(
                f"{'real' if row.name == 'sum' else 'int'} {summed} = {row.start};"
                for row, summed, _ in sums
            ),
            f"if (part.runs({number}))",
            "for (int64_t j = part.first_entry(); j < stop; j += part.stride()) {",
            "const int n = int(smaller<int64_t>(WIDTH, stop - j));",
            *(f"real x{i}[WIDTH]; read(x{i}, p{i} + j, n, part.aligned);" for i in read),
            *(f"real y{i}[WIDTH];" for i in writes),
            "#pragma unroll",
            "for (int k = 0; k < WIDTH; ++k) {",
            *body,
            "}",
            *(f"write(p{i} + j, y{i}, n, part.aligned);" for i in writes),
            "}",
            *(REDUCTIONS[n.op].cpp.format(f"part{k}", f"b{k}") for k, n in loop.totals),
            *(self._row_sum(number, n) for n in loop.row_sums),
        ]

    def _row_sum(self, number: int, node: Node) -> str:
        """Print the sum over a row, of which each thread of a team has a part."""
        index, label = self.row_sum_index[node.index], self.labels(node.index)
        value = f"part.row_sum({index}, a{node.index}, r, {number})"
        value = f"rounded({value})" if node.rounds_to_float32 else value
        return f"const double v{label} = {value};{self.labels.comment(node.index)}"

    def _row_results(self) -> list[str]:
        """Print what a row adds to reductions, the sums that it saves, and its new states."""
        results = []
        for loop in self.pass_.loops:
            for k, n in loop.totals_of_row_sums:
                results.append(f"part{k} += v{self.labels(n.index)};")
        for k, n in self.pass_.row_totals:
            value = f"v{self.labels(n.arguments[0])}"
            results.append(REDUCTIONS[n.op].cpp.format(f"part{k}", value))
        for index in self.schedule.saved_by(self.pass_):
            results.append(f"{self.printer.saved_row_sum(index)} = v{self.labels(index)};")
        writes = self.pass_.writes_of(Extent.ROW)
        for name, n in writes:
            pointer = f"part.P[{self.pointer_index[name]}]"
            results.append(f"reinterpret_cast<real*>({pointer})[r] = v{self.labels(n.index)};")
        lines = ["if (leads) {", *results, "}"] if results else []
        # The team has read the row's old states by then.
        return ["__syncthreads();", *lines] if writes else lines
