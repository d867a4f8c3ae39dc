"""The examples in docstrings run and print what they show, and every public name has one."""

import dataclasses
import doctest
import importlib
import inspect
import pkgutil
import sys

import pytest
import torch

import spherenorm as sn
import spherenorm_theory
from docs.site import reference
from spherenorm import registry

MODULES = [
    module.name
    for package in (sn, spherenorm_theory)
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    if ".compile." not in module.name and not module.name.endswith("__main__")
]
PUBLIC = {
    name: reference.docstring(name, thing)
    for name, thing in reference.public().items()
    if not reference._home(name, thing)  # not an alias of another public name
}
NAMES = {
    **{name: vars(sn)[name] for name in sn.__all__},
    **{name: vars(sn.rules)[name] for name in sn.rules.__all__},
    **{name: vars(sn.recipes)[name] for name in sn.recipes.__all__},
    **{name: vars(sn.zoo)[name] for name in sn.zoo.__all__ if name != "rules"},
    "dataclass": dataclasses.dataclass,
    "replace": dataclasses.replace,
    "sn": sn,
    "torch": torch,
}
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.fixture(autouse=True)
def leave_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_recipes", dict(registry._recipes))
    torch.manual_seed(0)


def fails(test):
    """Return True if an example prints something else, which the test's output then shows."""
    return bool(doctest.DocTestRunner(optionflags=OPTIONS).run(test).failed)


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_has_an_example_that_prints(name):
    home = getattr(reference.public()[name], "__module__", "builtins")
    names = dict(NAMES)
    for module in (name.partition(".")[0], name.rpartition(".")[0], home):
        names |= vars(sys.modules.get(module, sn))
    test = doctest.DocTestParser().get_doctest(PUBLIC[name], names, name, None, None)
    assert any(example.want for example in test.examples)
    assert not any(doctest.SKIP in example.options for example in test.examples)
    assert not fails(test)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_other_names_run(name):
    module = importlib.import_module(name)
    names = {**NAMES, **vars(module)}
    for test in doctest.DocTestFinder().find(module, globs=names):
        if inspect.cleandoc(test.docstring) not in PUBLIC.values():
            assert not fails(test), test.name
