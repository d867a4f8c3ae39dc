"""Specs: wrong ones are refused, things are found by name; schedules."""

import importlib
import inspect
import pkgutil
import sys
from dataclasses import replace
from itertools import combinations

import pytest
from running import run_of
from spherenorm_tiny import tiny_spec

import spherenorm_paper
from spherenorm_experiments.lookup import find_task, find_task_class, registered
from spherenorm_experiments.spec import SCHEDULES, Spec
from spherenorm_experiments.study import Study
from spherenorm_experiments.task import PureTask, Task, fingerprint_of
from tests.harness import refuses
from tests.harness.tables import mostly_long


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        (lambda: tiny_spec("sgd", momentun=0.9), ("momentun", "momentum")),
        (lambda: Spec("digits", "sgd", options={"widht": 3}), ("widht", "width")),
        (lambda: Spec("digits", "sgd", options={"variant": "plane"}), ("variant", "plain")),
        (lambda: Spec("digit", "sgd"), ("digit", "digits")),
        (lambda: Spec("digits", "sgd", probes=("norm",)), ("norm", "norms")),
        (lambda: Spec("digits", "sgd", schedule="cosin"), ("cosin", "cosine")),
        (lambda: tiny_spec("sgd", lr=[0.1, 0.2]), ("lr", [0.1, 0.2])),
    ],
)
def test_a_wrong_spec_is_refused_with_the_right_name(spec, named):
    with refuses(*named):
        run_of(spec())


def test_a_recipe_that_makes_another_rule_each_time_is_refused():
    """Its run would have another name each time, and would be run for ever."""
    with refuses("spherenorm_tiny:restless"):
        run_of(tiny_spec("spherenorm_tiny:restless", lr=0.1))


def test_a_module_that_exits_does_not_end_the_program(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "exiting.py").write_text("import sys\nsys.exit(7)\n")
    for changed in ({"recipe": "exiting:thing"}, {"probes": ("exiting:thing",)}):
        with refuses("exiting:thing", "exiting.py, line 2"):
            run_of(replace(tiny_spec(), **changed))
    sys.modules.pop("exiting", None)


@pytest.mark.parametrize(
    ("name", "epochs", "milestones"),
    [
        ("step-50-75", 200, (100, 150)),
        ("step-25-50-75", 80, (20, 40, 60)),
        ("step-70-90", 100, (70, 90)),
    ],
)
def test_a_tenth_from_each_milestone_on(name, epochs, milestones):
    """Appendix E: at epochs 100 and 150 of 200; every 20 epochs of 80."""
    factor = SCHEDULES[name]
    for epoch in range(epochs):
        passed = sum(epoch >= milestone for milestone in milestones)
        assert factor(epoch / epochs) == pytest.approx(0.1**passed)


def test_the_rate_of_retrieval_is_halved_every_five_epochs():
    for epoch in range(60):
        assert SCHEDULES["halving"]((epoch + 0.5) / 60) == 0.5 ** (epoch // 5)


TASKS = [*registered("TASKS")]
TRAINED = [name for name in TASKS if issubclass(find_task_class(name), Task)]


def modules():
    for info in pkgutil.walk_packages(spherenorm_paper.__path__, "spherenorm_paper."):
        yield importlib.import_module(info.name)


@pytest.mark.parametrize(("kind", "bases"), [("TASKS", (Task, PureTask)), ("STUDIES", (Study,))])
def test_a_table_has_each_class_with_a_name(kind, bases):
    defined = {
        value.name: f"{module.__name__}:{variable}"
        for module in modules()
        for variable, value in vars(module).items()
        if _is_one(value, bases) and _defines(module, variable, value)
    }
    assert registered(kind) == dict(sorted(defined.items()))


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


@pytest.mark.parametrize("name", mostly_long(TRAINED, kept=4))
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
