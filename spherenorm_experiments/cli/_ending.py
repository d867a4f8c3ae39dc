"""A campaign run to its end, with its tables."""

from __future__ import annotations

from spherenorm_experiments.cli._console import console, interruptible, say, store_errors
from spherenorm_experiments.cli._options import DEFAULT_OUT
from spherenorm_experiments.cli._progress import run_campaigns
from spherenorm_experiments.cli._tables import show_tables
from spherenorm_experiments.report.pictures import write_events
from spherenorm_experiments.study import Campaign

__all__ = ["run_and_show"]


def run_and_show(campaign: Campaign, as_json: bool, tensorboard: bool) -> bool:
    """Run a campaign and show its tables; True if any run failed, or any study raised."""
    out = campaign.door.store.root
    with store_errors(), interruptible(out):
        failed = run_campaigns([campaign], as_json)
    if not as_json and not failed:
        failed = show_tables(campaign)
        option = "" if out == DEFAULT_OUT else f" --out {out}"
        text = f"pictures and claims: spherenorm report{option}"
        console.print(text, soft_wrap=True)
    if tensorboard and not failed:
        _write_tensorboard(campaign)
    return failed


def _write_tensorboard(campaign: Campaign) -> None:
    folder = campaign.door.store.root / "tensorboard"
    with store_errors():
        results = [item for study in campaign.studies for item in campaign.trials(study)[1]]
        count = write_events(results, folder)
    say(f"{count} runs in {folder}")
