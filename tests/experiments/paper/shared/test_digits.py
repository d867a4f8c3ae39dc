"""The digits: their data, their networks."""

import numpy as np
import pytest
import torch

from spherenorm import audit
from spherenorm_experiments.core import find_task


def test_digits_are_stratified_and_standardized():
    train, validation, test = find_task("digits").data()
    assert [len(y) for _, y in (train, validation, test)] == [1150, 287, 360]
    shares = np.array(
        [torch.bincount(y, minlength=10).numpy() / len(y) for _, y in (train, validation, test)]
    )
    assert np.ptp(shares, axis=0).max() < 0.01
    assert train[0].mean().abs() < 1e-5
    assert abs(train[0].std() - 1) < 1e-5


@pytest.mark.parametrize(
    ("options", "invariant", "variant"),
    [
        ({"variant": "plain"}, 3, 1),
        ({"variant": "residual"}, 6, 1),
        ({"variant": "transformer"}, 0, 11),
    ],
)
def test_the_audit_finds_what_normalization_makes_invariant(options, invariant, variant):
    task = find_task("digits", options)
    torch.manual_seed(0)
    inputs = task.audit_inputs()
    views = [finding.view for finding in audit(task.model(), *inputs)]
    assert views.count("channel") == invariant
    assert views.count(None) == variant
