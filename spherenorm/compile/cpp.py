"""From a step's graph to one fused C++ kernel for a CPU.

The kernel walks over a weight as often as the schedule has passes. Within a pass it takes a row (one index of dimension 0)
at a time, in as many loops as the row's own sums ask for, while the row stays in cache; the last pass writes weight and
state in place. Sums are taken over fixed chunks in a fixed order, so the result does not depend on the number of threads.
What does not depend on the recipe stands in `prelude.hpp` and `driver.hpp`.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources

from spherenorm.compile.graph import INPUTS, Extent, Node, StepGraph
from spherenorm.compile.guard import UnsupportedRuleError
from spherenorm.compile.schedule import Operands, Pass, Schedule, schedule

__all__ = ["Layout", "emit"]

# `one` and `num(` become a literal and a conversion of the type that is computed in.
EXPRESSIONS = {
    "neg": "-{0}", "abs": "std::abs({0})", "reciprocal": "one / {0}", "sqrt": "std::sqrt({0})", "rsqrt": "one / std::sqrt({0})",
    "square": "{0} * {0}", "sign": "num(({0} > 0) - ({0} < 0))", "exp": "std::exp({0})", "log": "std::log({0})",
    "sin": "std::sin({0})", "cos": "std::cos({0})", "tanh": "std::tanh({0})", "not": "!{0}",
    "sinc": "({0} == 0 ? one : num(std::sin(M_PI * {0}) / (M_PI * {0})))",
    "add": "{0} + {1}", "sub": "{0} - {1}", "rsub": "{1} - {0}", "mul": "{0} * {1}", "div": "{0} / {1}",
    "max": "({0} > {1} || {0} != {0} ? {0} : {1})", "min": "({0} < {1} || {0} != {0} ? {0} : {1})",
    "pow": "num(std::pow({0}, {1}))", "lt": "{0} < {1}", "le": "{0} <= {1}", "gt": "{0} > {1}", "ge": "{0} >= {1}",
    "eq": "{0} == {1}", "ne": "{0} != {1}", "and": "({0} && {1})", "or": "({0} || {1})", "where": "({0} ? {1} : {2})",
    "cast": "{0}", "lerp": "lerp({0}, {1}, {2})", "addcmul": "fused({1}, {2}, {0})",
}  # fmt: skip
START = {"sum": "0", "any": "0", "all": "1"}
COMBINE = {"sum": "{0} += {1};", "any": "{0} = {0} || {1};", "all": "{0} = {0} && {1};"}
OPENMP = {"sum": "+", "any": "||", "all": "&&"}
CHEAP = {"add", "addcmul", "sub", "rsub", "mul", "neg", "square", "where"}


@dataclass(frozen=True)
class Layout:
    """How the kernel is called.

    Attributes:
        source: C++; exports `step(count, tensors, literals, numbers, threads)`.
        states: the states whose pointers follow those of weight and gradient in a tensor's description.
    """

    source: str
    states: tuple[str, ...]


def emit(graph: StepGraph, numbers: int) -> Layout:
    """The kernel of a graph whose first `numbers` arguments are hyper-parameters.

    Raises:
        UnsupportedRuleError: a state takes over another input's old value, which may be overwritten by then.
    """
    kernel = _Kernel(graph, schedule(graph), numbers)
    prelude, driver = (
        (resources.files(__package__) / name).read_text() for name in ("prelude.hpp", "driver.hpp")
    )
    return Layout(f"{prelude}\n{kernel.source()}\n{driver}", kernel.operands.states)


class _Kernel:
    """What the parts of a kernel share: names of values and the scalars."""

    def __init__(self, graph: StepGraph, plan: Schedule, numbers: int) -> None:
        self.graph, self.nodes, self.plan, self.numbers = graph, graph.nodes, plan, numbers
        self.operands = Operands(graph)
        self.pointer, self.old = self.operands.place, self.operands.old
        _refuse_swaps(graph)

    def source(self) -> str:
        walks = [_Walk(self, number, each) for number, each in enumerate(self.plan.passes)]
        sizes = {
            "POINTERS": len(self.pointer),
            "LITERALS": len(self.graph.literals),
            "SCALARS": len(self.nodes),
            "PASSES": len(walks),
            "SAVED": len(self.plan.saved),
            "SCRATCH": max(len(walk.scratch) for walk in walks),
            "REDUCTIONS": max([1, *(len(each.targets) for each in self.plan.passes[:-1])]),
        }
        enum = f"enum {{ {', '.join(f'{name} = {size}' for name, size in sizes.items())} }};"
        scalars = [self._scalars(stage) for stage in range(len(walks))]
        return "\n".join(
            [enum, *scalars, *(walk.source() for walk in walks), self._dispatch(walks)]
        )

    def name(self, index: int, inside: Extent) -> str:
        """What a value is called among values of extent `inside`; loops over entries convert narrower ones beforehand."""
        extent = self.nodes[index].extent
        if inside is Extent.FULL and extent is not Extent.FULL:
            return f"t{index}"
        return f"S[{index}]" if extent is Extent.SCALAR else f"v{index}"

    def expression(self, node: Node, inside: Extent) -> str:
        names = [self.name(a, inside) for a in node.arguments]
        if (
            node.op == "where"
            and inside is Extent.FULL
            and self.nodes[node.arguments[0]].extent is not Extent.FULL
            and not node.boolean
        ):
            return f"choose(m{node.arguments[0]}, {names[1]}, {names[2]})"
        kind = "real" if inside is Extent.FULL else "double"
        value = (
            EXPRESSIONS[node.op]
            .format(*names)
            .replace("one", f"{kind}(1)")
            .replace("num(", f"{kind}(")
        )
        return f"rounded({value})" if node.single and inside is not Extent.FULL else value

    def converted(self, index: int, value: str) -> str:
        """What loops over entries use of a narrower value: its `real`, or its truth and the mask of `choose`."""
        if not self.nodes[index].boolean:
            return f"const real t{index} = {value};"
        return (
            f"const bool t{index} = {value}; const mask m{index} = -mask(t{index}); (void)m{index};"
        )

    def _scalars(self, stage: int) -> str:
        """What is known once `stage` passes are over, in double."""
        lines = [
            f"static void scalars{stage}(const int64_t* P, const double* L, const double* H, double* S) {{",
            "(void)P; (void)L; (void)H;",
        ]
        known = self.plan.scalars
        for node in self.nodes:
            if (
                node.extent is not Extent.SCALAR
                or self.plan.stage[node.index] != stage
                or node.index not in known
            ):
                continue
            if node.op == "number":
                value = (
                    f"H[{node.detail}]"
                    if node.detail < self.numbers
                    else f"L[{node.detail - self.numbers}]"
                )
            elif node.op == "state":
                value = f"*reinterpret_cast<const double*>(P[{self.pointer[node.detail]}])"
            else:
                value = self.expression(node, Extent.SCALAR)
            lines.append(f"S[{node.index}] = {value};")
        return "\n".join([*lines, "}"])

    def _dispatch(self, walks: list[_Walk]) -> str:
        """What the driver asks of a kernel."""
        flat = ", ".join("true" if walk.flat else "false" for walk in walks)
        gates = [
            f"if (pass == {p}) return (S[{each.gate[0]}] != 0) == {'true' if each.gate[1] else 'false'};"
            for p, each in enumerate(self.plan.passes)
            if each.gate is not None
        ]
        walk_cases = [f"case {p}: pass{p}(walk); break;" for p in range(len(walks))]
        totals = []
        for p, each in enumerate(self.plan.passes[:-1]):
            for k, n in enumerate(each.targets):
                combine = COMBINE[n.op].format("total", f"partial[c * REDUCTIONS + {k}]")
                loop = f"for (int64_t c = 0; c < chunks; ++c) {combine}"
                total = "rounded(total)" if n.single else "total"
                totals.append(
                    f"if (stage == {p + 1}) {{ double total = {START[n.op]}; {loop} S[{n.index}] = {total}; }}"
                )
        stage_cases = [
            f"case {stage}: scalars{stage}(P, L, H, S); break;" for stage in range(len(walks))
        ]
        writes = [
            f"*reinterpret_cast<double*>(P[{self.pointer[name]}]) = S[{index}];"
            for name, index in self.graph.outputs.items()
            if name != "weight" and self.nodes[index].extent is Extent.SCALAR
        ]
        return "\n".join(
            [
                f"static const bool flat[PASSES] = {{{flat}}};",
                *(
                    "static bool wanted(int pass, const double* S) { (void)pass; (void)S;",
                    *gates,
                    "return true; }",
                ),
                *(
                    "static void run(int pass, const Walk& walk) { switch (pass) {",
                    *walk_cases,
                    "} }",
                ),
                "static void advance(int stage, const int64_t* P, const double* L, const double* H, double* S, const double* partial,",
                *(
                    "int64_t chunks) { (void)partial; (void)chunks;",
                    *totals,
                    "switch (stage) {",
                    *stage_cases,
                    "} }",
                ),
                *(
                    "static void finish(const int64_t* P, const double* S) { (void)P; (void)S;",
                    *writes,
                    "}",
                ),
            ]
        )


class _Walk:
    """One pass as a function `passN(walk)`.

    Level l is computed in loop l. What a later loop needs again is read back from where it was written, made again if that
    is quick, or waits in a scratch row.
    """

    def __init__(self, kernel: _Kernel, number: int, plan: Pass) -> None:
        self.kernel, self.nodes, self.number, self.plan = kernel, kernel.nodes, number, plan
        self.last = number == len(kernel.plan.passes) - 1
        self.reductions = [] if self.last else list(enumerate(plan.targets))
        self.level = plan.level
        self.full = [self.nodes[i] for i in plan.nodes if self.nodes[i].extent is Extent.FULL]
        self.rows = [self.nodes[i] for i in plan.nodes if self.nodes[i].extent is Extent.ROW]
        self.loops = 1 + max((self.level[n.index] for n in self.full), default=-1)
        self.flat = not self.rows
        self.stores = self._stores() if self.last else []
        self.written = {
            index: name
            for name, index, loop in self.stores
            if loop == self.level[index] and name != "weight"
        }
        self.scratch = self._scratch()

    def _stores(self) -> list[tuple[str, int, int]]:
        """(output, node, loop) of each write of entries; a write waits until the old value has been read for the last time."""
        stores = []
        for name, index in self.kernel.graph.outputs.items():
            old = self.kernel.old[name]
            if self.nodes[index].extent is Extent.FULL and index != old.index:
                reads = [self.level[n.index] for n in self.full if old.index in n.arguments]
                stores.append((name, index, max([self.level[index], *reads])))
        return stores

    def _scratch(self) -> dict[int, int]:
        needed = {
            a for n in self.full for a in n.arguments if self.level.get(a, 0) < self.level[n.index]
        }
        needed |= {index for _, index, loop in self.stores if loop > self.level[index]}
        entries = {n.index for n in self.full if n.op not in INPUTS}
        kept = [i for i in sorted(needed & entries) if i not in self.written and not self._cheap(i)]
        return {index: place for place, index in enumerate(kept)}

    def _cheap(self, index: int) -> bool:
        """Whether a value takes at most four simple operations on inputs that only the last loop overwrites."""
        overwritten = {
            self.kernel.old[name].index for name, _, loop in self.stores if loop < self.loops - 1
        }
        pending, operations = [index], 0
        while pending:
            node = self.nodes[pending.pop()]
            if node.extent is Extent.FULL:
                operations += node.op not in INPUTS
                if (
                    operations > 4
                    or node.index in overwritten
                    or not (node.op in INPUTS or node.op in CHEAP)
                ):
                    return False
                pending.extend(node.arguments)
        return True

    def source(self) -> str:
        out = [
            f"static void pass{self.number}(const Walk& walk) {{",
            "const double* const S = walk.S; (void)S;",
        ]
        outside = sorted(
            {a for n in self.full for a in n.arguments if self.nodes[a].extent is Extent.SCALAR}
        )
        out += [self.kernel.converted(a, f"S[{a}]") for a in outside]
        out += [f"double part{k} = {START[n.op]};" for k, n in self.reductions]
        out.append("for (int64_t r = walk.first; r < walk.end; ++r) {")
        out.append(
            "const int64_t offset = r * walk.cols, length = std::min(walk.cols, walk.numel - offset); (void)length;"
        )
        for name, place in self.kernel.pointer.items():
            if self.kernel.old[name].extent is Extent.FULL:
                kind = "stored" if name in ("weight", "grad") else "real"
                out.append(
                    f"{kind}* __restrict const p{place} = reinterpret_cast<{kind}*>(walk.P[{place}]) + offset; (void)p{place};"
                )
        out += [
            f"real* __restrict const k{index} = walk.scratch + {place} * walk.cols;"
            for index, place in self.scratch.items()
        ]
        for loop in range(self.loops + 1):
            out += self._row_values(loop)
            if loop < self.loops:
                out += self._loop(loop)
        out += self._row_results()
        out.append("}")
        out += [f"walk.partial[{k}] = part{k};" for k, _ in self.reductions]
        return "\n".join([*out, "}"])

    def _row_values(self, loop: int) -> list[str]:
        out = []
        for n in self.rows:
            if self.level[n.index] != loop:
                continue
            kind = "bool" if n.boolean else "double"
            if n.index in self.plan.read_back:
                out.append(
                    f"const double v{n.index} = walk.saved[{self.kernel.plan.saved[n.index]} * walk.rows + r];"
                )
            elif n.op == "state":
                out.append(
                    f"const double v{n.index} = reinterpret_cast<const real*>(walk.P[{self.kernel.pointer[n.detail]}])[r];"
                )
            elif n.op != "sum":
                out.append(f"const {kind} v{n.index} = {self.kernel.expression(n, Extent.ROW)};")
            if any(n.index in f.arguments for f in self.full):
                out.append(self.kernel.converted(n.index, f"v{n.index}"))
        return out

    def _row_results(self) -> list[str]:
        out = [
            COMBINE[n.op].format(f"part{k}", f"v{n.arguments[0]}")
            for k, n in self.reductions
            if self.nodes[n.arguments[0]].extent is Extent.ROW
        ]
        saved = self.kernel.plan.saved
        out += [
            f"walk.saved[{place} * walk.rows + r] = v{i};"
            for i, place in saved.items()
            if i in self.level and i not in self.plan.read_back
        ]
        if self.last:
            for name, index in self.kernel.graph.outputs.items():
                if name != "weight" and self.nodes[index].extent is Extent.ROW:
                    out.append(
                        f"reinterpret_cast<real*>(walk.P[{self.kernel.pointer[name]}])[r] = v{index};"
                    )
        return out

    def _loop(self, loop: int) -> list[str]:
        """The entries of level `loop`, the sums over them, and the writes that are due."""
        here = [n.index for n in self.full if self.level[n.index] == loop and n.op not in INPUTS]
        row_sums = {
            n.arguments[0]: n
            for n in self.rows
            if n.op == "sum" and n.index not in self.plan.read_back
        }
        row_sums = {source: n for source, n in row_sums.items() if self.level[source] == loop}
        totals = [
            (k, n)
            for k, n in self.reductions
            if n.arguments[0] in self.level and self.level[n.arguments[0]] == loop
        ]
        totals = [(k, n) for k, n in totals if self.nodes[n.arguments[0]].extent is Extent.FULL]
        from_rows = [(k, n) for k, n in totals if n.op == "sum" and n.arguments[0] in row_sums]
        stores = [(name, index) for name, index, at in self.stores if at == loop]
        values = self._values(
            loop,
            [
                *here,
                *row_sums,
                *(n.arguments[0] for _, n in totals),
                *(index for _, index in stores),
            ],
        )
        if not values:
            return []
        body = []
        for index in sorted(values):
            body.append(
                f"const {'bool' if self.nodes[index].boolean else 'real'} v{index} = {values[index]};"
            )
            if index in self.scratch and self.level[index] == loop:
                body.append(f"k{index}[j] = v{index};")
        # (accumulator within a block, accumulator beyond it, operation, what is accumulated)
        accumulators = [
            (f"a{n.index}", f"v{n.index}", "sum", source) for source, n in row_sums.items()
        ]
        accumulators += [
            (f"b{k}", f"part{k}", n.op, n.arguments[0])
            for k, n in totals
            if (k, n) not in from_rows
        ]
        body += [COMBINE[op].format(block, f"v{source}") for block, _, op, source in accumulators]
        body += [f"store(p{self.kernel.pointer[name]}[j], v{index});" for name, index in stores]
        out = [f"double v{n.index} = 0;" for n in row_sums.values()]
        out.append("for (int64_t j0 = 0; j0 < length; j0 += BLOCK) {")
        out.append("const int64_t j1 = std::min(j0 + BLOCK, length);")
        out += [
            f"{'real' if op == 'sum' else 'int'} {block} = {START[op]};"
            for block, _, op, _ in accumulators
        ]
        out.append(
            "#pragma omp simd"
            + "".join(f" reduction({OPENMP[op]}:{block})" for block, _, op, _ in accumulators)
        )
        out += ["for (int64_t j = j0; j < j1; ++j) {", *body, "}"]
        out += [COMBINE[op].format(beyond, block) for block, beyond, op, _ in accumulators]
        out.append("}")
        out += [f"v{n.index} = rounded(v{n.index});" for n in row_sums.values() if n.single]
        return out + [f"part{k} += v{row_sums[n.arguments[0]].index};" for k, n in from_rows]

    def _values(self, loop: int, roots: list[int]) -> dict[int, str]:
        """Where each entry that `roots` ask for comes from in this loop."""
        values: dict[int, str] = {}
        pending = list(roots)
        while pending:
            node = self.nodes[pending.pop()]
            index = node.index
            if index in values or node.extent is not Extent.FULL:
                continue
            earlier = self.level[index] < loop
            if node.op in INPUTS:
                values[index] = f"load(p{self.kernel.pointer[node.name]}[j])"
            elif earlier and index in self.scratch:
                values[index] = f"k{index}[j]"
            elif earlier and index in self.written:
                values[index] = f"load(p{self.kernel.pointer[self.written[index]]}[j])"
            else:
                values[index] = self.kernel.expression(node, Extent.FULL)
                pending.extend(node.arguments)
        return values


def _refuse_swaps(graph: StepGraph) -> None:
    """The kernel writes some results before it has read all old values.

    Raises:
        UnsupportedRuleError: a state takes over another input's old value, which may be overwritten by then.
    """
    for name, index in graph.outputs.items():
        if (
            graph.nodes[index].op in INPUTS - {"grad"}
            and graph.nodes[index] is not graph.inputs[name]
        ):
            raise UnsupportedRuleError(f"{name} takes over the old value of another input")
