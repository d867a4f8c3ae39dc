"""The losses of the toys on the sphere."""

import math

import pytest
import torch

from spherenorm_paper.shared import toys


@pytest.mark.parametrize(("a", "b"), [(-2.0, 2.0), (1.0, 1.0), (0.3, -0.4)])
def test_the_toys(a, b):
    """The Rosenbrock function of the two angles of a vector, and minus a cosine."""
    point = torch.tensor(toys.sphere_point(a, b), dtype=torch.float64)
    psi, phi = a / 1.5, b / 1.5
    angles = [math.cos(phi) * math.sin(psi), math.sin(phi), math.cos(phi) * math.cos(psi)]
    assert point.tolist() == pytest.approx(angles, rel=1e-12)
    expected = (1 - a) ** 2 + 300 * (b - a**2) ** 2
    assert toys.rosenbrock(2.5 * point).item() == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert toys.valley(a, b) == pytest.approx(expected, rel=1e-12, abs=1e-12)
    assert toys.cosine(torch.tensor([3.0, -4.0], dtype=torch.float64)).item() == -4 / 5
