"""Recipes that substitute for a study's own are shown beside these."""

from running import run_study, shown


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
