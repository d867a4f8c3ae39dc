"""Runs of specs, those that are interrupted, and whole studies in the smoke tier."""

import copy

import pytest
import torch
from torch.utils._pytree import tree_leaves_with_path

from spherenorm_experiments.campaign import Campaign
from spherenorm_experiments.comparison import find_study
from spherenorm_experiments.execute import Resolver, execute_spec, resolve
from spherenorm_experiments.plan import Plan
from spherenorm_experiments.store import RunFolder, Store


def run_of(spec, root="nowhere"):
    """The resolved run; nothing is written."""
    return resolve(spec, Store(root))


def folder_of(spec, root):
    return run_of(spec, root).folder


def ended(spec, root):
    """Everything that a run leaves."""
    folder = folder_of(spec, root)
    return folder.summary(), folder.records(), folder.load_checkpoint()


def assert_same_end(a, b):
    """Equal to the last bit."""
    assert a[0] == b[0]
    assert a[1] == b[1]
    first, second = (dict(tree_leaves_with_path(each[2])) for each in (a, b))
    for each in (first, second):  # the modules that happened to be loaded
        for key in [key for key in each if "code" in str(key[0])]:
            del each[key]
    assert first.keys() == second.keys()
    for name, value in first.items():
        same = torch.equal if isinstance(value, torch.Tensor) else lambda x, y: x == y
        assert same(value, second[name]), name


def stop_after(spec, root, checkpoints, **flags):
    """Interrupt a run, as Ctrl-C would, when it has written so many checkpoints."""
    original, written = RunFolder.save_checkpoint, []

    def saving(folder, state):
        original(folder, state)
        written.append(state["done"])
        if len(written) == checkpoints:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFolder, "save_checkpoint", saving)
        with pytest.raises(KeyboardInterrupt):
            execute_spec(spec, root, checkpoint_seconds=0.0, **flags)
    assert folder_of(spec, root).status()["state"] == "interrupted"
    return written


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
    campaign = Campaign([study], Plan("smoke", **plan), Resolver(store))
    outcomes = campaign.run()
    assert all(outcome.state != "failed" for outcome in outcomes.values()), outcomes
    return study, *campaign.trials(study)


def shown(table):
    """The rows of a table as they are shown."""
    return [[str(cell) for cell in row] for row in table.rows]
