"""Runs and who executes them: runs, the jobs that they form, and the processes of a run.

`Run` is a spec of which every name has been looked up, `Job` the runs of one computation, `Runner`
the flags of its execution, and `Outcome` its end. `Ranks` are the processes that train one run
together; in an ordinary run this process alone. What they tell each other in the course of a run
goes through here, on the CPU (gloo); gradients go through DDP.
"""

from __future__ import annotations

import ctypes
import functools
import inspect
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as pydantic_dataclass
from torch import Tensor, nn

from spherenorm import Bound
from spherenorm_experiments.lookup import require_extra
from spherenorm_experiments.probes import Probe
from spherenorm_experiments.spec import Spec
from spherenorm_experiments.store import RunFolder, Store
from spherenorm_experiments.task import AnyTask, Splits, Task, length, splits_of


@dataclass(frozen=True, eq=False)
class Run:
    """A run, made by `spherenorm_experiments.execute.Resolver`; from there it only goes down.

    Attributes:
        spec: the request, as names and numbers.
        task: the task, with its options.
        bound: the recipe and its rule.
        rest: the recipe of the weights that the spec's does not take; None if it takes all.
        name: of its folder, by spec and data.
        store: in which its folder lies.
        probes: the functions that measure the steps.
    """

    spec: Spec
    task: AnyTask
    bound: Bound
    rest: Bound | None
    name: str
    store: Store
    probes: Sequence[Probe] = ()

    @property
    def folder(self) -> RunFolder:
        """The folder of its files."""
        return self.store.folder(self.name)

    @functools.cached_property
    def splits(self) -> Splits:
        """The data of a task that trains on batches."""
        assert isinstance(self.task, Task)
        return splits_of(self.task)

    @functools.cached_property
    def steps_per_epoch(self) -> int:
        """The batches of one pass over the training data, the last one possibly smaller."""
        if not isinstance(self.task, Task):
            return 1
        return math.ceil(length(self.splits.train) / self.spec.batch_size)

    @functools.cached_property
    def steps(self) -> int:
        """The optimizer steps of the whole run."""
        return self.spec.epochs * self.steps_per_epoch


@dataclass(frozen=True, eq=False)
class Job:
    """The runs of one computation: one run, or points and seeds of a pure task."""

    runs: Sequence[Run]

    @property
    def first(self) -> Run:
        return self.runs[0]

    @property
    def names(self) -> list[str]:
        return [run.name for run in self.runs]

    @functools.cached_property
    def folder(self) -> RunFolder:
        """The folder of its rows."""
        is_single = len(self.runs) == 1 and isinstance(self.first.task, Task)
        return self.first.folder if is_single else self.first.store.batch(self.names)

    @property
    def name(self) -> str:
        return self.folder.name

    def state(self) -> str | None:
        """Return the state of its runs, if all of them have ended: diverged if each has."""
        rows = self.first.store.find(self.names)
        if len(rows) < len(set(self.names)):
            return None
        finished = any(row.summary["diverged_at"] is None for row in rows.values())
        return "finished" if finished else "diverged"


@pydantic_dataclass(frozen=True)
class Runner:
    """The way in which runs are executed. It is no part of a run's name.

    The numbers of loader workers and checkpoints change no bit of a result. The number of processes
    changes rounding, the statistics of BatchNorm, and the noise in the model (each has its own); a
    summary says how many there were.

    Attributes:
        checkpoint_seconds: how much work an interruption loses at most; 0 writes a checkpoint at
            every step.
        workers: processes that load the items of map-style data sets; 0 loads them in line.
        processes: that train one run together, on as many GPUs if the device is "cuda".
        tensorboard: write event files while a run trains, under `<root>/tensorboard`.
        time_limit: seconds after which a run that has not ended is stopped, on any backend; it
            fails, and goes on from its checkpoint if it is asked for again.
        partition, gpus, memory, minutes: of a job on a cluster: its queue, its GPUs, its memory in
            GB, and its time limit there; a job that Slurm preempts or stops goes on.

    Raises:
        ValueError: a count out of range, an unknown way, or TensorBoard is missing.
    """

    checkpoint_seconds: Annotated[float, Field(ge=0)] = 10.0
    workers: Annotated[int, Field(ge=0)] = 0
    processes: Annotated[int, Field(ge=1)] = 1
    tensorboard: bool = False
    time_limit: Annotated[float, Field(gt=0)] | None = None
    partition: str | None = None
    gpus: Annotated[int, Field(ge=0)] = 0
    memory: Annotated[float, Field(gt=0)] | None = None
    minutes: Annotated[int, Field(ge=1)] = 240

    def __post_init__(self) -> None:
        if self.tensorboard:
            require_extra("torch.utils.tensorboard", "--tensorboard")


DEFAULT_RUNNER = Runner()


@dataclass(frozen=True)
class Outcome:
    """The end of a job.

    Attributes:
        name: of its folder.
        state: finished | diverged (both are results) | failed (its error is in its status) | busy
            (another process holds it) | lost (the store cannot be written).
        cached: it had ended before, nothing was computed.
        error: one line.
        runs: how many the job has.
    """

    name: str
    state: str
    cached: bool = False
    error: str = ""
    runs: int = 1


PR_SET_PDEATHSIG = 1
SECONDS_BETWEEN_LOOKS = 1.0


@dataclass(frozen=True)
class Ranks:
    """The processes of a run, seen from one of them.

    Attributes:
        rank: this process; rank 0 holds the run's folder and writes it.
        world: how many there are.
        distributed: False in a process alone, which has no process group.
    """

    rank: int = 0
    world: int = 1
    distributed: bool = False

    @property
    def first(self) -> bool:
        return self.rank == 0

    def device(self, name: str) -> str:
        """This process's own device: with "cuda", the GPU of its local rank."""
        local = os.environ.get("LOCAL_RANK", "0")
        return f"cuda:{local}" if self.distributed and name == "cuda" else name

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value."""
        if not self.distributed:
            return value
        box = [value]
        torch.distributed.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        return box[0]

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's value, in the order of the ranks."""
        if not self.distributed:
            return [value]
        values: list[Any] = [None] * self.world
        torch.distributed.all_gather_object(values, value)
        return values

    def totals(self, numbers: Sequence[float]) -> list[float]:
        """Return the sums over ranks."""
        if not self.distributed:
            return list(numbers)
        sums = torch.tensor(numbers, dtype=torch.float64)
        torch.distributed.all_reduce(sums)
        return sums.tolist()

    def share(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite the tensors by rank 0's."""
        if self.distributed:
            for tensor in tensors:
                torch.distributed.broadcast(tensor, src=0)

    def wait(self) -> None:
        """Return when every rank has come here."""
        self.gather(None)


SINGLE_PROCESS = Ranks()


@contextmanager
def joined(device: str) -> Iterator[Ranks]:
    """Join the processes that torchrun started (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT).

    Args:
        device: of the run.
    """
    cuda = device.startswith("cuda")
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    torch.distributed.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo")
    try:
        yield Ranks(torch.distributed.get_rank(), torch.distributed.get_world_size(), True)
    finally:
        torch.distributed.destroy_process_group()


def die_with_parent() -> None:
    """End this process when its parent ends, however that ends.

    A launcher that is killed would else leave its workers running, and a restart would be a second
    writer in a run's folder. Linux sends the signal itself; elsewhere a thread looks.
    """
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it ended before the kernel was asked
            os._exit(1)
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(SECONDS_BETWEEN_LOOKS)
    os._exit(1)


def parallelize(module: nn.Module, ranks: Ranks, device: str) -> nn.Module:
    """Wrap a model in DDP if several processes train it; return the model that the loss calls.

    DDP shares no buffers in training: BatchNorm's statistics are those of rank 0, which the engine
    broadcasts before they are evaluated or saved. (DDP's own broadcast in each forward pass would
    break losses that call the model twice.)
    """
    if not ranks.distributed:
        return module
    from torch.nn.parallel import DistributedDataParallel

    place = torch.device(device)
    devices = [place] if place.type == "cuda" else None
    parameters = inspect.signature(DistributedDataParallel).parameters
    new, old = "forward_sync_buffers", "broadcast_buffers"  # torch has renamed it
    off: dict[str, Any] = {new if new in parameters else old: False}
    return DistributedDataParallel(module, device_ids=devices, **off)


def synchronized(model: nn.Module, last: bool) -> AbstractContextManager[Any]:
    """Return the block of a micro-batch: gradients are reduced over ranks in the last one alone."""
    wrapped: Any = model
    if last or not hasattr(model, "no_sync"):
        return nullcontext()
    return wrapped.no_sync()  # type: ignore[no-any-return]
