"""`run`, `compare` and `resume`: studies brought to their ends, and what would run."""

from __future__ import annotations

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
    Data,
    Execution,
    Request,
    existing_store,
    parse_seeds,
    require_device,
    tell_many_seeds,
    with_fields,
)
from spherenorm_experiments.cli._report import show_page
from spherenorm_experiments.files import StoreError

if TYPE_CHECKING:
    from spherenorm_experiments.engine import Run
    from spherenorm_experiments.study import Campaign, Study

TOTAL = "total, shared runs once"


@with_fields
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
    data: Data = None,
    *,
    asked: Request,
) -> None:
    """Run studies and print their tables.

    What has finished is not run again; what was interrupted goes on where it stood.
    """
    from spherenorm_experiments.cli._progress import run_and_show
    from spherenorm_experiments.engine import Store
    from spherenorm_experiments.engine.door import Door
    from spherenorm_experiments.paper.shared.layout import use_folder
    from spherenorm_experiments.study import Campaign, Plan, parse_overrides, parse_ranges

    with interruptible(asked.out), usage_errors():
        real = data is not None
        chosen = _chosen(studies, real)
        recipes = _known_recipes(optimizers)
        require_device(asked.device)
        if data is not None:
            use_folder(data)
        plan = Plan(
            asked.tier,
            _seeds_of(asked),
            recipes,
            asked.device,
            real,
            parse_overrides(asked.entries),
            parse_ranges(search) if search else {},
            like,
        )
        door = Door(Store(asked.out))
        campaign = Campaign(chosen, plan, door, asked.backend, asked.jobs, asked.runner)
        campaign.rehearse()
    if asked.dry_run:
        with usage_errors():
            _show_dry_run(campaign, asked.as_json)
    elif run_and_show(campaign, asked.as_json):
        raise typer.Exit(FAILED)


def _seeds_of(asked: Request) -> tuple[int, ...] | None:
    """The seeds of a command; None for the study's own."""
    seeds = None if asked.seeds is None else parse_seeds(asked.seeds)
    tell_many_seeds(asked.seeds)
    return seeds


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


def _known_recipes(optimizers: str | None) -> tuple[str, ...] | None:
    """The names of `--optimizers`, each once.

    Raises:
        ValueError: an empty name, or one of no recipe.
    """
    from spherenorm_experiments.core import load_recipe
    from spherenorm_experiments.study import parse_names

    if optimizers is None:
        return None
    names = tuple(dict.fromkeys(parse_names(optimizers)))
    for name in names:
        load_recipe(name)
    return names


@with_fields
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
    *,
    asked: Request,
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

    with interruptible(asked.out), usage_errors():
        ranges = parse_ranges(search)
        names = parse_names(optimizers)
        given = parse_overrides(asked.entries)
        own = {name: given.pop(name) for name in list(given) if ":" in name}
        request = Comparing(task, names, ranges, trials, method, baseline.strip(), margin, own)
        study = comparison_of(request)
        if clash := set(given) & set(request.searched):
            raise ValueError(f"--set {sorted(clash)[0]!r}: --search tunes it")
        require_device(asked.device)
        request.require()
        plan = Plan(asked.tier, _seeds_of(asked), None, asked.device, overrides=given)
        door = Door(Store(asked.out))
        campaign = Campaign([study], plan, door, asked.backend, asked.jobs, asked.runner)
        campaign.rehearse()
        differences = [] if asked.as_json else study.differences(plan)
    for line in differences:
        typer.echo(f"differs  {line}")
    if asked.dry_run:
        with usage_errors():
            _show_dry_run(campaign, asked.as_json)
        return
    failed = run_and_show(campaign, asked.as_json)
    problems = [] if asked.as_json else _show_page(campaign, study)
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


@with_fields
def resume(*, how: Execution) -> None:
    """Finish everything that was ever asked of the store."""
    from spherenorm.support import one_line
    from spherenorm_experiments.cli._progress import run_campaigns
    from spherenorm_experiments.engine import find_backend
    from spherenorm_experiments.engine.door import Door
    from spherenorm_experiments.study import Campaign, find_study, read_requests

    with usage_errors():
        find_backend(how.backend)
        runner, store = how.runner, existing_store(how.out)
    requests, unusable = read_requests(store)
    left = tell_unusable(unusable)
    door = Door(store)
    campaigns = []
    with store_errors(), interruptible(how.out):
        for request in requests:
            try:
                studies = [find_study(name) for name in request.studies]
                campaign = Campaign(studies, request.plan, door, how.backend, how.jobs, runner)
                campaign.rehearse()
                campaigns.append(campaign)
            except StoreError:
                raise
            except (Exception, SystemExit) as error:  # a user's study or recipe may raise anything
                left = True
                say_error(f"{', '.join(request.studies)} cannot go on here: {one_line(error)}")
        failed = run_campaigns(campaigns, how.as_json)
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
