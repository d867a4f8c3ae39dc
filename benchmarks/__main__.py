"""Time optimizers, probes and the engine of experiments: `python -m benchmarks`."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from benchmarks.first import first_steps
from benchmarks.groups import mixed_groups
from benchmarks.launches import kernel_table, launch_table
from benchmarks.measure import CLOCKS, MALLOC, fix_malloc, machine
from benchmarks.shapes import SETS
from benchmarks.sharded import sharded_step
from benchmarks.steps import scaling, step_times
from benchmarks.sweep import sweep_throughput
from benchmarks.training import probe_overhead, training_time
from spherenorm.support import atomic_write

console = Console(width=max(100, Console().width))
app = typer.Typer(add_completion=False, pretty_exceptions_show_locals=False)
SECTIONS = (
    *("step", "groups", "launches", "first", "scaling", "sweep", "training", "probe"),
    *("sharded", "engine", "store", "kernel"),
)
DEVICE_HELP = "A torch device; or shim: the section kernel alone, of the CUDA kernel on the CPU."
MALLOC_HELP = (
    "default: glibc's settings, whatever the environment says; "
    "resident: the process keeps freed memory, so that temporaries cost no page faults."
)


@app.command()
def main(
    sections: Annotated[
        str, typer.Option(help=f"Comma-separated sections: {', '.join(SECTIONS)}.")
    ] = ",".join(SECTIONS[:-4]),
    sets: Annotated[
        str, typer.Option(help=f"Comma-separated parameter sets: {', '.join(SETS)}; or all.")
    ] = "small-resnet,small-gpt,many-small,resnet18,resnet50",
    rounds: Annotated[
        int, typer.Option(min=1, help="Timed rounds; each runs every contender once.")
    ] = 15,
    largest: Annotated[
        float,
        typer.Option(
            help="Maximum number of weights in the scaling section (up to 1e9, at 16 bytes each)."
        ),
    ] = 3e7,
    device: Annotated[str, typer.Option(help=DEVICE_HELP)] = "cpu",
    malloc: Annotated[str, typer.Option(help=MALLOC_HELP)] = "default",
    clock: Annotated[
        str,
        typer.Option(
            help="Clock of the step section: wall, or process (all threads) on a busy CPU."
        ),
    ] = "wall",
    out: Annotated[Path | None, typer.Option(help="Write the numbers as JSON.")] = None,
) -> None:
    """Time the optimizers and print a table for each section."""
    chosen_sections = ["kernel"] if device == "shim" else sections.split(",")
    device = "cpu" if device == "shim" else device
    names = list(SETS) if sets == "all" else sets.split(",")
    _require_known("--sections", chosen_sections, SECTIONS)
    _require_known("--sets", names, tuple(SETS))
    _require_known("--malloc", [malloc], tuple(MALLOC))
    _require_known("--clock", [clock], tuple(CLOCKS))
    _check_options(device, largest, out)
    fix_malloc(malloc)
    facts = {**machine(device), "clock": clock}
    console.print(*(f"{name}: {value}" for name, value in facts.items()), sep="\n", highlight=False)
    results: dict[str, Any] = {"machine": facts}
    if "step" in chosen_sections:
        results["step"] = {
            name: step_times(name, rounds, device, console, CLOCKS[clock]) for name in names
        }
    if "groups" in chosen_sections:
        results["groups"] = mixed_groups(rounds, device, console)
    if "launches" in chosen_sections:
        results["launches"] = {name: launch_table(name, console) for name in names}
    if "first" in chosen_sections:
        results["first"] = {name: first_steps(name, device, console) for name in names}
    if "scaling" in chosen_sections:
        results["scaling"] = scaling(rounds, largest, device, console)
    if "sweep" in chosen_sections:
        results["sweep"] = sweep_throughput(device, console)
    if "training" in chosen_sections:
        results["training"] = training_time(rounds, device, console)
    if "probe" in chosen_sections:
        results["probe"] = probe_overhead(rounds, device, console)
    if "sharded" in chosen_sections:
        results["sharded"] = {name: sharded_step(name, rounds, console) for name in names}
    if "engine" in chosen_sections:
        from benchmarks.engine import engine_overhead  # imports the extra `experiments`

        results["engine"] = engine_overhead(4 * rounds, device, console)
    if "store" in chosen_sections:
        from benchmarks.engine import large_store

        results["store"] = large_store(console)
    if "kernel" in chosen_sections:
        results["kernel"] = {name: kernel_table(name, console) for name in names}
    if out is not None:
        atomic_write(out, json.dumps(results, indent=1))


def _require_known(option: str, names: Sequence[str], choices: Sequence[str]) -> None:
    for name in names:
        if name not in choices:
            raise typer.BadParameter(
                f"{name!r} is not one of {', '.join(choices)}", param_hint=option
            )


def _check_options(device: str, largest: float, out: Path | None) -> None:
    if device != "cpu" and not (device.startswith("cuda") and torch.cuda.is_available()):
        raise typer.BadParameter(f"{device!r} is not on this machine", param_hint="--device")
    if not 1e5 <= largest <= 1e9:
        raise typer.BadParameter(f"{largest:g} is not between 1e5 and 1e9", param_hint="--largest")
    if out is not None and (out.is_dir() or not os.access(out.resolve().parent, os.W_OK)):
        raise typer.BadParameter(f"{str(out)!r} cannot be written", param_hint="--out")


if __name__ == "__main__":
    app()
