"""The law of a run: norms that it predicts for a probe, and turns in equilibrium."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import spherenorm as sn
from spherenorm.probes import Measurement
from spherenorm_theory import run_law
from tests.harness.refusals import refuses


def network():
    return nn.Sequential(nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.Linear(8, 2))


def trained(optimizer, model, law, **options):
    with sn.probe(optimizer, every=1, model=model, law=law, **options) as probe:
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.randn(32, 6)).square().mean().backward()
            optimizer.step()
    return probe.measurements


def test_the_law_of_a_projected_run_is_its_norm():
    """Of one unit exactly; where each row is projected, so is the whole."""
    model = network().double()
    optimizer = sn.optim.SGDP(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    law = run_law(torch.optim.lr_scheduler.StepLR(optimizer, 1), model=model)
    torch.set_default_dtype(torch.float64)
    try:
        found = trained(optimizer, model, law, views={"0.weight": "layer", "2.weight": None})
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(abs(m.predicted / m.norm - 1) < 1e-12 for m in found)
    kept = 1 - 0.1 * 0.1 * 0.1 / (1 - 0.9)  # not a law without its decay
    assert all(abs(m.predicted / kept / m.norm - 1) > 1e-3 for m in found)


def test_equilibria_of_a_run_are_those_of_the_literature():
    """docs/theory.md, section 6."""
    model = network()
    invariant = Measurement(1, "0.weight", "channel", 1.0, 1.0, 0.1, 0.1, 0.0, 1.0, "channel")
    for optimizer, squared in (
        (torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1), 0.02 / 1.9),
        (sn.optim.SGDP(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1), 0.02),
    ):
        law = run_law(optimizer, model=model)
        assert 2 * math.sin(law.turn(invariant) / 2) == pytest.approx(math.sqrt(squared), rel=1e-6)
        assert math.isnan(law.turn(replace(invariant, invariant_view=None)))
        assert math.isnan(law.turn(replace(invariant, weight="nobody's")))
        optimizer.param_groups[0]["weight_decay"] = 0.0
        assert math.isnan(law.turn(invariant))


def test_an_optimizer_without_a_recipe_has_no_law():
    with refuses("run_law", "SGD", by=TypeError):
        run_law(torch.optim.Adagrad([torch.ones(2, 2)]))
