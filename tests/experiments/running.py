"""Runs of specs, and of whole studies in the smoke tier."""

from spherenorm_experiments.engine import Store
from spherenorm_experiments.engine.door import Door, resolve
from spherenorm_experiments.study import Campaign, Plan, find_study


def run_of(spec, root="nowhere"):
    """The resolved run; nothing is written."""
    return resolve(spec, Store(root))


def folder_of(spec, root):
    return run_of(spec, root).folder


def run_study(name_or_study, store, **plan):
    """The study, its trials with their runs, and their results."""
    study = find_study(name_or_study) if isinstance(name_or_study, str) else name_or_study
    campaign = Campaign([study], Plan("smoke", **plan), Door(store))
    campaign.rehearse()
    outcomes = campaign.run(lambda *_: None)
    assert not outcomes.failed, outcomes.failed
    return study, *campaign.trials(study)


def labels(results):
    return [arm.label for arm in results.arms]


def shown(table):
    """The rows of a table as they are shown."""
    return [[str(cell) for cell in row] for row in table.rows]
