"""`run`: the runs of studies, their tables, and what would run."""

from __future__ import annotations

from typing import Annotated

import typer

from spherenorm_experiments.cli._console import FAILED, interruptible, usage_errors
from spherenorm_experiments.cli._dry_run import show_dry_run
from spherenorm_experiments.cli._ending import run_and_show
from spherenorm_experiments.cli._list import list_
from spherenorm_experiments.cli._options import (
    CORES,
    DEFAULT_OUT,
    AsJson,
    BackendName,
    Data,
    Device,
    DryRun,
    Epochs,
    Jobs,
    Out,
    Parallel,
    Processes,
    Seeds,
    Settings,
    TensorBoard,
    Tier,
    TimeLimit,
    Workers,
    parse_seeds,
    parse_settings,
    require_device,
    require_jobs,
    tell_many_seeds,
)
from spherenorm_experiments.engine import Runner, Store
from spherenorm_experiments.engine.door import Door
from spherenorm_experiments.paper.shared.layout import use_folder
from spherenorm_experiments.study import (
    Campaign,
    Plan,
    Study,
    find_study,
    parse_names,
    study_classes,
)

__all__ = ["run"]


def run(
    studies: Annotated[
        list[str] | None, typer.Argument(help="Which studies; all of them by default.")
    ] = None,
    optimizers: Annotated[
        str | None,
        typer.Option(help="Comma-separated: recipe names, or module:function for your own."),
    ] = None,
    seeds: Seeds = None,
    tier: Tier = "small",
    device: Device = "cpu",
    data: Data = None,
    jobs: Jobs = CORES,
    backend: BackendName = "local",
    settings: Settings = None,
    dry_run: DryRun = False,
    epochs: Epochs = None,
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
    with interruptible(out), usage_errors():
        door = Door(Store(out))
        real = data is not None
        chosen = _chosen(studies, real)
        recipes = _known_recipes(door, optimizers)
        require_jobs(jobs)
        require_device(device)
        if data is not None:
            use_folder(data)
        flags = {"workers": workers, "processes": processes, "parallel": parallel}
        runner = Runner(**flags, tensorboard=tensorboard, time_limit=time_limit)  # type: ignore[arg-type]
        asked = None if seeds is None else parse_seeds(seeds)
        tell_many_seeds(seeds)
        plan = Plan(tier, asked, recipes, device, real, parse_settings(entries))
        campaign = Campaign(chosen, plan, door, backend, jobs, runner)
        campaign.rehearse()
    if dry_run:
        with usage_errors():
            show_dry_run(campaign, as_json)
    elif run_and_show(campaign, as_json, tensorboard):
        raise typer.Exit(FAILED)


def _chosen(studies: list[str] | None, real: bool) -> list[Study]:
    """The studies by name; all of them by default, with `--data` those that read its folder.

    Raises:
        ValueError: an unknown study, or with `--data` one that has no runs on the paper's data.
    """
    if not studies:
        known = map(find_study, study_classes())
        return [study for study in known if study.has_real or not real]
    chosen = [find_study(name) for name in dict.fromkeys(studies)]
    for study in chosen:
        if real and not study.has_real:
            raise ValueError(f"--data: study {study.name!r} has no runs on the paper's data sets")
    return chosen


def _known_recipes(door: Door, optimizers: str | None) -> tuple[str, ...] | None:
    """The names of `--optimizers`, each once.

    Raises:
        ValueError: an empty name, or one of no recipe.
    """
    if optimizers is None:
        return None
    names = tuple(dict.fromkeys(parse_names(optimizers)))
    for name in names:
        door.recipe(name)
    return names
