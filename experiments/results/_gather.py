"""The stored results of several requests, gathered to one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from experiments.core import Spec
from experiments.engine import Store
from experiments.results._arms import Arm
from experiments.results._results import Result, Results

__all__ = ["gather"]


def gather(store: Store, requests: Iterable[Sequence[tuple[Arm, str]]]) -> Results:
    """The stored results of several requests as one.

    Seeds and arms add up. If a later request has an arm with other runs than an earlier one
    (another learning rate was best, or the recipe was edited since), the later runs replace the
    earlier ones: an arm is never a mixture. Every result knows with which seeds each request could
    look at its arm, since a claim that grew has to pay for that.

    Args:
        requests: each a list of arms and names of runs, in the order in which they were asked.
    """
    arms: dict[Arm, dict[str, Result | None]] = {}
    seeds: list[dict[Arm, frozenset[int]]] = [{}]  # of each arm, request by request
    for request in requests:
        asked: dict[Arm, dict[str, Result | None]] = {}
        for arm, name in request:
            asked.setdefault(arm, {})[name] = _recorded(store, arm, name)
        for arm, runs in asked.items():
            known = arms.get(arm, {})
            before, now = _but_for_the_seed(known), _but_for_the_seed(runs)
            arms[arm] = {**known, **runs} if before <= now or now <= before else runs
        more = {arm: _seeds(runs) | seeds[-1].get(arm, set()) for arm, runs in asked.items()}
        seeds.append(seeds[-1] | more)
    looks = {arm: tuple(known.get(arm, frozenset()) for known in seeds[1:]) for arm in arms}
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
    return Results([item for item in items if item is not None], len(items), failed)


def _recorded(store: Store, arm: Arm, name: str) -> Result | None:
    folder = store.folder(name)
    summary, config = folder.summary(), folder.config()
    if summary is None or config is None:
        return None
    return Result(arm, Spec.from_json(config), summary, folder)


def _seeds(runs: Mapping[str, Result | None]) -> frozenset[int]:
    return frozenset(seed for item in runs.values() if item is not None for seed in item.seeds)


def _but_for_the_seed(runs: Mapping[str, Result | None]) -> set[str]:
    """The different configurations, sources included, of an arm's results."""
    configs = [item.folder.config() or {} for item in runs.values() if item is not None]
    return {json.dumps({**config, "seed": None}, sort_keys=True) for config in configs}
