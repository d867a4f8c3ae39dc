"""Time one step of each contender, and measure its memory and its share of the bandwidth.

`scaling` times AdamP over the number of weights, and over the number of tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.contenders import CONTENDERS, available, parameters
from benchmarks.measure import bandwidth, interleaved, peak_memory_of
from benchmarks.shapes import SETS
from spherenorm import optim

RATIO_COLUMNS = {
    "AdamW, torch fused": "/ AdamW\nfused",
    "AdamW, torch foreach": "/ AdamW\nforeach",
    "AdamP, released": "/ AdamP\nreleased",
    "SGD, torch fused": "/ SGD\nfused",
}
"""The baselines, and the columns of the ratios to them."""


def step_times(
    name: str, rounds: int, device: str, console: Console, clock: Callable[[], float]
) -> dict[str, dict[str, Any]]:
    """Time one step of each contender on a parameter set, and print a table.

    Returns:
        For each contender the median seconds, and the peak bytes of a step beyond those of weights,
        gradients and states.
    """
    weights = parameters(SETS[name](), device)
    count = sum(w.numel() for w in weights)
    # A weight, its gradient and two moments have 16 bytes.
    gb_per_s = bandwidth(device, 16 * count)
    optimizers, missing = available(weights, device)
    times, peaks = _time_and_memory(optimizers, weights, rounds, device, clock)
    size = f"{count / 1e6:.1f} M weights in {len(weights)} tensors"
    title = f"{name}: one step of {size}; {gb_per_s:.1f} GB/s"
    console.print(_table(title, times, peaks, count, gb_per_s))
    for line in missing:
        console.print(f"  not here: {line}", highlight=False, soft_wrap=True)
    return {"seconds": times, "peak bytes": peaks}


def _time_and_memory(
    optimizers: Mapping[str, torch.optim.Optimizer],
    weights: list[Tensor],
    rounds: int,
    device: str,
    clock: Callable[[], float],
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the median seconds and the peak bytes of each optimizer's step."""
    grads = [weight.grad for weight in weights]

    def restore_gradients() -> None:
        """Set the gradients again, which some optimizers (HeavyBall's) remove."""
        for weight, grad in zip(weights, grads, strict=True):
            weight.grad = grad

    steps = {name: optimizer.step for name, optimizer in optimizers.items()}
    times = interleaved(steps, rounds, device, restore_gradients, clock)
    peaks: dict[str, float] = {}
    for name, step in steps.items():
        restore_gradients()
        peaks[name] = peak_memory_of(step, device)
    return times, peaks


def _table(
    title: str,
    times: Mapping[str, float],
    peaks: Mapping[str, float],
    count: int,
    gb_per_s: float,
) -> Table:
    baselines = [times.get(name, math.nan) for name in RATIO_COLUMNS]
    table = Table(title=title, box=box.SIMPLE_HEAD)
    table.add_column("optimizer", no_wrap=True)
    for column in ("ms", *RATIO_COLUMNS.values(), "of byte\nbound", "peak\nMB"):
        table.add_column(column, justify="right")
    for contender in CONTENDERS:
        if contender.name in times:
            seconds = times[contender.name]
            fastest_possible = contender.bytes_per_weight * count / (gb_per_s * 1e9)
            share = fastest_possible / seconds
            ratios = (f"{seconds / baseline:.2f}" for baseline in baselines)
            peak = f"{peaks[contender.name] / 1e6:.0f}"
            table.add_row(contender.name, f"{1e3 * seconds:.2f}", *ratios, f"{share:.0%}", peak)
    return table


def scaling(rounds: int, largest: float, device: str, console: Console) -> list[dict[str, float]]:
    """Time AdamP by default against fused AdamW, and print a table.

    Args:
        rounds: the number of timed rounds.
        largest: the maximum number of weights.
        device: a torch device.
        console: prints the table.

    Returns:
        A row for each number of weights, and for each number of tensors they are cut into.
    """
    table = Table(title="AdamP by default / fused AdamW", box=box.SIMPLE_HEAD)
    for column in ("weights", "tensors", "AdamP ms", "AdamW ms", "AdamP us\na tensor", "ratio"):
        table.add_column(column, justify="right")
    sizes = [10**e for e in range(5, 10) if 10**e <= largest]
    cases = [(size, 10) for size in sizes] + [(10**6, tensors) for tensors in (100, 500, 2000)]
    rows = []
    for size, tensors in cases:
        adamp, adamw = _adamp_and_adamw(size, tensors, device)
        times = interleaved({"AdamP": adamp.step, "AdamW": adamw.step}, rounds, device)
        ratio = times["AdamP"] / times["AdamW"]
        milliseconds = (f"{1e3 * times[name]:.3f}" for name in ("AdamP", "AdamW"))
        per_tensor = f"{1e6 * times['AdamP'] / tensors:.1f}"
        table.add_row(f"{size:.0e}", str(tensors), *milliseconds, per_tensor, f"{ratio:.2f}")
        rows.append({"weights": size, "tensors": tensors, **times, "ratio": ratio})
    console.print(table)
    return rows


def _adamp_and_adamw(
    size: int, tensors: int, device: str
) -> tuple[optim.RecipeOptimizer, torch.optim.AdamW]:
    """Return AdamP and fused AdamW on the same weights and moments: 1e9 weights take 16 GB."""
    weights = parameters([(max(1, size // tensors // 100), 100)] * tensors, device)
    adamp = optim.AdamP(weights, lr=1e-8)
    adamw = torch.optim.AdamW(weights, lr=1e-8, fused=True)
    adamp.step()
    for weight in weights:
        moments = {name: adamp.state[weight][name] for name in ("exp_avg", "exp_avg_sq")}
        adamw.state[weight] = {"step": torch.zeros((), device=device), **moments}
    return adamp, adamw
