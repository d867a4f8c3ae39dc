"""Norm growth (paper, Table 1 and Figures F.1 to F.6): what each optimizer does to the norm of scale-invariant weights.

Every optimizer starts from the same weights and sees the same batches. Momentum is 0.9, the learning rate follows a
cosine, weight decay is 0 except for AdamW, which is Adam otherwise. SGDG and AdamG start on the unit sphere and train
what is not scale-invariant with Nesterov SGD.
"""

from __future__ import annotations

import csv
import io
import json
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from experiments.runner import Run, train

__all__ = ["EPOCHS", "NAME", "OPTIMIZERS", "SEEDS", "picture", "run", "table"]

NAME = "norm-growth"
EPOCHS = 15
SEEDS = (0, 1, 2)
SGD_SETTING = {"lr": 0.1, "momentum": 0.9, "nesterov": True}
ADAM_SETTING = {"lr": 0.01}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": SGD_SETTING,
    "sgdp": SGD_SETTING,
    "adam": ADAM_SETTING,
    "adamw": {**ADAM_SETTING, "weight_decay": 0.01},
    "adamp": ADAM_SETTING,
    "sgdg": {},
    "adamg": {},
}
"""The compared optimizers and their settings; any other recipe runs with its own defaults."""


def run(optimizers: Sequence[str], seeds: Sequence[int], epochs: int, device: str, out: Path, done: Callable[[Run], None]) -> list[Run]:
    """Train every optimizer with every seed; what is finished is saved after each run, so an interruption loses at most one."""
    runs = []
    for optimizer in optimizers:
        for seed in seeds:
            runs.append(train(optimizer, OPTIMIZERS.get(optimizer, {}), seed=seed, epochs=epochs, device=device))
            _save(runs, out)
            done(runs[-1])
    return runs


def table(runs: Sequence[Run]) -> Table:
    """The columns of the paper's Table 1, and the path length on the sphere; mean (± standard deviation) over seeds."""
    shown = Table(title="Norm of scale-invariant weights, mean over their units", box=box.SIMPLE_HEAD)
    shown.add_column("optimizer")
    for column in ("norm, first\nepoch", "norm, last\nepoch (change)", "score (%)", "total effective\nstep"):
        shown.add_column(column, justify="right", no_wrap=True)
    for optimizer in dict.fromkeys(r.optimizer for r in runs):
        every = [r for r in runs if r.optimizer == optimizer]
        finished = [r for r in every if r.diverged_at is None]
        if finished:
            first = statistics.mean(r.norm[r.steps_per_epoch] for r in finished)
            last = statistics.mean(r.norm[-1] for r in finished)
            norms = [f"{first:.3f}", f"{last:.3f} ({last - first:+.3f})"]
            shown.add_row(optimizer, *norms, _spread([r.score for r in finished]), _spread([sum(r.effective_step) for r in finished]))
        if len(finished) < len(every):
            shown.add_row(optimizer, f"{len(every) - len(finished)} of {len(every)} runs diverged")
    return shown


def picture(runs: Sequence[Run], out: Path) -> Path:
    """Norm and effective step size over the steps: a line for each optimizer's mean, a band over its seeds."""
    import matplotlib as mpl
    import numpy as np
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    norm_axis, step_axis = figure.subplots(1, 2)
    for color, optimizer in enumerate(dict.fromkeys(r.optimizer for r in runs)):
        finished = [r for r in runs if r.optimizer == optimizer and r.diverged_at is None]
        if not finished:
            continue
        for axis, curves in (
            (norm_axis, np.array([r.norm for r in finished])),
            (step_axis, _smooth(np.array([r.effective_step for r in finished]), finished[0].steps_per_epoch)),
        ):
            style = {"color": f"C{color}", "linestyle": "-" if color < len(mpl.rcParams["axes.prop_cycle"]) else "--"}
            axis.plot(curves.mean(0), label=optimizer, **style)
            axis.fill_between(range(curves.shape[1]), curves.min(0), curves.max(0), color=style["color"], alpha=0.2, linewidth=0)
    norm_axis.set(xlabel="step", ylabel="$\\|w\\|_2$, mean over units", title="Norm of scale-invariant weights")
    step_axis.set(
        xlabel="step", ylabel="$\\|\\Delta\\hat{w}\\|_2$, mean over an epoch", title="Effective step size (cosine schedule)", yscale="log"
    )
    for axis in (norm_axis, step_axis):
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    figure.legend(*norm_axis.get_legend_handles_labels(), loc="outside lower center", ncols=8, frameon=False)
    path = out / f"{NAME}.png"
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    _write(path, buffer.getvalue())
    return path


def _smooth(curves: Any, window: int) -> Any:
    """Each step's mean over the epoch that ends with it (fewer steps at the start)."""
    import numpy as np

    total = np.cumsum(np.pad(curves, ((0, 0), (1, 0))), axis=1)
    ends = np.arange(1, curves.shape[1] + 1)
    starts = np.maximum(ends - window, 0)
    return (total[:, ends] - total[:, starts]) / (ends - starts)


def _save(runs: Sequence[Run], out: Path) -> None:
    """`norm-growth.json`: setting and summary of each run; `norm-growth.csv`: its curves."""
    curves = io.StringIO()
    writer = csv.writer(curves, lineterminator="\n")
    writer.writerow(["optimizer", "seed", "step", "norm", "effective_step"])
    for r in runs:
        for step, norm in enumerate(r.norm):
            writer.writerow([r.optimizer, r.seed, step, norm, r.effective_step[step] if step < len(r.effective_step) else ""])
    summaries = []
    for r in runs:
        summary = {name: value for name, value in asdict(r).items() if name not in ("norm", "effective_step")}
        first_epoch = r.norm[r.steps_per_epoch] if len(r.norm) > r.steps_per_epoch else None
        summary |= {"score": r.score if r.diverged_at is None else None, "norm_first_epoch": first_epoch, "norm_last": r.norm[-1]}
        summaries.append({**summary, "total_effective_step": sum(r.effective_step)})
    out.mkdir(parents=True, exist_ok=True)
    _write(out / f"{NAME}.csv", curves.getvalue().encode())
    _write(out / f"{NAME}.json", json.dumps(summaries, indent=1).encode())


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(content)
    temporary.replace(path)


def _spread(values: Sequence[float]) -> str:
    deviation = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{deviation}"
