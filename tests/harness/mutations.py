"""Small changes of a source text that its tests should notice.

A mutant changes one place: a sign, a comparison, a constant, a term that is dropped, two arguments
that are exchanged, a condition that is turned round, or a statement that is skipped.
"""

from __future__ import annotations

import ast
import copy
import hashlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SIGNS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}
COMPARISONS = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt},
    **{ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is},
    **{ast.In: ast.NotIn, ast.NotIn: ast.In},
}
NOT_CODE = (ast.Raise, ast.JoinedStr, ast.Import, ast.ImportFrom)
"""The wording of messages is free; a wrong import fails by itself."""


@dataclass(frozen=True)
class Mutant:
    """One changed place.

    Attributes:
        path: the file, from the root.
        line: the line of the place.
        reached: a line that runs when the place counts: of a default, the first of its function.
        before, after: the text of the place.
        around: the line as it is, which tells equal places of a file apart.
    """

    path: str
    line: int
    reached: int
    column: int
    kind: str
    before: str
    after: str
    around: str

    @property
    def key(self) -> str:
        """A name that stays when other code of the room changes."""
        text = "|".join([Path(self.path).name, self.around, self.before, self.after])
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def of(self, source: str) -> str:
        """The source text with the change."""
        lines = source.splitlines(keepends=True)
        start = sum(map(len, lines[: self.line - 1])) + self.column
        assert source[start:].startswith(self.before), self
        return source[:start] + self.after + source[start + len(self.before) :]

    def __str__(self) -> str:
        before, after = (" ".join(text.split()) for text in (self.before, self.after))
        return f"{self.path}:{self.line} {self.kind}: {before[:60]} -> {after[:60]}"


def mutants_of(path: Path, root: Path) -> Iterator[Mutant]:
    """All mutants of a file; some of them may not parse."""
    source = path.read_text()
    lines = source.splitlines(keepends=True)
    name = path.relative_to(root).as_posix()
    tree = ast.parse(source)
    of_defaults = {
        id(node): function.body[-1 if len(function.body) == 1 else 1].lineno
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function.args)
    }
    for node in _code(tree):
        before = _text(node, lines)
        column = len(lines[node.lineno - 1].encode()[: node.col_offset].decode())
        around = lines[node.lineno - 1].strip()
        for kind, changed in _changes(node):
            after = changed if isinstance(changed, str) else f"({ast.unparse(changed)})"
            reached = of_defaults.get(id(node), node.lineno)
            yield Mutant(name, node.lineno, reached, column, kind, before, after, around)


def _text(node: ast.expr | ast.stmt, lines: list[str]) -> str:
    """The text of a node; quicker than `ast.get_source_segment`, which splits the source anew."""
    assert node.end_lineno is not None
    part = [line.encode() for line in lines[node.lineno - 1 : node.end_lineno]]
    part[-1] = part[-1][: node.end_col_offset]
    part[0] = part[0][node.col_offset :]
    return b"".join(part).decode()


def draw(paths: list[Path], root: Path, count: int, seed: int) -> list[Mutant]:
    """Some mutants of these files; a change of one file leaves those of the others in the draw."""
    every = {mutant.key: mutant for path in paths for mutant in mutants_of(path, root)}
    order = sorted(every, key=lambda key: hashlib.sha256(f"{seed}|{key}".encode()).digest())
    drawn = (every[key] for key in order)
    return list(itertools.islice((mutant for mutant in drawn if _parses(mutant, root)), count))


def _parses(mutant: Mutant, root: Path) -> bool:
    try:
        ast.parse(mutant.of((root / mutant.path).read_text()))
    except SyntaxError:
        return False
    return True


def _code(node: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    """Expressions and statements that compute something."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "bases"):
            continue
        children = value if isinstance(value, list) else [value]
        for child in children:
            if not isinstance(child, ast.AST) or isinstance(child, NOT_CODE):
                continue
            target = getattr(child, "targets", [None])[0]
            if isinstance(target, ast.Name) and target.id == "__all__":
                continue
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            if isinstance(child, ast.expr | ast.stmt):
                yield child
            yield from _code(child)


def _changes(node: ast.AST) -> Iterator[tuple[str, ast.AST | str]]:
    match node:
        case ast.BinOp(left=left, right=right, op=op):
            if type(op) in SIGNS:
                yield "sign", ast.BinOp(left, SIGNS[type(op)](), right)
            yield "dropped term", left
            yield "dropped term", right
        case ast.UnaryOp(op=ast.USub() | ast.Not(), operand=operand):
            yield "sign", operand
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            yield "comparison", ast.Compare(left, [COMPARISONS[type(op)]()], [right])
        case ast.BoolOp(op=op, values=values):
            yield (
                "condition",
                ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values),
            )
        case ast.Constant(value=bool(value)):
            yield "constant", str(not value)
        case ast.Constant(value=int() | float() as value):
            yield "constant", repr(value + 1 if isinstance(value, int) else 1.5 * value or 1.0)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yield "condition", ast.IfExp(test, orelse, body)
        case ast.Call(args=[first, second, *_]) if ast.dump(first) != ast.dump(second):
            if not any(isinstance(each, ast.Starred) for each in (first, second)):
                changed = copy.copy(node)
                changed.args = [second, first, *node.args[2:]]
                yield "exchanged arguments", changed
        case ast.Expr(value=ast.Call()) | ast.AugAssign():
            yield "skipped statement", "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "skipped statement", "pass"
