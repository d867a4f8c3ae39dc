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
    say,
    say_error,
    store_errors,
    tell_unusable,
    usage_errors,
)
from spherenorm_experiments.cli._options import (
    DEFAULT_OUT,
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
from spherenorm_experiments.store import StoreError

if TYPE_CHECKING:
    from spherenorm_experiments.campaign import Campaign
    from spherenorm_experiments.run import Run
    from spherenorm_experiments.study import Study

TOTAL = "total, shared runs once"


@with_fields
def run(
    studies: Annotated[
        list[str] | None, typer.Argument(help="Which studies; all of them by default.")
    ] = None,
    optimizers: Annotated[
        str | None,
        typer.Option(
            help="Optimizers that comparisons have beside their own, comma-separated: recipe "
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
        str, typer.Option(help="The optimizer as which --optimizers without a range are searched.")
    ] = "",
    data: Data = None,
    *,
    asked: Request,
) -> None:
    """Run studies and print their tables.

    What has finished is not run again; what was interrupted goes on where it stood.
    """
    from spherenorm_experiments.campaign import Campaign
    from spherenorm_experiments.comparing import parse_overrides, parse_ranges
    from spherenorm_experiments.paper.shared.layout import use_folder
    from spherenorm_experiments.plan import Plan

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
        campaign = Campaign(chosen, plan, asked.resolver, asked.backend, asked.jobs, asked.runner)
        campaign.require()
    if asked.dry_run:
        with usage_errors():
            _show_dry_run(campaign, asked.as_json)
        return
    failed = _ran(campaign, asked.as_json, asked.out)
    if not asked.as_json and not failed:
        failed = _show_tables(campaign)
        option = "" if asked.out == DEFAULT_OUT else f" --out {asked.out}"
        say(f"pictures and claims: spherenorm report{option}")
    if failed:
        raise typer.Exit(FAILED)


def _ran(campaign: Campaign, as_json: bool, out: Path) -> bool:
    from spherenorm_experiments.cli._progress import run_campaigns

    with store_errors(), interruptible(out):
        return run_campaigns([campaign], as_json)


def _show_tables(campaign: Campaign) -> bool:
    """Print the first table of each study; True if any study raised."""
    from spherenorm.support import one_line
    from spherenorm_experiments.cli._progress import as_text

    raised = False
    for study in campaign.studies:
        try:
            tables = study.tables(campaign.trials(study)[1])
        except Exception as error:  # the other studies' tables are still to be shown
            raised, tables = True, []
            say_error(f"{study.name}: no tables: {one_line(error)}")
        for table in tables[:1]:
            console.print(as_text(table, f"{study.name}: {table.title}"))
    return raised


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
    from spherenorm_experiments.comparing import find_study, study_classes

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
    from spherenorm_experiments.comparing import parse_names
    from spherenorm_experiments.recipes import load_recipe

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
    from spherenorm_experiments.campaign import Campaign
    from spherenorm_experiments.comparing import (
        Comparing,
        comparison_of,
        parse_names,
        parse_overrides,
        parse_ranges,
    )
    from spherenorm_experiments.plan import Plan

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
        campaign = Campaign([study], plan, asked.resolver, asked.backend, asked.jobs, asked.runner)
        campaign.require()
    if asked.dry_run:
        with usage_errors():
            _show_dry_run(campaign, asked.as_json)
        return
    failed = _ran(campaign, asked.as_json, asked.out)
    problems = [] if asked.as_json else _show_page(campaign, study)
    if failed or problems:
        raise typer.Exit(FAILED)


def _show_page(campaign: Campaign, study: Study) -> list[str]:
    """Write the page of the comparison, and say in a table and a few sentences what it shows."""
    from spherenorm_experiments.plan import read_requests
    from spherenorm_experiments.sections import sections

    store = campaign.resolver.store
    found = sections(store, read_requests(store)[0], {study.name})
    with store_errors():
        return show_page(found, store.root / f"{study.name}.html")


@with_fields
def resume(*, how: Execution) -> None:
    """Finish everything that was ever asked of the store."""
    from spherenorm.support import one_line
    from spherenorm_experiments.campaign import Campaign
    from spherenorm_experiments.cli._progress import run_campaigns
    from spherenorm_experiments.comparing import find_study
    from spherenorm_experiments.jobs import find_backend
    from spherenorm_experiments.plan import read_requests

    with usage_errors():
        find_backend(how.backend)
        runner, store = how.runner, existing_store(how.out)
    requests, unusable = read_requests(store)
    left = tell_unusable(unusable)
    resolver = how.resolver
    campaigns = []
    with store_errors(), interruptible(how.out):
        for request in requests:
            try:
                studies = [find_study(name) for name in request.studies]
                campaign = Campaign(studies, request.plan, resolver, how.backend, how.jobs, runner)
                campaign.require()
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
    """Say for each study and in total what would run, and how long it would take."""
    from spherenorm_experiments.campaign import estimate

    asked: dict[str, set[str]] = {}
    left: dict[str, list[Run]] = {}
    for study in campaign.studies:
        asked[study.name] = {run.name for _, run in campaign.trials(study)[0]}
        left[study.name] = campaign.lacking(study)
    asked[TOTAL] = set().union(*asked.values())
    left[TOTAL] = [*{run.name: run for runs in left.values() for run in runs}.values()]
    hours = "core hours" if campaign.plan.device == "cpu" else "GPU hours"
    rows = []
    for heading, runs in left.items():
        count, seconds = len(asked[heading]), sum(estimate(campaign.resolver.store, runs).values())
        row = {"study": heading, "runs": count, "cached": count - len(runs), "to run": len(runs)}
        row["steps"] = sum(run.steps for run in runs)
        row |= {"seconds": round(seconds / max(1, campaign.jobs)), hours: round(seconds / 3600, 2)}
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
