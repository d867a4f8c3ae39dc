"""Laws of random chains are the steps of their code, for five shapes; see `tests.theory.chains`."""

import pytest

from tests.theory.chains import compare_chain

SEEDS = [s if s < 106 else pytest.param(s, marks=pytest.mark.long) for s in range(100, 112)]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_chain_is_its_law(seed):
    assert compare_chain(seed) in ("same", "one unit")
