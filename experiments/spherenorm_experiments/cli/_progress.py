"""Campaigns with their progress shown, how they went, and tables as text."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from rich import box
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table as RichTable

from spherenorm_experiments.campaign import Campaign, Pace, StudyError
from spherenorm_experiments.cli._console import answer, console, errors, say, say_error
from spherenorm_experiments.run import Job, Outcome
from spherenorm_experiments.sections import Section
from spherenorm_experiments.tables import Table

SECONDS_BETWEEN_LOOKS = 1.0


def run_campaigns(campaigns: Sequence[Campaign], as_json: bool) -> bool:
    """Run campaigns one after the other with their progress shown, and say how it went.

    Returns:
        True if any run failed, or any study raised.
    """
    results: dict[str, set[str]] = {}
    found: dict[str, Outcome] = {}
    raised = False
    for campaign in campaigns:
        try:
            with shown(as_json) as progress:
                found |= campaign.run(progress)
            for study in campaign.studies:
                ended = {item.name for item in campaign.trials(study)[1]}
                results.setdefault(study.name, set()).update(ended)
        except StudyError as error:  # in a later round: what has ended is in the store
            raised = True
            say_error(str(error))
    failed = {name: each.error for name, each in found.items() if each.state == "failed"}
    ran = sum(each.runs for each in found.values() if not each.cached)
    diverged = sum(each.state == "diverged" for each in found.values())
    total = {name: len(names) for name, names in results.items()}
    if as_json:
        answer({"studies": total, "ran": ran, "diverged": diverged, "failed": failed})
    else:
        text = f"{ran} runs now, {sum(total.values())} results"
        say(f"{text}; {diverged} diverged, {len(failed)} failed")
    return bool(failed) or raised


@contextmanager
def shown(as_json: bool) -> Iterator[Any]:
    """One line on a terminal, with a bar and the time that is left; nothing elsewhere.

    A run that fails is named at once.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %  {task.fields[left]}"),
    )
    visible = errors.is_terminal and not as_json
    with Progress(*columns, console=errors, disable=not visible, transient=True) as bar:
        line, ended, now = bar.add_task("runs", total=1.0, left=""), threading.Event(), list[Pace]()

        def draw() -> None:
            if now:
                share, seconds = now[-1].now()
                left = "" if seconds is None else f"{duration(seconds)} left"
                words = f"{now[-1].ended} of {now[-1].total} runs"
                bar.update(line, completed=share, left=left, description=words)

        def watch() -> None:
            while not ended.wait(SECONDS_BETWEEN_LOOKS):
                draw()

        def progress(outcome: Outcome | None, job: Job | None, pace: Pace) -> None:
            now[:] = [pace]
            if outcome is not None and job is not None and outcome.state == "failed":
                say_error(f" {_place(job)}: {outcome.error}", "[red]failed[/red]")
            if visible:
                draw()

        thread = threading.Thread(target=watch, daemon=True)
        if visible:
            thread.start()
        try:
            yield progress
        finally:
            ended.set()
            if visible:
                thread.join()


def _place(job: Job) -> str:
    """A job in words."""
    spec = job.first.spec
    given = ", ".join(f"{name} {value}" for name, value in spec.hyper_parameters.items())
    many = f", {len(job.runs)} runs" if len(job.runs) > 1 else f", seed {spec.seed}"
    return f"{spec.recipe} on {spec.task} ({given}{many})"


def duration(seconds: float) -> str:
    """Seconds, or minutes, as a reader wants them."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def as_text(table: Table, title: str) -> RichTable:
    """The table, without the paper's columns where the terminal is too narrow for them."""
    rows = [[str(cell) for cell in row] for row in table.rows]
    headings = [str(column) for column in table.columns]
    width = sum(max(map(len, column)) + 2 for column in zip(headings, *rows, strict=True))
    kept = [
        i for i, column in enumerate(table.columns) if width < console.width or not column.paper
    ]
    text = RichTable(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), title_justify="left")
    for i in kept:
        text.add_column(escape(headings[i]), justify="right" if i else "left", overflow="fold")
    for row in rows:
        text.add_row(*(escape(row[i]) for i in kept))
    return text


def show_headlines(sections: Sequence[Section]) -> None:
    """Print the headline of each section that has one."""
    for section in sections:
        with suppress(Exception):  # of a study that raises the page says so
            table = section.study.headline(section.results)
            if table is not None:
                console.print(as_text(table, f"{section.label}: {table.title}"))
