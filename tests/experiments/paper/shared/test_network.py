"""The small network against plain loops: its invariance, its scores, its records."""

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch.utils._pytree import tree_map

from spherenorm.functional import sweep
from spherenorm_paper.shared.network import (
    TRAIN,
    VALIDATION,
    Network,
    _areas,
    pool_of,
    split_of,
)

VARIANTS = ("plain", "prenorm")


def swept_by(task, recipe, points, steps, seeds=(0,), **fixed):
    """The starts of these seeds, and the result of a sweep over points and seeds."""
    start = stacked([task.start(seed) for seed in seeds])
    batches = [task.batches(seed) for seed in seeds]
    drawn = {"batches": lambda t: stacked([batch(t) for batch in batches]), "record": task.record}
    return start, sweep(recipe, task.loss, start, points, steps=steps, **drawn, **fixed)


def stacked(each):
    return tree_map(lambda *x: torch.stack(x), *each)


@pytest.mark.parametrize("variant", VARIANTS)
def test_units_are_scale_invariant_row_by_row_and_nothing_else_is(variant):
    task = Network(variant=variant, precision="float64")
    params, batch = task.start(0), task.batches(0)(0)
    loss = task.loss(params, batch)
    for name, value in params.items():
        if name == "bias":
            continue
        scale = 1 + torch.rand(len(value), 1, generator=torch.Generator().manual_seed(1))
        moved = task.loss({**params, name: value * scale}, batch)
        assert torch.isclose(loss, moved, rtol=1e-9) == name.startswith("unit"), name


def test_each_seed_has_its_own_start_order_and_split():
    starts = [Network().start(seed)["unit1"] for seed in (0, 1, 1)]
    assert not torch.equal(starts[0], starts[1])
    assert torch.equal(starts[1], starts[2])
    batches = [Network().batches(seed)(5)[0] for seed in (0, 1, 1)]
    assert not torch.equal(batches[0], batches[1])
    assert torch.equal(batches[1], batches[2])
    parts = [len(t) for t in split_of("digits", 0)[::2]]
    assert parts[:2] == [TRAIN, VALIDATION]
    assert sum(parts) == len(pool_of("digits")[0]) == 1797
    rows = torch.cat(split_of("digits", 1)[::2])
    torch.testing.assert_close(rows.sum(0), pool_of("digits")[0].sum(0))


def test_the_summary_is_that_of_a_plain_loop():
    task = Network(precision="float64")
    steps, lr, points = 6, 0.3, {"lr": [0.1, 0.3], "momentum": [0.9, 0.9]}
    start, swept = swept_by(task, "sgd", points, steps, seeds=(0, 1))
    summary, arrays = task.summarize((0, 1), start, swept)
    weights = {name: value[0].clone().requires_grad_() for name, value in start.items()}
    optimizer = torch.optim.SGD(weights.values(), lr=lr, momentum=0.9)
    batches, moves, norms = task.batches(0), 0.0, []
    for step in range(steps):
        before = {name: w.detach().clone() for name, w in weights.items()}
        optimizer.zero_grad()
        task.loss(weights, batches(step)).backward()
        optimizer.step()
        units = [n for n in weights if n.startswith("unit")]
        after = {name: w.detach() for name, w in weights.items()}
        moves += sum(float((after[n] - before[n]).square().sum()) for n in units)
        norms.append(torch.cat([after[n].norm(dim=1) for n in units]).mean().item())
    begun = sum(float(start[n][0].square().sum()) for n in units)
    grown = sum(float(after[n].square().sum()) for n in units) - begun
    assert summary["growth_over_moves"][1][0] == pytest.approx(grown / moves, rel=1e-9)
    assert summary["norm_last"][1][0] == pytest.approx(norms[-1], rel=1e-12)
    np.testing.assert_allclose(arrays["norm"][1, 0], norms, rtol=1e-6)
    train, _, _, _, x, y = split_of("digits", 0)

    def outputs(of):
        return task.logits(weights, torch.cat([train, of]), rows=len(train))[len(train) :]

    hits = outputs(x).argmax(1) == y.argmax(1)
    torch.testing.assert_close(outputs(x[:7]), outputs(x)[:7])  # whatever else is in the test
    assert summary["test"][1][0] == pytest.approx(100 * hits.double().mean().item())


def test_projected_steps_are_told_from_others():
    task, points = Network(precision="float64"), {"lr": [0.1, 0.1], "delta": [0.1, 1e-30]}
    summary, _ = task.summarize((0,), *swept_by(task, "sgdp", points, 14, momentum=0.9))
    assert [row[0] for row in summary["projected_invariant"]] == [100.0, 0.0]


def test_areas_are_scikit_learns():
    random = torch.Generator().manual_seed(0)
    logits = torch.randn(50, 3, generator=random, dtype=torch.float64)
    tags = (torch.rand(50, 3, generator=random) < 0.4).double()
    expected = roc_auc_score(tags.numpy(), logits.numpy(), average="macro")
    assert _areas(logits, tags).item() == pytest.approx(expected)


def test_the_rows_of_the_sphere_start_at_one_in_the_directions_of_the_network():
    there, here = Network().start(0), Network(sphere=True).start(0)
    assert here.keys() == {"unit0", "unit1", "unit2"}
    for name, w in here.items():
        torch.testing.assert_close(w.norm(dim=-1), torch.ones(len(w)).double())
        torch.testing.assert_close(w * there[name].norm(dim=-1, keepdim=True), there[name])
