"""compare_paths: a fault shows in the weight that has it, and nothing moves."""

from __future__ import annotations

import pytest
import torch

import spherenorm as sn
from tests.compile.faults import plant_fault
from tests.compile.twins import drawn
from tests.compile.written import optimizer_of, rule
from tests.harness import refuses


def trained(dtype=torch.float32, **options):
    """Return an optimizer after two steps, with gradients for a third."""
    weights = [torch.nn.Parameter(w.to(dtype)) for w in drawn([(6, 5), (4, 3, 3, 3), (5,)])]
    names = [("layer.weight", weights[0]), ("conv.weight", weights[1]), ("layer.bias", weights[2])]
    optimizer = sn.optim.AdamP(names, lr=0.1, **options)
    for seed in range(3):
        for weight, grad in zip(weights, drawn([w.shape for w in weights], seed), strict=True):
            weight.grad = grad.to(dtype)
        if seed < 2:
            optimizer.step()
    return optimizer


def snapshot(optimizer):
    (group,) = optimizer.param_groups
    states = [value for w in group["params"] for value in optimizer.state[w].values()]
    return [x.detach().clone() for x in (*group["params"], *states)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("backend", ["auto", "rule"])
def test_a_right_path_differs_by_rounding_and_nothing_moves(backend, dtype):
    optimizer = trained(dtype, backend=backend)
    before = snapshot(optimizer)
    comparison = sn.compare_paths(optimizer)
    assert all(map(torch.equal, before, snapshot(optimizer)))
    assert [row.name for row in comparison] == ["layer.weight", "conv.weight", "layer.bias"]
    for row in comparison:
        assert row.step > 0.01
        assert row.differences.keys() == {"weight", "step", "exp_avg", "exp_avg_sq"}
        assert row.difference <= 4 * torch.finfo(dtype).eps
        assert row.float64_difference <= 1e-14
        assert row.name in str(comparison)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_fault_that_came_after_the_verification_shows(dtype, choose, monkeypatch):
    choose("batched")
    optimizer = trained(dtype)
    assert {row.path for row in sn.compare_paths(optimizer)} == {"batched"}
    plant_fault(monkeypatch, "lerp", "batched")
    for row in sn.compare_paths(optimizer):
        assert row.float64_differences["weight"] > 0.005 * row.step
        assert row.float64_differences["exp_avg"] > 1e-3
        assert row.float64_differences["exp_avg_sq"] < 1e-14


def test_a_weight_without_a_name_has_its_index_and_a_stack_is_compared():
    mine = rule({"m": "0.9 * old['m'] + d"}, "0.1 * (d @ d.T) @ d")
    weights = [torch.nn.Parameter(w) for w in drawn([(6, 4), (3, 4)])]
    optimizer = optimizer_of(mine())([{"params": [w]} for w in weights], backend="compiled")
    rows = [*sn.compare_paths(optimizer)]
    assert [(row.group, row.name, row.path) for row in rows] == [
        (0, "0", "stack"),
        (1, "1", "stack"),
    ]
    assert all(row.difference <= 1e-12 for row in rows)


def test_a_weight_that_cannot_step_has_its_reason():
    class Branching(sn.Rule):
        def update(self, update, state):
            return update.replace(direction=update.direction * float(update.direction.sum())), {}

    weight = torch.nn.Parameter(torch.ones(3))
    (row,) = sn.compare_paths(optimizer_of(Branching())([weight], backend="compiled"))
    assert (row.path, row.differences) == ("error", {})
    assert "Branching" in row.reason


def test_another_optimizer_is_refused():
    with refuses("SGD", "optimizer", by=TypeError):
        sn.compare_paths(torch.optim.SGD([torch.ones(2, requires_grad=True)], lr=0.1))
