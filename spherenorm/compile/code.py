"""Stage 4, code: the C++ source of a schedule, one fused kernel for all weights of a structure.

The kernel walks over a weight as often as the schedule has passes. Within a pass it takes a row
(one index of dimension 0) at a time, in as many loops as the row's own sums need, while the row
stays in cache; the last pass writes weight and state in place. Sums are taken over fixed chunks in
a fixed order, so that the result does not depend on the number of threads. `numbers.hpp`,
`prelude.hpp` and `driver.hpp` hold the parts that do not depend on the recipe. `cuda/code.py`
prints the same schedule for a GPU, by the expressions and functions of this file.

Names in the source: S[3] is scalar node 3, in double; v3 a value per row (in double) or per entry
(in `real`); t3 a narrower value, converted once for a loop over entries, and m3 the same as a mask;
k3 a scratch row; H, L the hyper-parameters and literals; P the pointers; r the row, j the entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import resources

from spherenorm.compile.graph import INPUTS, Extent, Labels, Node, StepGraph
from spherenorm.compile.schedule import Loop, Pass, Schedule, schedule
from spherenorm.operations import OPERATIONS, REDUCTIONS
from spherenorm.record import Unsupported


def kernel_source(graph: StepGraph) -> tuple[str, tuple[str, ...]]:
    """Print the kernel of a graph.

    Returns:
        The C++ source; and the states in the order in which the kernel takes their pointers.

    Raises:
        Unsupported: a state takes over another input's old value, which the kernel may have
            overwritten by then.
    """
    require_separate_outputs(graph)
    plan = schedule(graph)
    printer = ExpressionPrinter(plan, Labels(graph, annotated=False))
    headers = read_header("numbers.hpp"), read_header("prelude.hpp")
    parts = [*headers, *_generated_parts(printer), read_header("driver.hpp")]
    return "\n".join(parts), plan.states


def require_separate_outputs(graph: StepGraph) -> None:
    """Require that no output is another input's old value, which a kernel may have overwritten.

    Raises:
        Unsupported: a state takes over the old value of the weight or of another state.
    """
    for name, index in graph.outputs.items():
        node = graph.nodes[index]
        if node.op in INPUTS - {"grad"} and node is not graph.inputs[name]:
            raise Unsupported(f"{name} takes over the old value of another input")


def annotated_source(graph: StepGraph) -> str:
    """Print the kernel of a graph for a reader, without the parts that no recipe changes.

    Each line has the rule's source as a comment, and values are named after the rule's variables.
    """
    printer = ExpressionPrinter(schedule(graph), Labels(graph, annotated=True))
    return indented("\n".join(_generated_parts(printer)))


def indented(source: str) -> str:
    """Indent lines by the braces around them, but for those in comments."""
    lines, depth = [], 0
    for line in source.splitlines():
        code = line.partition("//")[0]
        starts_with_end = code.startswith("}")
        lines.append("  " * (depth - starts_with_end) + line)
        depth += code.count("{") - code.count("}")
    return "\n".join(lines)


def _generated_parts(printer: ExpressionPrinter) -> list[str]:
    plan = printer.schedule
    passes = [PassPrinter(printer, number) for number in range(len(plan.passes))]
    flat = ", ".join(str(pass_.flat).lower() for pass_ in plan.passes)
    n_scratch_rows = max(len(printed.scratch_row) for printed in passes)
    return [
        print_sizes({**sizes_of(plan), "SCRATCH": n_scratch_rows}),
        *(printed.source() for printed in passes),
        f"static const bool flat[PASSES] = {{{flat}}};",
        *functions_between_passes(printer),
    ]


def read_header(name: str) -> str:
    """Return the text of a header of this folder."""
    return (resources.files(__package__) / name).read_text(encoding="utf-8")


def print_function(head: str, *lines: str) -> list[str]:
    """Print a function."""
    return [f"{head} {{", *lines, "}"]


def sizes_of(plan: Schedule) -> dict[str, int]:
    """Return the sizes of a kernel by their names in its source."""
    return {
        "POINTERS": len(plan.pointer_index),
        "LITERALS": len(plan.graph.literals),
        "SCALARS": len(plan.graph.nodes),
        "PASSES": len(plan.passes),
        "SAVED": len(plan.saved),
        "REDUCTIONS": plan.max_reductions,
    }


def print_sizes(sizes: Mapping[str, int]) -> str:
    """Print constants."""
    return f"enum {{ {', '.join(f'{name} = {size}' for name, size in sizes.items())} }};"


def functions_between_passes(printer: ExpressionPrinter) -> list[str]:
    """Print the scalars of each stage, the gates and calls of passes, and the counters' end."""
    plan = printer.schedule
    stages = [line for i in range(len(plan.passes)) for line in _stage_lines(printer, i)]
    counters = [
        f"*reinterpret_cast<double*>(P[{plan.pointer_index[name]}]) = {printer.slot(index)};"
        for name, index in plan.counters.items()
    ]
    gates = [(number, pass_.gate) for number, pass_ in enumerate(plan.passes)]
    wanted = [
        f"if (pass == {number}) return ({printer.slot(gate[0])} != 0) == {str(gate[1]).lower()};"
        for number, gate in gates
        if gate is not None
    ]
    cases = [f"case {p}: pass{p}(part); break;" for p in range(len(plan.passes))]
    return [
        *print_function(
            "FUNCTION bool wanted(int pass, const double* S)",
            *["(void)pass; (void)S;", *wanted, "return true;"],
        ),
        *print_function(
            "FUNCTION void run(int pass, const Part& part)", "switch (pass) {", *cases, "}"
        ),
        *print_function(
            "FUNCTION void advance(int stage, const int64_t* P, const double* L, const double* H,"
            " double* S, const double* partial, int64_t chunks)",
            *["(void)P; (void)L; (void)H; (void)partial; (void)chunks;", "switch (stage) {"],
            *stages,
            "}",
        ),
        *print_function(
            "FUNCTION void finish(const int64_t* P, const double* S)",
            "(void)P; (void)S;",
            *counters,
        ),
    ]


def _stage_lines(printer: ExpressionPrinter, stage: int) -> list[str]:
    """Print the totals of the pass before a stage, then the scalars that depend on them."""
    lines = [f"case {stage}:"]
    for k, n in printer.schedule.passes[stage - 1].reductions if stage else ():
        row = REDUCTIONS[n.op]
        combine = row.cpp.format("total", f"partial[c * REDUCTIONS + {k}]")
        loop = f"for (int64_t c = 0; c < chunks; ++c) {combine}"
        total = "rounded(total)" if n.rounds_to_float32 else "total"
        comment = printer.labels.comment(n.index)
        lines.append(
            f"{{ double total = {row.start}; {loop} {printer.slot(n.index)} = {total}; }}{comment}"
        )
    for n in printer.schedule.scalars_of(stage):
        comment = printer.labels.comment(n.index)
        lines.append(f"{printer.slot(n.index)} = {printer.scalar(n)};{comment}")
    return [*lines, "break;"]


class ExpressionPrinter:
    """Prints the values of a step as C++ expressions.

    Args:
        schedule: of the step.
        labels: name its values.
    """

    def __init__(self, schedule: Schedule, labels: Labels) -> None:
        self.schedule, self.labels = schedule, labels
        self.nodes, self.pointer_index = schedule.graph.nodes, schedule.pointer_index

    def name(self, index: int, used_in: Extent) -> str:
        """Return the name of a value where values of extent `used_in` are computed."""
        extent = self.nodes[index].extent
        if used_in is Extent.FULL and extent is not Extent.FULL:
            return f"t{self.labels(index)}"
        return self.slot(index) if extent is Extent.SCALAR else f"v{self.labels(index)}"

    def slot(self, index: int) -> str:
        """Return the element of the kernel's table of scalars that holds a value."""
        label = self.labels(index)
        return f"S[{index}]" if label == str(index) else f"S[{index} /* {label} */]"

    def scalar(self, node: Node) -> str:
        """Print a scalar."""
        if node.op == "argument":
            index, n_hyper_parameters = node.detail, self.schedule.graph.n_hyper_parameters
            in_literals = index >= n_hyper_parameters
            return f"L[{index - n_hyper_parameters}]" if in_literals else f"H[{index}]"
        if node.op == "state":
            return f"*reinterpret_cast<const double*>(P[{self.pointer_index[node.detail]}])"
        return self.expression(node)

    def row_values(self, pass_: Pass, loop: Loop) -> list[str]:
        """Print the values per row that are known before a loop."""
        lines = []
        for n in loop.rows:
            if n.index in pass_.read_back:
                value = self.saved_row_sum(n.index)
            elif n.op == "state":
                pointer = f"part.P[{self.pointer_index[n.detail]}]"
                value = f"reinterpret_cast<const real*>({pointer})[r]"
            elif n.op == "sum":
                value = ""  # the variable of the loop that accumulated it
            else:
                value = self.expression(n)
            if value:
                type_, label = "bool" if n.boolean else "double", self.labels(n.index)
                lines.append(f"const {type_} v{label} = {value};{self.labels.comment(n.index)}")
            if pass_.is_used_by_entries(n.index):
                lines.append(self.converted(n.index, f"v{self.labels(n.index)}"))
        return lines

    def expression(self, node: Node) -> str:
        """Print a value as an expression of its arguments."""
        names = [self.name(a, node.extent) for a in node.arguments]
        is_entry = node.extent is Extent.FULL
        if is_entry and node.op == "where" and not node.boolean:
            condition = self.nodes[node.arguments[0]]
            if condition.extent is not Extent.FULL:
                return f"choose(m{self.labels(condition.index)}, {names[1]}, {names[2]})"
        form = OPERATIONS[node.op].cpp
        assert isinstance(form, str)  # a graph has no other operations
        value = form.format(*names, kind="real" if is_entry else "double")
        return f"rounded({value})" if node.rounds_to_float32 and not is_entry else value

    def converted(self, index: int, value: str) -> str:
        """Print a narrower value as loops over entries use it."""
        label = self.labels(index)
        if not self.nodes[index].boolean:
            return f"const real t{label} = {value};"
        return (
            f"const bool t{label} = {value}; const mask m{label} = -mask(t{label}); (void)m{label};"
        )

    def entry_values(
        self, roots: Iterable[int], inputs: Callable[[Node], str], waiting: Mapping[int, str]
    ) -> dict[int, str]:
        """Print each entry that `roots` depend on, by index.

        Args:
            roots: indices of nodes.
            inputs: prints the entry of an input.
            waiting: what an earlier loop has left of values, which are not computed again.
        """
        values: dict[int, str] = {}
        pending = list(roots)
        while pending:
            node = self.nodes[pending.pop()]
            index = node.index
            if index in values or node.extent is not Extent.FULL:
                continue
            if node.op in INPUTS:
                values[index] = inputs(node)
            elif index in waiting:
                values[index] = waiting[index]
            else:
                values[index] = self.expression(node)
                pending.extend(node.arguments)
        return {index: values[index] for index in sorted(values)}

    def saved_row_sum(self, index: int) -> str:
        """Print the place of a row sum that one pass saves for later ones."""
        return f"part.saved[{self.schedule.saved[index]} * part.rows + r]"


class PassPrinter:
    """Prints one pass as a function `passN(part)`.

    A write waits for the loop that reads the old value for the last time, and a value of an earlier
    loop waits in a scratch row.

    Attributes:
        scratch_row: the index of the scratch row of each value that has one.
    """

    def __init__(self, printer: ExpressionPrinter, number: int) -> None:
        self.printer, self.number = printer, number
        self.schedule, self.nodes, self.labels = printer.schedule, printer.nodes, printer.labels
        self.pass_ = self.schedule.passes[number]
        self._loop_of_write = {
            (name, n.index): self._last_read(name, n.index)
            for name, n in self.pass_.writes_of(Extent.FULL)
        }
        self.scratch_row = self._scratch_rows()

    def _last_read(self, name: str, index: int) -> int:
        """Return the loop in which an output may be written over its old value."""
        old, level = self.schedule.graph.inputs[name].index, self.pass_.level
        return max([level[index], *(level[n.index] for n in self.pass_.full if old in n.arguments)])

    def _scratch_rows(self) -> dict[int, int]:
        level = self.pass_.level
        used_later = {
            a for n in self.pass_.full for a in n.arguments if level.get(a, 0) < level[n.index]
        }
        used_later |= {i for (_, i), loop in self._loop_of_write.items() if loop > level[i]}
        computed = {n.index for n in self.pass_.full if n.op not in INPUTS}
        return {index: row for row, index in enumerate(sorted(used_later & computed))}

    def source(self) -> str:
        """Print the function."""
        pass_, printer = self.pass_, self.printer
        lines = [
            f"static void pass{self.number}(const Part& part) {{",
            "const double* const S = part.S; (void)S;",
        ]
        for index in self.schedule.scalar_arguments(pass_.full):
            lines.append(printer.converted(index, printer.slot(index)))
        for k, n in pass_.reductions:
            lines.append(f"double part{k} = {REDUCTIONS[n.op].start};")
        lines += [
            "for (int64_t r = part.first; r < part.end; ++r) {",
            "const int64_t offset = r * part.cols;",
            "const int64_t length = smaller(part.cols, part.numel - offset); (void)length;",
            *self._pointers(),
        ]
        for number, loop in enumerate(pass_.loops):
            lines += printer.row_values(pass_, loop)
            lines += self._loop(number, loop)
        lines += [*self._row_results(), "}"]
        lines += [f"part.partial[{k}] = part{k};" for k, _ in pass_.reductions]
        return "\n".join([*lines, "}"])

    def _pointers(self) -> list[str]:
        """Print the pointers of the current row: tensors with a value per entry, scratch rows."""
        lines = []
        for name, index in self.schedule.pointer_index.items():
            if self.schedule.graph.inputs[name].extent is Extent.FULL:
                type_ = "stored" if name in ("weight", "grad") else "real"
                start = f"reinterpret_cast<{type_}*>(part.P[{index}]) + offset"
                lines.append(f"{type_}* __restrict const p{index} = {start}; (void)p{index};")
        for index, row in self.scratch_row.items():
            lines.append(
                f"real* __restrict const k{self.labels(index)} = part.scratch + {row} * part.cols;"
            )
        return lines

    def _row_results(self) -> list[str]:
        """Print what a row adds to reductions, the sums that it saves, and its new states."""
        lines = []
        for k, n in self.pass_.row_totals:
            lines.append(REDUCTIONS[n.op].cpp.format(f"part{k}", f"v{self.labels(n.arguments[0])}"))
        for index in self.schedule.saved_by(self.pass_):
            lines.append(f"{self.printer.saved_row_sum(index)} = v{self.labels(index)};")
        for name, n in self.pass_.writes_of(Extent.ROW):
            pointer = f"part.P[{self.schedule.pointer_index[name]}]"
            lines.append(f"reinterpret_cast<real*>({pointer})[r] = v{self.labels(n.index)};")
        return lines

    def _input(self, node: Node) -> str:
        return f"load(p{self.schedule.pointer_index[node.name]}[j])"

    def _loop(self, number: int, loop: Loop) -> list[str]:
        """Print a loop over entries, block by block, with its sums and the writes that are due."""
        level = self.pass_.level
        computed = [n.index for n in self.pass_.full if n.op not in INPUTS]
        of_loop = [i for i in computed if level[i] == number]
        writes = [key for key, write_loop in self._loop_of_write.items() if write_loop == number]
        roots = [*of_loop, *loop.reduced, *(index for _, index in writes)]
        waiting = {i: f"k{self.labels(i)}[j]" for i in self.scratch_row if level[i] < number}
        values = self.printer.entry_values(roots, self._input, waiting)
        if not values:
            return []
        body = []
        for index in values:
            type_ = "bool" if self.nodes[index].boolean else "real"
            label, comment = self.labels(index), self.labels.comment(index)
            body.append(f"const {type_} v{label} = {values[index]};{comment}")
            if index in self.scratch_row and level[index] == number:
                body.append(f"k{label}[j] = v{label};")
        # (row of the reduction, accumulator within a block, accumulator beyond it, summed entry)
        sums = [
            *(
                (REDUCTIONS[n.op], f"a{n.index}", f"v{self.labels(n.index)}", n)
                for n in loop.row_sums
            ),
            *((REDUCTIONS[n.op], f"b{k}", f"part{k}", n) for k, n in loop.totals),
        ]
        body += [
            row.cpp.format(block, f"v{self.labels(n.arguments[0])}") for row, block, _, n in sums
        ]
        for name, index in writes:
            body.append(f"store(p{self.schedule.pointer_index[name]}[j], v{self.labels(index)});")
        clauses = "".join(f" reduction({row.openmp}:{block})" for row, block, _, _ in sums)
        return [
            *(
                f"double v{self.labels(n.index)} = 0;{self.labels.comment(n.index)}"
                for n in loop.row_sums
            ),
            "for (int64_t j0 = 0; j0 < length; j0 += BLOCK) {",
            "const int64_t j1 = smaller(j0 + BLOCK, length);",
            *(
                f"{'real' if row.name == 'sum' else 'int'} {block} = {row.start};"
                for row, block, _, _ in sums
            ),
            f"#pragma omp simd{clauses}",
            "for (int64_t j = j0; j < j1; ++j) {",
            *body,
            "}",
            *(row.cpp.format(beyond, block) for row, block, beyond, _ in sums),
            "}",
            *(
                f"v{self.labels(n.index)} = rounded(v{self.labels(n.index)});"
                for n in loop.row_sums
                if n.rounds_to_float32
            ),
            *(f"part{k} += v{self.labels(n.index)};" for k, n in loop.totals_of_row_sums),
        ]
