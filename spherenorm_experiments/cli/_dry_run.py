"""The runs that a campaign would start, and their time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table as RichTable

from spherenorm_experiments.cli._console import answer, console
from spherenorm_experiments.engine import Run
from spherenorm_experiments.study import Campaign

__all__ = ["show_dry_run"]

TOTAL = "total, shared runs once"


def show_dry_run(campaign: Campaign, as_json: bool) -> None:
    """Say for each study and in total what would run, and how long it would take."""
    asked: dict[str, set[str]] = {}
    left: dict[str, list[Run]] = {}
    total: list[Run] = []
    taken: set[str] = set()
    for study in campaign.studies:
        planned, results = campaign.trials(study)
        asked[study.name] = {name for _, run in planned for name in run.rows}
        left[study.name] = campaign.lacking(planned, results, set())
        total += campaign.lacking(planned, results, taken)
    every = set().union(*asked.values())
    costs = campaign.estimate([*total, *(run for runs in left.values() for run in runs)])
    headings = {**asked, TOTAL: every}
    rows = [
        {"study": heading, **_counts(len(names), {**left, TOTAL: total}[heading], costs, campaign)}
        for heading, names in headings.items()
    ]
    if as_json:
        answer(rows)
        return
    table = RichTable(title="what would run (later stages depend on these)")
    for column in rows[0]:
        table.add_column(column, justify="left" if column == "study" else "right")
    for row in rows:
        table.add_row(*map(str, row.values()))
    console.print(table)


def _counts(
    count: int, left: Sequence[Run], costs: Mapping[str, float], campaign: Campaign
) -> dict[str, Any]:
    """Of so many runs how many have ended, and how long those that are left will take."""
    missing = sum(len(run.rows) for run in left)
    return {
        "runs": count,
        "cached": count - missing,
        "to run": missing,
        "steps": sum(run.steps * len(run.rows) for run in left),
        "seconds": round(sum(costs[run.id] for run in left) / campaign.jobs),
    }
