"""Trace one step of a recipe into an aten graph whose inputs are its hyper-parameters, weight, gradient and state."""

from __future__ import annotations

import inspect
import linecache
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import sympy as sp
import torch
from torch._ops import OpOverload
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from spherenorm.registry import Recipe, defaults, find_recipe, names, reference
from spherenorm.rule import Rule
from spherenorm.views import View, as_view
from theory.symbols import exact

__all__ = [
    "Trace",
    "TraceError",
    "are_numbers",
    "found",
    "is_number",
    "rules_of",
    "settled",
    "trace",
    "trace_function",
]


class TraceError(ValueError):
    """A recipe that cannot be traced, or holds an operation that has no meaning on symbols."""


class _Lines(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records, for each operation, the line of the innermost frame outside of torch and of this file."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[object, str]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        frame = sys._getframe(1)
        while frame.f_back is not None and (
            "torch" in Path(frame.f_code.co_filename).parts or frame.f_code.co_filename == __file__
        ):
            frame = frame.f_back
        name, number = frame.f_code.co_filename, frame.f_lineno
        self.calls.append(
            (func, f"{Path(name).name}:{number}: {linecache.getline(name, number).strip()}")
        )
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True, eq=False)
class Trace:
    """A traced function.

    Attributes:
        name, recipe: the recipe and its name.
        graph: its aten graph; the placeholders are `inputs`, in order.
        inputs: ("hyper" | "weight" | "grad" | "state", name) of each placeholder.
        outputs: the names of the outputs: "weight", then the states.
        numbers: what each input that is a hyper-parameter is on symbols: its symbol, or exactly the number that was given.
        intervals: for each, the interval that the rule which takes it declares.
        structure: the hyper-parameters that are not numbers, or were given: they are constants of the graph.
        scalar_states: the states that hold one number per unit or one for all (a counter, a second moment per unit).
        counters: those of them that hold one for all.
        shape: of the traced weight, which is one unit; no law depends on it.
        lines: the source line that each node came from.
    """

    name: str
    recipe: Recipe
    graph: GraphModule
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[str, ...]
    numbers: Mapping[str, sp.Expr]
    intervals: Mapping[str, str]
    structure: Mapping[str, Any]
    scalar_states: tuple[str, ...]
    counters: tuple[str, ...]
    shape: tuple[int, ...]
    lines: Mapping[Node, str]

    @property
    def dimension(self) -> int:
        """How many entries the traced weight has."""
        return prod(self.shape)

    @cached_property
    def symbols(self) -> Mapping[str, sp.Symbol]:
        """The hyper-parameters that are symbols."""
        return {
            name: number for name, number in self.numbers.items() if isinstance(number, sp.Symbol)
        }

    def values(self, **given: Any) -> dict[sp.Symbol, float]:
        """Numbers for the symbols: the recipe's defaults, or those of `given` (a tuple such as betas for one per entry)."""
        known = {**defaults(self.recipe), **given}
        numbers: dict[str, Any] = {}
        for name, value in known.items():
            numbers.update(_parts(name, value) if isinstance(value, tuple) else {name: value})
        return {symbol: float(numbers[name]) for name, symbol in self.symbols.items()}


def _parts(name: str, value: tuple[Any, ...]) -> dict[str, Any]:
    """One name per entry of a tuple: betas gives beta1, beta2."""
    return {f"{name.removesuffix('s')}{i}": entry for i, entry in enumerate(value, 1)}


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def are_numbers(value: object) -> bool:
    """Whether `value` is a tuple of numbers, such as betas."""
    return isinstance(value, tuple) and bool(value) and all(map(is_number, value))


def trace_function(
    function: Callable[..., Any], *tensors: torch.Tensor
) -> tuple[GraphModule, dict[Node, str]]:
    """The aten graph of `function` at `tensors`, and the source line of each node."""
    recorder = _Lines()

    def recorded(*arguments: torch.Tensor) -> Any:
        with recorder:
            return function(*arguments)

    graph = make_fx(recorded)(*tensors)
    if any(
        isinstance(node.target, OpOverload) and node.target._schema.is_mutable
        for node in graph.graph.nodes
    ):
        # An in-place operation, of which views of its tensor see the result, becomes an ordinary one. (Of the graph, not of
        # the function: functionalization refuses functions with derivatives of their own.)
        graph = make_fx(torch.func.functionalize(graph))(*tensors)
    lines: dict[Node, str] = {}
    calls = iter(recorder.calls)
    for node in graph.graph.nodes:
        if node.op == "call_function":
            # Constants are computed outside of the graph: skip their calls.
            lines[node] = next(
                (line for func, line in calls if _plain_name(func) == _plain_name(node.target)),
                "unknown line",
            )
    return graph, lines


def _plain_name(operation: Any) -> str:
    """Without the mark of an in-place one."""
    return (
        operation._schema.name.removesuffix("_")
        if isinstance(operation, OpOverload)
        else str(operation)
    )


def found(recipe: str | Recipe) -> Recipe:
    """`find_recipe`, with one message for whatever can be wrong with a module of recipes.

    Raises:
        ValueError: no such recipe, or its module cannot be imported.
    """
    if isinstance(recipe, str) and ":" in recipe and not all(recipe.split(":", 1)):
        raise ValueError(
            f"no recipe is named {recipe!r}; known: {', '.join(names())} (your own: module:function)"
        )
    try:
        return find_recipe(recipe)
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"recipe {recipe!r} cannot be imported: {_said(error)}") from error


def settled(recipe: Recipe, given: Mapping[str, Any]) -> dict[str, Any]:
    """Every hyper-parameter of `recipe` with its value, given or default; lists as tuples, and entries kept as symbols at their defaults.

    Raises:
        ValueError: no such hyper-parameter, one without a value, or not as many numbers as a tuple has.
    """
    name, values = reference(recipe), dict(defaults(recipe))
    for hyper, value in given.items():
        if hyper not in values:
            raise ValueError(f"{name} has no hyper-parameter {hyper!r}; it has {', '.join(values)}")
        default = values[hyper]
        values[hyper] = tuple(value) if isinstance(value, list) else value
        if are_numbers(default):
            parts = dict(zip(_parts(hyper, default), default, strict=True))
            entries = values[hyper] if isinstance(values[hyper], tuple) else ()
            if len(entries) != len(parts) or not all(
                is_number(e) or e == part for e, part in zip(entries, parts, strict=True)
            ):
                raise ValueError(
                    f"{name}: {hyper} takes {len(parts)} numbers, such as {default}, or ({', '.join(parts)}) where one stays a symbol; "
                    f"got {value!r}"
                )
            values[hyper] = tuple(parts[e] if isinstance(e, str) else e for e in entries)
    missing = [hyper for hyper, value in values.items() if value is inspect.Parameter.empty]
    if missing:
        raise ValueError(
            f"{name}: hyper-parameter {missing[0]!r} has no default, give a value: {missing[0]}=..."
        )
    return values


def trace(recipe: str | Recipe, dimension: int = 5, **given: Any) -> Trace:
    """Trace one step of `recipe`, for a weight that is one unit under each of its views: of shape (1, dimension) for channel and layer.

    Every numeric hyper-parameter becomes a 0-dim tensor input, hence a symbol; a tuple of numbers such as `betas` becomes
    one symbol per entry (beta1, beta2). A float that is given is an input too, so that 1 - momentum is computed exactly, by
    the algebra that reads the graph. Booleans, strings, None and what else is given, such as 0, at which a recipe leaves a
    rule out, are structure: they choose the code that is traced.

    Constants of a recipe, as in `StepSize(0.5)`, and what Python computes of them are rounded before they can be seen; see
    `theory.symbols.exact` for what is made of them. So are given numbers, where code branches on them.

    Args:
        recipe: a recipe, its registered name, or "module:function".
        dimension: entries of the weight.
        given: hyper-parameters to hold at a value, as in `trace(sgd, weight_decay=0.0, nesterov=True)`; an entry of a tuple
            stays a symbol if it is its own name: `trace(adam, betas=(0.9, "beta2"))`.

    Raises:
        ValueError: no such recipe, no such hyper-parameter, or one without a default or a given value.
        TraceError: the recipe raises, forgets a state, has a view of several units whatever the weight, or its step cannot be
            traced: it branches on a tensor's value, or takes it out of the tensor.
    """
    function = found(recipe)
    values = settled(function, given)
    numbers: dict[str, sp.Expr] = {}
    for name, value in values.items():
        kept = given.get(name, ())
        for n, (part, entry) in enumerate(_entries(name, value).items()):
            if name not in given or (isinstance(kept, (tuple, list)) and kept[n] == part):
                numbers[part] = sp.Symbol(part, positive=True)
            elif isinstance(entry, float) and entry != 0:
                numbers[part] = exact(entry)
    try:
        return _trace(function, values, numbers, dimension)
    except TraceError:
        symbols = {
            part: number for part, number in numbers.items() if isinstance(number, sp.Symbol)
        }
        if symbols == numbers:
            raise
        return _trace(
            function, values, symbols, dimension
        )  # code that branches on a given number wants it as a Python number


def _trace(
    function: Recipe, values: Mapping[str, Any], numbers: Mapping[str, sp.Expr], dimension: int
) -> Trace:
    """The trace whose inputs are `numbers`; other hyper-parameters are constants."""
    called = reference(function)

    def build(tensors: Mapping[str, torch.Tensor]) -> Rule:
        def entered(name: str, value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(
                    tensors.get(part, entry) for part, entry in _parts(name, value).items()
                )
            return tensors.get(name, value)

        return function(**{name: entered(name, value) for name, value in values.items()})

    entries = {
        part: entry
        for name, value in values.items()
        for part, entry in _entries(name, value).items()
    }
    tensors = {part: torch.tensor(float(entries[part]), dtype=torch.float64) for part in numbers}
    generator = torch.Generator().manual_seed(0)
    try:
        function(**values)  # rules check intervals of Python numbers, and of no tensors
        rule = build(tensors)
        shape = _shape_of_one_unit(rule, dimension) if isinstance(rule, Rule) else ()
        weight, grad = (
            torch.randn(shape, dtype=torch.float64, generator=generator) for _ in range(2)
        )
        state = rule.init(weight) if isinstance(rule, Rule) else {}
    except Exception as error:
        raise TraceError(f"{called}: {_said(error)}") from error
    if not isinstance(rule, Rule):
        raise TypeError(f"{called} must return a rule, got {rule!r}")

    def step(*inputs: torch.Tensor) -> list[torch.Tensor]:
        count = len(tensors)
        w, g, *states = inputs[count:]
        new_weight, new_state = build(dict(zip(tensors, inputs, strict=False))).step(
            w, g, dict(zip(state, states, strict=True))
        )
        return [new_weight, *(new_state[name] for name in state)]

    try:
        graph, lines = trace_function(step, *tensors.values(), weight, grad, *state.values())
    except Exception as error:
        if "tracing tensor" in str(error):
            why = (
                "the step takes a number out of a tensor (an `if` on a tensor, .item(), float()), so that it cannot be traced; "
                "use torch.where, or hold the hyper-parameter that it asks for at a number"
            )
        else:
            why = _said(error)
        raise TraceError(f"{called}: {why}") from error
    return Trace(
        name=called,
        recipe=function,
        graph=graph,
        inputs=(
            *(("hyper", n) for n in tensors),
            ("weight", "w"),
            ("grad", "g"),
            *(("state", n) for n in state),
        ),
        outputs=("weight", *state),
        numbers=numbers,
        intervals=_intervals(rule, tensors),
        structure={
            name: value
            for name, value in values.items()
            if not any(isinstance(numbers.get(n), sp.Symbol) for n in _entries(name, value))
        },
        scalar_states=tuple(n for n, value in state.items() if value.numel() == 1),
        counters=tuple(n for n, value in state.items() if value.ndim == 0),
        shape=shape,
        lines=lines,
    )


def _entries(name: str, value: Any) -> dict[str, Any]:
    """The numbers of a hyper-parameter by the names of their inputs."""
    if are_numbers(value):
        return _parts(name, value)
    return {name: value} if is_number(value) else {}


def _said(error: Exception) -> str:
    """What a recipe's error says, in one line; with the place, where it is not a message of the recipe's own."""
    text = " ".join(str(error).split())
    if isinstance(error, ValueError):
        return text
    frames = [
        f
        for f in traceback.extract_tb(error.__traceback__)
        if "torch" not in Path(f.filename).parts and f.filename != __file__
    ]
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {text}{place}"


def rules_of(rule: Rule) -> Iterator[Rule]:
    """`rule` and the rules that it is made of, the outer ones first."""
    yield rule
    for field in fields(rule):
        value = getattr(rule, field.name)
        for inner in value if isinstance(value, tuple) else (value,):
            if isinstance(inner, Rule):
                yield from rules_of(inner)


def _views(rule: Rule) -> Iterator[View]:
    """The views that `rule`, the rules that it is made of and their geometries have."""
    for part in rules_of(rule):
        for holder in (part, getattr(part, "geometry", None)):
            yield from map(as_view, getattr(holder, "views", ()))
            if getattr(holder, "view", None) is not None:
                yield as_view(holder.view)  # type: ignore[union-attr]


def _shape_of_one_unit(rule: Rule, dimension: int) -> tuple[int, ...]:
    """A shape with `dimension` entries, all on one dimension, that is one unit under every view of `rule`."""
    views = [*_views(rule)]
    for view in views:
        if view.groups not in (None, 1):
            raise ValueError(
                f"the view {view} makes {view.groups} units of a weight or more, and a law is about one; each moves as a weight "
                f"under {replace(view, groups=1)}: give that view instead"
            )
    for n in range(2, 6):
        for place in reversed(range(n)):
            shape = (1,) * place + (dimension,) + (1,) * (n - 1 - place)
            if all(_units(replace(view, groups=None), shape) == 1 for view in views):
                return shape
    raise ValueError(
        f"a law is about a weight of one unit, and no shape is one unit under all of the views {', '.join(map(str, views))}"
    )


def _units(view: View, shape: tuple[int, ...]) -> int:
    """How many units a weight has, 0 where the view takes no weight of this shape."""
    try:
        return len(view.rows(torch.empty(shape)))
    except ValueError:
        return 0


def _intervals(rule: Rule, tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """The interval of each hyper-parameter that reaches a rule's field as it is."""
    found: dict[str, str] = {}
    for part in rules_of(rule):
        for field in fields(part):
            if "interval" in field.metadata:
                value = getattr(part, field.name)
                found.update(
                    {
                        name: field.metadata["interval"]
                        for name, tensor in tensors.items()
                        if tensor is value
                    }
                )
    return found
