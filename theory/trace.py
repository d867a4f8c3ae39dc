"""Trace one step of a recipe into an aten graph whose inputs are its hyper-parameters, weight, gradient and state."""

from __future__ import annotations

import inspect
import linecache
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import sympy as sp
import torch
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from spherenorm.registry import Recipe, defaults, find_recipe, reference
from spherenorm.rule import Rule

__all__ = ["Trace", "TraceError", "trace", "trace_function"]


class TraceError(ValueError):
    """A recipe that cannot be traced, or holds an operation that has no meaning on symbols."""


class _Lines(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records, for each operation, the line of the innermost frame outside of torch and of this file."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[object, str]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        frame = sys._getframe(1)
        while frame.f_back is not None and ("torch" in Path(frame.f_code.co_filename).parts or frame.f_code.co_filename == __file__):
            frame = frame.f_back
        name, number = frame.f_code.co_filename, frame.f_lineno
        self.calls.append((func, f"{Path(name).name}:{number}: {linecache.getline(name, number).strip()}"))
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True, eq=False)
class Trace:
    """A traced function.

    Attributes:
        name, recipe: the recipe and its name.
        graph: its aten graph; the placeholders are `inputs`, in order.
        inputs: ("hyper" | "weight" | "grad" | "state", name) of each placeholder.
        outputs: the names of the outputs: "weight", then the states.
        symbols: the sympy symbol of each numeric hyper-parameter.
        intervals: for each, the interval that the rule which takes it declares.
        structure: the hyper-parameters that are not numbers, or were given: they are constants of the graph.
        scalar_states: the states that hold one number per unit or one for all (a counter, a second moment per unit).
        dimension: how many entries the traced weight has; no law depends on it.
        lines: the source line that each node came from.
    """

    name: str
    recipe: Recipe
    graph: GraphModule
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[str, ...]
    symbols: Mapping[str, sp.Symbol]
    intervals: Mapping[str, str]
    structure: Mapping[str, Any]
    scalar_states: tuple[str, ...]
    dimension: int
    lines: Mapping[Node, str]

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


def trace_function(function: Callable[..., Any], *tensors: torch.Tensor) -> tuple[GraphModule, dict[Node, str]]:
    """The aten graph of `function` at `tensors`, and the source line of each node."""
    recorder = _Lines()

    def recorded(*arguments: torch.Tensor) -> Any:
        with recorder:
            return function(*arguments)

    graph = make_fx(recorded)(*tensors)
    lines: dict[Node, str] = {}
    calls = iter(recorder.calls)
    for node in graph.graph.nodes:
        if node.op == "call_function":
            # Constants are computed outside of the graph: skip their calls.
            lines[node] = next((line for func, line in calls if func is node.target), "unknown line")
    return graph, lines


def trace(recipe: str | Recipe, dimension: int = 5, **given: Any) -> Trace:
    """Trace one step of `recipe`, for a weight of shape (1, dimension): one unit under the channel and the layer view.

    Every numeric hyper-parameter becomes a 0-dim tensor input, hence a symbol; a tuple of numbers such as `betas` becomes
    one symbol per entry (beta1, beta2). Booleans, strings and None are structure: they choose the code that is traced.

    Args:
        recipe: a recipe, its registered name, or "module:function".
        dimension: entries of the weight.
        given: hyper-parameters to hold at a value, as in `trace(sgd, weight_decay=0.0, nesterov=True)`.

    Raises:
        ValueError: no such recipe, no such hyper-parameter, or one without a default or a given value.
        TraceError: the step's code cannot be traced: it branches on a tensor's value, or takes it out of the tensor.
    """
    function = find_recipe(recipe)
    known = dict(defaults(function))
    for name in given:
        if name not in known:
            raise ValueError(f"{reference(function)} has no hyper-parameter {name!r}; it has {', '.join(known)}")
    numbers: dict[str, float] = {}
    structure: dict[str, Any] = {}
    pairs: dict[str, tuple[str, ...]] = {}
    for name, default in known.items():
        value = given.get(name, default)
        if value is inspect.Parameter.empty:
            raise ValueError(f"{reference(function)}: hyper-parameter {name!r} has no default, give a value: {name}=...")
        if name in given or not (is_number(value) or (isinstance(value, tuple) and value and all(map(is_number, value)))):
            structure[name] = value
        elif isinstance(value, tuple):
            pairs[name] = tuple(_parts(name, value))
            numbers.update({part: float(entry) for part, entry in _parts(name, value).items()})
        else:
            numbers[name] = float(value)

    def build(tensors: Mapping[str, torch.Tensor]) -> Rule:
        tuples = {name: tuple(tensors[part] for part in parts) for name, parts in pairs.items()}
        return function(**structure, **tuples, **{n: t for n, t in tensors.items() if n in known})

    tensors = {name: torch.tensor(value, dtype=torch.float64) for name, value in numbers.items()}
    rule = build(tensors)
    if not isinstance(rule, Rule):
        raise TypeError(f"{reference(function)} must return a rule, got {rule!r}")
    generator = torch.Generator().manual_seed(0)
    weight, grad = (torch.randn(1, dimension, dtype=torch.float64, generator=generator) for _ in range(2))
    state = rule.init(weight)

    def step(*inputs: torch.Tensor) -> list[torch.Tensor]:
        count = len(tensors)
        w, g, *states = inputs[count:]
        new_weight, new_state = build(dict(zip(tensors, inputs, strict=False))).step(w, g, dict(zip(state, states, strict=True)))
        return [new_weight, *(new_state[name] for name in state)]

    try:
        graph, lines = trace_function(step, *tensors.values(), weight, grad, *state.values())
    except RuntimeError as error:
        if "tracing tensor" not in str(error):
            raise
        raise TraceError(
            f"{reference(function)}: the step takes a number out of a tensor (an `if` on a tensor, .item(), float()), "
            "so that it cannot be traced; use torch.where"
        ) from error
    return Trace(
        name=reference(function),
        recipe=function,
        graph=graph,
        inputs=(*(("hyper", n) for n in tensors), ("weight", "w"), ("grad", "g"), *(("state", n) for n in state)),
        outputs=("weight", *state),
        symbols={n: sp.Symbol(n, positive=True) for n in tensors},
        intervals=_intervals(rule, tensors),
        structure=structure,
        scalar_states=tuple(n for n, value in state.items() if value.numel() == 1),
        dimension=dimension,
        lines=lines,
    )


def _intervals(rule: Rule, tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """The interval of each hyper-parameter that reaches a rule's field as it is."""
    found: dict[str, str] = {}
    for field in fields(rule):
        value = getattr(rule, field.name)
        for inner in value if isinstance(value, tuple) else (value,):
            if isinstance(inner, Rule):
                found.update(_intervals(inner, tensors))
        if "interval" in field.metadata:
            found.update({name: field.metadata["interval"] for name, tensor in tensors.items() if tensor is value})
    return found
