"""Estimates of how long runs will take."""

from dataclasses import replace

import pytest
from running import run_of
from spherenorm_tiny import tiny_spec

from spherenorm_experiments.core import Spec
from spherenorm_experiments.engine import Store
from spherenorm_experiments.study import _campaign, estimate, time_steps


def test_short_runs_do_not_tell_how_long_long_ones_take(tmp_path):
    store = Store(tmp_path)

    def ended(spec, seconds):
        run = run_of(spec, tmp_path)
        run.folder.write_config(run.config)
        run.folder.write_status("finished", seconds=seconds)

    long = run_of(tiny_spec(epochs=40), tmp_path)
    guess = estimate(store, [long])[long.id]
    ended(tiny_spec(epochs=1), 400.0)
    ended(replace(tiny_spec(epochs=40, seed=1), batch_size=8), 400.0)
    assert estimate(store, [long])[long.id] == guess
    ended(tiny_spec(epochs=20), 30.0)
    assert estimate(store, [long])[long.id] == pytest.approx(60.0)


def test_a_step_that_is_timed_tells_what_no_run_tells(tmp_path, monkeypatch):
    store = Store(tmp_path)
    short, long = (run_of(tiny_spec(epochs=count), tmp_path) for count in (1, 40))
    toy = run_of(Spec("cosine", "sgd", {"lr": 0.1}), tmp_path)
    asked = []
    monkeypatch.setattr(_campaign, "time_step", lambda run: asked.append(run.id) or 2.0)
    timed = time_steps([short, long, toy])
    assert len(asked) == 1  # both runs are of one kind, and a toy is not timed
    costs = estimate(store, [short, long, toy], timed)
    assert (costs[short.id], costs[long.id]) == (2.0 * short.steps, 2.0 * long.steps)
    assert costs[toy.id] == estimate(store, [toy])[toy.id]
    short.folder.write_config(short.config)
    short.folder.write_status("finished", seconds=5.0)
    assert estimate(store, [short], timed)[short.id] == 5.0
