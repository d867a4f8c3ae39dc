"""Campaigns with their progress shown, and how they went."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from spherenorm_experiments.cli._console import answer, console, say_error
from spherenorm_experiments.cli._live import duration, watched
from spherenorm_experiments.engine import Outcome, Run, Store
from spherenorm_experiments.study import Campaign, StudyError

__all__ = ["run_campaigns"]

SECONDS_BETWEEN_LINES = 10


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
                outcomes |= campaign.run(progress).by_id
            for study in campaign.studies:
                ended = {item.id for item in campaign.trials(study)[1]}
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

        with watched(store, bar, SECONDS_BETWEEN_LINES if not terminal else None):
            yield progress
