"""The rate of false positives, and counts."""

import pytest

from spherenorm_theory import false_positive_rate
from spherenorm_theory.checks import count_false_positives


def test_false_positive_rate():
    assert false_positive_rate(0.1) == pytest.approx(0.0796557, abs=1e-7)
    assert false_positive_rate(0.1, 10**6) == pytest.approx(false_positive_rate(0.1), rel=1e-5)
    assert false_positive_rate(0.1, 3) == pytest.approx(0.1 / 3**0.5)
    assert false_positive_rate(2.0, 2) == 1
    for bad in ({"delta": 0.0}, {"channels": 0}, {"dimension": 1}):
        with pytest.raises(ValueError, match=r"positive|need"):
            false_positive_rate(**bad)


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
