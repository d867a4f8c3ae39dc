"""The rate of false positives against counts."""

import pytest

from spherenorm_theory.checks import count_false_positives


@pytest.mark.parametrize(
    "case",
    [
        {"dimension": 2},
        {"dimension": 64},
        {"dimension": 8, "channels": 3, "delta": 1.0},
        {"dimension": 16, "channels": 4, "view": "layer"},
    ],
    ids=str,
)
def test_false_positives(case):
    counted = count_false_positives(trials=10_000, **case)
    assert counted.passed, counted
