"""Table G.1: the search."""

from running import run_study, shown


def test_a_recipe_that_substitutes_is_tuned_in_as_many_trials(store):
    own = "spherenorm_tiny:careful"
    study, _, results = run_study("g1", store, optimizers=("sgdp", own))
    counts = {
        arm.label: len({item.spec.hyper_parameters["lr"] for item in results.arm(arm)})
        for arm in results.arms
    }
    assert counts == {"SGDP": 8, f"{own} as SGDP": 8}
    rows = {row[0]: row for row in shown(study.tables(results)[-1])}
    assert set(rows) == set(counts)
