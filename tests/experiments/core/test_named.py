"""Things by name: each that a folder of the paper defines is in its table."""

import importlib
import inspect
import pkgutil

import pytest

import spherenorm_experiments.extra
import spherenorm_experiments.paper
from spherenorm_experiments.core import Measurement, PureTask, Task, places
from spherenorm_experiments.paper.shared.layout import Layout
from spherenorm_experiments.study import Study


def modules():
    for top in (spherenorm_experiments.paper, spherenorm_experiments.extra):
        for info in pkgutil.walk_packages(top.__path__, f"{top.__name__}."):
            yield importlib.import_module(info.name)


@pytest.mark.parametrize(
    ("kind", "bases"), [("TASKS", (Task, PureTask, Measurement)), ("STUDIES", (Study,))]
)
def test_a_table_has_each_class_with_a_name(kind, bases):
    defined = {
        cls.name: f"{module.__name__}:{cls.__name__}"
        for module in modules()
        for cls in vars(module).values()
        if inspect.isclass(cls) and issubclass(cls, bases) and hasattr(cls, "name")
        if cls.__module__ == module.__name__
    }
    assert places(kind) == dict(sorted(defined.items()))


def test_a_table_has_each_layout():
    defined = {
        layout.name: module.__name__
        for module in modules()
        for layout in vars(module).values()
        if isinstance(layout, Layout)
    }
    listed = {name: place.partition(":")[0] for name, place in places("LAYOUTS").items()}
    assert listed == dict(sorted(defined.items()))
