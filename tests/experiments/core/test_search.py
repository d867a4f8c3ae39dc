"""The points of a search fill its ranges evenly, and are the same each time."""

import math

import pytest

from spherenorm_experiments.core import points


def test_search_points_fill_the_ranges_evenly_and_are_the_same_each_time():
    space = {"lr": (1e-3, 1e-1), "rest": (1e-2, 1.0)}
    halton = points(space, 16)
    assert halton == points(space, 16)
    assert halton[:8] == points(space, 8)  # a larger budget adds to a smaller one
    for name, (low, high) in space.items():
        shares = [math.log(point[name] / low) / math.log(high / low) for point in halton]
        assert all(0 < share < 1 for share in shares)
        assert all(
            sum(i / 4 <= share < (i + 1) / 4 for share in shares) in (3, 4, 5) for i in range(4)
        )
    assert [point["lr"] for point in points({"lr": (1e-3, 1e-1)}, 3, "grid")] == pytest.approx(
        [1e-3, 1e-2, 1e-1]
    )
    assert len(points(space, 9, "grid")) == 9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (({"lr": (0.1, 0.01)}, 3), "range of lr must be positive and rising"),
        (({"lr": (0.01, 0.1), "rest": (0.1, 1.0)}, 5, "grid"), "does not fill 2 dimensions"),
        (({"lr": (0.01, 0.1)}, 5, "haltn"), "did you mean halton"),
    ],
)
def test_wrong_searches_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        points(*arguments)
