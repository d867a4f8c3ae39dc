"""Steps over the number of weights, and over the number of tensors that they are cut into."""

from __future__ import annotations

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks._contenders import parameters
from benchmarks._measure import interleaved
from spherenorm import optim


def scaling(rounds: int, largest: float, device: str, console: Console) -> list[dict[str, float]]:
    """Time AdamP by default against fused AdamW, and print a table.

    Args:
        rounds: how many are timed.
        largest: the most weights.
        device: a torch device.
        console: to print to.

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
        adamp, adamw = _pair(size, tensors, device)
        times = interleaved({"AdamP": adamp.step, "AdamW": adamw.step}, rounds, device)
        ratio = times["AdamP"] / times["AdamW"]
        milliseconds = (f"{1e3 * times[each]:.3f}" for each in ("AdamP", "AdamW"))
        per_tensor = f"{1e6 * times['AdamP'] / tensors:.1f}"
        table.add_row(f"{size:.0e}", str(tensors), *milliseconds, per_tensor, f"{ratio:.2f}")
        rows.append({"weights": size, "tensors": tensors, **times, "ratio": ratio})
    console.print(table)
    return rows


def _pair(size: int, tensors: int, device: str) -> tuple[optim.RecipeOptimizer, torch.optim.AdamW]:
    """AdamP by default and fused AdamW of the same weights and moments: 1e9 weights take 16 GB."""
    weights = parameters([(max(1, size // tensors // 100), 100)] * tensors, device)
    adamp = optim.AdamP(weights, lr=1e-8)
    adamw = torch.optim.AdamW(weights, lr=1e-8, fused=True)
    adamp.step()
    for weight in weights:
        moments = {name: adamp.state[weight][name] for name in ("exp_avg", "exp_avg_sq")}
        adamw.state[weight] = {"step": torch.zeros((), device=device), **moments}
    return adamp, adamw
