"""Move what one branch alone needs under its `if`.

A record has both branches of each decision, so that a function computes both and selects one:

    basis = torch.linalg.qr(x)[0]
    new_basis = basis if is_due else state["basis"]

The work of a refresh, which is done at each tenth step, is then written under the decision:

    if is_due:
        basis = torch.linalg.qr(x)[0]
        new_basis = basis
    else:
        new_basis = state["basis"]
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spherenorm.export.text import MAX_LINE_LENGTH, format_assignment, unparse


@dataclass(frozen=True, eq=False)
class Statement:
    """An assignment, with the comment before it.

    Attributes:
        comment: the text of the comment, "" if there is none.
        target: the variables that it assigns, as text.
        value: what it assigns.
    """

    comment: str
    target: str
    value: ast.expr

    @property
    def written(self) -> frozenset[str]:
        """The variables that it assigns."""
        return frozenset(self.target.split(", ")) - {"_"}

    @property
    def read(self) -> frozenset[str]:
        """The variables that it reads."""
        return _names_in(self.value)

    def lines(self, max_length: int) -> list[str]:
        """Return the lines of the comment and of the assignment."""
        assignment = format_assignment(self.target, unparse(self.value), max_length)
        return [*self.comment_lines(max_length), *assignment.splitlines()]

    def comment_lines(self, max_length: int) -> list[str]:
        """Return the lines of the comment."""
        return textwrap.wrap(
            self.comment, max_length - 4, initial_indent="# ", subsequent_indent="# "
        )


def sink_into_branches(lines: Sequence[str], returned: Iterable[str]) -> list[str]:
    """Return lines in which what one branch alone needs is computed in that branch.

    Args:
        lines: of assignments, each to variables of its own.
        returned: the expressions that the function returns.

    Example:
        >>> print("\\n".join(sink_into_branches(["x = f(y)", "z = x if c else y"], ["z"])))
        if c:
            x = f(y)
            z = x
        else:
            z = y
    """
    outside = frozenset[str]().union(*(_names_in(ast.parse(text)) for text in returned))
    return _sink(_parse("\n".join(lines)), outside, MAX_LINE_LENGTH)


def _parse(text: str) -> list[Statement]:
    lines, start, statements = text.splitlines(), 0, []
    for node in ast.parse(text).body:
        assert isinstance(node, ast.Assign)
        comment = " ".join(line.removeprefix("# ") for line in lines[start : node.lineno - 1])
        target = node.targets[0]
        names = target.elts if isinstance(target, ast.Tuple) else [target]
        statements.append(Statement(comment, ", ".join(map(unparse, names)), node.value))
        start = node.end_lineno or 0
    return statements


def _names_in(node: ast.AST) -> frozenset[str]:
    return frozenset(child.id for child in ast.walk(node) if isinstance(child, ast.Name))


def _sink(statements: Sequence[Statement], outside: frozenset[str], max_length: int) -> list[str]:
    """Return lines; `outside` are the variables that the code after the statements reads."""
    chunks: list[list[str]] = []
    rest = list(statements)
    # From the last to the first: an outer decision comes after those within its branches.
    while rest:
        decision = _last_decision(rest)
        if not decision:
            statement = rest.pop()
            chunks.append(statement.lines(max_length))
            outside |= statement.read
            continue
        rest = rest[: -len(decision)]
        condition = _choice(decision[0]).test
        branches = [
            [Statement("", s.target, _choice(s).body) for s in decision],
            [Statement("", s.target, _choice(s).orelse) for s in decision],
        ]
        sunk: list[list[Statement]] = []
        for branch, other_branch in (branches, branches[::-1]):
            elsewhere = outside | _names_in(condition) | _reads(other_branch)
            inside = _needed_only_by(branch, rest, elsewhere)
            rest = [statement for statement in rest if statement not in inside]
            sunk.append(inside)
        if any(sunk):
            lines = [line for s in decision for line in s.comment_lines(max_length)]
            written = frozenset(name for statement in decision for name in statement.written)
            for head, inside, branch in zip(
                (f"if {unparse(condition)}:", "else:"), sunk, branches, strict=True
            ):
                inner_lines = _sink([*inside, *branch], written, max_length - 4)
                lines += [head, *(f"    {line}" for line in inner_lines)]
        else:
            lines = [line for statement in decision for line in statement.lines(max_length)]
        chunks.append(lines)
        outside |= _reads([*decision, *sunk[0], *sunk[1]])
    return [line for chunk in reversed(chunks) for line in chunk]


def _choice(statement: Statement) -> ast.IfExp:
    assert isinstance(statement.value, ast.IfExp)
    return statement.value


def _last_decision(statements: Sequence[Statement]) -> list[Statement]:
    """Return the last statements, if they choose by one condition; else []."""
    decision: list[Statement] = []
    for statement in reversed(statements):
        if not isinstance(statement.value, ast.IfExp):
            break
        if decision:
            has_condition = ast.dump(_choice(decision[0]).test) == ast.dump(statement.value.test)
            if not has_condition or not statement.written.isdisjoint(_reads(decision)):
                break
        decision.insert(0, statement)
    return decision


def _reads(statements: Iterable[Statement]) -> frozenset[str]:
    return frozenset[str]().union(*(statement.read for statement in statements))


def _needed_only_by(
    branch: Sequence[Statement], before: Sequence[Statement], elsewhere: frozenset[str]
) -> list[Statement]:
    """Return those statements before a branch whose variables nothing else reads, in order."""
    inside: list[Statement] = []
    needed = _reads(branch)
    for statement in reversed(before):
        if statement.written & needed and not statement.written & elsewhere:
            inside.insert(0, statement)
            needed |= statement.read
        else:
            elsewhere |= statement.read
    return inside
