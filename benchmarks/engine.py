"""Time the engine of the experiments against a bare loop, and its commands on a large store."""

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

from benchmarks.measure import synchronized, time_in_turns
from benchmarks.training import clock_of
from spherenorm import optim
from spherenorm_experiments.campaign import Campaign
from spherenorm_experiments.comparison import find_study
from spherenorm_experiments.execute import Resolver, execute, resolve
from spherenorm_experiments.plan import Plan
from spherenorm_experiments.spec import SCHEDULES, Spec
from spherenorm_experiments.store import Store
from spherenorm_experiments.task import Batch, Budget, Mean, Splits, Statistic, Task
from spherenorm_experiments.train import Training

PROBE_EVERY = 10
"""Steps from one measured step to the next."""

BATCH_SIZE = 2048
"""Examples of a batch, with which a bare step takes about 10 ms on one core."""

EPOCHS = STEPS = 10**6
"""More epochs and steps than the benchmark takes."""

COMMANDS = {"start": ("--help",), "list": ("list",), "status": ("status",), "report": ("report",)}


@dataclass(frozen=True)
class Dense(Task):
    """A network of three layers with BatchNorm on random inputs.

    Its epochs are long, because probes also measure at the end of each epoch.
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
    rounds: int, device: str, console: Console, batch: int = BATCH_SIZE
) -> dict[str, float]:
    """Time steps of the engine, of which probes measure every tenth, against a bare loop's.

    Both train the same network by AdamP under the same schedule, in blocks of `PROBE_EVERY` steps.
    Steps on a CPU are timed by the process clock, with one thread.

    Returns:
        The median milliseconds of a bare step and of the engine's step, and the median ratio of
        neighbouring blocks.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as root:
        spec = Spec("benchmarks.engine:Dense", "adamp", {"lr": 1e-3}, batch_size=batch)
        endless = replace(spec, epochs=EPOCHS, probe_every=PROBE_EVERY, device=device)
        run = resolve(endless, Store(root))
        assert isinstance(run.task, Task)
        training, steps = Training(run, run.task), iter(range(STEPS))
        actions: dict[str, Callable[[], object]] = {
            "bare": _bare_loop(run.task, batch, device),
            "engine": lambda: training.step(next(steps)),
        }
        clock = synchronized(device, clock_of(device))
        times = time_in_turns(actions, rounds, calls=PROBE_EVERY, clock=clock)
    torch.set_num_threads(threads)
    pairs = zip(times["engine"], times["bare"], strict=True)
    ratio = statistics.median(engine_s / bare_s for engine_s, bare_s in pairs)
    engine, bare = (1e3 * statistics.median(times[name]) for name in ("engine", "bare"))
    console.print(
        f"engine and probes (every {PROBE_EVERY} steps) over a bare loop, batches of {batch}: "
        f"{engine:.2f} against {bare:.2f} ms a step, {100 * (ratio - 1):+.1f} %",
        highlight=False,
    )
    return {"bare ms": bare, "engine ms": engine, "ratio": ratio}


def _bare_loop(task: Task, size: int, device: str) -> Callable[[], object]:
    """Return a step as users write it, with a cosine schedule and the loss read for a log."""
    model = task.model().to(device)
    optimizer = optim.AdamP(model.parameters(), lr=1e-3)
    cosine = SCHEDULES["cosine"]
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: cosine(step / STEPS))
    x, y = (tensor.to(device) for tensor in task.first_batch(task.data().train, 10**9))
    index_batches: list[Tensor] = []

    def step() -> None:
        if not index_batches:
            index_batches.extend(torch.split(torch.randperm(len(x)), size))
        indices = index_batches.pop()
        optimizer.zero_grad()
        loss = task.loss(model, (x[indices], y[indices]))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        loss.item()

    return step


def large_store(console: Console, runs: int = 10_000) -> dict[str, float]:
    """Time commands on a store of one study and many copies of one run under other names.

    Returns:
        The seconds of each command, including the start of the process.
    """
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        _fill_store(root, runs)
        seconds = {name: _command_seconds(root, *command) for name, command in COMMANDS.items()}
    for name, value in seconds.items():
        console.print(f"{runs} runs in a store, {name}: {value:.1f} s", highlight=False)
    return seconds


def _fill_store(root: Path, runs: int) -> None:
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


def _command_seconds(root: Path, name: str, *options: str) -> float:
    """Return the seconds that a command takes in a new process."""
    out = ["--out", str(root)] if name in ("status", "report") else []
    command = [sys.executable, "-m", "spherenorm", name, *options, *out]
    begin = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin
