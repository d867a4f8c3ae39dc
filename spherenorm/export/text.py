"""Lines of Python, laid out as a formatter does."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

MAX_LINE_LENGTH = 96
"""Columns of a line of a function's body, which is then indented by 4."""
_POWER = re.compile(r"(?<![\w.\])])((?:[a-z]\w*\.)?\w+) \*\* ([\w.]+)(?![\w(\[.])")
"""A power of a name or of an attribute, which formatters write without spaces."""


def unparse(node: ast.AST) -> str:
    """Return the text of a syntax tree, with ruff's quotes and spaces."""
    return _POWER.sub(r"\1**\2", ast.unparse(node).replace("'", '"'))


def _number(node: ast.expr) -> float | None:
    """Return the value of a number; None for anything else."""
    value = node.value if isinstance(node, ast.Constant) else None
    # A bool is an int, and no number here.
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


class _Simplify(ast.NodeTransformer):
    """Drops terms 0 and factors 1, and products with 0, from an expression of finite numbers."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        first, second = map(_number, (node.left, node.right))
        if isinstance(node.op, ast.Mult) and 0 in (first, second):
            return ast.Constant(0)
        neutral = 1 if isinstance(node.op, ast.Mult | ast.Div) else 0
        if isinstance(node.op, ast.Add | ast.Mult) and first == neutral:
            return node.right
        if isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.Div) and second == neutral:
            return node.left
        return node


def simplify_number(text: str) -> str:
    """Return an expression of numbers without the operations that change nothing.

    Example:
        >>> print(simplify_number("t * 0 + lr * (1 - share) + (share - 0) * 0"))
        lr * (1 - share)
    """
    return unparse(_Simplify().visit(ast.parse(text)))


def format_assignment(name: str, text: str, max_length: int = MAX_LINE_LENGTH) -> str:
    """Return an assignment; a long one is broken as ruff does."""
    line = f"{name} = {text}"
    if len(line) <= max_length:
        return line
    expression = ast.parse(text, mode="eval").body
    fits = len(text) <= max_length - 4
    if isinstance(expression, ast.Call) and not fits:
        arguments = [unparse(argument) for argument in (*expression.args, *expression.keywords)]
        return join_items(f"{name} = {unparse(expression.func)}(", arguments, ")", max_length)
    if isinstance(expression, ast.BinOp) and isinstance(expression.op, ast.Add) and not fits:
        first_term = ast.get_source_segment(text, expression.left)
        last_term = ast.get_source_segment(text, expression.right)
        return f"{name} = (\n    {first_term}\n    + {last_term}\n)"
    return f"{name} = (\n    {text}\n)"


def join_items(head: str, items: Sequence[str], tail: str, max_length: int = 100) -> str:
    """Return items between brackets on one line, or broken as ruff does.

    Example:
        >>> print(join_items("f(", ["x", "y"], ")"))
        f(x, y)
    """
    line = f"{head}{', '.join(items)}{tail}"
    if len(line) <= max_length:
        return line
    indent = " " * (len(head) - len(head.lstrip()))
    middle = f"{indent}    {', '.join(items)}"
    if len(middle) > max_length or head.endswith("{"):
        middle = ",\n".join(f"{indent}    {item}" for item in items) + ","
    return f"{head}\n{middle}\n{indent}{tail}"
