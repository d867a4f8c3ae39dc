"""`run`: the runs of studies, their tables, and what would run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table as RichTable

from experiments.campaign import Campaign
from experiments.cli._console import (
    FAILED,
    console,
    interruptible,
    quiet,
    say,
    store_errors,
    usage_errors,
)
from experiments.cli._list import list_
from experiments.cli._options import (
    CORES,
    AsJson,
    BackendName,
    Jobs,
    Out,
    Parallel,
    Processes,
    TensorBoard,
    TimeLimit,
    Workers,
    parse_seeds,
    parse_settings,
    require_device,
    require_jobs,
)
from experiments.cli._progress import run_campaigns
from experiments.cli._tables import show_tables
from experiments.door import Door
from experiments.engine import Run, Runner, Store
from experiments.pictures import write_events
from experiments.studies import Plan, find_study, study_classes

__all__ = ["run"]

DEFAULT_OUT = Path("runs")


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
            help="key=value, of a hyper-parameter, a task's option, epochs, batch_size, schedule, "
            "probe_every, or the regime (warmup, precision, ...); may be repeated.",
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
    workers: Workers = 0,
    processes: Processes = 1,
    parallel: Parallel = "ddp",
    tensorboard: TensorBoard = False,
    time_limit: TimeLimit = None,
    out: Out = DEFAULT_OUT,
    as_json: AsJson = False,
) -> None:
    """Run studies and print their tables.

    What has finished is not run again; what was interrupted goes on where it stood.
    """
    if listed:
        list_(as_json)
        return
    entries = [*(settings or []), *([] if epochs is None else [f"epochs={epochs}"])]
    with interruptible(out), usage_errors(), quiet(as_json):
        door = Door(Store(out))
        chosen = [find_study(name) for name in dict.fromkeys(studies or study_classes())]
        recipes = _known_recipes(door, optimizers)
        require_jobs(jobs)
        require_device(device)
        flags = {"workers": workers, "processes": processes, "parallel": parallel}
        runner = Runner(**flags, tensorboard=tensorboard, time_limit=time_limit)  # type: ignore[arg-type]
        asked = None if seeds is None else parse_seeds(seeds)
        plan = Plan(tier, asked, recipes, device, parse_settings(entries))
        campaign = Campaign(chosen, plan, door, backend, jobs, runner)
        campaign.rehearse()
    if dry_run:
        with usage_errors():
            _show_dry_run(campaign, as_json)
    elif _failed(campaign, as_json, tensorboard):
        raise typer.Exit(FAILED)


def _known_recipes(door: Door, optimizers: str | None) -> tuple[str, ...] | None:
    """The names of `--optimizers`, each once.

    Raises:
        RecipeError: there is no such recipe.
    """
    if optimizers is None:
        return None
    names = tuple(dict.fromkeys(name.strip() for name in optimizers.split(",")))
    for name in names:
        door.recipe(name)
    return names


def _failed(campaign: Campaign, as_json: bool, tensorboard: bool) -> bool:
    """Run a campaign and show its tables; True if any run failed, or any study raised."""
    out = campaign.door.store.root
    with store_errors(), interruptible(out):
        failed = run_campaigns([campaign], as_json)
    if not as_json and not failed:
        failed = show_tables(campaign)
        option = "" if out == DEFAULT_OUT else f" --out {out}"
        text = f"pictures and claims: python -m experiments report{option}"
        console.print(text, soft_wrap=True)
    if tensorboard and not failed:
        _write_tensorboard(campaign)
    return failed


def _show_dry_run(campaign: Campaign, as_json: bool) -> None:
    """Say for each study and in total what would run, and how long it would take."""
    asked: dict[str, dict[str, Run]] = {}
    done: set[str] = set()
    for study in campaign.studies:
        planned, results = campaign.trials(study)
        asked[study.name] = {run.id: run for _, run in planned}
        done |= {item.id for item in results}
    every = {name: run for runs in asked.values() for name, run in runs.items()}
    costs = campaign.estimate([run for name, run in every.items() if name not in done])
    headings = {**asked, "total, shared runs once": every}
    rows = [
        {"study": heading, **_counts(runs, costs, campaign.jobs)}
        for heading, runs in headings.items()
    ]
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    table = RichTable(title="what would run (later stages depend on these)")
    for column in rows[0]:
        table.add_column(column, justify="left" if column == "study" else "right")
    for row in rows:
        table.add_row(*map(str, row.values()))
    console.print(table)


def _counts(runs: Mapping[str, Run], costs: Mapping[str, float], jobs: int) -> dict[str, Any]:
    """Of these runs how many there are, and how long those will take that have a cost."""
    missing = [run for name, run in runs.items() if name in costs]
    return {
        "runs": len(runs),
        "cached": len(runs) - len(missing),
        "to run": len(missing),
        "steps": sum(run.steps for run in missing),
        "seconds": round(sum(costs[run.id] for run in missing) / jobs),
    }


def _write_tensorboard(campaign: Campaign) -> None:
    folder = campaign.door.store.root / "tensorboard"
    with store_errors():
        results = [item for study in campaign.studies for item in campaign.trials(study)[1]]
        count = write_events(results, folder)
    say(f"{count} runs in {folder}")
