import math

import pytest

from spherenorm import Interval


@pytest.mark.parametrize(
    ("text", "within", "outside"),
    [
        ("[0, 1)", (0, 0.5, 1 - 1e-16 * 2), (-1e-300, 1, 2)),
        ("[0, 1]", (0, 1), (-1, 1.1)),
        ("(0, inf)", (1e-300, 1e300), (0, -1, math.inf)),
        ("[-1, 1]", (-1, 0, 1), (-2, 2)),
    ],
)
def test_ends_belong_to_it_as_written(text, within, outside):
    interval = Interval.parse(text)
    assert all(value in interval for value in within)
    assert not any(value in interval for value in (*outside, math.nan))
    assert str(interval) == text.replace("inf", "∞")


def test_equal_intervals_are_equal():
    assert Interval.parse("[0, 1)") == Interval(0, 1, open_high=True)
    assert len({Interval.parse("[0, 1)"), Interval.parse("[0.0, 1.0)")}) == 1


@pytest.mark.parametrize("text", ["0, 1", "[0,1)", "[a, b]", "[0, 1) "])
def test_what_is_no_interval_is_refused(text):
    with pytest.raises(ValueError, match=r"an interval is written as|could not convert"):
        Interval.parse(text)
