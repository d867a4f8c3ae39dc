"""Harmonic CNN: published counts, the filters' formula, and a gradient for their width."""

import math

import numpy as np
import torch

from spherenorm_experiments.paper.audio.harmonic_cnn import HarmonicFilters


def test_filters_are_triangles_around_harmonics():
    filters = HarmonicFilters()
    with torch.no_grad():
        filters.q.fill_(1.3)
    weights = filters.weights().detach().double().numpy()
    notes = [440 * 2 ** ((24 + k / 2 - 69) / 12) for k in range(128)]  # C1 to E6, two a semitone
    assert filters.bands == 128
    assert notes[-1] < 8000 / 6 * 2 ** (1 / 24)
    for n, k in ((1, 0), (1, 127), (3, 50), (6, 0), (6, 127)):
        centre = n * notes[k]
        width = (0.1079 * centre + 24.7) / 1.3
        expected = []
        for i in range(257):
            x = 8000 * i / 256
            rising, falling = 2 * x / width + 1 - 2 * centre / width, 2 * (centre - x) / width + 1
            expected.append(max(0.0, min(rising, falling)))
        assert max(expected) > 0
        np.testing.assert_allclose(weights[(n - 1) * 128 + k], expected, atol=2e-5)


def test_the_spectrum_is_that_of_a_plain_fourier_sum():
    torch.manual_seed(0)
    filters = HarmonicFilters(rate=800, window=16, harmonics=2, per_semitone=1, lowest=40).double()
    filters.hann = torch.hann_window(16, dtype=torch.float64)
    wave = torch.randn(1, 40, dtype=torch.float64)
    padded = torch.nn.functional.pad(wave[None], (8, 8), mode="reflect")[0, 0]
    powers = []
    for start in range(0, 41, 8):
        frame = [
            0.5 * (1 - math.cos(2 * math.pi * i / 16)) * float(padded[start + i]) for i in range(16)
        ]
        at = [
            sum(x * complex(math.cos(a := 2 * math.pi * i * b / 16), -math.sin(a))
                for i, x in enumerate(frame))
            for b in range(9)
        ]  # fmt: skip
        powers.append([abs(x) ** 2 for x in at])
    expected = filters.weights().detach().numpy() @ np.array(powers).T
    expected = 10 * np.log10(np.maximum(expected, 1e-10)).reshape(1, 2, filters.bands, 6)
    np.testing.assert_allclose(filters(wave).detach().numpy(), expected, atol=1e-9)
