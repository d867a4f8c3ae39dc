"""Estimates of how long runs will take."""

from dataclasses import replace

import pytest
from running import run_of
from spherenorm_tiny import tiny_spec

from spherenorm_experiments.core import Spec
from spherenorm_experiments.engine import Store
from spherenorm_experiments.engine.door import Door
from spherenorm_experiments.study import Campaign, Plan


def test_short_runs_do_not_tell_how_long_long_ones_take(tmp_path):
    campaign = Campaign([], Plan("smoke"), Door(Store(tmp_path)))

    def ended(spec, seconds):
        run = run_of(spec, tmp_path)
        run.folder.write_config(run.config)
        run.folder.write_status("finished", seconds=seconds)

    long = run_of(tiny_spec(epochs=40), tmp_path)
    guess = campaign.estimate([long])[long.id]
    ended(tiny_spec(epochs=1), 400.0)
    ended(replace(tiny_spec(epochs=40, seed=1), batch_size=8), 400.0)
    assert campaign.estimate([long])[long.id] == guess
    ended(tiny_spec(epochs=20), 30.0)
    assert campaign.estimate([long])[long.id] == pytest.approx(60.0)


def test_the_points_of_a_computation_share_its_operations(tmp_path):
    campaign = Campaign([], Plan("smoke"), Door(Store(tmp_path)))
    one, many = (
        run_of(Spec("cosine", "sgd", {"lr": rates}), tmp_path) for rates in ([1], [1] * 101)
    )
    costs = campaign.estimate([one, many])
    assert costs[many.id] == pytest.approx(2 * costs[one.id])
    one.folder.write_config(one.config)
    one.folder.write_status("finished", seconds=5.0)
    assert campaign.estimate([many])[many.id] == pytest.approx(10.0)
