"""A recipe of the user stands in every study, in its tables and pictures."""

import pytest
from running import run_study, shown

from spherenorm_experiments.study import study_classes

OWN = "spherenorm_tiny:careful"
SLOW = ("c1", "d2", "d3", "h7", "t3", "weight-decay")
CASES = [
    pytest.param(name, OWN, marks=[pytest.mark.long] * (name in SLOW))
    for name in sorted(study_classes())
]
CASES += [
    pytest.param(name, "rmsprop", marks=pytest.mark.long)
    for name, cls in sorted(study_classes().items())
    if not cls.has_real
]
"""Benchmarks have one base, whose own tests substitute other recipes too."""


@pytest.mark.parametrize(("name", "recipe"), CASES)
def test_a_recipe_that_substitutes_is_shown_in_every_study(name, recipe, store):
    study, trials, results = run_study(name, store, optimizers=(recipe,))
    assert len(results) == sum(len(run.rows) for _, run in trials) > 0
    assert {item.spec.recipe for item in results} == {recipe}
    tables, pictures = study.every_table(results), study.every_picture(results)
    cells = [cell for table in tables for row in shown(table) for cell in row]
    assert any(recipe in cell for cell in cells), tables
    assert not any("nan" in cell for cell in cells), tables
    assert all(len(row) == len(table.columns) for table in tables for row in table.rows)
    if name != "f2":  # whose picture is of one step of heavy-ball momentum
        assert any(
            recipe in (trace.name or "") for picture in pictures for trace in picture.figure.data
        )
    assert all(picture.figure.data for picture in pictures)
    study.evaluated(results)
