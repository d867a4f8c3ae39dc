"""Columns of means: all over the same seeds, and none over those on which an arm fared well."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from spherenorm_experiments.analysis import Sample, column, difference

NUMBERS = st.floats(-1e3, 1e3)
SAMPLES = st.builds(
    lambda numbers, lost: Sample({s: v for s, v in numbers.items() if s not in lost}, lost),
    st.dictionaries(st.integers(0, 7), NUMBERS),
    st.frozensets(st.integers(0, 7), max_size=2),
)


@given(st.lists(SAMPLES, min_size=1, max_size=4))
def test_every_mean_of_a_column_is_over_the_same_seeds(samples):
    ended = [set(sample) | sample.diverged for sample in samples]
    shared = set.intersection(*(seeds for seeds in ended if seeds)) if any(ended) else set()
    for sample, cell in zip(samples, column(samples, "g"), strict=True):
        known = [value for seed, value in sample.items() if seed in shared]
        if cell.number is None:
            assert not known or sample.diverged & shared
        else:
            assert cell.n == len(shared)
            assert math.isclose(cell.number, np.mean(known), rel_tol=1e-12, abs_tol=1e-12)
        assert cell.diverged == len(sample.diverged & shared)


def test_a_difference_is_of_the_seeds_that_both_have():
    a = Sample({0: 1.0, 1: 2.0, 2: 4.0, 9: 1e6})
    b = Sample({0: 0.5, 1: 1.0, 2: 1.0, 8: -1e6}, frozenset({9}))
    cell = difference(a, b)
    gaps = [0.5, 1.0, 3.0]
    low, high = stats.t.interval(0.95, 2, np.mean(gaps), stats.sem(gaps))
    assert (cell.n, cell.diverged) == (3, 1)
    assert np.allclose([cell.number, *cell.interval], [1.5, low, high])


def test_one_seed_has_no_interval_and_none_no_number():
    assert difference({0: 2.0}, {0: 1.0}).interval is None
    assert str(difference({0: 2.0}, {1: 1.0})) == "–"
