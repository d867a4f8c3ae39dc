"""Things by name: each that a folder of the paper defines is in its table."""

import importlib
import inspect
import pkgutil
from itertools import combinations

import pytest

import spherenorm_experiments.extra
import spherenorm_experiments.paper
from spherenorm_experiments.core import PureTask, Task, find_task, find_task_class, places
from spherenorm_experiments.core._task import fingerprint_of
from spherenorm_experiments.study import Study
from tests.harness import refuses

TRAINED = [name for name in places("TASKS") if issubclass(find_task_class(name), Task)]


def modules():
    for top in (spherenorm_experiments.paper, spherenorm_experiments.extra):
        for info in pkgutil.walk_packages(top.__path__, f"{top.__name__}."):
            yield importlib.import_module(info.name)


@pytest.mark.parametrize(("kind", "bases"), [("TASKS", (Task, PureTask)), ("STUDIES", (Study,))])
def test_a_table_has_each_class_with_a_name(kind, bases):
    defined = {
        value.name: f"{module.__name__}:{variable}"
        for module in modules()
        for variable, value in vars(module).items()
        if _is_one(value, bases) and _defines(module, variable, value)
    }
    assert places(kind) == dict(sorted(defined.items()))


def _is_one(value, bases):
    """True for a class with a name, and for an instance: a study may be either."""
    return issubclass(value if inspect.isclass(value) else type(value), bases) and hasattr(
        value, "name"
    )


def _defines(module, variable, value):
    """True unless the module has it from another one."""
    if inspect.isclass(value):
        return value.__module__ == module.__name__
    return f"\n{variable} = " in inspect.getsource(module)


PRINTS = {}


@pytest.mark.parametrize("name", TRAINED)
def test_splits_do_not_overlap_and_their_fingerprint_is_theirs_alone(name):
    task = find_task(name)
    splits = task.data()
    rows = [{x.numpy().tobytes() for x in split[0]} for split in splits]
    if name != "debiasing":  # few pixels and few colours: two writers may make the same image
        assert [len(r) for r in rows] == [len(split[0]) for split in splits]
        assert all(a.isdisjoint(b) for a, b in combinations(rows, 2))
    assert all(len({len(x) for x in split}) == 1 for split in splits)
    assert PRINTS.setdefault(fingerprint_of(splits), name) == name


def test_lists_of_a_command_line_are_the_tuples_of_an_option():
    name = "spherenorm_odd:Shaped"
    task = find_task(name, {"widths": [4, 4], "sides": [1, [2, 3]]})
    assert (task.widths, task.sides) == ((4, 4), (1, (2, 3)))
    assert len({task, find_task(name)}) == 2
    with refuses("widths", name):
        find_task(name, {"widths": [4, "a"]})
