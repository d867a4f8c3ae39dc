"""A run's request is resolved once, at the door of the process that executes it."""

import sys
from collections import Counter

import pytest
from commands import STUDY, invoke
from spherenorm_tiny import tiny_spec

import spherenorm as sn
import spherenorm_experiments.engine.door
from spherenorm_experiments.engine.door import execute_spec


@pytest.fixture
def looked_up(monkeypatch):
    """The number of look-ups of each name: of a recipe by anybody, of a task by the door."""
    counts = Counter()
    find_recipe, find_task_class = (
        sn.find_recipe,
        spherenorm_experiments.engine.door.find_task_class,
    )

    def counting_recipe(name):
        counts[name] += isinstance(name, str)
        return find_recipe(name)

    def counting_task(name):
        counts[name] += 1
        return find_task_class(name)

    for module in list(sys.modules.values()):
        if getattr(module, "find_recipe", None) is find_recipe:
            monkeypatch.setattr(module, "find_recipe", counting_recipe)
    monkeypatch.setattr(spherenorm_experiments.engine.door, "find_task_class", counting_task)
    return counts


def names_of(counts):
    return {name: count for name, count in counts.items() if isinstance(name, str)}


def test_one_run_resolves_its_names_once_from_the_command_to_its_summary(tmp_path, looked_up):
    options = ("--optimizers", "sgd", "--seeds", "1", "--tier", "smoke", "--jobs", 1)
    result = invoke("run", STUDY, *options, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert "1 runs now, 1 results" in result.output
    assert names_of(looked_up) == {"sgd": 1, "spherenorm_tiny:Tiny": 1}


def test_a_worker_resolves_what_it_is_sent_once(tmp_path, looked_up):
    assert execute_spec(tiny_spec(), tmp_path).state == "finished"
    assert names_of(looked_up) == {"sgdp": 1, "spherenorm_tiny:Tiny": 1}
