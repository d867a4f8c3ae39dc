"""The body of a function of the file, from the records of a recipe at three shapes."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from spherenorm.export.words import NoWordError, Text, of_shape, word
from spherenorm.manifolds import Manifold
from spherenorm.record import Call, Recorder, Value
from spherenorm.registry import Recipe
from spherenorm.rule import STEP_KEY, Chain, Rule

LINE = 96
"""The longest line of a function's body before it is indented."""
INLINE = 44
"""The length up to which an expression that is used once stands where it is used."""


class Trace:
    """One run of a recipe at one shape: its first state, and a step.

    Args:
        recipe: the function.
        tensors: its arguments, with tensors in the place of numbers.
        numbers: the names of these.
        shape: of the weight.

    Attributes:
        calls: by "start" and "step", those that the outputs need.
        outputs: by "start" and "step", the values by name; the new weight's name is "weight".
        names: the text of each input.
        constants: tensors that the code brings along.
        owner: the rule whose code asked for a call.
    """

    def __init__(
        self, recipe: Recipe, tensors: Mapping[str, Any], numbers: Sequence[str], shape: Any
    ) -> None:
        self.shape = shape
        self.owner: dict[int, Any] = {}
        recorder = Recorder(on_call=lambda call: self.owner.update({id(call): _rule_of_stack()}))
        weight, grad = drawn(shape, 1), drawn(shape, 2)
        self.names = {
            recorder.add_input(weight): Text("weight", shape=weight.shape, shared=True),
            recorder.add_input(grad): Text("grad", shape=grad.shape, shared=True),
        }
        self.arguments: dict[str, list[str]] = {}
        for name in numbers:
            value = tensors[name]
            parts = value if isinstance(value, tuple) else (value,)
            singular = name.removesuffix("s")  # "betas": "beta1" and "beta2"
            texts = (
                [name] if parts[0] is value else [f"{singular}{i}" for i, _ in enumerate(parts, 1)]
            )
            self.arguments[name] = texts
            for text, each in zip(texts, parts, strict=True):
                self.names[recorder.add_input(each)] = Text(text, True, each.shape)
        with torch.no_grad(), recorder:
            rule = recipe(**tensors)
            first = rule.init(weight)
        held = {key: value.clone() for key, value in first.items()}
        for key, value in held.items():
            host, text = key == STEP_KEY, f'state["{key}"]'
            self.names[recorder.add_input(value)] = Text(text, host, value.shape, shared=True)
        begun = recorder.values(first)
        with torch.no_grad(), recorder:
            moved, new = rule.step(weight, grad, held)
        stepped = {"weight": moved, **new}
        self.outputs = {"start": begun, "step": recorder.values(stepped)}
        self.constants = recorder.constants
        self.calls = {
            key: _needed(recorder.calls, [*outputs.values()])
            for key, outputs in self.outputs.items()
        }


def _needed(calls: Sequence[Call], outputs: Sequence[Value]) -> list[Call]:
    asked, kept = set(outputs), []
    for call in reversed(calls):
        if call.in_place:
            raise NoWordError(f"{call.packet}, which writes in place,")
        if not asked.isdisjoint(_values(call.result)):
            asked.update(call.values())
            kept.append(call)
    return kept[::-1]


def _values(tree: Any) -> list[Value]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Value)]


def _rule_of_stack() -> Any:
    """The rule or manifold whose code is running, which is the innermost that is no chain."""
    frame = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, Rule | Manifold) and not isinstance(owner, Chain):
            return owner
        frame = frame.f_back  # type: ignore[assignment]
    return None


class Body:
    """The body of one function, from the records of three shapes."""

    def __init__(self, traces: Sequence[Trace], part: str) -> None:
        self.traces, self.part = traces, part
        self.calls = traces[0].calls[part]
        self.known: dict[Value, Text] = dict(traces[0].names)
        self.seen: dict[str, Text] = {}
        self.taken = {"weight", "grad", "state", "group", "rows", "columns", "size"}
        self.taken |= {"math", "torch", *(each.text for each in self.known.values())}
        outputs = traces[0].outputs[part].values()
        self.uses: dict[Value, int] = {}
        for value in [*outputs, *(v for call in self.calls for v in call.values())]:
            self.uses[value] = self.uses.get(value, 0) + 1
        self.output_names: dict[Value, str] = {}
        for key, value in traces[0].outputs[part].items():
            self.output_names.setdefault(value, f"new_{key}" if part == "step" else key)
        self.out: list[str] = []
        self.last: Any = None

    def lines(self) -> list[str]:
        if any(len(t.calls[self.part]) != len(self.calls) for t in self.traces):
            raise NoWordError("a step of several kinds")
        for calls in zip(*(trace.calls[self.part] for trace in self.traces), strict=True):
            self._call(calls)
        results = []
        for key in self.traces[0].outputs[self.part]:
            each = [trace.outputs[self.part][key] for trace in self.traces]
            results.append((key, self._output(key, self._resolved(each[0], each))))
        state = [f'"{key}": {text}' for key, text in results if key != "weight" and text]
        moved = dict(results).get("weight")
        self.out.append(broken(f"return {moved}, {{" if moved else "return {", state, "}", LINE))
        return [*self._inputs(), *self.out]

    def _output(self, key: str, text: Text) -> str:
        if self.part == "step" and text.text == f'state["{key}"]':
            return ""  # it stays
        if text.host and key != STEP_KEY:
            return f"weight.new_full((), {text.text})"
        return f"{text.text}.clone()" if text.shared else text.text

    def _inputs(self) -> list[str]:
        """Lines that give names to the hyper-parameters and sizes that the text uses."""
        words = {
            node.id
            for node in ast.walk(ast.parse("\n".join(self.out).replace("return ", "")))
            if isinstance(node, ast.Name)
        }
        lines = []
        if {"rows", "columns"} <= words:
            lines.append("rows, columns = weight.shape")
        else:
            sides = ("rows", "columns")
            lines += [f"{x} = weight.shape[{i}]" for i, x in enumerate(sides) if x in words]
        if "size" in words:
            lines.append("size = weight.numel()")
        for argument, names in self.traces[0].arguments.items():
            if words & {*names}:
                lines.append(f'{", ".join(names)} = group["{argument}"]')
        return lines

    def _call(self, calls: Sequence[Call]) -> None:
        call = calls[0]
        flat = [pytree.tree_flatten((each.arguments, each.options)) for each in calls]
        if any(each.function is not call.function or spec != flat[0][1]
               for each, (_, spec) in zip(calls, flat, strict=True)):  # fmt: skip
            raise NoWordError("a step of several kinds")
        leaves = [self._resolved(each[0], each) for each in zip(*(f[0] for f in flat), strict=True)]
        args, options = pytree.tree_unflatten(leaves, flat[0][1])
        made = word(call.packet, call.result, args, _plain_options(options))
        self._keep(call, made)

    def _resolved(self, first: Any, each: Sequence[Any]) -> Any:
        if isinstance(first, Value):
            if first not in self.known:  # a constant
                found = [trace.constants[v] for trace, v in zip(self.traces, each, strict=False)]
                if any(x.ndim for x in found):
                    raise NoWordError("a tensor that the code brings along")
                return self._number([x.item() for x in found], first.dtype is torch.bool)
            return self.known[first]
        if type(first) in (int, float):
            return self._number(each)
        return Text(repr(first), True)

    def _number(self, values: Sequence[Any], boolean: bool = False) -> Text:
        if len({*values}) == 1:
            whole = isinstance(values[0], float) and values[0].is_integer() and not boolean
            text = repr(values[0])
            text = text[:-2] if whole and text.endswith(".0") else text
            return Text(text, True, torch.Size(()), boolean)
        text = of_shape([float(v) for v in values], [t.shape for t in self.traces])  # type: ignore[assignment]
        if text is None:
            raise NoWordError(f"the number {values[0]!r}, which depends on the shape,")
        return Text(text, True, torch.Size(()))

    def _keep(self, call: Call, made: Text) -> None:
        """Give a call's value a name, or let it stand where it is used."""
        value, output = call.result, self.output_names.get(call.result)
        made = replace(made, text=formatted(ast.parse(made.text)))
        if made.text in self.seen and not output and self.part == "step":
            self.known[value] = self.seen[made.text]
            return
        once = self.uses[value] == 1 and not output and len(made.text) <= INLINE
        if once or _ATOM.fullmatch(made.text):
            self.known[value] = made
            return
        owner = self.traces[0].owner[id(call)]
        if owner is not None and type(owner) is not self.last:
            told = (inspect.getdoc(type(owner)) or "").partition("\n\n")[0].rstrip(":.")
            text = f"{type(owner).__name__}: {' '.join(told.split())}"
            self.out += textwrap.wrap(text, 92, initial_indent="# ", subsequent_indent="# ")
            self.last = type(owner)
        label = made.made_by or call.packet
        name = self._free(output or NAMES.get(label, label.strip("_")))
        self.out.append(assigned(name, made.text))
        self.known[value] = self.seen[made.text] = Text(
            name, made.host, made.shape, made.boolean, made.shared
        )

    def _free(self, name: str) -> str:
        number, found = 1, name
        while found in self.taken:
            number += 1
            found = f"{name}{number}"
        self.taken.add(found)
        return found


def formatted(node: ast.AST) -> str:
    return _POWER.sub(r"\1**\2", ast.unparse(node).replace("'", '"'))


def assigned(name: str, text: str) -> str:
    """An assignment; a long one is broken as ruff does."""
    line = f"{name} = {text}"
    if len(line) <= LINE:
        return line
    call = ast.parse(text, mode="eval").body
    if len(text) <= LINE - 4 or not isinstance(call, ast.Call):
        return f"{name} = (\n    {text}\n)"
    parts = [formatted(each) for each in (*call.args, *call.keywords)]
    return broken(f"{name} = {formatted(call.func)}(", parts, ")", LINE)


_POWER = re.compile(r"(?<![\w.\])])(\w+) \*\* ([\w.]+)(?![\w(\[.])")
"""A power of a name, which formatters write without spaces."""
_ATOM = re.compile(r'\w+|state\["\w+"\]|-?[\d.]+')
"""A name, a state or a number: it needs no name of its own."""

NAMES = {
    "view": "matrix", "_unsafe_view": "product", "bitwise_and": "both", "logical_and": "both",
    "bitwise_or": "either", "logical_or": "either", "bitwise_not": "other", "clamp": "bounded",
    "unsqueeze": "matrix", "transpose": "turned", "permute": "turned", "ones_like": "ones",
    "sum": "total", "sqrt": "root", "where": "chosen", "lt": "passes", "gt": "passes",
    "any": "some", "all": "every", "abs": "size_of", "div": "ratio", "pow": "power",
    "lerp": "average", "mul": "product", "add": "added", "sub": "difference", "rsub": "rest",
    "addcmul": "added", "mm": "product", "bmm": "product", "eq": "is_zero",
}  # fmt: skip


def _plain_options(options: dict[str, Any]) -> dict[str, Any]:
    """Those that say something: torch fills in the others from its tensors."""
    dull = {"layout", "device", "pin_memory", "memory_format", "non_blocking", "implicit"}
    return {key: value for key, value in options.items() if key not in dull}


def broken(head: str, items: Sequence[str], tail: str, width: int = 100) -> str:
    """A line, in the shape of ruff's if it is too long."""
    line, outer = f"{head}{', '.join(items)}{tail}", " " * (len(head) - len(head.lstrip()))
    if len(line) <= width:
        return line
    middle = f"{outer}    {', '.join(items)}"
    if len(middle) > width or head.endswith("{"):
        middle = ",\n".join(f"{outer}    {item}" for item in items) + ","
    return f"{head}\n{middle}\n{outer}{tail}"


def drawn(shape: tuple[int, ...], seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)
