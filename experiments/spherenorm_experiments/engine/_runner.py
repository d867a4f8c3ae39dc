"""`Runner`, the way in which runs are executed, and `Outcome`, the end of one."""

from __future__ import annotations

from dataclasses import dataclass

from spherenorm.support import unknown_name
from spherenorm_experiments.core import require_extra

CHECKPOINT_SECONDS = 10.0
PARALLEL = ("ddp", "fsdp")


@dataclass(frozen=True)
class Runner:
    """Flags of the runner. They are no part of a run's identity.

    The numbers of loader workers and checkpoints change no bit of a result. The number of processes
    changes rounding, the statistics of BatchNorm, and the noise in the model (each has its own); a
    summary says how many there were.

    Attributes:
        checkpoint_seconds: how much work an interruption loses at most; 0 writes a checkpoint at
            every step.
        workers: processes that load the items of map-style data sets; 0 loads them in line.
        processes: that train one run together, on as many GPUs if the device is "cuda".
        parallel: ddp (each process has all weights) or fsdp (weights and states are sharded).
        tensorboard: write event files while a run trains, under `<root>/tensorboard`.
        time_limit: seconds after which a run that has not ended is stopped, on any backend; it
            fails, and goes on from its checkpoint if it is asked for again. A Slurm job that is
            requeued has as many seconds again.

    Raises:
        ValueError: a count out of range, an unknown way, or TensorBoard is missing.
    """

    checkpoint_seconds: float = CHECKPOINT_SECONDS
    workers: int = 0
    processes: int = 1
    parallel: str = "ddp"
    tensorboard: bool = False
    time_limit: float | None = None

    def __post_init__(self) -> None:
        for name, least in (("checkpoint_seconds", 0), ("workers", 0), ("processes", 1)):
            if not (value := getattr(self, name)) >= least:
                raise ValueError(f"{name} must be at least {least}, got {value!r}")
        if self.time_limit is not None and not self.time_limit > 0:
            raise ValueError(f"time_limit must be positive seconds, got {self.time_limit!r}")
        if self.parallel not in PARALLEL:
            raise unknown_name("way of parallel training", self.parallel, PARALLEL)
        if self.tensorboard:
            require_extra("torch.utils.tensorboard", "--tensorboard")

    @property
    def distributed(self) -> bool:
        """True if runs need a process group: sharding needs one even for one process."""
        return self.processes > 1 or self.parallel == "fsdp"


USUAL = Runner()


@dataclass(frozen=True)
class Outcome:
    """The end of a run.

    Attributes:
        id: the run's.
        state: finished | diverged (both are results) | failed (its error is in its status) | busy
            (another process holds it).
        cached: it had ended before, nothing was computed.
        seconds: spent now.
        error: one line.
        runs: how many there are of one point and one seed.
    """

    id: str
    state: str
    cached: bool = False
    seconds: float = 0.0
    error: str = ""
    runs: int = 1
