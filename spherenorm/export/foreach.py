"""A step of entries alone on lists of weights, by torch's `_foreach_` operations."""

from __future__ import annotations

import ast

from spherenorm.export.body import LINE, broken, formatted
from spherenorm.rule import STEP_KEY

ARITHMETIC = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.Pow: "pow"}
METHODS = ("sqrt", "rsqrt", "abs", "sign", "exp", "log", "log1p", "expm1", "sigmoid", "tanh")
FUNCTIONS = {"lerp": "lerp", "maximum": "maximum", "minimum": "minimum"}
LIKE = ("zeros_like", "ones_like")
BOUNDS = {"min": "clamp_min", "max": "clamp_max"}


class NotEntrywiseError(ValueError):
    """A step has an operation that lists of tensors do not have."""


def on_lists(function: str) -> str:
    """The text of a step whose weight, gradient and states are lists of tensors.

    Args:
        function: the text of the step of one weight.

    Raises:
        NotEntrywiseError: it looks at a shape, sums, compares, or makes tensors.
    """
    lines = function.splitlines()
    (step,) = (x for x in ast.parse(function).body if isinstance(x, ast.FunctionDef))
    lists, out, done = {"weight", "grad"}, lines[: step.lineno], step.lineno
    for line in step.body:
        out += lines[done : line.lineno - 1]  # comments
        done = line.end_lineno or line.lineno
        if isinstance(line, ast.Return):
            assert isinstance(line.value, ast.Tuple)
            moved, states = line.value.elts
            assert isinstance(states, ast.Dict)
            pairs = zip(states.keys, states.values, strict=True)
            entries = [
                f"{formatted(k)}: {formatted(_on_lists(x, lists)[0])}" for k, x in pairs if k
            ]
            head = f"    return {formatted(_on_lists(moved, lists)[0])}, {{"
            out.append(broken(head, entries, "}", LINE + 4))
            continue
        assert isinstance(line, ast.Assign)
        value, is_list = _on_lists(line.value, lists)
        if isinstance(target := line.targets[0], ast.Name) and is_list:
            lists.add(target.id)
        name = formatted(target).strip("()")
        out += f"    {name} = {_laid_out(value, 4, 100 - len(name) - 3)}".splitlines()
    return "\n".join(out)


def _on_lists(node: ast.expr, lists: set[str]) -> tuple[ast.expr, bool]:
    """An expression on lists, and whether its value is one."""

    def inner(each: ast.expr) -> tuple[ast.expr, bool]:
        return _on_lists(each, lists)

    match node:
        case ast.Name(id=name):
            return node, name in lists
        case ast.Subscript(value=ast.Name(id="state"), slice=ast.Constant(value=key)):
            return node, key != STEP_KEY
        case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC:
            (a, first), (b, second) = inner(left), inner(right)
            if not (first or second):
                return node, False
            if not first and isinstance(op, ast.Sub):  # of a number, the other way round
                return _call("add", _call("neg", b), a), True
            if not first and isinstance(op, ast.Div):
                return _call("mul", _call("reciprocal", b), a), True
            if not first and isinstance(op, ast.Add | ast.Mult):
                a, b = b, a
            elif not first:
                raise NotEntrywiseError(ast.unparse(node))
            return _call(ARITHMETIC[type(op)], a, b), True
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            value, is_list = inner(operand)
            return (_call("neg", value), True) if is_list else (node, False)
        case ast.IfExp(test=test, body=body, orelse=other):
            (chosen, first), (left, second) = inner(body), inner(other)
            if not inner(test)[1] and first == second:
                return ast.IfExp(test, chosen, left), first
        case ast.Call(func=ast.Attribute(value=ast.Name(id="weight"), attr="new_full"), args=args):
            text = f"[torch.full_like(x, {ast.unparse(args[1])}) for x in weight]"
            return ast.parse(text, mode="eval").body, True
        case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr=name), args=args):
            values = [inner(each) for each in args]
            if name in LIKE and not node.keywords and len(args) == 1 and values[0][1]:
                text = f"[torch.{name}(x) for x in {ast.unparse(values[0][0])}]"
                return ast.parse(text, mode="eval").body, True
            if name in FUNCTIONS and not node.keywords and all(x for _, x in values[:2]):
                return _call(FUNCTIONS[name], *(each for each, _ in values)), True
        case ast.Call(func=ast.Attribute(value=owner, attr=name), args=[], keywords=keywords):
            value, is_list = inner(owner)
            if is_list and name in METHODS and not keywords:
                return _call(name, value), True
            if is_list and name == "clone" and not keywords:
                text = f"[x.clone() for x in {ast.unparse(value)}]"
                return ast.parse(text, mode="eval").body, True
            if is_list and name == "clamp" and all(k.arg in BOUNDS for k in keywords):
                for bound in keywords:
                    value = _call(BOUNDS[str(bound.arg)], value, bound.value)
                return value, True
    lists_in = {x.id for x in ast.walk(node) if isinstance(x, ast.Name)} & (lists | {"state"})
    if lists_in:
        raise NotEntrywiseError(ast.unparse(node))
    return node, False


def _laid_out(node: ast.expr, indent: int, room: int) -> str:
    """The text of an expression; one that is too long is broken as ruff does."""
    text = formatted(node)
    if len(text) <= room - indent:
        return text
    inner, outer = " " * (indent + 4), " " * indent
    if isinstance(node, ast.Call):
        args = [_laid_out(each, indent + 4, 99) for each in node.args]
        together = ", ".join(args)
        fits = "\n" not in together and len(together) <= 96 - indent
        body = f"{inner}{together}" if fits else "".join(f"{inner}{each},\n" for each in args)
        return f"{formatted(node.func)}(\n{body.rstrip()}\n{outer})"
    if isinstance(node, ast.IfExp):
        body, other = (_laid_out(x, indent + 4, 94) for x in (node.body, node.orelse))
        test = formatted(node.test)
        if len(text) <= 96 - indent:
            return f"(\n{inner}{text}\n{outer})"
        return f"(\n{inner}{body}\n{inner}if {test}\n{inner}else {other}\n{outer})"
    return text


def _call(name: str, *args: ast.expr) -> ast.expr:
    function = ast.parse(f"torch._foreach_{name}", mode="eval").body
    return ast.Call(function, list(args), [])
