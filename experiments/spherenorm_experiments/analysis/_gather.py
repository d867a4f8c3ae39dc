"""Stores read as a whole: the results of several requests as one, or all runs as a pandas frame."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spherenorm_experiments.analysis._results import Arm, Result, Results
from spherenorm_experiments.analysis._samples import Looks
from spherenorm_experiments.core import require_extra
from spherenorm_experiments.engine import (
    Row,
    Store,
    find_rows,
    folders_of,
    rows_in,
)
from spherenorm_experiments.store import BULKY

if TYPE_CHECKING:
    import pandas as pd

RENAMED = {"validation_metrics": "validation", "test_metrics": "test"}

Asked = Sequence[tuple[Arm, str]]


def gather(
    store: Store, requests: Sequence[Asked], ended: Sequence[Asked] | None = None
) -> Results:
    """The stored results of several requests as one.

    Seeds and arms add up. If a later request has an arm with other runs than an earlier one
    (another learning rate was best, or the recipe was edited since), the later runs replace the
    earlier ones: an arm is never a mixture. Nor is a comparison: if a task or its data were edited
    since, arms that only have runs of the earlier task are left out. Every result knows with which
    seeds each request could look at its arm, since a claim that grew has to pay for that.

    Args:
        requests: each a list of arms and names of runs, in the order in which they were asked.
        ended: the same in the order in which they came to their end, if that is another.
    """
    rows = find_rows(store, (name for request in requests for _, name in request))
    arms: dict[Arm, dict[str, Result | None]] = {}
    tasks: dict[str, Any] = {}  # of each task the sources and data of its latest run
    for request in requests:
        asked: dict[Arm, dict[str, Result | None]] = {}
        for arm, name in request:
            item = Result.of(arm, rows[name]) if name in rows else None
            asked.setdefault(arm, {})[name] = item
            if item is not None:
                tasks[_task(item)] = _version(item)
        for arm, runs in asked.items():
            known = arms.get(arm, {})
            parts = [[x for x in each.values() if x is not None] for each in (known, runs)]
            exact = all(item.code for part in parts for item in part if item.family)
            before, now = (
                {(item.version, item.code if exact else "") for item in part} for part in parts
            )
            arms[arm] = {**known, **runs} if before <= now or now <= before else runs
    replaced: dict[str, None] = {}
    for arm, runs in arms.items():
        for name, item in runs.items():
            if item is not None and tasks[_task(item)] != _version(item):
                runs[name], replaced[arm.label] = None, None
    seeds = {name: row.spec.seed for name, row in rows.items()}
    looks = _looks(arms, seeds, requests if ended is None else ended)
    items = [
        replace(item, looks=looks[arm])
        for arm, runs in arms.items()
        for item in runs.values()
        if item is not None
    ]
    lost = [(arm, name) for arm, runs in arms.items() for name in runs if name not in rows]
    errors = _errors(store, [name for _, name in lost])
    failed = dict.fromkeys(f"{arm}: {errors[name]}" for arm, name in lost if name in errors)
    lacking = {arm: list(runs.values()).count(None) for arm, runs in arms.items()}
    return Results(items, list(failed), list(replaced), lacking)


def _errors(store: Store, names: Iterable[str]) -> dict[str, str]:
    """The errors of those of these runs that have failed."""
    places = {name.partition("/")[0]: name for name in names}
    errors: dict[str, str] = {}
    for folder in (folder for name in places.values() for folder in folders_of(store, name)):
        status = folder.status()
        if status.get("state") == "failed":
            own = (folder.config() or {}).get("rows", [folder.name])
            errors |= dict.fromkeys(own, status.get("error", "no reason is known"))
    return errors


def _looks(
    arms: Iterable[Arm], seeds: Mapping[str, int], ended: Sequence[Asked]
) -> dict[Arm, Looks]:
    """The seeds of each arm that could be looked at, after each request that came to its end."""
    seen: dict[Arm, frozenset[int]] = dict.fromkeys(arms, frozenset())
    looks: dict[Arm, Looks] = dict.fromkeys(seen, ())
    for request in ended:
        added: dict[Arm, set[int]] = {}
        for arm, name in request:
            added.setdefault(arm, set()).update([seeds[name]] if name in seeds else [])
        seen |= {arm: seen[arm] | more for arm, more in added.items()}
        looks = {arm: (*known, seen[arm]) for arm, known in looks.items()}
    return looks


def _task(item: Result) -> str:
    """A task with its options."""
    return json.dumps([item.spec.task, dict(item.spec.options)], sort_keys=True)


def _version(item: Result) -> tuple[Any, Any]:
    """The digests of the sources and data that a run trained on."""
    return item.config.get("task_source"), item.config.get("data")


def load(store: Path | str = "runs") -> pd.DataFrame:
    """The runs of a store that have ended, finished or diverged: one row each.

    Columns are `run`, its name; the fields of its spec (`task`, `recipe`, `seed`, ...); its
    hyper-parameters by their names; `option.<name>` and `regime.<name>`; and its numbers, such as
    `diverged_at`, `test` and `test.<metric>`. What a run does not have is missing there.

        frame = load("runs")
        frame[frame.task == "network"].pivot_table("test", ["recipe", "lr"], "seed")

    Args:
        store: the folder that `--out` names.

    Raises:
        FileNotFoundError: there is no store.
        MissingExtraError: pandas is missing.
    """
    require_extra("pandas", "load")
    if not (Path(store) / "runs").is_dir():
        raise FileNotFoundError(f"no runs in {store}")
    folders = Store(store).folders()
    rows = {row.name: row for folder in folders for row in rows_in(folder)}  # some are there twice
    return frame_of(rows.values())


def frame_of(rows: Iterable[Row]) -> pd.DataFrame:
    """The columns of `load`, of these runs."""
    pandas = require_extra("pandas", "load")
    return pandas.DataFrame([_record(row) for row in rows])


def _record(row: Row) -> dict[str, Any]:
    spec = row.spec.to_json()
    record = {"run": row.name}
    options, regime, point = (
        spec.pop(part, {}) for part in ("options", "regime", "hyper_parameters")
    )
    record |= spec
    record |= {name if name not in record else f"hyper.{name}": x for name, x in point.items()}
    record |= {f"option.{name}": x for name, x in options.items()}
    record |= {f"regime.{name}": x for name, x in regime.items()}
    for name, value in row.summary.items():
        if isinstance(value, dict) and name in RENAMED:
            record |= {f"{RENAMED[name]}.{metric}": x for metric, x in value.items()}
        elif name not in BULKY:
            record[name if name not in record else f"result.{name}"] = value
    return record
