"""`run`, `compare` and `resume`: studies brought to their ends, and what would run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table as RichTable

from spherenorm_experiments.cli._console import (
    FAILED,
    answer,
    console,
    interruptible,
    say_error,
    store_errors,
    tell_unusable,
    usage_errors,
)
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
    existing_store,
    parse_seeds,
    require_device,
    tell_many_seeds,
)
from spherenorm_experiments.cli._report import show_page
from spherenorm_experiments.files import StoreError

if TYPE_CHECKING:
    from spherenorm_experiments.engine import Run, Runner
    from spherenorm_experiments.engine.door import Door
    from spherenorm_experiments.study import Campaign, Study

TOTAL = "total, shared runs once"


def run(
    studies: Annotated[
        list[str] | None, typer.Argument(help="Which studies; all of them by default.")
    ] = None,
    optimizers: Annotated[
        str | None,
        typer.Option(
            help="Contenders that tuned comparisons have beside their own, comma-separated: recipe "
            "names, or module:function; each needs --search or --like."
        ),
    ] = None,
    search: Annotated[
        list[str] | None,
        typer.Option(
            help="name=low:high, the logarithmic range in which --optimizers are tuned; "
            "optimizer:name=low:high is that optimizer's own; may be repeated."
        ),
    ] = None,
    like: Annotated[
        str, typer.Option(help="The contender as which --optimizers without a range are searched.")
    ] = "",
    seeds: Seeds = None,
    tier: Tier = "small",
    device: Device = "cpu",
    data: Data = None,
    jobs: Jobs = CORES,
    backend: BackendName = "local",
    settings: Settings = None,
    dry_run: DryRun = False,
    epochs: Epochs = None,
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
    from spherenorm_experiments.cli._progress import run_and_show
    from spherenorm_experiments.engine import Store
    from spherenorm_experiments.engine.door import Door
    from spherenorm_experiments.paper.shared.layout import use_folder
    from spherenorm_experiments.study import Campaign, Plan, parse_overrides, parse_ranges

    entries = _entries(settings, epochs)
    with interruptible(out), usage_errors():
        door = Door(Store(out))
        real = data is not None
        chosen = _chosen(studies, real)
        recipes = _known_recipes(door, optimizers)
        require_device(device)
        if data is not None:
            use_folder(data)
        runner = _runner(workers, processes, parallel, tensorboard, time_limit)
        asked = None if seeds is None else parse_seeds(seeds)
        tell_many_seeds(seeds)
        ranges = parse_ranges(search) if search else {}
        plan = Plan(tier, asked, recipes, device, real, parse_overrides(entries), ranges, like)
        campaign = Campaign(chosen, plan, door, backend, jobs, runner)
        campaign.rehearse()
    if dry_run:
        with usage_errors():
            _show_dry_run(campaign, as_json)
    elif run_and_show(campaign, as_json):
        raise typer.Exit(FAILED)


def _chosen(studies: list[str] | None, real: bool) -> list[Study]:
    """The studies by name; all of them by default, with `--data` those that read its folder.

    Raises:
        ValueError: an unknown study, or with `--data` one that has no runs on the paper's data.
    """
    from spherenorm_experiments.study import find_study, study_classes

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
    from spherenorm_experiments.study import parse_names

    if optimizers is None:
        return None
    names = tuple(dict.fromkeys(parse_names(optimizers)))
    for name in names:
        door.recipe(name)
    return names


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
    trials: Annotated[int, typer.Option(help="Points of the search, of each optimizer.")] = 8,
    method: Annotated[str, typer.Option(help="halton or grid.")] = "halton",
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
    from spherenorm_experiments.cli._progress import run_and_show
    from spherenorm_experiments.engine import Store
    from spherenorm_experiments.engine.door import Door
    from spherenorm_experiments.study import (
        Campaign,
        Comparing,
        Plan,
        comparison_of,
        parse_names,
        parse_overrides,
        parse_ranges,
    )

    entries = _entries(settings, epochs)
    with interruptible(out), usage_errors():
        ranges = parse_ranges(search)
        names = parse_names(optimizers)
        given = parse_overrides(entries)
        own = {name: given.pop(name) for name in list(given) if ":" in name}
        request = Comparing(task, names, ranges, trials, method, baseline.strip(), margin, own)
        study = comparison_of(request)
        if clash := set(given) & set(request.searched):
            raise ValueError(f"--set {sorted(clash)[0]!r}: --search tunes it")
        require_device(device)
        door = Door(Store(out))
        request.require(door)
        runner = _runner(workers, processes, parallel, tensorboard, time_limit)
        plan = Plan(
            tier, None if seeds is None else parse_seeds(seeds), None, device, overrides=given
        )
        tell_many_seeds(seeds)
        campaign = Campaign([study], plan, door, backend, jobs, runner)
        campaign.rehearse()
        differences = [] if as_json else study.differences(plan)
    for line in differences:
        typer.echo(f"differs  {line}")
    if dry_run:
        with usage_errors():
            _show_dry_run(campaign, as_json)
        return
    failed = run_and_show(campaign, as_json)
    problems = [] if as_json else _show_page(campaign, study)
    if failed or problems:
        raise typer.Exit(FAILED)


def _show_page(campaign: Campaign, study: Study) -> list[str]:
    """Write the page of the comparisons on this task, and say what they claim."""
    from spherenorm_experiments.report.page import sections
    from spherenorm_experiments.study import read_requests

    store = campaign.door.store
    found = sections(store, read_requests(store)[0], {study.name})
    path: Path = store.root / f"{study.name}.html"
    with store_errors():
        return show_page(found, path)


def resume(
    jobs: Jobs = CORES,
    backend: BackendName = "local",
    workers: Workers = 0,
    processes: Processes = 1,
    parallel: Parallel = "ddp",
    tensorboard: TensorBoard = False,
    time_limit: TimeLimit = None,
    out: Out = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Finish everything that was ever asked of the store."""
    from spherenorm.support import one_line
    from spherenorm_experiments.cli._progress import run_campaigns
    from spherenorm_experiments.engine import find_backend
    from spherenorm_experiments.engine.door import Door
    from spherenorm_experiments.study import Campaign, find_study, read_requests

    with usage_errors():
        find_backend(backend)
        runner = _runner(workers, processes, parallel, tensorboard, time_limit)
        store = existing_store(out)
    requests, unusable = read_requests(store)
    left = tell_unusable(unusable)
    door = Door(store)
    campaigns = []
    with store_errors(), interruptible(out):
        for request in requests:
            try:
                studies = [find_study(name) for name in request.studies]
                campaign = Campaign(studies, request.plan, door, backend, jobs, runner)
                campaign.rehearse()
                campaigns.append(campaign)
            except StoreError:
                raise
            except (Exception, SystemExit) as error:  # a user's study or recipe may raise anything
                left = True
                say_error(f"{', '.join(request.studies)} cannot go on here: {one_line(error)}")
        failed = run_campaigns(campaigns, as_json)
    if failed or left:
        raise typer.Exit(FAILED)


def _show_dry_run(campaign: Campaign, as_json: bool) -> None:
    """Say for each study and in total what would run, and how long it would take.

    In the full tier and on the paper's data a few steps of each kind of run are timed on the device
    that is asked for, so that its hours are measured before the first run.
    """
    from spherenorm_experiments.study import estimate, time_steps

    asked: dict[str, set[str]] = {}
    left: dict[str, list[Run]] = {}
    total: list[Run] = []
    taken: set[str] = set()
    for study in campaign.studies:
        planned, results = campaign.trials(study)
        asked[study.name] = {name for _, run in planned for name in run.rows}
        left[study.name] = campaign.lacking(planned, results, set())
        total += campaign.lacking(planned, results, taken)
    asked[TOTAL], left[TOTAL] = set().union(*asked.values()), total
    long = campaign.plan.tier == "full" or campaign.plan.real
    timed = time_steps(total) if long and not campaign.runner.distributed else {}
    every = [run for runs in left.values() for run in runs]
    costs = estimate(campaign.door.store, every, timed)
    hours = "core hours" if campaign.plan.device == "cpu" else "GPU hours"
    rows = []
    for heading, runs in left.items():
        count, missing = len(asked[heading]), sum(len(run.rows) for run in runs)
        row = {"study": heading, "runs": count, "cached": count - missing, "to run": missing}
        row["steps"] = sum(run.steps * len(run.rows) for run in runs)
        seconds = sum(costs[run.id] for run in runs)
        row |= {"seconds": round(seconds / campaign.jobs), hours: round(seconds / 3600, 2)}
        rows.append(row)
    if as_json:
        answer(rows)
        return
    table = RichTable(title="what would run (later stages depend on these)")
    for column in rows[0]:
        table.add_column(column, justify="left" if column == "study" else "right")
    for row in rows:
        table.add_row(*map(str, row.values()))
    console.print(table)


def _entries(settings: Sequence[str] | None, epochs: int | None) -> list[str]:
    """The entries of --set, with --epochs as one of them."""
    return [*(settings or []), *([] if epochs is None else [f"epochs={epochs}"])]


def _runner(
    workers: int, processes: int, parallel: str, tensorboard: bool, time_limit: float | None
) -> Runner:
    from spherenorm_experiments.engine import Runner

    return Runner(
        workers=workers,
        processes=processes,
        parallel=parallel,
        tensorboard=tensorboard,
        time_limit=time_limit,
    )
