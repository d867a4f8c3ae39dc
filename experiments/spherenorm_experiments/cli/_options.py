"""Options that several commands share, and the values that they are parsed to."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from spherenorm_experiments.cli._console import NOTE, say_error
from spherenorm_experiments.store import Store

if TYPE_CHECKING:
    from spherenorm_experiments.execute import Resolver
    from spherenorm_experiments.run import Runner

DEFAULT_OUT = Path("runs")
Out = Annotated[Path, typer.Option("--out", help="The store: finished runs, and the report.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document instead of text.")]
Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        help="The folder of the paper's data sets, such as DIR with DIR/imagenet: the benchmarks "
        "then run the paper's settings (see `data check`). SPHERENORM_DATA does the same for "
        "`report` and `resume`.",
    ),
]
MOST_SEEDS = 10_000
MANY_SEEDS = 20
"""A count above it may have been meant as one seed."""

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


@dataclass(frozen=True)
class Execution:
    """The options of every command that runs."""

    jobs: Annotated[
        int,
        typer.Option(
            help="How many runs at a time; 0 runs them in this process, as a debugger needs it.",
            show_default="one per core", min=0,
        ),
    ] = CORES  # fmt: skip
    backend: Annotated[str, typer.Option(help="local (processes), slurm or ray.")] = "local"
    workers: Annotated[
        int, typer.Option(help="Processes that load the items of a run's data set.")
    ] = 0
    processes: Annotated[
        int, typer.Option(help="Processes that train one run together, by torchrun.")
    ] = 1
    parallel: Annotated[str, typer.Option(help="ddp (all weights in each) or fsdp (sharded).")] = (
        "ddp"
    )
    tensorboard: Annotated[
        bool,
        typer.Option("--tensorboard", help="Event files while a run trains (extra: tensorboard)."),
    ] = False
    time_limit: Annotated[
        float | None,
        typer.Option(help="Seconds after which a run that has not ended is stopped."),
    ] = None
    checkpoint_seconds: Annotated[
        float, typer.Option(help="How much work an interruption loses at most.")
    ] = 10.0
    partition: Annotated[str | None, typer.Option(help="The queue of a job on Slurm.")] = None
    gpus: Annotated[int, typer.Option(help="Of a job on Slurm or Ray.")] = 0
    memory: Annotated[float | None, typer.Option(help="Of a job on Slurm or Ray, in GB.")] = None
    minutes: Annotated[int, typer.Option(help="The time limit of a job on Slurm.")] = 240
    accept_code: Annotated[
        bool,
        typer.Option(
            "--accept-code", help="Keep results of other code than is here; else they run again."
        ),
    ] = False
    out: Out = DEFAULT_OUT
    as_json: AsJson = False

    @property
    def resolver(self) -> Resolver:
        """The resolver of the store."""
        from spherenorm_experiments.execute import Resolver

        return Resolver(Store(self.out, self.accept_code))

    @property
    def runner(self) -> Runner:
        """The flags of the runner.

        Raises:
            ValueError: one is out of its range, or needs a package that is missing.
        """
        from spherenorm_experiments.run import Runner

        names = [each.name for each in fields(Runner)]
        return Runner(**{name: getattr(self, name) for name in names})


@dataclass(frozen=True)
class Request(Execution):
    """The options of every command that asks for runs."""

    seeds: Annotated[
        str | None,
        typer.Option(
            help="How many (3), a range (0:10) or a list (1,4,7); the study's own by default."
        ),
    ] = None
    tier: Annotated[
        str,
        typer.Option(
            help="smoke (seconds; decides nothing), small (minutes on two cores), evidence (more "
            "seeds), full (a GPU)."
        ),
    ] = "small"
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...")] = "cpu"
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="key=value, of a hyper-parameter, a task's option, epochs, batch_size, schedule, "
            "probe_every, or the regime (warmup, precision, ...); may be repeated.",
        ),
    ] = None
    epochs: Annotated[int | None, typer.Option(help="Short for --set epochs=N.")] = None
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="What would run, what is there already, how long it would take."
        ),
    ] = False

    @property
    def entries(self) -> list[str]:
        """The entries of --set, with --epochs as one of them."""
        short = [] if self.epochs is None else [f"epochs={self.epochs}"]
        return [*(self.settings or []), *short]


def with_fields(command: Callable[..., None]) -> Callable[..., None]:
    """The command, with the fields of its last parameter, a dataclass, as options of its own."""
    *own, last = inspect.signature(command).parameters.values()
    hints = get_type_hints(command, include_extras=True)
    cls = hints.pop(last.name)
    options = {f.name: f.default for f in fields(cls)}
    hints |= get_type_hints(cls, include_extras=True)

    @functools.wraps(command)
    def flat(**given: Any) -> None:
        chosen = cls(**{name: given.pop(name) for name in options})
        command(**given, **{last.name: chosen})

    defaults = {parameter.name: parameter.default for parameter in own} | options
    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=x, annotation=hints[name])
        for name, x in defaults.items()
    ]
    flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    flat.__annotations__ = hints
    return flat


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
