"""The engine of the experiments against a bare training loop, and its commands on a large store."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks._measure import synchronized, time_in_turns
from benchmarks._training import clock_of
from spherenorm import optim
from spherenorm_experiments.campaign import Campaign
from spherenorm_experiments.comparison import find_study
from spherenorm_experiments.execute import Resolver, execute, resolve
from spherenorm_experiments.plan import Plan
from spherenorm_experiments.spec import SCHEDULES, Spec
from spherenorm_experiments.store import Store
from spherenorm_experiments.task import Batch, Budget, Mean, Splits, Statistic, Task
from spherenorm_experiments.train import Training

EVERY = 10
"""Steps between two that the probes measure."""

BATCH = 2048
"""A bare step takes about 10 ms on a core."""

STEPS = 10**6
"""Of a run that the benchmark does not end."""

COMMANDS = {"start": ("--help",), "list": ("list",), "status": ("status",), "report": ("report",)}


@dataclass(frozen=True)
class Dense(Task):
    """A normalized network of three layers on noise.

    Its epochs are long, since the probes also measure at the end of each.
    """

    name = "dense"
    tiers = {"smoke": Budget(1), "small": Budget(1), "full": Budget(1)}  # noqa: RUF012

    def data(self) -> Splits:
        x = torch.randn(2**18, 64, generator=torch.Generator().manual_seed(0))
        y = (x[:, 0] > 0).long()
        return Splits((x, y), (x[:64], y[:64]), (x[:64], y[:64]))

    def model(self) -> nn.Module:
        layers: list[nn.Module] = []
        for inputs in (64, 128, 128):
            layers += [nn.Linear(inputs, 128, bias=False), nn.BatchNorm1d(128), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(128, 2))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return cross_entropy(model(batch[0]), batch[1])

    def evaluate(self, model: nn.Module, batch: Batch) -> dict[str, Statistic]:
        return {"accuracy": Mean(100.0 * (model(batch[0]).argmax(1) == batch[1]))}


def engine_overhead(
    rounds: int, device: str, console: Console, batch: int = BATCH
) -> dict[str, float]:
    """Time steps of the engine, with probes at each tenth, against a bare loop's.

    Both train the same network by AdamP, under the same schedule, in blocks of `EVERY` steps. What
    counts is the median of the ratios of neighbouring blocks. Steps on a CPU are timed by the
    processor's own time, with one thread.

    Returns:
        Medians of the milliseconds of a bare step and of the engine's, and of the ratios.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as root:
        spec = Spec("benchmarks._engine:Dense", "adamp", {"lr": 1e-3}, batch_size=batch)
        endless = replace(spec, epochs=STEPS, probe_every=EVERY, device=device)
        run = resolve(endless, Store(root))
        assert isinstance(run.task, Task)
        training, steps = Training(run, run.task), iter(range(STEPS))
        actions: dict[str, Callable[[], object]] = {
            "bare": _bare_loop(run.task, batch, device),
            "engine": lambda: training.step(next(steps)),
        }
        clock = synchronized(device, clock_of(device))
        times = time_in_turns(actions, rounds, calls=EVERY, clock=clock)
    torch.set_num_threads(threads)
    pairs = zip(times["engine"], times["bare"], strict=True)
    ratio = statistics.median(own / other for own, other in pairs)
    engine, bare = (1e3 * statistics.median(times[name]) for name in ("engine", "bare"))
    console.print(
        f"engine and probes (every {EVERY} steps) over a bare loop, batches of {batch}: "
        f"{engine:.2f} against {bare:.2f} ms a step, {100 * (ratio - 1):+.1f} %",
        highlight=False,
    )
    return {"bare ms": bare, "engine ms": engine, "ratio": ratio}


def _bare_loop(task: Task, size: int, device: str) -> Callable[[], object]:
    """One step of a loop as a user writes it: a cosine schedule, and the loss read for a log."""
    model = task.model().to(device)
    optimizer = optim.AdamP(model.parameters(), lr=1e-3)
    cosine = SCHEDULES["cosine"]
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: cosine(step / STEPS))
    x, y = (tensor.to(device) for tensor in task.first_batch(task.data().train, 10**9))
    left: list[Tensor] = []

    def step() -> None:
        if not left:
            left.extend(torch.split(torch.randperm(len(x)), size))
        chosen = left.pop()
        optimizer.zero_grad()
        loss = task.loss(model, (x[chosen], y[chosen]))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        loss.item()

    return step


def large_store(console: Console, runs: int = 10_000) -> dict[str, float]:
    """Time commands on a store of one study, and of so many copies of one run under other names.

    Returns:
        Seconds of each command, the start of the process included.
    """
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        _fill(root, runs)
        found = {name: _seconds(root, *command) for name, command in COMMANDS.items()}
    for name, seconds in found.items():
        console.print(f"{runs} runs in a store, {name}: {seconds:.1f} s", highlight=False)
    return found


def _fill(root: Path, runs: int) -> None:
    resolver = Resolver(Store(root))
    Campaign([find_study("f2")], Plan("smoke"), resolver).run()
    run = resolver.resolve(Spec("digits", "sgd", {"lr": 0.1}, epochs=2))
    execute(run)
    (row,), source = run.folder.rows(), run.folder
    for number in range(runs):
        copy = resolver.store.folder(f"digits-sgd-{number:016x}-{0:08x}")
        copy.write_status(**source.status())
        for name in ("metrics.jsonl", "checkpoint.pt"):
            shutil.copyfile(source.path / name, copy.path / name)
        copy.finish([(copy.name, row.spec, row.summary)], row.code, row.about)


def _seconds(root: Path, name: str, *options: str) -> float:
    """Seconds of a command in a process of its own."""
    out = ["--out", str(root)] if name in ("status", "report") else []
    command = [sys.executable, "-m", "spherenorm", name, *options, *out]
    begin = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin
