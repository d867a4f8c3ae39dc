"""Run a traced aten graph on symbols instead of tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch.fx import GraphModule, Node

from theory.symbols import exact
from theory.trace import TraceError

__all__ = ["interpret"]


STORAGE = {"dtype", "layout", "device", "pin_memory", "memory_format", "non_blocking", "implicit"}
"""Options that say how a tensor is stored, not what it holds."""


def interpret(
    graph: GraphModule, algebra: Any, inputs: Sequence[Any], lines: Mapping[Node, str] | None = None
) -> list[Any]:
    """The outputs of `graph` on `inputs`, each operation done by the method of `algebra` that bears its aten name.

    Raises:
        TraceError: an operation that the algebra does not know, or cannot do on these values; with the line it came from.
    """
    values: dict[Node, Any] = {}
    waiting = iter(inputs)
    for node in graph.graph.nodes:
        if node.op == "placeholder":
            values[node] = next(waiting)
        elif node.op == "get_attr":
            constant = getattr(graph, node.target)
            if constant.numel() != 1:
                raise TraceError(
                    f"the step holds a constant tensor of shape {tuple(constant.shape)}, which has no symbol"
                )
            values[node] = exact(constant.item())
        elif node.op == "output":
            outputs = node.args[0] if isinstance(node.args[0], (list, tuple)) else [node.args[0]]
            return [values[out] for out in outputs]
        else:
            name = node.target.overloadpacket.__name__
            where = (lines or {}).get(node, "an unknown line")
            # Tracing has made in-place operations ordinary ones, but for those inside of torch's own, as in cosine_similarity.
            in_place = name.endswith("_")
            operation = getattr(algebra, "aten_" + name.removesuffix("_"), None)
            if operation is None:
                raise TraceError(
                    f"aten.{name} has no meaning on {type(algebra).__name__.lower()} symbols yet; it came from {where}"
                )
            arguments = [_value(values, a) for a in node.args]
            options = {k: _value(values, v) for k, v in node.kwargs.items() if k not in STORAGE}
            try:
                algebra.entered = next(
                    (tuple(a.meta["val"].shape) for a in node.args if isinstance(a, Node)), ()
                )
                algebra.shape = tuple(node.meta["val"].shape)
                values[node] = operation(*arguments, **options)
                if in_place:
                    values[node.args[0]] = values[node]
            except (TypeError, NotImplementedError, KeyError, AttributeError) as error:
                shown = ", ".join(map(str, [*arguments, *(f"{k}={v}" for k, v in options.items())]))
                raise TraceError(
                    f"aten.{name}({shown}) has no meaning on symbols ({error}); it came from {where}"
                ) from error
    raise AssertionError("a graph ends with its output")


def _value(values: Mapping[Node, Any], argument: Any) -> Any:
    if isinstance(argument, Node):
        return values[argument]
    if isinstance(argument, (int, float)) and not isinstance(argument, bool):
        return exact(argument)
    if isinstance(argument, (list, tuple)):
        return [_value(values, a) for a in argument]
    return argument
