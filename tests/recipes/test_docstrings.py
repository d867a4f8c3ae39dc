"""The docstring of a recipe stands alone: every argument, its interval, and how to print it."""

import inspect
import re

import pytest

import spherenorm as sn
from docs.site.docstring import arguments
from spherenorm.registry import defaults_of

RECIPES = [*sn.recipes.__all__, *sorted({*sn.zoo.__all__} - {"rules"})]
WITHOUT_INTERVAL = {("sgdp", "eps")}
INTERVAL = re.compile(r" in [\[(][\d.]+, ([\d.]+|inf)[\])]")


@pytest.mark.parametrize("name", RECIPES)
def test_every_argument_is_described(name):
    recipe = sn.find_recipe(name)
    descriptions = arguments(inspect.getdoc(recipe))
    assert list(descriptions) == list(defaults_of(recipe))
    for argument, default in defaults_of(recipe).items():
        is_number = isinstance(default, (int, float, tuple)) and not isinstance(default, bool)
        if is_number and argument != "views" and (name, argument) not in WITHOUT_INTERVAL:
            assert INTERVAL.search(f" {descriptions[argument]}"), argument


@pytest.mark.parametrize("name", RECIPES)
def test_no_argument_is_described_by_another_recipe(name):
    assert "as for `" not in inspect.getdoc(sn.find_recipe(name))


@pytest.mark.parametrize("name", RECIPES)
def test_the_last_line_says_how_to_print_the_recipe(name):
    last_line = inspect.getdoc(sn.find_recipe(name)).splitlines()[-1]
    line = f"`spherenorm code {name}` prints it as plain torch."
    assert last_line == line
