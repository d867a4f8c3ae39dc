"""Options that several commands share, and the values that they are parsed to."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from spherenorm_experiments.cli._console import NOTE, say_error
from spherenorm_experiments.store import Store

DEFAULT_OUT = Path("runs")
Out = Annotated[Path, typer.Option("--out", help="The store: finished runs, and the report.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document instead of text.")]
Jobs = Annotated[
    int, typer.Option("--jobs", help="How many runs at a time.", show_default="one per core", min=1)
]
BackendName = Annotated[str, typer.Option("--backend", help="local (processes) or slurm.")]

Workers = Annotated[
    int, typer.Option("--workers", help="Processes that load the items of a run's data set.")
]
Processes = Annotated[
    int, typer.Option("--processes", help="Processes that train one run together, by torchrun.")
]
Parallel = Annotated[
    str, typer.Option("--parallel", help="ddp (all weights in each) or fsdp (sharded).")
]
TensorBoard = Annotated[
    bool,
    typer.Option("--tensorboard", help="Event files while a run trains (extra: tensorboard)."),
]

TimeLimit = Annotated[
    float | None,
    typer.Option("--time-limit", help="Seconds after which a run that has not ended is stopped."),
]
Seeds = Annotated[
    str | None,
    typer.Option(
        "--seeds",
        help="How many (3), a range (0:10) or a list (1,4,7); the study's own by default.",
    ),
]
Tier = Annotated[
    str,
    typer.Option(
        "--tier",
        help="smoke (seconds), small (minutes on two cores), evidence (more seeds), full (a GPU).",
    ),
]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda, cuda:1, ...")]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="key=value, of a hyper-parameter, a task's option, epochs, batch_size, schedule, "
        "probe_every, or the regime (warmup, precision, ...); may be repeated.",
    ),
]
Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        help="The folder of the paper's data sets, such as DIR with DIR/imagenet: the benchmarks "
        "then run the paper's settings (see `data check`). SPHERENORM_DATA does the same for "
        "`report` and `resume`.",
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run", help="What would run, what is there already, how long it would take."
    ),
]
Epochs = Annotated[int | None, typer.Option("--epochs", help="Short for --set epochs=N.")]

MOST_SEEDS = 10_000
MANY_SEEDS = 20
"""A count above it may have been meant as one seed."""

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def parse_seeds(text: str) -> tuple[int, ...]:
    """The seeds of "3", "0:10" or "1,4,7".

    Raises:
        ValueError: a text that is none of these, no seed, too many or too large ones.
    """
    try:
        if "," in text:
            seeds: Sequence[int] = [int(seed) for seed in text.split(",")]
        else:
            first, colon, last = text.rpartition(":")
            seeds = range(int(first) if colon else 0, int(last))
        if not 0 < len(seeds) <= MOST_SEEDS or min(seeds) < 0 or max(seeds) >= 2**63:
            raise ValueError
    except (ValueError, OverflowError):
        right = "give a count (3), a range (0:10) or a list (1,4,7)"
        raise ValueError(f"--seeds {text!r}: {right}, at most {MOST_SEEDS}") from None
    return tuple(dict.fromkeys(seeds))


def tell_many_seeds(text: str | None) -> None:
    """Say of a large count of seeds that it is one: `--seeds 440` is not seed 440."""
    if text is not None and text.isdecimal() and int(text) > MANY_SEEDS:
        many = f"--seeds {text}: {text} seeds, 0 to {int(text) - 1}"
        say_error(f"{many}; seed {text} alone is {text}:{int(text) + 1}", NOTE)


def existing_store(out: Path) -> Store:
    """The store in a folder.

    Raises:
        ValueError: there is none.
    """
    if not ((out / "plans").is_dir() or (out / "runs").is_dir()):
        raise ValueError(f"there is no store at {out}; `spherenorm run` comes first")
    return Store(out)


def require_device(device: str) -> None:
    """Raise ValueError for a torch device that cannot be used here."""
    import torch

    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"--device {device!r} cannot be used: {reason}") from None
