"""Count what a step launches on a GPU, and the bytes that it moves; no GPU is needed.

The batched executor's operations are counted with fake tensors. The CUDA kernel runs on the CPU,
behind its shim, which counts what its threads read and write.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.contenders import parameters
from benchmarks.shapes import SETS, Shape
from spherenorm import find_recipe
from spherenorm.compile import RuleKey, WeightStep
from spherenorm.compile.batched import WeightBatch
from spherenorm.compile.cuda.kernel import CudaExecutor, ShimLaunch, build_cuda_executor
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


KERNEL_RECIPES: dict[str, dict[str, float]] = {
    "adamw": {"weight_decay": 0.01},
    "adamp": {"weight_decay": 0.01},
    "sgdp": {"momentum": 0.9, "weight_decay": 0.01},
}
"""The recipes of the table of the CUDA kernel, with settings that exercise all of their rules."""
N_REPEATS = 21
"""Calls of which the median is the time of the host."""


def kernel_table(name: str, console: Console) -> dict[str, dict[str, float]]:
    """Count launches and bytes of the CUDA kernel on a parameter set, and print a table.

    A byte counts as often as a thread reads or writes it, also where a cache has it. The host's
    times are of this machine, without the launches: a new table is what a change in which weights
    have gradients takes; arguments are what each step takes.
    """
    table = Table(title=f"{name}: a step of the CUDA kernel", box=box.SIMPLE_HEAD)
    for column in (
        *("optimizer", "launches", "bytes moved\na weight", "bytes kept\na weight"),
        *("new table\nms", "arguments\nus a tensor"),
    ):
        table.add_column(column, justify="right")
    rows = {}
    for recipe, settings in KERNEL_RECIPES.items():
        row = kernel_costs(recipe, SETS[name](), **settings)
        rows[recipe] = row
        numbers = (f"{row[k]:.3g}" for k in ("bytes moved", "bytes kept", "new table", "arguments"))
        table.add_row(recipe, str(row["launches"]), *numbers)
    console.print(table)
    return rows


def kernel_costs(
    recipe: str, shapes: Sequence[Shape], **hyper_parameters: float
) -> dict[str, float]:
    """Count a step of weights of these shapes, whose gradients are as under BatchNorm."""
    key = RuleKey.of(find_recipe(recipe)(**hyper_parameters))
    device, dtype = torch.device("cpu"), torch.float32
    siblings = [trace(key, shape, dtype) for shape in {shapes[0], shapes[-1]}]
    executors = {
        shape: build_cuda_executor(trace(key, shape, dtype), siblings, dtype, device)
        for shape in dict.fromkeys(shapes)
    }
    weights = parameters(shapes, "cpu")
    steps = [WeightStep(w.detach(), w.grad, key.rule.init(w.detach())) for w in weights]  # type: ignore[arg-type]
    of_weights = [executors[shape] for shape in shapes]
    batch = of_weights[0].bind(steps, of_weights)
    launch = batch.kernel.launch
    assert isinstance(launch, ShimLaunch)
    before = launch.n_bytes
    batch.run(steps, key.scalars)
    n_entries = sum(w.numel() for w in weights)
    idle = _without_launches(of_weights)
    idle_batch = idle[0].bind(steps, idle)
    return {
        "launches": batch.n_launches,
        "bytes moved": (launch.n_bytes - before) / n_entries,
        "bytes kept": batch.memory_bytes / n_entries,
        "new table": 1e3 * _median_seconds(lambda: idle[0].bind(steps, idle)),
        "arguments": 1e6 * _median_seconds(lambda: idle_batch.run(steps, key.scalars)) / len(steps),
    }


def _without_launches(executors: Sequence[CudaExecutor]) -> list[CudaExecutor]:
    kernel = replace(executors[0].kernel, launch=lambda arguments, n_blocks: None)
    return [replace(executor, kernel=kernel) for executor in executors]


def _median_seconds(call: Callable[[], Any]) -> float:
    seconds = []
    for _ in range(N_REPEATS):
        start = time.process_time()
        call()
        seconds.append(time.process_time() - start)
    return statistics.median(seconds)
