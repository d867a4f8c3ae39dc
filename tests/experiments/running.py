"""Runs of specs, and of whole studies in the smoke tier."""

import copy

from spherenorm_experiments.engine import Store
from spherenorm_experiments.engine.door import Door, resolve
from spherenorm_experiments.study import Campaign, Plan, find_study


def run_of(spec, root="nowhere"):
    """The resolved run; nothing is written."""
    return resolve(spec, Store(root))


def folder_of(spec, root):
    return run_of(spec, root).folder


def run_study(name_or_study, store, only=(), **plan):
    """The study, its trials with their runs, and their results.

    Args:
        only: the recipes of the trials that run, if not all.
    """
    study = find_study(name_or_study) if isinstance(name_or_study, str) else name_or_study
    if only:
        study = copy.copy(study)  # studies are found by name, and other tests find the same one
        every = type(study).trials
        study.trials = lambda *given: [
            trial for trial in every(study, *given) if trial.spec.recipe in only
        ]
    campaign = Campaign([study], Plan("smoke", **plan), Door(store))
    outcomes = campaign.run(lambda *_: None)
    assert all(outcome.state != "failed" for outcome in outcomes.values()), outcomes
    return study, *campaign.trials(study)


def labels(results):
    return [arm.label for arm in results.arms]


def shown(table):
    """The rows of a table as they are shown."""
    return [[str(cell) for cell in row] for row in table.rows]
