"""Laws of random chains are the steps of their code; see `tests.theory.chains`."""

import pytest

from tests.theory.chains import compare_chain

SEEDS = [s if 0 < s < 7 else pytest.param(s, marks=pytest.mark.long) for s in range(48)]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_chain_is_its_law(seed):
    assert compare_chain(seed) in ("same", "one unit")
