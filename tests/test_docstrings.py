"""The examples in the library's docstrings run, and print what they show."""

import dataclasses
import doctest
import importlib
import pkgutil

import pytest
import torch

import spherenorm as sn

MODULES = [
    module.name
    for module in pkgutil.walk_packages(sn.__path__, "spherenorm.")
    if ".compile." not in module.name
]
NAMES = {
    **{name: vars(sn)[name] for name in sn.__all__},
    **{name: vars(sn.rules)[name] for name in sn.rules.__all__},
    "dataclass": dataclasses.dataclass,
    "replace": dataclasses.replace,
    "sn": sn,
    "torch": torch,
}
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
    torch.manual_seed(0)
    module = importlib.import_module(name)
    failed, _ = doctest.testmod(module, globs={**NAMES, **vars(module)}, optionflags=OPTIONS)
    assert not failed


def test_there_are_examples():
    finder = doctest.DocTestFinder()
    found = [test for name in MODULES for test in finder.find(importlib.import_module(name))]
    assert sum(len(test.examples) for test in found) > 60
