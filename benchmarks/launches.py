"""Count the operations that a step launches on a GPU; no GPU is needed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.shapes import SETS, Shape
from spherenorm import find_recipe
from spherenorm.compile import RuleKey, WeightStep
from spherenorm.compile.batched import WeightBatch
from spherenorm.compile.trace import trace

SYNCHRONIZING_OPS = ("_local_scalar_dense", "nonzero", "item", "is_nonzero", "equal")
"""Operations for which the host waits until the device has finished."""
VIEW_OPS = (
    "device",
    "view", "_unsafe_view", "alias", "detach", "permute", "expand", "split", "split_with_sizes",
    "unbind", "t", "transpose", "as_strided", "select", "slice", "unsqueeze", "squeeze", "_reshape",
)  # fmt: skip
"""Operations that launch no kernel."""


class Launches(TorchDispatchMode):
    """A dispatch mode that counts operations, and the entries of their results.

    Attributes:
        counts: the number of calls of each operation.
        waits: the operations for which the host waits, and copies between devices.
        entries: the number of entries that the operations have written.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()
        self.waits: list[str] = []
        self.entries = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in SYNCHRONIZING_OPS or (name == "_to_copy" and _changes_device(args, result)):
            self.waits.append(name)
        if name not in VIEW_OPS:
            self.counts[name] += 1
            results = result if isinstance(result, list | tuple) else [result]
            self.entries += sum(x.numel() for x in results if isinstance(x, torch.Tensor))
        return result


def _changes_device(args: Any, result: Any) -> bool:
    return isinstance(result, torch.Tensor) and args[0].device != result.device


def count_launches(recipe: str, shapes: Iterable[Shape], **hyper_parameters: Any) -> Launches:
    """Count the operations of a step of weights of these shapes on a GPU, with fake tensors."""
    key = RuleKey.of(find_recipe(recipe)(**hyper_parameters))
    graphs = {shape: trace(key, shape, torch.float32) for shape in set(shapes)}
    shapes_by_structure: dict[Any, list[Shape]] = {}
    for shape in shapes:
        shapes_by_structure.setdefault(graphs[shape].structure, []).append(shape)
    launches = Launches()
    with FakeTensorMode(), torch.no_grad():
        for batch_shapes in shapes_by_structure.values():
            weights = [torch.empty(shape, device="cuda") for shape in batch_shapes]
            steps = [WeightStep(w, torch.empty_like(w), key.rule.init(w)) for w in weights]
            literals = np.array([graphs[shape].literals for shape in batch_shapes])
            batch = WeightBatch(graphs[batch_shapes[0]], literals, steps)
            batch.run(steps, key.scalars)  # the first run builds the program
            with launches:
                batch.run(steps, key.scalars)
    return launches


def launch_table(name: str, console: Console) -> dict[str, dict[str, float]]:
    """Count the operations of a step on a parameter set, and print a table."""
    table = Table(title=f"{name}: operations of a step on a GPU", box=box.SIMPLE_HEAD)
    for column in ("optimizer", "operations", "entries written\na weight", "waits of the host"):
        table.add_column(column, justify="right")
    shapes = SETS[name]()
    n_entries = sum(math.prod(shape) for shape in shapes)
    rows = {}
    for recipe in ("adamp", "adamw", "lion", "sgdp", "adamh"):
        launches = count_launches(recipe, shapes)
        row = {
            "operations": sum(launches.counts.values()),
            "entries": launches.entries / n_entries,
            "waits": len(launches.waits),
        }
        rows[recipe] = row
        table.add_row(recipe, str(row["operations"]), f"{row['entries']:.0f}", str(row["waits"]))
    console.print(table)
    return rows
