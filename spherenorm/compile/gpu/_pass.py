"""One pass as a Triton kernel.

A tile is a run of entries where a pass has no values per row, else a few whole rows, all in
registers. Only rows too long for that are taken in several loops, which make values again from the
inputs instead of keeping them: writes wait for the last loop.
"""

from __future__ import annotations

from spherenorm.compile._graph import INPUTS, Extent
from spherenorm.compile._schedule import Loop
from spherenorm.compile.gpu._words import TritonWords, rounded
from spherenorm.operations import REDUCTIONS

BLOCK = 1024
"""The entries of a tile of a pass without values per row: 4 for each thread, so that registers let
several programs share a multiprocessor (AdamP's last pass takes 122 of them, of twice the tile
247)."""
TILES = ((64, 16), (16, 64), (4, 256), (1, 1024))
"""The other tiles, (rows, columns); the first that is wide enough is taken."""
LONG_TILE = (1, 1024)
"""The tile that is moved along rows too long for all of these."""


def function(lines: list[str]) -> list[str]:
    """A decorator, a signature, and the body below it, indented."""
    decorator, signature, *body = lines
    return ["", "", decorator, signature, *(f"    {line}" for line in body)]


class PrintedPass:
    """Pass `number` as the kernel `passN`, with a function for each kind of tile."""

    def __init__(self, words: TritonWords, number: int) -> None:
        self.words, self.number, self.plan = words, number, words.plan.passes[number]

    def source(self) -> list[str]:
        arguments = "pointers, shape, S, saved, partial, block"
        if self.plan.flat:
            calls = [f"tile{self.number}({arguments})"]
            head = ["@triton.jit", f"def tile{self.number}({arguments}):"]
            tiles = function([*head, *self._run(), *_Tile(self, looped=False).body()])
        else:
            tiles, calls = self._tiles_of_rows(arguments)
        out = [
            "@triton.jit",
            f"def pass{self.number}(items, pointers, shape, S, saved, partial):",
            "item = tl.program_id(0)",
            "tensor = tl.load(items + item)",
            *self.words.of_tensor(),
            f"partial += item * {self.words.plan.reductions}",
            f"block = item - {self.words.at('flat_first' if self.plan.flat else 'tile_first')}",
        ]
        if self.plan.gate is not None:
            out.append(f"if {self.words.wanted(self.plan.gate)}:")
            calls = [f"    {line}" for line in calls]
        return [*tiles, *function([*out, *calls])]

    def _tiles_of_rows(self, arguments: str) -> tuple[list[str], list[str]]:
        """The functions of a tile and of a long tile, and the choice between them."""
        tiles: list[str] = []
        for name, looped in (("tile", False), ("long", True)):
            signature = f"{name}{self.number}({arguments}, ROWS: tl.constexpr, COLS: tl.constexpr)"
            body = _Tile(self, looped).body()
            tiles += function(["@triton.jit", f"def {signature}:", *self._rows(looped), *body])
        calls = [f"cols = {self.words.at('cols')}"]
        for i, (rows, cols) in enumerate(TILES):
            calls += [
                f"{'el' if i else ''}if cols <= {cols}:",
                f"    tile{self.number}({arguments}, {rows}, {cols})",
            ]
        rows, cols = LONG_TILE
        return tiles, [*calls, "else:", f"    long{self.number}({arguments}, {rows}, {cols})"]

    def _run(self) -> list[str]:
        """The entries of a run.

        Places are counted from a program's first entry, in 32 bits: cheaper to keep for every entry
        than addresses.
        """
        return [
            f"first = block * {BLOCK}",
            f"at = tl.arange(0, {BLOCK})",
            f"inside = at < {self.words.at('rows')} * {self.words.at('cols')} - first",
        ]

    def _rows(self, looped: bool) -> list[str]:
        """The rows of a tile, and their entries unless it moves along them."""
        out = [
            f"cols = {self.words.at('cols')}",
            "r = block * ROWS + tl.arange(0, ROWS)",
            f"in_rows = r < {self.words.at('rows')}",
            "first = block * ROWS * cols",
            "start = tl.arange(0, ROWS)[:, None] * cols.to(tl.int32)",
        ]
        return out if looped else [*out, *_columns("tl.arange(0, COLS)")]


def _columns(columns: str) -> list[str]:
    return [
        f"j = {columns}",
        "at = start + j[None, :]",
        "inside = in_rows[:, None] & (j < cols)[None, :]",
    ]


class _Tile:
    """The body of a tile's function: of a tile in registers, or `looped` along rows."""

    def __init__(self, of: PrintedPass, looped: bool) -> None:
        self.words, self.plan, self.looped = of.words, of.plan, looped
        self.known: set[int] = set()
        """The entries that this tile has computed already; those of another loop are gone."""

    def body(self) -> list[str]:
        users = [*self.plan.full, *self.plan.rows]
        out = []
        for a in self.words.plan.outside(users):
            out.append(f"s{a} = {self.words.known(a)}")
            if self.plan.in_entries(a):
                out.append(self.words.converted(a, f"s{a}"))
        touched = {n.name for n in users if n.op in INPUTS} | {name for name, _ in self.plan.writes}
        for name in sorted(touched, key=self.words.place.__getitem__):
            kind = self.words.stored if name in ("weight", "grad") else self.words.real
            entries = self.words.plan.graph.inputs[name].extent is Extent.FULL
            pointer = self.words.pointer(name, kind)
            out.append(f"p{self.words.place[name]} = {pointer}{' + first' if entries else ''}")
        for number, loop in enumerate(self.plan.loops):
            out += [*self.words.row_values(self.plan, loop), *self._loop(number, loop)]
        return out + self._results()

    def _loop(self, number: int, loop: Loop) -> list[str]:
        """The sums over the entries of a loop, and in the last one the writes."""
        last = number == len(self.plan.loops) - 2
        writes = self.plan.written(Extent.FULL) if last else []
        values = self._values([*loop.reduced, *(n.index for _, n in writes)])
        sums = self._sums(loop)
        stores = [self.words.store(name, n.index, "at", "inside") for name, n in writes]
        out: list[str] = []
        if not self.looped:
            out += [*values, *(f"{name} = {share}" for name, _, share, _ in sums), *stores]
        elif sums or stores:
            out += [f"{name} = tl.full({start}, tl.float64)" for name, _, _, start in sums]
            body = [*_columns("j0 + tl.arange(0, COLS)"), *values]
            body += [
                f"{name} = {REDUCTIONS[op].triton.format(name, share)}"
                for name, op, share, _ in sums
            ]
            out += ["for j0 in range(0, cols, COLS):"]
            out += [f"    {line}" for line in (*body, *stores)]
        if out:
            singles = [f"v{n.index}" for n in loop.row_sums if n.single]
            out += [f"{name} = {rounded(name)}" for name in singles]
        return out + [f"part{k} = tl.sum(v{n.index}, axis=0)" for k, n in loop.from_rows]

    def _sums(self, loop: Loop) -> list[tuple[str, str, str, str]]:
        """(accumulator, its operation, the share of a tile, its shape and start)."""
        sums = [(f"v{n.index}", n, ", axis=1", "[ROWS]") for n in loop.row_sums]
        sums += [(f"part{k}", n, "", "[]") for k, n in loop.totals]
        starts = [f"{shape}, {REDUCTIONS[n.op].start}.0" for _, n, _, shape in sums]
        return [
            (name, n.op, self.words.reduced(n.op, n.arguments[0], axis), start)
            for (name, n, axis, _), start in zip(sums, starts, strict=True)
        ]

    def _values(self, roots: list[int]) -> list[str]:
        """The entries that `roots` ask for, in order; they join what is known."""
        known = set() if self.looped else self.known
        needed: set[int] = set()
        pending = list(roots)
        while pending:
            index = pending.pop()
            node = self.words.nodes[index]
            if index not in needed | known and node.extent is Extent.FULL:
                needed.add(index)
                pending.extend(node.arguments)
        known |= needed
        return [f"v{index} = {self.words.entry(index)}" for index in sorted(needed)]

    def _results(self) -> list[str]:
        """The new values of rows, and the program's share of reductions."""
        out = [
            f"part{k} = {self.words.reduced(n.op, n.arguments[0], '', 'in_rows')}"
            for k, n in self.plan.row_totals
        ]
        out += [f"tl.store(partial + {k}, part{k})" for k, _ in self.plan.reductions]
        out += [
            f"tl.store({self.words.saved(index)}, v{index}, mask=in_rows)"
            for index in self.words.plan.left_by(self.plan)
        ]
        rows = self.plan.written(Extent.ROW)
        if rows:
            # Several threads may have read the same row; all of them have before one writes it.
            out.append("tl.debug_barrier()")
        return out + [self.words.store(name, n.index, "r", "in_rows") for name, n in rows]
