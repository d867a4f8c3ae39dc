"""`compare`: optimizers on a task, tuned alike, without a study to write."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spherenorm_experiments.cli._console import FAILED, interruptible, store_errors, usage_errors
from spherenorm_experiments.cli._dry_run import show_dry_run
from spherenorm_experiments.cli._ending import run_and_show
from spherenorm_experiments.cli._options import (
    CORES,
    DEFAULT_OUT,
    AsJson,
    BackendName,
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
from spherenorm_experiments.cli._report import show_page
from spherenorm_experiments.engine import Runner, Store
from spherenorm_experiments.engine.door import Door
from spherenorm_experiments.report.page import sections
from spherenorm_experiments.study import (
    Campaign,
    Comparing,
    Comparison,
    Plan,
    final_seeds,
    parse_names,
    parse_ranges,
    read_requests,
)

__all__ = ["compare"]


def compare(
    task: Annotated[str, typer.Option(help="A task's name, or module:Class for your own.")],
    optimizers: Annotated[
        str, typer.Option(help="Comma-separated: recipe names, or module:function for your own.")
    ],
    search: Annotated[
        list[str],
        typer.Option(
            help="name=low:high of a hyper-parameter, logarithmic; optimizer:name=low:high is that "
            "optimizer's own range; may be repeated."
        ),
    ],
    trials: Annotated[int, typer.Option(help="Points of the search, of each optimizer.")] = 16,
    method: Annotated[
        str, typer.Option(help="halton, grid, or optuna (extra: tune).")
    ] = Comparing.method,
    baseline: Annotated[
        str, typer.Option(help="To which the others are compared.", show_default="the first")
    ] = "",
    margin: Annotated[
        float | None,
        typer.Option(
            help="Mean scores that differ by less are equivalent.",
            show_default="1 for a score in percent, else none",
        ),
    ] = None,
    seeds: Seeds = None,
    tier: Tier = "small",
    device: Device = "cpu",
    jobs: Jobs = CORES,
    backend: BackendName = "local",
    settings: Settings = None,
    epochs: Epochs = None,
    dry_run: DryRun = False,
    workers: Workers = 0,
    processes: Processes = 1,
    parallel: Parallel = "ddp",
    tensorboard: TensorBoard = False,
    time_limit: TimeLimit = None,
    out: Out = DEFAULT_OUT,
    as_json: AsJson = False,
) -> None:
    """Compare optimizers on a task: each is tuned in as many trials, then run on the same seeds.

    The store keeps the comparison as it keeps a study: `resume`, `status`, `report` and `export`
    work on it.
    """
    entries = [*(settings or []), *([] if epochs is None else [f"epochs={epochs}"])]
    with interruptible(out), usage_errors():
        ranges = parse_ranges(search)
        names = parse_names(optimizers)
        request = Comparing(task, names, ranges, trials, method, baseline.strip(), margin)
        study, given = Comparison(request), parse_settings(entries)
        if clash := set(given) & set(request.searched):
            raise ValueError(f"--set {sorted(clash)[0]!r}: --search tunes it")
        require_jobs(jobs)
        require_device(device)
        door = Door(Store(out))
        request.require(door)
        flags = {"workers": workers, "processes": processes, "parallel": parallel}
        runner = Runner(**flags, tensorboard=tensorboard, time_limit=time_limit)  # type: ignore[arg-type]
        plan = Plan(
            tier, None if seeds is None else parse_seeds(seeds), None, device, settings=given
        )
        final_seeds(study, plan)
        tell_many_seeds(seeds)
        campaign = Campaign([study], plan, door, backend, jobs, runner)
        campaign.rehearse()
    if dry_run:
        with usage_errors():
            show_dry_run(campaign, as_json)
        return
    failed = run_and_show(campaign, as_json, tensorboard)
    problems = [] if as_json else _show_page(campaign, study)
    if failed or problems:
        raise typer.Exit(FAILED)


def _show_page(campaign: Campaign, study: Comparison) -> list[str]:
    """Write the page of the comparisons on this task, and say what they claim."""
    store = campaign.door.store
    found = sections(store, read_requests(store)[0], {study.name})
    path: Path = store.root / f"{study.name}.html"
    with store_errors():
        return show_page(found, path)
