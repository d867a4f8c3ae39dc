"""Recipes that substitute for a study's own are shown beside these."""

import pytest
from running import run_study, shown

from spherenorm_experiments.analysis import Arm, Result, Results
from spherenorm_experiments.core import Spec
from spherenorm_experiments.study._substitutes import substitute_tables


def test_a_recipe_that_substitutes_is_beside_the_one_that_it_substitutes_for(store):
    study, _, results = run_study("f2", store, optimizers=("sgd", "spherenorm_tiny:careful"))
    (beside,) = (table for table in study.every_table(results) if "substitute" in table.title)
    (row,) = (dict(zip(map(str, beside.columns), cells, strict=True)) for cells in shown(beside))
    assert row["arm"] == "spherenorm_tiny:careful as GDM 0.9"
    key = study.compared["max norm"]
    assert row["max norm there"] == f"{results.arm('GDM 0.9').mean(key):.4g}"
    assert row["max norm"] == f"{results.arm(row['arm']).mean(key):.4g}"
    _, _, alone = run_study("f2", store, optimizers=("sgd",))
    assert not any("substitute" in table.title for table in study.every_table(alone))


def test_means_over_different_seeds_never_share_a_column():
    own = Arm("SGD", "sgd")
    numbers = {
        own: {0: 1.0, 1: 2.0, 2: 30.0},
        own.substitute("mine:a"): {0: 4.0, 1: 6.0},
        own.substitute("mine:b"): {1: 7.0, 2: 8.0, 9: 1000.0},
    }
    items = [
        Result(arm, Spec("digits", arm.recipe, seed=seed), {"test": x, "diverged_at": None}, None)
        for arm, by_seed in numbers.items()
        for seed, x in by_seed.items()
    ]
    tables = substitute_tables(Results(items), {"score": "test"})
    assert [table.title.partition(": ")[2] for table in tables] == ["seeds 0–1", "seeds 1–2"]
    for table, means in zip(tables, [(5.0, 1.5, 3.5), (7.5, 16.0, -8.5)], strict=True):
        ((_, *cells),) = table.rows
        assert [cell.number for cell in cells] == pytest.approx(means)
        assert {cell.n for cell in cells} == {2}
