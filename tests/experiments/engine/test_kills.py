"""A few kills of each kind; `python -m tests.experiments.kills` has more."""

import pytest
from kills import WAYS, check


@pytest.mark.parametrize("way", WAYS[:3], ids=lambda way: way.name)
def test_a_run_that_is_killed_equals_one_that_is_not(tmp_path, forkserver, way):
    assert check(forkserver, way, 3, 2, tmp_path)
