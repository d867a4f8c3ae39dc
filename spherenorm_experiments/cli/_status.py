"""`status`: the runs of a store, and what went wrong."""

from __future__ import annotations

from pathlib import Path

from rich.markup import escape

from spherenorm_experiments.cli._console import answer, say, usage_errors
from spherenorm_experiments.cli._live import progress_line, progress_of_runs
from spherenorm_experiments.cli._options import AsJson, Out, existing_store
from spherenorm_experiments.cli._stored import state_of
from spherenorm_experiments.study import read_requests

__all__ = ["status"]


def status(out: Out = Path("runs"), as_json: AsJson = False) -> None:
    """The runs of the store by state, and what went wrong."""
    with usage_errors():
        store = existing_store(out)
    states: dict[str, int] = {}
    _, unusable = read_requests(store)
    problems = [{"run": f"plans/{name}", "error": text} for name, text in unusable.items()]
    alive: set[str] = set()
    for folder in store.folders():
        recorded = folder.status()
        state = state_of(folder, recorded)
        alive |= {folder.name} if state == "running" else set()
        runs = len((folder.config() or {}).get("rows", [folder.name]))
        states[state] = states.get(state, 0) + runs
        errors = [recorded.get("error", "")] if state == "failed" else []
        errors += [f"set aside: {path.name}" for path in sorted(folder.path.glob("*.corrupt-*"))]
        problems += [{"run": folder.name, "error": error} for error in errors]
    running = [(name, found) for name, found in progress_of_runs(store) if name in alive]
    if as_json:
        shown = [{"run": name, **found} for name, found in running]
        answer({"runs": states, "running": shown, "problems": problems})
        return
    counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    say(counts or f"no runs in {out}")
    for name, found in running:
        say(f"[cyan]{name}[/cyan]: {escape(progress_line(found))}")
    for problem in problems:
        say(f"[red]{problem['run']}[/red]: {escape(problem['error'])}")
