"""`python -m experiments`: list, run, resume, inspect and report the studies of the paper.

Exit codes: 0 everything asked for is done; 1 some of it failed or is lost; 2 the command is wrong; 3 the store cannot be
written; 130 interrupted (`resume` goes on).
"""

from __future__ import annotations

import inspect
import json
import os
import signal
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table as RichTable

from experiments import tensorboard as event_files
from experiments.backends import find_backend
from experiments.engine import Engine
from experiments.report import sections, write_report
from experiments.requests import RequestWarning, read_requests
from experiments.runner import Outcome, steps_of
from experiments.spec import Spec, load_recipe, one_line
from experiments.store import CorruptFileWarning, Store, StoreError
from experiments.study import Plan, StudyError, find_study, study_classes
from experiments.task import task_classes
from spherenorm.registry import defaults, find_recipe, names

FAILED, USAGE, STORE, INTERRUPTED = 1, 2, 3, 130

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_show_locals=False, help=__doc__
)
console = Console()
errors = Console(stderr=True)

Out = Annotated[Path, typer.Option("--out", help="The store: finished runs, and the report.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document instead of text.")]
Jobs = Annotated[
    int, typer.Option("--jobs", help="How many runs at a time.", show_default="one per core")
]
BackendName = Annotated[str, typer.Option("--backend", help="local (processes), ray, or slurm.")]
MOST_SEEDS = 10_000
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """The studies, tasks and recipes."""
    studies = {name: cls.title() for name, cls in study_classes().items()}
    tasks = {
        name: (inspect.getdoc(cls) or "").splitlines()[0] for name, cls in task_classes().items()
    }
    recipes = {name: f"({', '.join(defaults(find_recipe(name)))})" for name in names()}
    if as_json:
        print(json.dumps({"studies": studies, "tasks": tasks, "recipes": recipes}, indent=1))
        return
    for heading, entries in (
        ("studies", studies),
        ("tasks", tasks),
        ("recipes (your own: module:function)", recipes),
    ):
        console.print(f"[bold]{heading}[/bold]")
        for name, text in entries.items():
            console.print(f"  [cyan]{name}[/cyan] {escape(text)}", soft_wrap=True, highlight=False)


@app.command()
def run(
    studies: Annotated[
        list[str] | None, typer.Argument(help="Which studies; all of them by default.")
    ] = None,
    optimizers: Annotated[
        str | None,
        typer.Option(help="Comma-separated: recipe names, or module:function for your own."),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            help="How many (3), a range (0:10) or a list (1,4,7); the study's own by default."
        ),
    ] = None,
    tier: Annotated[
        str, typer.Option(help="smoke (seconds), small (minutes on two cores), full (a GPU).")
    ] = "small",
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...")] = "cpu",
    jobs: Jobs = CORES,
    backend: BackendName = "local",
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="key=value, of a hyper-parameter, a task's option, epochs, batch_size or schedule; may be repeated.",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="What would run, what is there already, how long it would take."
        ),
    ] = False,
    epochs: Annotated[int | None, typer.Option(help="Short for --set epochs=N.")] = None,
    listed: Annotated[
        bool, typer.Option("--list", help="Show the studies, tasks and recipes, and run nothing.")
    ] = False,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also write event files (extra: tensorboard).")
    ] = False,
    out: Out = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Run studies and print their tables. What has finished is not run again; what was interrupted goes on where it stood."""
    if listed:
        list_(as_json)
        return
    settings = [*(settings or []), *([] if epochs is None else [f"epochs={epochs}"])]
    with interruptible(out), usage_errors():
        chosen = [find_study(name) for name in dict.fromkeys(studies or study_classes())]
        recipes = None if optimizers is None else tuple(dict.fromkeys(optimizers.split(",")))
        for name in recipes or ():
            load_recipe(name)
        check_jobs(jobs)
        check_device(device)
        if tensorboard:
            event_files.check()
        plan = Plan(
            tier,
            None if seeds is None else parse_seeds(seeds),
            recipes,
            device,
            parse_settings(settings),
        )
        engine = Engine(chosen, plan, Store(out), backend, jobs)
        engine.check()
    if dry_run:
        with usage_errors():
            show_dry_run(engine, as_json)
        return
    with store_errors(), interruptible(out):
        failed = go([engine], as_json)
    if not as_json and not failed:
        failed = show_tables(engine)
        console.print(
            f"pictures and claims: python -m experiments report{'' if out == Path('runs') else f' --out {out}'}",
            soft_wrap=True,
        )
    if tensorboard and not failed:
        write_tensorboard(engine)
    if failed:
        raise typer.Exit(FAILED)


@app.command()
def resume(
    jobs: Jobs = CORES,
    backend: BackendName = "local",
    out: Out = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Finish everything that was ever asked of the store."""
    with usage_errors():
        check_jobs(jobs)
        find_backend(backend)
        store = existing_store(out)
    engines = []
    requests, unusable = read_requests(store)
    left = tell_unusable(unusable)
    with store_errors(), interruptible(out):
        for request in requests:
            try:
                engine = Engine(
                    [find_study(name) for name in request.studies],
                    request.plan,
                    store,
                    backend,
                    jobs,
                )
                engine.check()
                engines.append(engine)
            except Exception as error:  # whatever a study or recipe of one's own may raise
                left = True
                text = f"{', '.join(request.studies)} cannot go on here: {one_line(error)}"
                errors.print(f"[red]error[/red]: {escape(text)}", soft_wrap=True, highlight=False)
        failed = go(engines, as_json)
    if failed or left:
        raise typer.Exit(FAILED)


@app.command()
def status(out: Out = Path("runs"), as_json: AsJson = False) -> None:
    """What is in the store, and what went wrong."""
    with usage_errors():
        store = existing_store(out)
    states: dict[str, int] = {}
    problems = [
        {"run": f"plans/{name}", "error": text} for name, text in read_requests(store)[1].items()
    ]
    for folder in store.folders():
        found = folder.status()
        state = found.get("state", "never started")
        if state == "running" and not folder.held():
            state = "killed"
        states[state] = states.get(state, 0) + 1
        if state == "failed":
            problems.append({"run": folder.path.name, "error": found.get("error", "")})
        problems += [
            {"run": folder.path.name, "error": f"set aside: {path.name}"}
            for path in sorted(folder.path.glob("*.corrupt-*"))
        ]
    if as_json:
        print(json.dumps({"runs": states, "problems": problems}, indent=1))
        return
    console.print(
        ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
        or f"no runs in {out}",
        highlight=False,
    )
    for problem in problems:
        console.print(
            f"[red]{problem['run']}[/red]: {escape(problem['error'])}",
            soft_wrap=True,
            highlight=False,
        )


@app.command()
def report(
    studies: Annotated[
        list[str] | None, typer.Argument(help="Which studies; all that were run by default.")
    ] = None,
    out: Out = Path("runs"),
    file: Annotated[
        Path | None, typer.Option(help="The page; report.html in the store by default.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write one self-contained page: the scorecard of all claims, and every study's tables and pictures."""
    with usage_errors():
        wanted = {type(find_study(name)) for name in studies or ()}
        store = existing_store(out)
    requests, unusable = read_requests(store)
    found = sections(store, requests, wanted)
    left = tell_unusable(unusable)
    with usage_errors():
        if not found:
            raise ValueError(
                f"the store {out} holds no such study; `python -m experiments run` comes first"
            )
    path = file or out / "report.html"
    with store_errors() if file is None else usage_errors():
        claims, problems = write_report(found, path)
    if as_json:
        print(json.dumps({"page": str(path), "claims": claims}, indent=1))
    for claim in () if as_json else claims:
        color = {"reproduced": "green", "not reproduced": "red"}.get(claim["outcome"], "yellow")
        console.print(
            f"[{color}]{claim['outcome']:>15}[/{color}]  {claim['study']}: {escape(claim['text'])}",
            highlight=False,
            soft_wrap=True,
        )
        console.print(
            f"{'':17}{escape(claim['ours'])}", style="dim", highlight=False, soft_wrap=True
        )
    if not as_json:
        console.print(f"page: {path}", soft_wrap=True, highlight=False)
    for problem in problems:
        errors.print(f"[red]error[/red]: {escape(problem)}", soft_wrap=True, highlight=False)
    if left or problems:
        raise typer.Exit(FAILED)


def go(engines: Sequence[Engine], as_json: bool) -> bool:
    """Run engines one after the other with their progress shown, and say how it went. Whether any run failed, or any study."""
    results: dict[str, set[str]] = {}
    outcomes: dict[str, Outcome] = {}
    left = False
    for engine in engines:
        try:
            with visible_progress(as_json) as progress:
                outcomes |= engine.run(progress).outcomes
            for study in engine.studies:
                results.setdefault(study.name, set()).update(
                    item.run for item in engine.trials(study)[1]
                )
        except StudyError as error:  # in a later round: what has ended is in the store
            left = True
            errors.print(f"[red]error[/red]: {escape(str(error))}", soft_wrap=True, highlight=False)
    total = {name: len(found) for name, found in results.items()}
    ran = sum(not outcome.cached for outcome in outcomes.values())
    diverged = sum(outcome.state == "diverged" for outcome in outcomes.values())
    failed = {
        outcome.id: outcome.error for outcome in outcomes.values() if outcome.state == "failed"
    }
    if as_json:
        print(
            json.dumps(
                {"studies": total, "ran": ran, "diverged": diverged, "failed": failed}, indent=1
            )
        )
    else:
        shown = f"{ran} runs now, {sum(total.values())} results in {len(total)} studies"
        console.print(f"{shown}; {diverged} diverged, {len(failed)} failed", highlight=False)
    return bool(failed) or left


def show_tables(engine: Engine) -> bool:
    """The studies' tables, without the paper's columns where the terminal is too narrow for them. Whether any study raised."""
    raised = False
    for study in engine.studies:
        try:
            tables = study.every_table(engine.trials(study)[1])
        except Exception as error:  # the other studies' tables are still to be shown
            raised, tables = True, []
            errors.print(
                f"[red]error[/red]: {study.name}: no tables: {escape(one_line(error))}",
                soft_wrap=True,
                highlight=False,
            )
        for table in tables:
            wide = sum(
                max(len(str(cell)) for cell in column) + 2
                for column in zip(table.columns, *table.rows, strict=True)
            )
            shown = [
                i
                for i, name in enumerate(table.columns)
                if wide < console.width or not name.startswith("paper")
            ]
            text = RichTable(
                title=f"{study.name}: {table.title}", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0)
            )
            for i in shown:
                text.add_column(
                    escape(table.columns[i]), justify="right" if i else "left", overflow="fold"
                )
            for row in table.rows:
                text.add_row(*(escape(str(row[i])) for i in shown))
            console.print(text)
    return raised


def show_dry_run(engine: Engine, as_json: bool) -> None:
    asked: dict[str, dict[str, Spec]] = {}
    done: set[str] = set()
    for study in engine.studies:
        trials, results = engine.trials(study)
        asked[study.name] = {trial.spec.id: trial.spec for trial in trials}
        done |= {item.spec.id for item in results}
    every = {name: spec for specs in asked.values() for name, spec in specs.items()}
    costs = engine.estimate([spec for name, spec in every.items() if name not in done])
    rows: list[dict[str, Any]] = []
    for heading, specs in {**asked, "total, shared runs once": every}.items():
        todo = [spec for name, spec in specs.items() if name not in done]
        cost = {
            "steps": sum(map(steps_of, todo)),
            "seconds": round(sum(costs[spec.id] for spec in todo) / engine.jobs),
        }
        rows.append(
            {
                "study": heading,
                "runs": len(specs),
                "cached": len(specs) - len(todo),
                "to run": len(todo),
                **cost,
            }
        )
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    table = RichTable(title="what would run (later stages depend on these)")
    for column in rows[0]:
        table.add_column(column, justify="left" if column == "study" else "right")
    for row in rows:
        table.add_row(*map(str, row.values()))
    console.print(table)


def existing_store(out: Path) -> Store:
    if not ((out / "plans").is_dir() or (out / "runs").is_dir()):
        raise ValueError(f"there is no store at {out}; `python -m experiments run` comes first")
    return Store(out)


def tell_unusable(requests: Mapping[str, str]) -> bool:
    """Whether there are any."""
    for name, text in requests.items():
        errors.print(
            f"[red]error[/red]: plans/{name}: {escape(text)}", soft_wrap=True, highlight=False
        )
    return bool(requests)


@contextmanager
def visible_progress(quiet: bool) -> Iterator[Any]:
    """A bar with the remaining time on a terminal; elsewhere a plain line now and then."""
    if quiet:
        yield lambda *_: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[left]} left"),
    )
    with Progress(
        *columns, console=console, disable=not console.is_terminal, transient=True
    ) as bar:
        task = bar.add_task("runs", left="?")
        last = time.monotonic()

        def progress(
            outcome: Outcome, spec: Spec, ended: int, count: int, seconds_left: float
        ) -> None:
            nonlocal last
            left = duration(seconds_left)
            bar.update(
                task,
                completed=ended,
                total=count,
                left=left,
                description=f"{spec.task} {spec.recipe}",
            )
            if outcome.state == "failed":
                errors.print(
                    f"[red]failed[/red] {outcome.id}: {escape(outcome.error)}",
                    soft_wrap=True,
                    highlight=False,
                )
            if not console.is_terminal and (time.monotonic() - last > 10 or ended == count):
                last = time.monotonic()
                print(
                    f"{ended}/{count} runs, {spec.task} {spec.recipe} seed {spec.seed} {outcome.state}, about {left} left",
                    flush=True,
                )

        yield progress


@contextmanager
def interruptible(root: Path) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        on = (
            f"; go on with: python -m experiments resume --out {root}"
            if (root / "plans").is_dir()
            else ", nothing ran"
        )
        errors.print(f"interrupted{on}", soft_wrap=True, highlight=False)
        raise typer.Exit(INTERRUPTED) from None


@contextmanager
def usage_errors() -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError, StoreError) as error:
        errors.print(f"[red]error[/red]: {escape(str(error))}", soft_wrap=True, highlight=False)
        raise typer.Exit(USAGE) from None


@contextmanager
def store_errors() -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        errors.print(
            f"[red]error[/red]: {escape(str(error))}; what was finished is kept",
            soft_wrap=True,
            highlight=False,
        )
        raise typer.Exit(STORE) from None


def duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def parse_seeds(text: str) -> tuple[int, ...]:
    """ "3", "0:10" or "1,4,7"."""
    try:
        if "," in text:
            seeds: Sequence[int] = [int(seed) for seed in text.split(",")]
        else:
            first, colon, last = text.rpartition(":")
            seeds = range(int(first) if colon else 0, int(last))
        if not 0 < len(seeds) <= MOST_SEEDS or min(seeds) < 0 or max(seeds) >= 2**63:
            raise ValueError
    except (ValueError, OverflowError):
        raise ValueError(
            f"--seeds {text!r}: give a count (3), a range (0:10) or a list (1,4,7), at most {MOST_SEEDS}"
        ) from None
    return tuple(dict.fromkeys(seeds))


def parse_settings(entries: Sequence[str]) -> dict[str, Any]:
    """key=value pairs; a value is JSON (0.1, true, null, [0.9, 0.99]) or else a word."""
    settings: dict[str, Any] = {}
    for entry in entries:
        key, equals, text = entry.partition("=")
        if not (key and equals):
            raise ValueError(f"--set {entry!r}: give key=value, such as lr=0.05")
        try:
            settings[key] = json.loads(text)
        except ValueError:
            settings[key] = text
    return settings


def check_jobs(jobs: int) -> None:
    if jobs < 1:
        raise ValueError(f"--jobs {jobs}: give 1 or more")


def check_device(device: str) -> None:
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            f"--device {device!r} cannot be used: {str(error).splitlines()[0]}"
        ) from None


def write_tensorboard(engine: Engine) -> None:
    with store_errors():
        count = event_files.export(
            [item for study in engine.studies for item in engine.trials(study)[1]],
            engine.store.root / "tensorboard",
        )
    console.print(
        f"{count} runs in {engine.store.root / 'tensorboard'}", soft_wrap=True, highlight=False
    )


def show_warning(message: Any, category: Any, *_: Any, **__: Any) -> None:
    if issubclass(category, CorruptFileWarning | RequestWarning):
        errors.print(
            f"[yellow]warning[/yellow]: {escape(str(message))}", soft_wrap=True, highlight=False
        )


def main() -> None:
    warnings.showwarning = show_warning
    signal.signal(
        signal.SIGTERM, signal.default_int_handler
    )  # ends as Ctrl-C does: noted in the store, workers gone
    app()
