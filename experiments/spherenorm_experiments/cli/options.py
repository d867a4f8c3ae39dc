"""Options that several commands share, and what commands print."""

from __future__ import annotations

import functools
import inspect
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from spherenorm_experiments.store import Store

if TYPE_CHECKING:
    from spherenorm_experiments.run import Runner
    from spherenorm_experiments.tables import Table

FAILED, USAGE, STORE, INTERRUPTED = 1, 2, 3, 130

NOTE = "[yellow]note[/yellow]: "

# A user's "task:Boom:" is text, of which rich would make a picture.
console = Console(emoji=False)
errors = Console(stderr=True, emoji=False)

DEFAULT_OUT = Path("runs")
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def flag(help: str, *names: str, **more: Any) -> Any:
    """Return an option of a command."""
    return typer.Option(*names, help=help, **more)


Out = Annotated[Path, flag("The store: finished runs, and the report.", "--out")]
AsJson = Annotated[bool, flag("One JSON document instead of text.", "--json")]
Studies = Annotated[
    list[str] | None, typer.Argument(help="Which studies; all that there are by default.")
]
Data = Annotated[
    Path | None,
    flag("The folder of the paper's data sets, such as DIR with DIR/imagenet: the benchmarks then "
          "run the paper's settings (see `data check`). SPHERENORM_DATA does the same for `report` "
          "and `resume`.", "--data"),
]  # fmt: skip


@dataclass(frozen=True)
class Execution:
    """The options of every command that runs; those of `Runner` have its names."""

    jobs: Annotated[
        int,
        flag("How many runs at a time; 0 runs them in this process, as a debugger needs it.",
              show_default="one per core", min=0),
    ] = CORES  # fmt: skip
    backend: Annotated[str, flag("local (processes), slurm or ray.")] = "local"
    workers: Annotated[int, flag("Processes that load the items of a run's data set.")] = 0
    processes: Annotated[int, flag("Processes that train one run together, by torchrun.")] = 1
    tensorboard: Annotated[bool, flag("Event files while a run trains.", "--tensorboard")] = False
    time_limit: Annotated[
        float | None, flag("Seconds after which a run that has not ended is stopped.")
    ] = None
    checkpoint_seconds: Annotated[float, flag("How much work an interruption loses at most.")] = (
        10.0
    )
    partition: Annotated[str | None, flag("The queue of a job on Slurm.")] = None
    gpus: Annotated[int, flag("Of a job on Slurm or Ray.")] = 0
    memory: Annotated[float | None, flag("Of a job on Slurm or Ray, in GB.")] = None
    minutes: Annotated[int, flag("The time limit of a job on Slurm.")] = 240
    accept_code: Annotated[
        bool,
        flag("Keep results of other code than is here; else they run again.", "--accept-code"),
    ] = False
    out: Out = DEFAULT_OUT
    as_json: AsJson = False

    @property
    def runner(self) -> Runner:
        """The flags of the runner.

        Raises:
            ValueError: one is out of its range, or needs a package that is missing.
        """
        from spherenorm_experiments.run import Runner

        return Runner(**{option.name: getattr(self, option.name) for option in fields(Runner)})


@dataclass(frozen=True)
class Request(Execution):
    """The options of every command that asks for runs."""

    seeds: Annotated[
        str | None,
        flag("How many (3), a range (0:10) or a list (1,4,7); the study's own by default."),
    ] = None
    tier: Annotated[
        str,
        flag("smoke (seconds; decides nothing), small (minutes on two cores), evidence (more "
              "seeds), full (a GPU)."),
    ] = "small"  # fmt: skip
    device: Annotated[str, flag("cpu, cuda, cuda:1, ...")] = "cpu"
    settings: Annotated[
        list[str] | None,
        flag("key=value, of a hyper-parameter, a task's option, epochs, batch_size, schedule, "
              "probe_every, or the regime (warmup, precision, ...); optimizer:key=value for that "
              "optimizer alone; may be repeated.", "--set"),
    ] = None  # fmt: skip
    epochs: Annotated[int | None, flag("Short for --set epochs=N.")] = None
    dry_run: Annotated[
        bool,
        flag("What would run, what is there already, how long it would take.", "--dry-run"),
    ] = False


def with_fields(command: Callable[..., None]) -> Callable[..., None]:
    """The command, with the fields of its last parameter, a dataclass, as options of its own."""
    *parameters_before, last = inspect.signature(command).parameters.values()
    hints = get_type_hints(command, include_extras=True)
    cls = hints.pop(last.name)
    options = {f.name: f.default for f in fields(cls)}
    hints |= get_type_hints(cls, include_extras=True)

    @functools.wraps(command)
    def flat(**arguments: Any) -> None:
        chosen = cls(**{name: arguments.pop(name) for name in options})
        command(**arguments, **{last.name: chosen})

    defaults = {parameter.name: parameter.default for parameter in parameters_before} | options
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
    """Return the table with the columns that fit the terminal, and the names of the others.

    A cell is on one line. Our columns go before the paper's, from the left to the right.
    """
    texts = table.texts
    # A cell has a space and a rule's column behind it, and the table one before it.
    widths = (texts.map(len).max().clip(lower=texts.columns.str.len()) + 2).tolist()
    order = sorted(range(len(widths)), key=lambda i: table.columns[i].paper)
    room, fitting = console.width - 1, set[int]()
    for i in order:
        room -= widths[i]
        if room < 0 and fitting:
            break
        fitting.add(i)
    omitted = [f'"{column}"' for i, column in enumerate(table.columns) if i not in fitting]
    caption = f"Not shown: {', '.join(omitted)}. The page has them." if omitted else None
    text = RichTable(
        title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), title_justify="left",
        caption=caption, caption_justify="left",
    )  # fmt: skip
    for i in sorted(fitting):
        justify: Any = "left" if i == 0 or table.is_text[i] else "right"
        text.add_column(escape(texts.columns[i]), justify=justify, overflow="fold")
    for row in texts.iloc[:, sorted(fitting)].to_numpy():
        text.add_row(*map(escape, row))
    return text


def existing_store(out: Path) -> Store:
    """Return the store in a folder.

    Raises:
        ValueError: there is none.
    """
    if not ((out / "plans").is_dir() or (out / "runs").is_dir()):
        raise ValueError(f"there is no store at {out}; `spherenorm run` comes first")
    return Store(out)
