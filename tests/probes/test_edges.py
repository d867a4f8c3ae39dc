"""Probes of groups that change, names that do not exist, and steps that are skipped or repeated."""

import math
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import spherenorm as sn
from spherenorm import rules as r


def nearly_tangential(weight):
    """A gradient of cosine 1e-3 with each row."""
    noise = torch.randn_like(weight)
    w = weight.detach() / weight.detach().norm(dim=1, keepdim=True)
    tangential = noise - w * (w * noise).sum(1, keepdim=True)
    return tangential / tangential.norm(dim=1, keepdim=True) + 1e-3 * w


def test_a_weight_that_changes_its_group_is_tested_as_its_new_group_says():
    torch.manual_seed(0)
    weights = [nn.Parameter(torch.randn(6, 4)), nn.Parameter(torch.randn(5, 8))]
    groups = [{"params": weights[:1], "delta": 1e-9}, {"params": weights[1:], "delta": 0.1}]
    optimizer = sn.optim.SGDP(groups, lr=0.1)
    with sn.probe(optimizer, every=1) as found:
        for _ in range(2):
            for weight in weights:
                weight.grad = nearly_tangential(weight)
            optimizer.step()
            first, second = optimizer.param_groups
            first["params"], second["params"] = weights, []
    views = [(m.step, m.weight, m.invariant_view) for m in found.measurements]
    assert views == [(1, "0", None), (1, "1", "channel"), (2, "0", None), (2, "1", None)]


@dataclass(frozen=True)
class LargeOnTheWhole(r.ScaleInvarianceTest):
    """A test of a user's own, which looks at all units of a weight together."""

    def decide(self, sums, state):
        passes = [(x.squared_norm > 0) & (x.squared_norm.sum() > 100) for x in sums]
        silent = [x.squared_norm == 0 for x in sums]
        norms = [x.squared_norm for x in sums]
        return sn.Invariance.decided(self.views, passes, silent, norms, self.per), {}


def large(lr=0.1, per="tensor"):
    test = LargeOnTheWhole(views=("channel",), per=per)
    return sn.chain(test, r.RadialProjection(), r.StepSize(lr))


@pytest.mark.parametrize("per", ["tensor", "unit"])
def test_a_users_test_decides_on_one_weight_at_a_time(per):
    weights = [nn.Parameter(torch.full((6, 4), x)) for x in (1.0, 10.0, 2.0, 3.0)]  # |w|^2 = 24 x^2
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optimizer = sn.torch_optimizer(large)(weights, per=per)
    with sn.probe(optimizer, every=1) as found:
        optimizer.step()
    assert [m.invariant for m in found.measurements] == [0.0, 1.0, 0.0, 1.0]


@pytest.mark.parametrize(("fused", "steps"), [(False, [1, 2]), (True, [1, 2, 3])])
def test_a_skipped_step_counts_only_for_a_fused_optimizer(fused, steps):
    weight = nn.Parameter(torch.ones(2, 3))
    optimizer = torch.optim.AdamW([weight], lr=0.01, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with sn.probe(optimizer, every=1) as found:
        for factor in (1.0, math.inf, 1.0):
            optimizer.zero_grad()
            scaler.scale((weight * torch.arange(3.0)).sum() * factor).backward()
            scaler.step(optimizer)
            scaler.update()
    assert [m.step for m in found.measurements] == steps
    turned = [m.turn > 0 for m in found.measurements]
    assert turned == ([True, False, True] if fused else [True, True])
    assert [math.isnan(m.cosine) for m in found.measurements] == [not each for each in turned]


@pytest.mark.parametrize("units", [False, True])
def test_groups_of_the_audit_have_weights_that_no_test_looks_at(units):
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    batch = torch.randn(16, 4)
    groups = sn.param_groups(model, batch, "sgdp", lr=0.01)
    optimizer = sn.optim.SGDP(groups)
    with sn.probe(optimizer, every=1, model=model, units=units) as probe:
        model(batch).square().mean().backward()
        before = model[3].weight.detach().clone()
        optimizer.step()
    found = {each.weight: each for each in probe.measurements}
    assert (found["0.weight"].invariant, found["0.weight"].invariant_view) == (1.0, "channel")
    untested = found["3.weight"]
    assert (untested.invariant, untested.invariant_view) == (0.0, None)
    turns = sn.metrics.angular_update(before, model[3].weight.detach(), untested.view)
    assert untested.turn == pytest.approx(float(turns.square().mean().sqrt()), rel=1e-5)


class WritesIntoGradients(torch.optim.Optimizer):
    """As older optimizers do: decay is added to the gradient itself, from the second step on."""

    def __init__(self, params, start):
        super().__init__(params, {"start": start})
        self.steps = 0

    @torch.no_grad()
    def step(self, closure=None):
        self.steps += 1
        for group in self.param_groups:
            for p in group["params"]:
                if self.steps >= group["start"]:
                    p.grad.add_(p)
                p.sub_(p.grad, alpha=0.1)


@pytest.mark.parametrize(("start", "lost"), [(1, []), (2, [2])])
def test_the_raw_gradient_is_measured_though_the_step_writes_into_it(start, lost):
    """A step that has not written into gradients before costs one cosine when it does."""
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(6, 4, dtype=torch.float64))
    optimizer = WritesIntoGradients([weight], start)
    expected = []
    with sn.probe(optimizer, every=1) as found:
        for _ in range(4):
            weight.grad = nearly_tangential(weight)
            expected.append(sn.metrics.cosine(weight, weight.grad).square().mean().sqrt().item())
            optimizer.step()
    for m, cosine in zip(found.measurements, expected, strict=True):
        wanted = math.nan if m.step in lost else cosine
        assert m.cosine == pytest.approx(wanted, rel=1e-12, nan_ok=True)
        assert m.invariant == (m.step not in lost)
