"""Campaigns with their progress shown, how they went, and their tables."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from rich import box
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table as RichTable

from spherenorm.support import one_line
from spherenorm_experiments.analysis import Table
from spherenorm_experiments.cli._console import (
    answer,
    console,
    interruptible,
    say_error,
    store_errors,
)
from spherenorm_experiments.cli._options import DEFAULT_OUT
from spherenorm_experiments.cli._stored import (
    duration,
    last_values,
    progress_line,
    progress_of_runs,
)
from spherenorm_experiments.engine import Outcome, Run, Store
from spherenorm_experiments.report.page import Section
from spherenorm_experiments.study import Campaign, StudyError

SECONDS_BETWEEN_LINES = 10
SECONDS_BETWEEN_LOOKS = 1.0


def run_and_show(campaign: Campaign, as_json: bool) -> bool:
    """Run a campaign and show its tables; True if any run failed, or any study raised."""
    out = campaign.door.store.root
    with store_errors(), interruptible(out):
        failed = run_campaigns([campaign], as_json)
    if not as_json and not failed:
        failed = _show_tables(campaign)
        option = "" if out == DEFAULT_OUT else f" --out {out}"
        text = f"pictures and claims: spherenorm report{option}"
        console.print(text, soft_wrap=True)
    return failed


def run_campaigns(campaigns: Sequence[Campaign], as_json: bool) -> bool:
    """Run campaigns one after the other with their progress shown, and say how it went.

    Returns:
        True if any run failed, or any study raised.
    """
    results: dict[str, set[str]] = {}
    outcomes: dict[str, Outcome] = {}
    raised = False
    for campaign in campaigns:
        try:
            with _visible(as_json, campaign.door.store) as progress:
                outcomes |= campaign.run(progress)
            for study in campaign.studies:
                ended = {item.name for item in campaign.trials(study)[1]}
                results.setdefault(study.name, set()).update(ended)
        except StudyError as error:  # in a later round: what has ended is in the store
            raised = True
            say_error(str(error))
    failed = _summarize({name: len(ids) for name, ids in results.items()}, outcomes, as_json)
    return failed or raised


def _summarize(total: dict[str, int], outcomes: dict[str, Outcome], as_json: bool) -> bool:
    """Say how the runs ended; True if any failed."""
    ran = sum(outcome.runs for outcome in outcomes.values() if not outcome.cached)
    diverged = sum(outcome.state == "diverged" for outcome in outcomes.values())
    failed = {
        outcome.id: outcome.error for outcome in outcomes.values() if outcome.state == "failed"
    }
    if as_json:
        summary = {"studies": total, "ran": ran, "diverged": diverged, "failed": failed}
        answer(summary)
    else:
        shown = f"{ran} runs now, {sum(total.values())} results in {len(total)} studies"
        console.print(f"{shown}; {diverged} diverged, {len(failed)} failed", highlight=False)
    return bool(failed)


@contextmanager
def _visible(as_json: bool, store: Store) -> Iterator[Any]:
    """A bar with the remaining time, and one for each run that trains, on a terminal.

    Elsewhere a plain line now and then.
    """
    if as_json:
        yield lambda *_: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[left]} left"),
        TextColumn("{task.fields[last]}"),
    )
    terminal = console.is_terminal
    with Progress(*columns, console=console, disable=not terminal, transient=True) as bar:
        line = bar.add_task("runs", left="?", last="")
        last = time.monotonic()

        def progress(outcome: Outcome, run: Run, ended: int, count: int, seconds: float) -> None:
            nonlocal last
            left, what = duration(seconds), f"{run.spec.task} {run.spec.recipe}"
            bar.update(line, completed=ended, total=count, left=left, description=what)
            if outcome.state == "failed":
                say_error(f" {outcome.id}: {outcome.error}", "[red]failed[/red]")
            due = time.monotonic() - last > SECONDS_BETWEEN_LINES or ended == count
            if not terminal and due:
                last = time.monotonic()
                many = f"{len(run.rows)} at once" if len(run.rows) > 1 else ""
                state = f"{what} {many or f'seed {run.spec.every_seed[0]}'} {outcome.state}"
                print(f"{ended}/{count} runs, {state}, about {left} left", flush=True)

        with shown_live(store, bar, SECONDS_BETWEEN_LINES if not terminal else None):
            yield progress


@contextmanager
def shown_live(store: Store, bar: Progress, every: float | None) -> Iterator[None]:
    """Show the runs that train, until the end of the block.

    Args:
        bar: gets a line for each of them.
        every: seconds between plain lines, in place of the bar; None prints none.
    """
    ended = threading.Event()
    thread = threading.Thread(target=_watch, args=(store, bar, every, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _watch(store: Store, bar: Progress, every: float | None, ended: threading.Event) -> None:
    lines: dict[str, TaskID] = {}
    while not ended.wait(every or SECONDS_BETWEEN_LOOKS):
        found = dict(progress_of_runs(store))
        for name, progress in found.items():
            if every is not None:
                print(f"{name}: {progress_line(progress)}", flush=True)
                continue
            if name not in lines:
                lines[name] = bar.add_task(name, left="?", last="")
            left = "?" if progress["remaining"] is None else duration(progress["remaining"])
            done, count, last = progress["step"], progress["steps"], last_values(progress)
            bar.update(lines[name], completed=done, total=count, left=left, last=last)
        for name in lines.keys() - found.keys():
            bar.remove_task(lines.pop(name))


def _show_tables(campaign: Campaign) -> bool:
    """Print the tables of a campaign's studies.

    Returns:
        True if any study raised.
    """
    raised = False
    for study in campaign.studies:
        try:
            tables = study.every_table(campaign.trials(study)[1])
        except Exception as error:  # the other studies' tables are still to be shown
            raised, tables = True, []
            say_error(f"{study.name}: no tables: {one_line(error)}")
        for table in tables:
            console.print(_as_text(table, f"{study.name}: {table.title}"))
    return raised


def show_headlines(sections: Sequence[Section]) -> None:
    """Print the headline of each section that has one."""
    for section in sections:
        with suppress(Exception):  # of a study that raises the page says so
            table = section.study.headline(section.results)
            if table is not None:
                console.print(_as_text(table, f"{section.label}: {table.title}"))


def _as_text(table: Table, title: str) -> RichTable:
    """The table, without the paper's columns where the terminal is too narrow for them."""
    rows = [[str(cell) for cell in row] for row in table.rows]
    headings = [str(column) for column in table.columns]
    width = sum(max(map(len, column)) + 2 for column in zip(headings, *rows, strict=True))
    shown = [
        i for i, column in enumerate(table.columns) if width < console.width or not column.paper
    ]
    caption = escape(table.about) or None
    text = RichTable(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), caption=caption)
    for i in shown:
        text.add_column(escape(headings[i]), justify="right" if i else "left", overflow="fold")
    for row in rows:
        text.add_row(*(escape(row[i]) for i in shown))
    return text
