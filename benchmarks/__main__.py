"""`python -m benchmarks`: steps, sweeps, compilation and scaling, as ratios within one run, with the machine's facts."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.contenders import CONTENDERS, available, parameters
from benchmarks.measure import MALLOC, bandwidth, fix_malloc, interleaved, machine, peak_memory_of
from benchmarks.shapes import SETS
from spherenorm import functional, optim

console = Console()
app = typer.Typer(add_completion=False, pretty_exceptions_show_locals=False)
SECTIONS = ("step", "first", "scaling", "sweep")
MALLOC_HELP = "default: glibc's, whatever the environment says; resident: freed memory is kept, so that temporaries cost no page faults."


@app.command()
def main(
    sections: Annotated[
        str, typer.Option(help=f"Comma-separated, of {', '.join(SECTIONS)}.")
    ] = ",".join(SECTIONS),
    sets: Annotated[
        str, typer.Option(help=f"Parameter sets, of {', '.join(SETS)}; or all.")
    ] = "resnet18,resnet50",
    rounds: Annotated[
        int, typer.Option(min=1, help="Timed rounds; each runs every contender once.")
    ] = 15,
    largest: Annotated[
        float,
        typer.Option(help="Most weights in the scaling section (up to 1e9, at 16 bytes each)."),
    ] = 3e7,
    device: Annotated[str, typer.Option()] = "cpu",
    malloc: Annotated[str, typer.Option(help=MALLOC_HELP)] = "default",
    out: Annotated[Path | None, typer.Option(help="Write the numbers as JSON.")] = None,
) -> None:
    """Time the optimizers and print a table for each section."""
    chosen, names = sections.split(","), list(SETS) if sets == "all" else sets.split(",")
    for what, given, known in (
        ("--sections", chosen, SECTIONS),
        ("--sets", names, tuple(SETS)),
        ("--malloc", [malloc], tuple(MALLOC)),
    ):
        unknown = [name for name in given if name not in known]
        if unknown:
            raise typer.BadParameter(
                f"{unknown[0]!r} is not one of {', '.join(known)}", param_hint=what
            )
    if device != "cpu" and not (device.startswith("cuda") and torch.cuda.is_available()):
        raise typer.BadParameter(f"{device!r} is not on this machine", param_hint="--device")
    if not 1e5 <= largest <= 1e9:
        raise typer.BadParameter(f"{largest:g} is not between 1e5 and 1e9", param_hint="--largest")
    if out is not None and (out.is_dir() or not os.access(out.resolve().parent, os.W_OK)):
        raise typer.BadParameter(f"{str(out)!r} cannot be written", param_hint="--out")
    fix_malloc(malloc)
    facts = machine(device)
    console.print(*(f"{name}: {value}" for name, value in facts.items()), sep="\n", highlight=False)
    results: dict[str, Any] = {"machine": facts}
    if "step" in chosen:
        results["step"] = {name: step_times(name, rounds, device) for name in names}
    if "first" in chosen:
        results["first"] = {name: first_steps(name, device) for name in names}
    if "scaling" in chosen:
        results["scaling"] = scaling(rounds, largest, device)
    if "sweep" in chosen:
        results["sweep"] = sweep_throughput(device)
    if out is not None:
        temporary = out.with_name(f".{out.name}.{os.getpid()}")
        temporary.write_text(json.dumps(results, indent=1))
        temporary.replace(out)


def step_times(name: str, rounds: int, device: str) -> dict[str, dict[str, float]]:
    """One step of each contender on a parameter set: how long it takes, and the memory it takes beyond weights, gradients, state."""
    weights = parameters(SETS[name](), device)
    count = sum(w.numel() for w in weights)
    fastest = bandwidth(
        device, 16 * count
    )  # of as much memory as weights, gradients and two moments take
    optimizers, missing = available(weights, device)
    grads = [weight.grad for weight in weights]

    def restore_gradients() -> None:
        """Some optimizers (HeavyBall's) take the gradients away."""
        for weight, grad in zip(weights, grads, strict=True):
            weight.grad = grad

    times = interleaved(
        {each: optimizer.step for each, optimizer in optimizers.items()},
        rounds,
        device,
        restore_gradients,
    )
    peaks: dict[str, float] = {}
    for each, optimizer in optimizers.items():
        restore_gradients()
        peaks[each] = peak_memory_of(optimizer.step, device)
    fused, sgd = times["AdamW, torch fused"], times["SGD, torch fused"]
    table = Table(
        title=f"{name}: one step of {count / 1e6:.1f} M weights in {len(weights)} tensors; {fastest:.1f} GB/s",
        box=box.SIMPLE_HEAD,
    )
    table.add_column("optimizer", no_wrap=True)
    for column in ("ms", "/ AdamW\nfused", "/ SGD\nfused", "of byte\nbound", "peak\nMB"):
        table.add_column(column, justify="right")
    for contender in CONTENDERS:
        if contender.name in times:
            seconds = times[contender.name]
            share = contender.bytes_per_weight * count / (fastest * 1e9) / seconds
            ratios = f"{seconds / fused:.2f}", f"{seconds / sgd:.2f}"
            table.add_row(
                contender.name,
                f"{1e3 * seconds:.2f}",
                *ratios,
                f"{share:.0%}",
                f"{peaks[contender.name] / 1e6:.0f}",
            )
    console.print(table)
    for line in missing:
        console.print(f"  not here: {line}", highlight=False, soft_wrap=True)
    return {"seconds": times, "peak bytes": peaks}


def first_steps(name: str, device: str) -> dict[str, Any]:
    """Compiled AdamP in fresh processes, with an empty and with a filled cache."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {
            **os.environ,
            "SPHERENORM_CACHE": cache,
            "TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor",
        }
        command = [sys.executable, "-m", "benchmarks.first_step", name, device]
        cold, warm = (
            json.loads(
                subprocess.run(
                    command, env=environment, capture_output=True, text=True, check=True
                ).stdout.splitlines()[-1]
            )
            for _ in range(2)
        )
    console.print(
        f"{name}: compiled AdamP's first step {cold['first step s']:.1f} s cold, {warm['first step s']:.1f} s warm; "
        f"{cold['recompilations']} recompilations after step 2 under a schedule; extra memory {warm['extra memory']:.1%}",
        highlight=False,
    )
    return {"cold": cold, "warm": warm}


def scaling(rounds: int, largest: float, device: str) -> list[dict[str, float]]:
    """Compiled AdamP against fused AdamW over the number of weights, and over the number of tensors they are cut into."""
    table = Table(title="compiled AdamP / fused AdamW", box=box.SIMPLE_HEAD)
    for column in ("weights", "tensors", "AdamP ms", "AdamW ms", "ratio"):
        table.add_column(column, justify="right")
    sizes = [10**e for e in range(5, 10) if 10**e <= largest]
    cases = [(size, 10) for size in sizes] + [(10**6, tensors) for tensors in (100, 500, 2000)]
    rows = []
    for size, tensors in cases:
        weights: list[Tensor] = parameters(
            [(max(1, size // tensors // 100), 100)] * tensors, device
        )
        adamp = optim.AdamP(weights, lr=1e-8, backend="compiled")
        adamw = torch.optim.AdamW(weights, lr=1e-8, fused=True)
        adamp.step()
        for weight in weights:  # both on the same moments, so that 1e9 weights take 16 GB
            moments = {name: adamp.state[weight][name] for name in ("exp_avg", "exp_avg_sq")}
            adamw.state[weight] = {"step": torch.zeros((), device=device), **moments}
        times = interleaved({"AdamP": adamp.step, "AdamW": adamw.step}, rounds, device)
        ratio = times["AdamP"] / times["AdamW"]
        table.add_row(
            f"{size:.0e}",
            str(tensors),
            f"{1e3 * times['AdamP']:.3f}",
            f"{1e3 * times['AdamW']:.3f}",
            f"{ratio:.2f}",
        )
        rows.append({"weights": size, "tensors": tensors, **times, "ratio": ratio})
    console.print(table)
    return rows


def sweep_throughput(
    device: str, points: int = 1000, steps: int = 300, single_runs: int = 5
) -> dict[str, float]:
    """A learning-rate sweep of the 3-D Rosenbrock toy (paper, Appendix B) against a loop of torch.optim runs."""

    def loss(params: dict[str, Tensor]) -> Tensor:
        x, y, z = params["w"].unbind()
        angles = 1.5 * torch.atan2(x, z), 1.5 * torch.asin(y / (x * x + y * y + z * z).sqrt())
        return 1e-4 * ((1 - angles[0]) ** 2 + 300 * (angles[1] - angles[0] ** 2) ** 2)

    psi, phi = -2 / 1.5, 2 / 1.5
    start = torch.tensor(
        [math.cos(phi) * math.sin(psi), math.sin(phi), math.cos(phi) * math.cos(psi)],
        dtype=torch.float64,
        device=device,
    )
    lrs = torch.logspace(-3, -1, points, dtype=torch.float64, device=device)

    def decay(t: int) -> float:
        return 1 - t / steps

    def single(lr: float) -> None:
        w = start.clone().requires_grad_()
        optimizer = torch.optim.SGD([w], lr=lr, momentum=0.9)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, decay)
        for _ in range(steps):
            optimizer.zero_grad()
            loss({"w": w}).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
        w.sum().item()  # wait for the device

    def sweep(lrs: Tensor) -> float:
        begin = time.perf_counter()
        functional.sweep(
            "sgd", loss, {"w": start[None]}, {"lr": lrs}, steps=steps, momentum=0.9, schedule=decay
        ).loss.sum().item()
        return time.perf_counter() - begin

    first, swept = sweep(lrs[:1]), sweep(lrs)
    begin = time.perf_counter()
    for lr in lrs[:: points // single_runs][:single_runs].tolist():
        single(lr)
    looped = (time.perf_counter() - begin) / single_runs * points
    console.print(
        f"sweep of {points} learning rates x {steps} steps: {swept:.2f} s with its tracing (a process's first takes {first:.2f} s for one "
        f"point: torch imports its compiler); a loop of torch.optim runs {looped:.0f} s (from {single_runs} of them): "
        f"{looped / swept:.0f} times",
        highlight=False,
    )
    return {"first sweep s": first, "sweep s": swept, "loop s": looped, "ratio": looped / swept}


if __name__ == "__main__":
    app()
