"""Table G.1: the search."""

from running import run_study, shown


def test_every_optimizer_is_tuned_in_as_many_trials(store):
    study, _, results = run_study("g1", store, only=("sgdp", "sgd"))
    counts = {
        arm.label: len({item.spec.hyper_parameters["lr"] for item in results.arm(arm)})
        for arm in results.arms
    }
    assert counts == {"SGDP": 8, "SGD": 8}
    rows = {row[0]: row for row in shown(study.tables(results)[-1])}
    assert set(rows) == set(counts)
