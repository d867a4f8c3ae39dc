"""The small network against plain loops: its invariance, its scores, its records."""

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from spherenorm.functional import sweep
from spherenorm_experiments.paper.shared._network_data import TRAIN, VALIDATION, pool_of, split_of
from spherenorm_experiments.paper.shared.network import Network, _areas

VARIANTS = ("plain", "prenorm")


def first(params):
    return {name: value[0] for name, value in params.items()}


def one_batch(task):
    return tuple(x[0] for x in task.batches(())(0))


@pytest.mark.parametrize("variant", VARIANTS)
def test_units_are_scale_invariant_row_by_row_and_nothing_else_is(variant):
    task = Network(variant=variant, precision="float64", seeds="0", tuning="")
    params, batch = first(task.start(())), one_batch(task)
    loss = task.loss(params, batch)
    for name, value in params.items():
        if name == "bias":
            continue
        scale = 1 + torch.rand(len(value), 1, generator=torch.Generator().manual_seed(1))
        moved = task.loss({**params, name: value * scale}, batch)
        assert torch.isclose(loss, moved, rtol=1e-9) == name.startswith("unit"), name


def test_each_seed_has_its_own_start_order_andsplit_of():
    task = Network(seeds="0 1", tuning="7")
    starts = task.start(())["unit1"]
    assert starts.shape == (3, 32, 32)
    assert not torch.equal(starts[0], starts[1])
    alone = Network(seeds="1", tuning="").start(())["unit1"]
    assert torch.equal(starts[1], alone[0])
    x, _ = task.batches(())(5)
    assert torch.equal(x[1], Network(seeds="1", tuning="").batches(())(5)[0][0])
    parts = [len(t) for t in split_of("digits", 0)[::2]]
    assert parts[:2] == [TRAIN, VALIDATION]
    assert sum(parts) == len(pool_of("digits")[0]) == 1797
    rows = torch.cat(split_of("digits", 1)[::2])
    assert torch.equal(rows.sum(0), pool_of("digits")[0].sum(0)) or torch.allclose(
        rows.sum(0), pool_of("digits")[0].sum(0)
    )


def test_the_summary_is_that_of_a_plain_loop():
    task = Network(precision="float64", seeds="0", tuning="1")
    start, steps, lr = task.start(()), 6, 0.3
    swept = sweep("sgd", task.loss, start, {"lr": [0.1, lr], "momentum": [0.9, 0.9]},
                  steps=steps, batches=task.batches(()), record=task.record)  # fmt: skip
    summary, arrays = task.summarize(start, swept)
    weights = {name: value[0].clone().requires_grad_() for name, value in start.items()}
    optimizer = torch.optim.SGD(weights.values(), lr=lr, momentum=0.9)
    batches, moves, norms = task.batches(()), 0.0, []
    for step in range(steps):
        before = {name: w.detach().clone() for name, w in weights.items()}
        optimizer.zero_grad()
        task.loss(weights, tuple(x[0] for x in batches(step))).backward()
        optimizer.step()
        units = [n for n in weights if n.startswith("unit")]
        after = {name: w.detach() for name, w in weights.items()}
        moves += sum(float((after[n] - before[n]).square().sum()) for n in units)
        norms.append(torch.cat([after[n].norm(dim=1) for n in units]).mean().item())
    begun = sum(float(start[n][0].square().sum()) for n in units)
    grown = sum(float(after[n].square().sum()) for n in units) - begun
    assert summary["growth_over_moves"][1][0] == pytest.approx(grown / moves, rel=1e-9)
    assert summary["norm_last"][1][0] == pytest.approx(norms[-1], rel=1e-12)
    np.testing.assert_allclose(arrays["norm"][:, 1, 0], norms, rtol=1e-6)
    x, y = split_of("digits", 0)[4:]
    hits = task.logits(weights, x).argmax(1) == y.argmax(1)
    assert summary["test"][1][0] == pytest.approx(100 * hits.double().mean().item())
    assert (summary["seeds"], summary["tuning"]) == ([0, 1], 1)


def test_projected_steps_are_told_from_others():
    task = Network(precision="float64", seeds="0", tuning="")
    points = {"lr": [0.1, 0.1], "delta": [0.1, 1e-30]}
    swept = sweep("sgdp", task.loss, task.start(()), points, steps=14,
                  batches=task.batches(()), record=task.record, momentum=0.9)  # fmt: skip
    summary, _ = task.summarize(task.start(()), swept)
    assert [row[0] for row in summary["projected_invariant"]] == [100.0, 0.0]


def test_areas_are_scikit_learns():
    random = torch.Generator().manual_seed(0)
    logits = torch.randn(50, 3, generator=random, dtype=torch.float64)
    tags = (torch.rand(50, 3, generator=random) < 0.4).double()
    expected = roc_auc_score(tags.numpy(), logits.numpy(), average="macro")
    assert _areas(logits, tags).item() == pytest.approx(expected)


def test_half_precision_and_a_fixed_head_train():
    task = Network(precision="float16", head="fixed", data="tagging", seeds="0", tuning="")
    swept = sweep("sgd", task.loss, task.start(()), {"lr": [0.1]}, steps=3,
                  batches=task.batches(()), record=task.record)  # fmt: skip
    summary, _ = task.summarize(task.start(()), swept)
    assert "head" not in swept.params
    assert math.isfinite(summary["test"][0][0])


def test_a_point_that_is_not_finite_has_no_numbers():
    task = Network(seeds="0", tuning="")
    swept = sweep("sgd", task.loss, task.start(()), {"lr": [0.1, 1e300]}, steps=3,
                  batches=task.batches(()), record=task.record)  # fmt: skip
    summary, _ = task.summarize(task.start(()), swept)
    assert summary["test"][1] == [None]
    assert summary["test"][0][0] is not None
