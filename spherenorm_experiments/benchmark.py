"""The engine of the experiments against a bare training loop, and its commands on a large store.

`python -m spherenorm_experiments.benchmark engine|store`
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from spherenorm import optim
from spherenorm.support import time_in_turns
from spherenorm_experiments.core import (
    SCHEDULES,
    Batch,
    Budget,
    Mean,
    Spec,
    Splits,
    Statistic,
    Task,
)
from spherenorm_experiments.engine import Store, Training, execute
from spherenorm_experiments.engine.door import Door, resolve
from spherenorm_experiments.study import Campaign, Plan, find_study

EVERY = 10
"""Steps between two that the probes measure."""

STEPS = 10**6
"""Of a run that the benchmark does not end."""

COMMANDS = {
    "status": ("status",),
    "list": ("list",),
    "report": ("report", "f2"),
}


@dataclass(frozen=True)
class Dense(Task):
    """A normalized network of three layers on noise, whose batch sets the time of a step.

    Its epochs are long, since the probes also measure at the end of each.
    """

    width: int = 128
    items: int = 2**18

    name = "dense"
    tiers = {"smoke": Budget(1), "small": Budget(1), "full": Budget(1)}  # noqa: RUF012

    def data(self) -> Splits:
        x = torch.randn(self.items, 64, generator=torch.Generator().manual_seed(0))
        y = (x[:, 0] > 0).long()
        return Splits((x, y), (x[:64], y[:64]), (x[:64], y[:64]))

    def model(self) -> nn.Module:
        layers: list[nn.Module] = []
        for inputs in (64, self.width, self.width):
            layers += [nn.Linear(inputs, self.width, bias=False), nn.BatchNorm1d(self.width)]
            layers += [nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(self.width, 2))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return cross_entropy(model(batch[0]), batch[1])

    def evaluate(self, model: nn.Module, batch: Batch) -> dict[str, Statistic]:
        return {"accuracy": Mean(100.0 * (model(batch[0]).argmax(1) == batch[1]))}


def engine_overhead(
    device: str, console: Console, milliseconds: float = 10.0, blocks: int = 60
) -> dict[str, float]:
    """Time steps of the engine, with probes at each tenth, against a bare loop's.

    Both train the same network by AdamP, under the same schedule. They take turns in blocks of
    `EVERY` steps, the one or the other first, so that other work of the machine slows both alike.
    What counts is the median of the ratios of neighbouring blocks.

    Args:
        device: a torch device.
        console: to print to.
        milliseconds: of a bare step; the batch is chosen for it.
        blocks: that count.

    Returns:
        Medians of the milliseconds of a bare step and of the engine's, and of the ratios.
    """
    torch.set_num_threads(1)
    size = _batch_for(milliseconds, device)
    with tempfile.TemporaryDirectory() as root:
        spec = Spec(
            "spherenorm_experiments.benchmark:Dense", "adamp", {"lr": 1e-3}, batch_size=size
        )
        spec = replace(spec, epochs=10**6, probe_every=EVERY, device=device)
        run = resolve(spec, Store(root))
        assert isinstance(run.task, Task)
        training = Training(run, run.task)
        steps = iter(range(10**9))
        bare = _bare_loop(run.task, size, device)
        actions: dict[str, Callable[[], Any]] = {
            "bare": bare,
            "engine": lambda: training.step(next(steps)),
        }
        times = time_in_turns(actions, blocks, calls=EVERY, clock=partial(_now, device))
    pairs = zip(times["engine"], times["bare"], strict=True)
    ratio = statistics.median(own / other for own, other in pairs)
    engine, bare_loop = (1e3 * statistics.median(times[name]) for name in ("engine", "bare"))
    console.print(
        f"engine and probes (every {EVERY} steps) over a bare loop, batches of {size}: "
        f"{engine:.2f} against {bare_loop:.2f} ms a step, {100 * (ratio - 1):+.1f} %",
        highlight=False,
    )
    return {"bare ms": bare_loop, "engine ms": engine, "ratio": ratio}


def _now(device: str) -> float:
    """Seconds; on a CPU those of this process, one thread, so that other work does not count."""
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def _bare_loop(task: Task, size: int, device: str) -> Callable[[], None]:
    """One step of a loop as a user writes it: a cosine schedule, and the loss read for a log."""
    model = task.model().to(device)
    optimizer = optim.AdamP(model.parameters(), lr=1e-3)
    cosine = SCHEDULES["cosine"]
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: cosine(step / STEPS))
    x, y = (tensor.to(device) for tensor in task.first_batch(task.data().train, 10**9))
    left: list[Tensor] = []

    def order() -> Tensor:
        if not left:
            left.extend(torch.split(torch.randperm(len(x)), size))
        return left.pop()

    def step() -> None:
        chosen = order()
        optimizer.zero_grad()
        loss = task.loss(model, (x[chosen], y[chosen]))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        loss.item()

    return step


def _batch_for(milliseconds: float, device: str) -> int:
    """A batch whose bare step takes about so long."""
    size, task = 32, Dense()
    while size < task.items:
        step, clock = _bare_loop(task, size, device), partial(_now, device)
        times = time_in_turns({"step": step}, 1, calls=EVERY, clock=clock)
        if 1e3 * times["step"][0] >= milliseconds:
            return size
        size = int(1.5 * size)
    return task.items


def large_store(console: Console, runs: int = 10_000) -> dict[str, float]:
    """Time commands on a store with so many runs.

    One study runs; the other runs are copies of one under other names.

    Returns:
        Seconds of each command, the start of the process included.
    """
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        _fill(root, runs)
        found = {"a start of Python with the commands": _seconds(root, "--help")}
        found |= {name: _seconds(root, *command) for name, command in COMMANDS.items()}
    for name, seconds in found.items():
        console.print(f"{runs} runs in a store, {name}: {seconds:.1f} s", highlight=False)
    return found


def _fill(root: Path, runs: int) -> None:
    door = Door(Store(root))
    campaign = Campaign([find_study("f2")], Plan("smoke"), door)
    campaign.run(lambda *_: None)
    run = door.resolve(Spec("digits", "sgd", {"lr": 0.1}, epochs=2))
    execute(run)
    source = run.folder
    config, status, summary = source.config(), source.status(), source.summary()
    assert config is not None
    assert summary is not None
    for number in range(runs):
        copy = door.store.folder(f"digits-sgd-{number:016x}")
        copy.write_config(config)
        copy.write_status(**status)
        for name in ("metrics.jsonl", "checkpoint.pt"):
            shutil.copyfile(source.path / name, copy.path / name)
        copy.finish(summary, summary["files"])


def _seconds(root: Path, *command: str) -> float:
    """Seconds of a command in a process of its own."""
    out = [] if "--help" in command or "list" in command else ["--out", str(root)]
    begin = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "spherenorm", *command, *out],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return time.perf_counter() - begin


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m spherenorm_experiments.benchmark")
    parser.add_argument("section", choices=("engine", "store"))
    parser.add_argument("--device", default="cpu", help="of the engine's runs")
    given = parser.parse_args()
    if given.section == "engine":
        engine_overhead(given.device, Console())
    else:
        large_store(Console())
