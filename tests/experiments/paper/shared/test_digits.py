"""The digits: their data, their networks."""

import pytest
import torch

from spherenorm import audit
from spherenorm_experiments.core import find_task


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
