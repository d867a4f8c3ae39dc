"""The runs that a campaign would start, and their time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table as RichTable

from spherenorm_experiments.cli._console import answer, console
from spherenorm_experiments.engine import Run
from spherenorm_experiments.study import Campaign

__all__ = ["show_dry_run"]


def show_dry_run(campaign: Campaign, as_json: bool) -> None:
    """Say for each study and in total what would run, and how long it would take."""
    asked: dict[str, dict[str, Run]] = {}
    done: set[str] = set()
    for study in campaign.studies:
        planned, results = campaign.trials(study)
        asked[study.name] = {run.id: run for _, run in planned}
        done |= {item.id for item in results}
    every = {name: run for runs in asked.values() for name, run in runs.items()}
    costs = campaign.estimate([run for name, run in every.items() if name not in done])
    headings = {**asked, "total, shared runs once": every}
    rows = [
        {"study": heading, **_counts(runs, costs, campaign.jobs)}
        for heading, runs in headings.items()
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


def _counts(runs: Mapping[str, Run], costs: Mapping[str, float], jobs: int) -> dict[str, Any]:
    """Of these runs how many there are, and how long those will take that have a cost."""
    missing = [run for name, run in runs.items() if name in costs]
    return {
        "runs": len(runs),
        "cached": len(runs) - len(missing),
        "to run": len(missing),
        "steps": sum(run.steps for run in missing),
        "seconds": round(sum(costs[run.id] for run in missing) / jobs),
    }
