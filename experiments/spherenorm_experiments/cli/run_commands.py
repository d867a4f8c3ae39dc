"""`run`, `compare` and `resume`: studies brought to their ends, and what would run."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskProgressColumn, TextColumn
from rich.text import Text

from spherenorm.support import one_line
from spherenorm_experiments.cli.look import show_page
from spherenorm_experiments.cli.options import (
    DEFAULT_OUT,
    FAILED,
    NOTE,
    Data,
    Execution,
    Request,
    Studies,
    answer,
    as_text,
    console,
    errors,
    existing_store,
    flag,
    say,
    say_error,
    with_fields,
)
from spherenorm_experiments.store import Store, StoreError

if TYPE_CHECKING:
    from spherenorm_experiments.campaign import Campaign
    from spherenorm_experiments.plan import Plan
    from spherenorm_experiments.run import Job, Outcome
    from spherenorm_experiments.study import Study

TOTAL = "total, shared runs once"

SILENCE_S, POLL_S = 10.0, 0.5
"""Output that is no terminal hears how far the runs are at least this often; and how often it is
looked up."""

STARTING = "starting workers and first runs"
"""What goes on until a run has ended: each worker imports torch, and the task reads its data."""


@with_fields
def run(
    studies: Studies = None,
    data: Data = None,
    *,
    options: Request,
) -> None:
    """Run studies and print their tables.

    What has finished is not run again; what was interrupted goes on where it stood.
    """
    from spherenorm_experiments.comparison import find_study, study_classes
    from spherenorm_experiments.lookup import use_folder

    chosen = [find_study(name) for name in dict.fromkeys(studies or study_classes())]
    if data is not None:
        for study in chosen if studies else ():
            if not study.uses_paper_data:
                lack = "has no runs on the paper's data sets"
                raise ValueError(f"--data: study {study.name!r} {lack}")
        chosen = [study for study in chosen if study.uses_paper_data]
        use_folder(data)
    campaign = _campaign(chosen, _plan(options, real=data is not None), options)
    for study in chosen:
        for part, reason in study.exclusions(campaign.plan).items():
            say_error(f"{study.name} leaves out {part}, {reason}", NOTE)
    if options.dry_run:
        return _show_dry_run(campaign, options.as_json)
    failed = _ran([campaign], options.as_json)
    if not options.as_json and not failed:
        failed = _show_outcome(campaign, options)
    if failed:
        raise typer.Exit(FAILED)


@with_fields
def compare(
    task: Annotated[str, flag("A task's name, or module:Class for your own.")],
    optimizers: Annotated[
        str, flag("Comma-separated: recipe names, or module:function for your own.")
    ],
    search: Annotated[
        list[str],
        flag(
            "name=low:high of a hyper-parameter, logarithmic; optimizer:name=low:high is that "
            "optimizer's own range; may be repeated."
        ),
    ],
    trials: Annotated[int, flag("Points of the search, of each optimizer.")] = 8,
    baseline: Annotated[str, flag("To which the others are compared; the first by default.")] = "",
    margin: Annotated[
        float | None,
        flag(
            "Mean scores that differ by less are equivalent; by default 1 for a score in percent."
        ),
    ] = None,
    target: Annotated[
        str | None,
        flag("metric=value, such as loss=2.1: the steps to it are compared beside the score."),
    ] = None,
    sizes: Annotated[
        str | None, flag("option=size,size of the task, such as width=16,32: compare at each.")
    ] = None,
    data: Annotated[
        Path | None,
        flag(
            "The folder of all data sets, if the task reads one. SPHERENORM_DATA does the same for "
            "`resume`."
        ),
    ] = None,
    *,
    options: Request,
) -> None:
    """Compare optimizers on a task: each is tuned in as many trials, then run on the same seeds.

    The store keeps the comparison as it keeps a study: `resume`, `status`, `report` and `export`
    work on it.
    """
    from spherenorm_experiments.comparison import CompareRequest, build_comparison
    from spherenorm_experiments.lookup import use_folder
    from spherenorm_experiments.plan import SETTABLE, split_owners

    if data is not None:
        use_folder(data)
    plan = _plan(options)
    overrides = dict(plan.overrides)
    own_values = {
        f"{owner}:{name}": overrides.pop(f"{owner}:{name}")
        for owner, name in split_owners(plan.overrides)
        if owner and name not in SETTABLE
    }
    for own_name, value in own_values.items():
        if own_name.rpartition(":")[2] in overrides:  # which a plan gives to all that have none
            overrides[own_name] = value
    words: dict[str, Any] = {"task": task, "optimizers": optimizers, "search": search}
    words |= {"trials": trials, "baseline": baseline.strip(), "margin": margin, "fixed": own_values}
    words |= {"target": target, "sizes": sizes}
    request = CompareRequest.model_validate(words)
    study = build_comparison(request)
    tuned = {name for arm in study.arms for name in study.search(arm).names}
    if clash := sorted({*overrides} & tuned):
        raise ValueError(f"--set {clash[0]!r}: --search tunes it")
    request.require()
    campaign = _campaign([study], replace(plan, overrides=overrides), options)
    if options.dry_run:
        return _show_dry_run(campaign, options.as_json)
    failed = _ran([campaign], options.as_json)
    if not options.as_json:
        failed |= _show_page_of(study, campaign.resolver.store)
    if failed:
        raise typer.Exit(FAILED)


@with_fields
def resume(*, options: Execution) -> None:
    """Finish everything that was ever asked of the store."""
    from spherenorm_experiments.comparison import COMMAND, find_study
    from spherenorm_experiments.execute import Resolver
    from spherenorm_experiments.jobs import find_backend
    from spherenorm_experiments.plan import read_requests

    find_backend(options.backend)
    _ = options.runner
    requests, unusable = read_requests(existing_store(options.out))
    for name, text in unusable.items():
        say_error(f"plans/{name}: {text}")
    incomplete, campaigns, resolver = (
        bool(unusable),
        [],
        Resolver(Store(options.out, options.accept_code)),
    )
    for request in requests:
        try:
            studies = [find_study(name) for name in request.studies]
            campaigns.append(_campaign(studies, request.plan, options, resolver))
        except StoreError:
            raise
        except (Exception, SystemExit) as error:  # a user's study or recipe may raise anything
            incomplete = True
            say_error(f"{', '.join(request.studies)} cannot go on here: {one_line(error)}")
    failed = _ran(campaigns, options.as_json)
    if not options.as_json:
        studies_asked = [study for campaign in campaigns for study in campaign.studies]
        compared = {x.name: x for x in studies_asked if x.lookup_name.startswith(f"{COMMAND} ")}
        for study in compared.values():
            failed |= _show_page_of(study, resolver.store)
        if len(compared) < len({study.name for study in studies_asked}):
            say("tables and a page of them: spherenorm report")
    if failed or incomplete:
        raise typer.Exit(FAILED)


def _show_page_of(study: Study, store: Store) -> bool:
    """Say what came out of a study and write its page; return True if a part of it raised."""
    from spherenorm_experiments.plan import read_requests
    from spherenorm_experiments.report import sections

    study_sections = sections(store, read_requests(store)[0], {study.name})
    page = store.root / f"{study.name}.html"
    return bool(show_page(study_sections, page, failures_are_said=True))


def _plan(options: Request, *, real: bool = False) -> Plan:
    """Return the plan of a command, whose device is tried.

    Raises:
        ValueError: an option is wrong, or the device cannot be used.
    """
    import torch

    from spherenorm_experiments.comparison import parse_overrides, parse_seeds
    from spherenorm_experiments.plan import Plan

    try:
        torch.zeros(1, device=options.device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            f"--device {options.device!r} cannot be used: {str(error).splitlines()[0]}"
        ) from None
    seeds = None if options.seeds is None else parse_seeds(options.seeds)
    overrides = parse_overrides(options.settings or [])
    overrides |= {} if options.epochs is None else {"epochs": options.epochs}
    return Plan(options.tier, seeds, options.device, real, overrides)


def _campaign(
    studies: Sequence[Study], plan: Plan, options: Execution, resolver: Any = None
) -> Campaign:
    """Return the campaign, whose first runs are looked up."""
    from spherenorm_experiments.campaign import Campaign
    from spherenorm_experiments.execute import Resolver

    resolver = resolver or Resolver(Store(options.out, options.accept_code))
    campaign = Campaign(studies, plan, resolver, options.backend, options.jobs, options.runner)
    campaign.require()
    return campaign


def _ran(campaigns: Sequence[Campaign], as_json: bool) -> bool:
    """Run campaigns one after the other with their progress shown, and say how it went.

    Returns:
        True if any run failed, or any study raised.
    """
    from spherenorm_experiments.campaign import StudyError

    results: dict[str, set[str]] = {}
    outcomes: dict[str, Outcome] = {}
    raised = False
    for campaign in campaigns:
        try:
            with _show_progress(as_json) as progress:
                outcomes |= campaign.run(progress)
            for study in campaign.studies:
                ended = {item.name for item in campaign.trials(study)[1]}
                results.setdefault(study.name, set()).update(ended)
        except StudyError as error:  # in a later round: what has ended is in the store
            raised = True
            say_error(str(error))
    failed = {
        name: outcome.error for name, outcome in outcomes.items() if outcome.state == "failed"
    }
    ran = sum(outcome.runs for outcome in outcomes.values() if not outcome.cached)
    diverged = sum(outcome.state == "diverged" for outcome in outcomes.values())
    total = {name: len(names) for name, names in results.items()}
    if as_json:
        answer({"studies": total, "ran": ran, "diverged": diverged, "failed": failed})
    else:
        text = f"{ran} runs now, {sum(total.values())} results"
        say(f"{text}; {diverged} diverged, {len(failed)} failed")
    return bool(failed) or raised


@contextmanager
def _show_progress(as_json: bool) -> Iterator[Any]:
    """Show a bar on a terminal while runs train, lines elsewhere; name a failed run at once."""
    columns = TextColumn("{task.completed:.0f} of {task.total:.0f} runs"), BarColumn(40)
    visible = errors.is_terminal and not as_json
    bar = Progress(
        *columns, TaskProgressColumn(), _TimeColumn(), console=errors,
        disable=not visible, transient=True,
    )  # fmt: skip
    with bar:
        line = bar.add_task("", total=0, visible=False)
        task = bar.tasks[0]
        lines = nullcontext() if errors.is_terminal or as_json else _print_lines(task)

        def progress(total: int, job: Job | None, outcome: Outcome | None) -> None:
            if job is None or outcome is None:
                bar.reset(line, total=total, visible=True)
                return
            bar.advance(line, len(job.runs))
            if outcome.state == "failed":
                say_error(f" {_place(job)}: {outcome.error}", "[red]failed[/red]")

        with lines:
            yield progress


@contextmanager
def _print_lines(task: Task) -> Iterator[None]:
    """Print how far the runs are, at each tenth of them and after each `SILENCE_S`."""
    ended, began = threading.Event(), time.monotonic()

    def print_lines() -> None:
        last_tenth, last_time = 0, began
        while not ended.wait(POLL_S):
            tenth, now = _tenths(task), time.monotonic()
            if tenth != last_tenth or now - last_time >= SILENCE_S:
                last_tenth, last_time = tenth, now
                counts = f"{task.completed:.0f} of {task.total:.0f} runs"
                parts = [counts, _time_left(task), f"{now - began:.0f} s so far"]
                say_error(", ".join(filter(None, parts)), "")

    thread = threading.Thread(target=print_lines, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _tenths(task: Task) -> int:
    """Return how many tenths of a round's runs have ended."""
    return int(10 * task.completed / max(1, task.total or 0))


def _time_left(task: Task) -> str:
    """Return the time that is left, by the pace of the whole round; "" as long as it says little.

    Time since the last run that ended counts, too, so that the estimate of a round that stands
    still rises. Runs end in bursts, several workers at a time: the first tenth has no pace.
    """
    done, total, elapsed = task.completed, task.total or 0, task.elapsed or 0.0
    if not done:
        return STARTING if total else ""
    if 10 * done < total or done >= total:
        return ""
    seconds = elapsed / done * (total - done)
    return f"{seconds:.0f} s left" if seconds < 90 else f"{seconds / 60:.0f} min left"


class _TimeColumn(ProgressColumn):
    """What `_time_left` says, in a bar."""

    def render(self, task: Task) -> Text:
        return Text(_time_left(task))


def _place(job: Job) -> str:
    """Return a job in words."""
    spec = job.first.spec
    values = ", ".join(
        f"{name} {value:.6g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in spec.hyper_parameters.items()
    )
    many = f", {len(job.runs)} runs" if len(job.runs) > 1 else f", seed {spec.seed}"
    return f"{spec.recipe} on {spec.task} ({values}{many})"


def _show_outcome(campaign: Campaign, options: Request) -> bool:
    """Print the summary of each study and write its page, or else print its first table.

    Returns:
        True if any study raised.
    """
    raised = has_tables = False
    for study in campaign.studies:
        try:
            runs = campaign.trials(study)[1]
            if study.summary(runs, study.decide_claims(runs)):
                raised |= _show_page_of(study, campaign.resolver.store)
                continue
            has_tables = True
            for table in study.tables(runs)[:1]:
                console.print(as_text(table, f"{study.name}: {table.title}"))
        except Exception as error:  # the other studies' tables are still to be shown
            raised = True
            say_error(f"{study.name}: no tables: {one_line(error)}")
    if has_tables:
        option = "" if options.out == DEFAULT_OUT else f" --out {options.out}"
        say(f"pictures and claims: spherenorm report{option}")
    return raised


def _show_dry_run(campaign: Campaign, as_json: bool) -> None:
    """Say for each study and in total what would run, and how long it would take."""
    from spherenorm_experiments.campaign import estimate
    from spherenorm_experiments.tables import Table

    trials_by_study = {study.name: campaign.trials(study)[0] for study in campaign.studies}
    runs_by_study = {
        name: {run.name: run for _, run in planned} for name, planned in trials_by_study.items()
    }
    missing_by_study = {
        x.name: {run.name: run for run in campaign.missing_runs(x)} for x in campaign.studies
    }
    runs_by_study[TOTAL] = {
        name: run for runs in runs_by_study.values() for name, run in runs.items()
    }
    missing_by_study[TOTAL] = {
        name: run for runs in missing_by_study.values() for name, run in runs.items()
    }
    hours = "core hours" if campaign.plan.device == "cpu" else "GPU hours"
    rows: list[dict[str, Any]] = []
    for name, runs in missing_by_study.items():
        missing, count = list(runs.values()), len(runs_by_study[name])
        seconds = sum(estimate(campaign.resolver.store, missing).values())
        row = {"study": name, "runs": count, "cached": count - len(runs), "to run": len(runs)}
        row["steps"] = sum(run.steps for run in missing)
        row["seconds"] = round(seconds / max(1, campaign.jobs))
        rows.append({**row, hours: round(seconds / 3600, 2)})
    if as_json:
        return answer(rows)
    cells = [[str(value) for value in row.values()] for row in rows]
    table = Table("what would run (later stages depend on these)", [*rows[0]], cells)
    console.print(as_text(table, table.title))
