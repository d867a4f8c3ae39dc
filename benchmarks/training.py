"""Time training steps of projected optimizers against torch's, and with a probe."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from benchmarks.measure import interleaved
from spherenorm import optim, probe

Make = Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]

ADAMP: Make = partial(optim.AdamP, lr=1e-4, weight_decay=0.01)
SGD: dict[str, Any] = {"lr": 1e-4, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}

PAIRS: dict[str, tuple[Make, Make]] = {
    "SGDP, torch.optim.SGD": (partial(optim.SGDP, **SGD), partial(torch.optim.SGD, **SGD)),
    "AdamP, torch.optim.AdamW": (ADAMP, partial(torch.optim.AdamW, lr=1e-4, weight_decay=0.01)),
}
"""The paper's optimizers, each with its baseline."""


def training_time(
    rounds: int, device: str, console: Console, step_seconds: float = 0.01
) -> list[dict[str, float | str]]:
    """Time whole training steps of each pair in turns, and print a table.

    The paper says in Section 3 that its optimizers take 8 % more time than the baselines. Steps on
    a CPU are timed by the process clock, with one thread.

    Args:
        rounds: the number of timed rounds.
        device: a torch device.
        console: prints the table.
        step_seconds: the least seconds of a step; the batch grows until a step takes them.
    """
    table = Table(title="a training step, the paper's +8 %", box=box.SIMPLE_HEAD)
    for column in ("model", "optimizers", "batch", "step ms", "baseline ms", "more time"):
        table.add_column(column, justify="left" if column in ("model", "optimizers") else "right")
    rows: list[dict[str, float | str]] = []
    threads = torch.get_num_threads()
    if device == "cpu":
        torch.set_num_threads(1)
    for name, (make, inputs) in MODELS.items():
        batch = batch_of(make, inputs, device, step_seconds)
        for pair, makers in PAIRS.items():
            projected, baseline = (
                training(make, inputs, batch, device, optimizer) for optimizer in makers
            )
            steps = {"ours": partial(projected.run, 5), "baseline": partial(baseline.run, 5)}
            times = interleaved(steps, rounds, device, clock=clock_of(device))
            overhead = times["ours"] / times["baseline"] - 1
            milliseconds = (f"{1e3 * seconds / 5:.2f}" for seconds in times.values())
            table.add_row(name, pair, str(batch), *milliseconds, f"{overhead:+.1%}")
            rows.append({"model": name, "pair": pair, "batch": batch, **times, "more": overhead})
    torch.set_num_threads(threads)
    console.print(table)
    return rows


def probe_overhead(
    rounds: int, device: str, console: Console, every: int = 10, step_seconds: float = 0.01
) -> list[dict[str, float | str]]:
    """Time training with and without a probe that measures every k-th step, and print a table.

    A round takes k steps of both, one of them measured. Steps on a CPU are timed by the process
    clock, with one thread: several threads wait for each other, which that clock counts as work.

    Args:
        rounds: the number of timed rounds.
        device: a torch device.
        console: prints the table.
        every: the number k of steps from one measured step to the next.
        step_seconds: that a step takes at least; the batch grows until it does.
    """
    table = Table(title=f"training with a probe, k = {every}", box=box.SIMPLE_HEAD)
    for column in ("model", "weights", "tensors", "batch", "step ms", "with probe ms", "overhead"):
        table.add_column(column, justify="left" if column == "model" else "right")
    rows: list[dict[str, float | str]] = []
    threads = torch.get_num_threads()
    if device == "cpu":
        torch.set_num_threads(1)
    for name, (make, inputs) in MODELS.items():
        batch = batch_of(make, inputs, device, step_seconds)
        unprobed, probed = (training(make, inputs, batch, device) for _ in range(2))
        handle = probe(probed.optimizer, every, to=lambda measured: None)
        times = interleaved(
            {"plain": partial(unprobed.run, every), "probed": partial(probed.run, every)},
            rounds,
            device,
            clock=clock_of(device),
        )
        handle.close()
        count = sum(p.numel() for p in unprobed.model.parameters())
        tensors = len(list(unprobed.model.parameters()))
        overhead = times["probed"] / times["plain"] - 1
        steps = [1e3 * seconds / every for seconds in times.values()]
        cells = (f"{count / 1e6:.2f} M", str(tensors), str(batch), *(f"{x:.2f}" for x in steps))
        table.add_row(name, *cells, f"{overhead:.1%}")
        rows.append({"model": name, "weights": count, "batch": batch, **times, "over": overhead})
    torch.set_num_threads(threads)
    console.print(table)
    return rows


class _Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x)
        return torch.relu(x + y)


def _resnet() -> nn.Module:
    """Return ResNet-20 for images of 32 x 32, with plain layers between its three stages."""

    def conv(inputs: int, outputs: int, stride: int = 1) -> list[nn.Module]:
        layer = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        return [layer, nn.BatchNorm2d(outputs), nn.ReLU()]

    layers, previous_width = conv(3, 16), 16
    for width in (16, 32, 64):
        if width != previous_width:
            layers += conv(previous_width, width, 2)
        for _ in range(3):
            block = nn.Sequential(*conv(width, width), *conv(width, width)[:2])
            layers.append(_Residual(block))
        previous_width = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def _transformer() -> nn.Module:
    """Return four pre-norm layers of width 128, and a head."""
    layer = nn.TransformerEncoderLayer(128, 4, 512, 0.0, batch_first=True, norm_first=True)
    encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    return nn.Sequential(encoder, nn.Linear(128, 10))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "ResNet-20": (_resnet, (3, 32, 32)),
    "transformer": (_transformer, (32, 128)),
}
"""The models, each with the shape of one of its inputs."""


class Training:
    """A model, and the one batch on which it trains."""

    def __init__(self, model: nn.Module, x: Tensor, optimizer: Make) -> None:
        self.model, self._x = model, x
        self.optimizer = optimizer(model.parameters())

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.model(self._x).square().mean().backward()
            self.optimizer.step()


def training(
    make: Callable[[], nn.Module],
    inputs: tuple[int, ...],
    batch: int,
    device: str,
    optimizer: Make = ADAMP,
) -> Training:
    """Return a model that is equal for all optimizers, as is its batch."""
    torch.manual_seed(0)
    return Training(make().to(device), torch.randn(batch, *inputs, device=device), optimizer)


def batch_of(
    make: Callable[[], nn.Module], inputs: tuple[int, ...], device: str, seconds: float
) -> int:
    """Return the smallest batch size, of 1, 2, 4, ..., whose steps take so many seconds."""
    batch = 1
    while True:
        run = training(make, inputs, batch, device).run
        step = interleaved({"step": partial(run, 1)}, 5, device, clock=clock_of(device))
        if step["step"] >= seconds or batch >= 2**16:
            return batch
        batch *= 2


def clock_of(device: str) -> Callable[[], float]:
    """Return the process clock for a CPU, and the wall clock for other devices."""
    return time.process_time if device == "cpu" else time.perf_counter
