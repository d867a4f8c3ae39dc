"""Adam's moments against a numpy transcription, with and without bias correction."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from spherenorm import chain, rules

betas = st.floats(0, 0.999)


def numpy_adam(gradients, beta1, beta2, eps, nesterov, bias_correction):
    """The sum of m / (sqrt(v) + eps): Kingma and Ba's Algorithm 1, and AdamP's unprojected."""
    m, v, w = 0.0, 0.0, 0.0
    for t, g in enumerate(gradients, 1):
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        numerator = beta1 * m + (1 - beta1) * g if nesterov else m
        if bias_correction:
            w = w - numerator / (1 - beta1**t) / (np.sqrt(v / (1 - beta2**t)) + eps)
        else:
            w = w - numerator / (np.sqrt(v) + eps)
    return w, m, v


@given(
    beta1=betas,
    beta2=betas,
    eps=st.sampled_from([1e-8, 1e-3]),
    nesterov=st.booleans(),
    bias_correction=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_adaptive_moments_against_numpy(beta1, beta2, eps, nesterov, bias_correction, seed):
    gradients = np.random.default_rng(seed).normal(size=(8, 3, 4))
    rule = chain(rules.AdaptiveMoments(beta1, beta2, eps, nesterov, bias_correction))
    weight = torch.zeros(3, 4, dtype=torch.float64)
    state = rule.init(weight)
    for g in gradients:
        weight, state = rule.step(weight, torch.from_numpy(g), state)
    expected, m, v = numpy_adam(gradients, beta1, beta2, eps, nesterov, bias_correction)
    np.testing.assert_allclose(weight.numpy(), expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(state["exp_avg"].numpy(), m, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(state["exp_avg_sq"].numpy(), v, rtol=1e-12, atol=1e-14)
    assert state["step"] == 8
