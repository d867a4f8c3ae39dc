"""The toys are the paper's functions."""

import pytest
import torch

from spherenorm import toys


@pytest.mark.parametrize(("a", "b"), [(-2.0, 2.0), (1.0, 1.0), (0.3, -0.4)])
def test_the_toy_is_the_rosenbrock_function_of_the_angles(a, b):
    point = torch.tensor(toys.sphere_point(a, b), dtype=torch.float64)
    expected = (1 - a) ** 2 + 300 * (b - a**2) ** 2
    assert point.norm().item() == pytest.approx(1)
    assert [x.item() for x in toys.scaled_angles(2.5 * point)] == pytest.approx([a, b])
    assert toys.rosenbrock(2.5 * point).item() == pytest.approx(expected, abs=1e-9)


def test_the_toy_in_the_plane_is_minus_the_cosine():
    w = torch.tensor([3.0, -4.0], dtype=torch.float64)
    assert toys.cosine(w).item() == pytest.approx(-4 / 5)
