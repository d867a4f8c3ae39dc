"""Time two groups in one optimizer against two optimizers, and equal matrices as one stack."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.contenders import LR, parameters
from benchmarks.launches import Launches
from benchmarks.measure import interleaved
from spherenorm import optim

VECTORS = [(1000,)] * 300
MATRIX = (256, 256)


def mixed_groups(rounds: int, device: str, console: Console) -> list[dict[str, Any]]:
    """Time AdamW and Muon groups together and apart, and Muon against torch's; print a table."""
    table = Table(title="300 AdamW vectors, and Muon matrices of 256 x 256", box=box.SIMPLE_HEAD)
    for column in ("matrices", "both ms", "/ sum of\nboth alone", "Muon ms", "/ torch.optim.Muon",
                   "/ one by one", "products"):  # fmt: skip
        table.add_column(column, justify="right")
    rows = []
    for count in (1, 6, 16):
        vectors, matrices = parameters(VECTORS, device), parameters([MATRIX] * count, device)
        times = interleaved(_steps(vectors, matrices), rounds, device)
        mixed_ratio = times["both"] / (times["AdamW"] + times["Muon"])
        torch_ratio = times["Muon"] / times["torch"]
        rule_ratio = times["Muon"] / times["rule"]
        with Launches() as launches:
            optim.Muon(matrices, lr=LR).step()
        products = sum(launches.counts[name] for name in ("mm", "bmm", "addmm", "baddbmm"))
        both_ms, muon_ms = 1e3 * times["both"], 1e3 * times["Muon"]
        numbers = (both_ms, mixed_ratio, muon_ms, torch_ratio, rule_ratio)
        table.add_row(str(count), *(f"{x:.2f}" for x in numbers), str(products))
        rows.append({"matrices": count, **times, "ratio": mixed_ratio, "products": products})
    console.print(table)
    return rows


def _steps(vectors: list[Tensor], matrices: list[Tensor]) -> dict[str, Callable[[], Any]]:
    groups: list[dict[str, Any]] = [
        {"params": vectors},
        {"params": matrices, "recipe": "muon", "lr": LR},
    ]
    optimizers = {
        "both": optim.AdamW(groups, lr=LR),
        "AdamW": optim.AdamW(vectors, lr=LR),
        "Muon": optim.Muon(matrices, lr=LR),
        "rule": optim.Muon(matrices, lr=LR, backend="rule"),
        "torch": torch.optim.Muon(matrices, lr=LR),
    }
    return {name: optimizer.step for name, optimizer in optimizers.items()}
