"""The stored results of several requests, gathered to one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from spherenorm_experiments.analysis._arms import Arm
from spherenorm_experiments.analysis._results import Result, Results
from spherenorm_experiments.analysis._samples import Looks
from spherenorm_experiments.core import Spec
from spherenorm_experiments.engine import Store

__all__ = ["gather"]

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
    arms: dict[Arm, dict[str, Result | None]] = {}
    seeds: dict[str, Sequence[int]] = {}  # of each run that has ended, by its name
    tasks: dict[str, Any] = {}  # of each task the sources and data of its latest run
    for request in requests:
        asked: dict[Arm, dict[str, Result | None]] = {}
        for arm, name in request:
            asked.setdefault(arm, {})[name] = _recorded(store, arm, name)
        for arm, runs in asked.items():
            known = arms.get(arm, {})
            before, now = _but_for_the_seed(known), _but_for_the_seed(runs)
            arms[arm] = {**known, **runs} if before <= now or now <= before else runs
            now_ended = {name: item for name, item in runs.items() if item is not None}
            seeds |= {name: item.seeds for name, item in now_ended.items()}
            tasks |= {_task(item): _version(item) for item in now_ended.values()}
    replaced: dict[str, None] = {}
    for arm, runs in arms.items():
        for name, item in runs.items():
            if item is not None and tasks[_task(item)] != _version(item):
                runs[name], replaced[arm.label] = None, None
    looks = _looks(arms, seeds, requests if ended is None else ended)
    items = [
        None if item is None else replace(item, looks=looks[arm])
        for arm, runs in arms.items()
        for item in runs.values()
    ]
    failed = [
        f"{arm}: {status.get('error', 'no reason is known')}"
        for arm, runs in arms.items()
        for name, item in runs.items()
        if item is None and (status := store.folder(name).status()).get("state") == "failed"
    ]
    found = [item for item in items if item is not None]
    lacking = {arm: list(runs.values()).count(None) for arm, runs in arms.items()}
    return Results(found, len(items), failed, list(replaced), lacking)


def _looks(
    arms: Iterable[Arm], seeds: Mapping[str, Sequence[int]], ended: Sequence[Asked]
) -> dict[Arm, Looks]:
    """The seeds of each arm that could be looked at, after each request that came to its end."""
    seen: dict[Arm, frozenset[int]] = dict.fromkeys(arms, frozenset())
    looks: dict[Arm, Looks] = dict.fromkeys(seen, ())
    for request in ended:
        for arm, name in request:
            seen[arm] |= set(seeds.get(name, ()))
        looks = {arm: (*known, seen[arm]) for arm, known in looks.items()}
    return looks


def _task(item: Result) -> str:
    """A task with its options."""
    return json.dumps([item.spec.task, dict(item.spec.options)], sort_keys=True)


def _version(item: Result) -> tuple[Any, Any]:
    """The digests of the sources and data that a run trained on."""
    config = item.folder.config() or {}
    return config.get("task_source"), config.get("data")


def _recorded(store: Store, arm: Arm, name: str) -> Result | None:
    folder = store.folder(name)
    summary, config = folder.summary(), folder.config()
    if summary is None or config is None:
        return None
    return Result(arm, Spec.from_json(config), summary, folder)


def _but_for_the_seed(runs: Mapping[str, Result | None]) -> set[str]:
    """The different configurations, sources included, of an arm's results."""
    configs = [item.folder.config() or {} for item in runs.values() if item is not None]
    return {json.dumps({**config, "seed": None}, sort_keys=True) for config in configs}
