"""`Run`, a spec of which every name has been looked up; `Job`, the runs of one computation."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass as pydantic_dataclass

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
        """The state of its runs, if all of them have ended: diverged if each has."""
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
