"""Time a sweep as one computation against a loop of single runs."""

from __future__ import annotations

import time

import torch
from rich.console import Console
from torch import Tensor

from spherenorm import functional
from spherenorm_paper.shared import toys


def sweep_throughput(
    device: str, console: Console, points: int = 1000, steps: int = 300, single_runs: int = 5
) -> dict[str, float]:
    """Time a learning-rate sweep of the 3-D Rosenbrock toy, and a loop of torch.optim runs.

    Args:
        device: a torch device.
        console: prints the times.
        points: the number of learning rates.
        steps: the number of steps of each run.
        single_runs: the number of timed runs of the loop, from which its time is extrapolated.

    Returns:
        The seconds of a first sweep of one point, of the sweep and of the loop, and the ratio of
        loop to sweep.
    """
    start = _start(device)
    rates = torch.logspace(-3, -1, points, dtype=torch.float64, device=device)
    first_seconds = _sweep_seconds(start, rates[:1], steps)
    sweep_seconds = _sweep_seconds(start, rates, steps)
    begin = time.perf_counter()
    for rate in rates[:: points // single_runs][:single_runs].tolist():
        _single_run(start, rate, steps)
    loop_seconds = (time.perf_counter() - begin) / single_runs * points
    ratio = loop_seconds / sweep_seconds
    console.print(
        f"sweep of {points} learning rates x {steps} steps: {sweep_seconds:.2f} s with its "
        f"tracing (a process's first takes {first_seconds:.2f} s for one point: torch imports its "
        f"compiler); a loop of torch.optim runs {loop_seconds:.0f} s (from {single_runs} of them): "
        f"{ratio:.0f} times",
        highlight=False,
    )
    return {
        "first sweep s": first_seconds,
        "sweep s": sweep_seconds,
        "loop s": loop_seconds,
        "ratio": ratio,
    }


def _start(device: str) -> Tensor:
    return torch.tensor(toys.sphere_point(-2.0, 2.0), dtype=torch.float64, device=device)


def _loss(params: dict[str, Tensor]) -> Tensor:
    return 1e-4 * toys.rosenbrock(params["w"])


def _sweep_seconds(start: Tensor, rates: Tensor, steps: int) -> float:
    begin = time.perf_counter()
    functional.sweep(
        "sgd",
        _loss,
        {"w": start[None]},
        {"lr": rates},
        steps=steps,
        momentum=0.9,
        schedule=lambda t: 1 - t / steps,
    ).loss.sum().item()
    return time.perf_counter() - begin


def _single_run(start: Tensor, rate: float, steps: int) -> None:
    w = start.clone().requires_grad_()
    optimizer = torch.optim.SGD([w], lr=rate, momentum=0.9)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 1 - t / steps)
    for _ in range(steps):
        optimizer.zero_grad()
        _loss({"w": w}).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    w.sum().item()  # wait for the device
