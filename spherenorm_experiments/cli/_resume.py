"""`resume`: finish everything that was ever asked of a store."""

from __future__ import annotations

from pathlib import Path

import typer

from spherenorm.support import one_line
from spherenorm_experiments.cli._console import (
    FAILED,
    interruptible,
    say_error,
    store_errors,
    usage_errors,
)
from spherenorm_experiments.cli._options import (
    CORES,
    AsJson,
    BackendName,
    Jobs,
    Out,
    Parallel,
    Processes,
    TensorBoard,
    TimeLimit,
    Workers,
    existing_store,
    require_jobs,
)
from spherenorm_experiments.cli._progress import run_campaigns
from spherenorm_experiments.cli._requests import tell_unusable
from spherenorm_experiments.engine import Runner, StoreError, find_backend
from spherenorm_experiments.engine.door import Door
from spherenorm_experiments.study import Campaign, find_study, read_requests

__all__ = ["resume"]


def resume(
    jobs: Jobs = CORES,
    backend: BackendName = "local",
    workers: Workers = 0,
    processes: Processes = 1,
    parallel: Parallel = "ddp",
    tensorboard: TensorBoard = False,
    time_limit: TimeLimit = None,
    out: Out = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Finish everything that was ever asked of the store."""
    with usage_errors():
        require_jobs(jobs)
        find_backend(backend)
        flags = {"workers": workers, "processes": processes, "parallel": parallel}
        runner = Runner(**flags, tensorboard=tensorboard, time_limit=time_limit)  # type: ignore[arg-type]
        store = existing_store(out)
    requests, unusable = read_requests(store)
    left = tell_unusable(unusable)
    door = Door(store)
    campaigns = []
    with store_errors(), interruptible(out):
        for request in requests:
            try:
                studies = [find_study(name) for name in request.studies]
                campaign = Campaign(studies, request.plan, door, backend, jobs, runner)
                campaign.rehearse()
                campaigns.append(campaign)
            except StoreError:
                raise
            except (Exception, SystemExit) as error:  # a user's study or recipe may raise anything
                left = True
                say_error(f"{', '.join(request.studies)} cannot go on here: {one_line(error)}")
        failed = run_campaigns(campaigns, as_json)
    if failed or left:
        raise typer.Exit(FAILED)
