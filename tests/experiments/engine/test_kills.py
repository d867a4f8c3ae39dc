"""Kills of a run by one process and of one by two; `python -m tests.experiments.kills` has more."""

import pytest
from kills import WAYS, check


@pytest.mark.parametrize("way", [WAYS[0], WAYS[2]], ids=lambda way: way.name)
def test_a_run_that_is_killed_equals_one_that_is_not(tmp_path, forkserver, way):
    assert check(forkserver, way, 3, 2, tmp_path)
