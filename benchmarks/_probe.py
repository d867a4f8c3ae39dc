"""Training steps with a probe and without one, in one run."""

from __future__ import annotations

from functools import partial

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks._measure import interleaved
from benchmarks._training import MODELS, batch_of, clock_of, training
from spherenorm import probe


def probe_overhead(
    rounds: int, device: str, console: Console, every: int = 10, step_seconds: float = 0.01
) -> list[dict[str, float | str]]:
    """Time training steps with a probe at every k-th of them and without, and print a table.

    A round takes k steps of each, one of them measured. Steps on a CPU are timed by the processor's
    own time, with one thread: others would wait for each other, which counts as work.

    Args:
        rounds: how many are timed.
        device: a torch device.
        console: to print to.
        every: k.
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
        plain, probed = (training(make, inputs, batch, device) for _ in range(2))
        found = probe(probed.optimizer, every, to=lambda measured: None)
        times = interleaved(
            {"plain": partial(plain.run, every), "probed": partial(probed.run, every)},
            rounds,
            device,
            clock=clock_of(device),
        )
        found.close()
        count = sum(p.numel() for p in plain.model.parameters())
        tensors = len(list(plain.model.parameters()))
        overhead = times["probed"] / times["plain"] - 1
        steps = [1e3 * seconds / every for seconds in times.values()]
        cells = (f"{count / 1e6:.2f} M", str(tensors), str(batch), *(f"{x:.2f}" for x in steps))
        table.add_row(name, *cells, f"{overhead:.1%}")
        rows.append({"model": name, "weights": count, "batch": batch, **times, "over": overhead})
    torch.set_num_threads(threads)
    console.print(table)
    return rows
