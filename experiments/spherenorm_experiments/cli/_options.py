"""Options that several commands share, what commands print, and the errors that end them."""

from __future__ import annotations

import functools
import inspect
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from pydantic import ValidationError
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from spherenorm_experiments.spec import said
from spherenorm_experiments.store import Store, StoreError

if TYPE_CHECKING:
    from spherenorm_experiments.execute import Resolver
    from spherenorm_experiments.run import Runner
    from spherenorm_experiments.tables import Table

FAILED, USAGE, STORE, INTERRUPTED = 1, 2, 3, 130

NOTE = "[yellow]note[/yellow]: "

console = Console()
errors = Console(stderr=True)

DEFAULT_OUT = Path("runs")
Out = Annotated[Path, typer.Option("--out", help="The store: finished runs, and the report.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document instead of text.")]
Studies = Annotated[
    list[str] | None, typer.Argument(help="Which studies; all that there are by default.")
]
Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        help="The folder of the paper's data sets, such as DIR with DIR/imagenet: the benchmarks "
        "then run the paper's settings (see `data check`). SPHERENORM_DATA does the same for "
        "`report` and `resume`.",
    ),
]

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def _flag(help: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, **more)


@dataclass(frozen=True)
class Execution:
    """The options of every command that runs."""

    jobs: Annotated[
        int,
        _flag("How many runs at a time; 0 runs them in this process, as a debugger needs it.",
              show_default="one per core", min=0),
    ] = CORES  # fmt: skip
    backend: Annotated[str, _flag("local (processes), slurm or ray.")] = "local"
    workers: Annotated[int, _flag("Processes that load the items of a run's data set.")] = 0
    processes: Annotated[int, _flag("Processes that train one run together, by torchrun.")] = 1
    parallel: Annotated[str, _flag("ddp (all weights in each) or fsdp (sharded).")] = "ddp"
    tensorboard: Annotated[bool, _flag("Event files while a run trains.", "--tensorboard")] = False
    time_limit: Annotated[
        float | None, _flag("Seconds after which a run that has not ended is stopped.")
    ] = None
    checkpoint_seconds: Annotated[float, _flag("How much work an interruption loses at most.")] = (
        10.0
    )
    partition: Annotated[str | None, _flag("The queue of a job on Slurm.")] = None
    gpus: Annotated[int, _flag("Of a job on Slurm or Ray.")] = 0
    memory: Annotated[float | None, _flag("Of a job on Slurm or Ray, in GB.")] = None
    minutes: Annotated[int, _flag("The time limit of a job on Slurm.")] = 240
    accept_code: Annotated[
        bool,
        _flag("Keep results of other code than is here; else they run again.", "--accept-code"),
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
        _flag("How many (3), a range (0:10) or a list (1,4,7); the study's own by default."),
    ] = None
    tier: Annotated[
        str,
        _flag("smoke (seconds; decides nothing), small (minutes on two cores), evidence (more "
              "seeds), full (a GPU)."),
    ] = "small"  # fmt: skip
    device: Annotated[str, _flag("cpu, cuda, cuda:1, ...")] = "cpu"
    settings: Annotated[
        list[str] | None,
        _flag("key=value, of a hyper-parameter, a task's option, epochs, batch_size, schedule, "
              "probe_every, or the regime (warmup, precision, ...); may be repeated.", "--set"),
    ] = None  # fmt: skip
    epochs: Annotated[int | None, _flag("Short for --set epochs=N.")] = None
    dry_run: Annotated[
        bool,
        _flag("What would run, what is there already, how long it would take.", "--dry-run"),
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


def say(text: str, **style: Any) -> None:
    """Print a line that is not wrapped and not colored by its content."""
    console.print(text, soft_wrap=True, highlight=False, **style)


def say_error(text: str, kind: str = "[red]error[/red]: ") -> None:
    """Print a line on the standard error."""
    errors.print(f"{kind}{escape(text)}", soft_wrap=True, highlight=False)


def answer(content: Any) -> None:
    """Print the JSON document that is the command's answer."""
    print(json.dumps(content, indent=1))


def as_text(table: Table, title: str) -> RichTable:
    """The table, without the paper's columns where the terminal is too narrow for them."""
    rows = [[str(cell) for cell in row] for row in table.rows]
    headings = [str(column) for column in table.columns]
    width = sum(max(map(len, column)) + 2 for column in zip(headings, *rows, strict=True))
    wide = width >= console.width
    kept = [i for i, column in enumerate(table.columns) if not (wide and column.paper)]
    text = RichTable(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), title_justify="left")
    for i in kept:
        text.add_column(escape(headings[i]), justify="right" if i else "left", overflow="fold")
    for row in rows:
        text.add_row(*(escape(row[i]) for i in kept))
    return text


@contextmanager
def usage_errors() -> Iterator[None]:
    """End with the exit code of a wrong command."""
    try:
        yield
    except ValidationError as error:
        say_error(said(error))
        raise typer.Exit(USAGE) from None
    except (ValueError, TypeError, StoreError) as error:
        say_error(str(error))
        raise typer.Exit(USAGE) from None


def tell_unusable(requests: Mapping[str, str]) -> bool:
    """Say which requests cannot be read, and what to do; True if there are any."""
    for name, text in requests.items():
        say_error(f"plans/{name}: {text}")
    return bool(requests)


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
