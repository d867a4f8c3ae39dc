"""The operations that a step launches on a GPU, counted without one."""

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

from benchmarks._shapes import SETS, Shape
from spherenorm import find_recipe
from spherenorm.compile import RuleKey, WeightStep
from spherenorm.compile.batched import WeightBatch
from spherenorm.compile.trace import trace

WAITING = ("_local_scalar_dense", "nonzero", "item", "is_nonzero", "equal")
"""Operations for which the host waits."""
VIEWS = (
    "device",
    "view", "_unsafe_view", "alias", "detach", "permute", "expand", "split", "split_with_sizes",
    "unbind", "t", "transpose", "as_strided", "select", "slice", "unsqueeze", "squeeze", "_reshape",
)  # fmt: skip
"""Operations that launch nothing."""


class Launches(TorchDispatchMode):
    """Counts operations, and the entries of their results.

    Attributes:
        counts: of each operation.
        waits: the operations for which the host waits, and copies between devices.
        entries: that the operations have written.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()
        self.waits: list[str] = []
        self.entries = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in WAITING or (name == "_to_copy" and _moves(args, result)):
            self.waits.append(name)
        if name not in VIEWS:
            self.counts[name] += 1
            results = result if isinstance(result, list | tuple) else [result]
            self.entries += sum(x.numel() for x in results if isinstance(x, torch.Tensor))
        return result


def _moves(args: Any, result: Any) -> bool:
    return isinstance(result, torch.Tensor) and args[0].device != result.device


def launches(recipe: str, shapes: Iterable[Shape], **hyper_parameters: Any) -> Launches:
    """The operations of a step of weights of such shapes on a GPU, which need not be there."""
    key = RuleKey.of(find_recipe(recipe)(**hyper_parameters))
    kinds: dict[Any, list[Shape]] = {}
    graphs = {shape: trace(key, shape, torch.float32) for shape in set(shapes)}
    for shape in shapes:
        kinds.setdefault(graphs[shape].structure, []).append(shape)
    counted = Launches()
    with FakeTensorMode(), torch.no_grad():
        for members in kinds.values():
            weights = [torch.empty(shape, device="cuda") for shape in members]
            works = [WeightStep(w, torch.empty_like(w), key.rule.init(w)) for w in weights]
            literals = np.array([graphs[shape].literals for shape in members])
            batch = WeightBatch(graphs[members[0]], literals, works)
            batch.run(works, key.scalars)  # which makes its program
            with counted:
                batch.run(works, key.scalars)
    return counted


def launch_table(name: str, console: Console) -> dict[str, dict[str, float]]:
    """Count the operations of a step on a parameter set, and print a table."""
    table = Table(title=f"{name}: operations of a step on a GPU", box=box.SIMPLE_HEAD)
    for column in ("optimizer", "operations", "entries written\na weight", "waits of the host"):
        table.add_column(column, justify="right")
    shapes = SETS[name]()
    total, found = sum(math.prod(shape) for shape in shapes), {}
    for recipe in ("adamp", "adamw", "lion", "sgdp", "adamh"):
        counted = launches(recipe, shapes)
        row = [sum(counted.counts.values()), counted.entries / total, len(counted.waits)]
        found[recipe] = dict(zip(("operations", "entries", "waits"), row, strict=True))
        table.add_row(recipe, str(row[0]), f"{row[1]:.0f}", str(row[2]))
    console.print(table)
    return found
