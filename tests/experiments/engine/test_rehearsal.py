"""A campaign rehearses each task with each recipe before anything runs or is stored."""

from dataclasses import replace

import pytest
import torch
from running import run_of
from spherenorm_tiny import tiny_spec

from spherenorm_experiments.core import Spec
from spherenorm_experiments.engine import Store, rehearse
from spherenorm_experiments.engine.door import Door
from spherenorm_experiments.study import Campaign, Plan, find_study, study_classes

PLACE = r" \(spherenorm_tiny.py, line \d+\)$"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (tiny_spec("spherenorm_tiny:raising", at=0.0), "this recipe gave up" + PLACE),
        (tiny_spec("spherenorm_tiny:mistyped", lr=0.1), "no attribute 'directoin'" + PLACE),
        (replace(tiny_spec(), task="spherenorm_tiny:Mistaken"), "'evaluations'.*" + PLACE),
        (Spec("cosine", "spherenorm_tiny:mistyped", epochs=5, probes=()), "'directoin'"),
    ],
)
def test_what_cannot_run_is_refused_with_file_and_line(spec, message):
    state = torch.get_rng_state()
    with pytest.raises(ValueError, match=message):
        rehearse(run_of(spec))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.long
@pytest.mark.parametrize("tier", ["small", "full"])
def test_every_study_starts_at_this_tier(tier, tmp_path):
    """The smoke tier, which the suite runs, has but the first condition of a comparison."""
    studies = [find_study(name) for name in study_classes()]
    Campaign(studies, Plan(tier), Door(Store(tmp_path))).rehearse()
