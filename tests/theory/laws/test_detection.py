"""The rate of false positives in closed form."""

import pytest

from spherenorm_theory import false_positive_rate


def test_false_positive_rate():
    assert false_positive_rate(0.1) == pytest.approx(0.0796557, abs=1e-7)
    assert false_positive_rate(0.1, 10**6) == pytest.approx(false_positive_rate(0.1), rel=1e-5)
    assert false_positive_rate(0.1, 3) == pytest.approx(0.1 / 3**0.5)
    assert false_positive_rate(2.0, 2) == 1
    for bad in ({"delta": 0.0}, {"channels": 0}, {"dimension": 1}):
        with pytest.raises(ValueError, match=r"positive|need"):
            false_positive_rate(**bad)
