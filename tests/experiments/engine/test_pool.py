"""The processes of the local backend: one that dies or takes too long costs its own run only."""

import pytest
from running import folder_of, run_of
from spherenorm_tiny import tiny_spec

from spherenorm_experiments.engine import Runner, StoreError, find_backend
from spherenorm_experiments.engine.door import execute_spec


def outcomes_of(specs, root, jobs=2, **flags):
    runs = [run_of(spec, root) for spec in specs]
    ended = find_backend("local")(runs, execute_spec, root, jobs, Runner(**flags))
    found = {outcome.id: outcome for outcome in ended}
    return [found[run.id] for run in runs]


def test_a_process_that_dies_fails_its_own_run(tmp_path):
    specs = [
        tiny_spec("spherenorm_tiny:dying", lr=0.1),
        *(tiny_spec(seed=seed, epochs=1) for seed in range(2)),
        tiny_spec("spherenorm_tiny:dying", lr=0.2),
        tiny_spec("spherenorm_tiny:printing", lr=0.1),
    ]
    found = outcomes_of(specs, tmp_path)
    states = ["failed", "finished", "finished", "failed", "finished"]
    assert [outcome.state for outcome in found] == states
    assert found[0].error == "its process was killed by SIGSEGV"
    assert folder_of(specs[0], tmp_path).status()["error"] == found[0].error


def test_a_run_that_takes_longer_than_its_limit_is_stopped(tmp_path):
    endless = tiny_spec(epochs=10**6, delay=0.1)
    (found,) = outcomes_of([endless], tmp_path, jobs=1, time_limit=0.5)
    assert (found.state, found.error) == ("failed", "stopped after its time limit of 0.5 s")
    assert folder_of(endless, tmp_path).status()["error"] == found.error
    with pytest.raises(ValueError, match="time_limit must be positive seconds, got 0"):
        Runner(time_limit=0)


def test_a_store_that_cannot_be_written_stops_all(tmp_path):
    (tmp_path / "runs").write_text("")
    with pytest.raises(StoreError, match="cannot write"):
        outcomes_of([tiny_spec(seed=seed) for seed in range(3)], tmp_path)


def test_a_worker_refuses_a_run_that_is_another_one_there(tmp_path):
    """Its sources were edited after the run was asked for: it would be stored under their name."""
    spec = tiny_spec(epochs=1)
    outcome = execute_spec(spec, tmp_path, expected="tiny-sgdp-0123456789abcdef")
    assert (outcome.id, outcome.state) == ("tiny-sgdp-0123456789abcdef", "failed")
    assert f"here it is {run_of(spec).id}" in outcome.error
    assert not list(tmp_path.iterdir())
    assert execute_spec(spec, tmp_path, expected=run_of(spec).id).state == "finished"
