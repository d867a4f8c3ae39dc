"""Things by name: each that a folder of the paper defines is in its table."""

import importlib
import inspect
import pkgutil

import pytest

import spherenorm_experiments.extra
import spherenorm_experiments.paper
from spherenorm_experiments.core import PureTask, Task, places
from spherenorm_experiments.paper.shared.layout import Layout
from spherenorm_experiments.study import Study


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


def test_a_table_has_each_layout():
    defined = {
        layout.name: module.__name__
        for module in modules()
        for layout in vars(module).values()
        if isinstance(layout, Layout)
    }
    listed = {name: place.partition(":")[0] for name, place in places("LAYOUTS").items()}
    assert listed == dict(sorted(defined.items()))
