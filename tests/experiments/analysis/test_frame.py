"""All runs of a store as one frame."""

import pytest
from spherenorm_tiny import tiny_spec

import spherenorm_experiments
from spherenorm_experiments.core import Spec
from spherenorm_experiments.engine.door import execute_spec

pandas = pytest.importorskip("pandas")


def test_a_frame_has_a_row_for_each_run_however_it_was_computed(tmp_path):
    points = {"lr": [0.01, 1e300], "momentum": 0.9}
    execute_spec(Spec("cosine", "sgd", points, seeds=(0, 1, 2), epochs=3, probes=()), tmp_path)
    execute_spec(tiny_spec(), tmp_path)
    frame = spherenorm_experiments.load(tmp_path)
    assert len(frame) == frame.run.nunique() == 7
    toys = frame[frame.task == "cosine"]
    assert sorted(toys.seed) == [0, 0, 1, 1, 2, 2]
    assert set(toys.lr) == {0.01, 1e300}
    pivot = toys.pivot_table("final_gap", "lr", "seed", dropna=False)
    assert pivot.loc[0.01].notna().all()
    assert toys[toys.lr == 0.01].diverged_at.isna().all()
    (tiny,) = frame[frame.task != "cosine"].to_dict("records")
    assert tiny["test"] == tiny["test.score"]


def test_a_run_that_two_commands_have_computed_at_once_is_one_row(tmp_path):
    for seeds in ((0, 1), (1, 2)):
        spec = Spec("cosine", "sgd", {"lr": [0.01]}, seeds=seeds, epochs=3, probes=())
        execute_spec(spec, tmp_path)
    assert sorted(spherenorm_experiments.load(tmp_path).seed) == [0, 1, 2]
