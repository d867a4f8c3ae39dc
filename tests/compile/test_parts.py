"""Rows in several processes: parts whose totals are added up between passes step as the whole."""

import pytest
import torch

from spherenorm import optim
from spherenorm.compile._backends import Work
from spherenorm.compile._guard import Guard
from spherenorm.compile._kernels import Batch, Specialization, vector
from spherenorm.compile._lower import lower
from tests.compile.twins import assert_close, random_weights
from tests.harness.rows import Row
from tests.harness.gradients import FAMILIES, gradient

PART_ROWS = [
    Row(optim.AdamP, {"lr": 0.1, "weight_decay": 0.1}),
    Row(optim.SGDP, {"lr": 0.1, "momentum": 0.9, "dampening": 0.5, "per": "unit"}),
    Row(optim.Lamb, {"lr": 0.1}),
]
"""Decisions on a weight, decisions on units, and a norm of the direction."""
SHAPES = ((6, 5), (4, 3, 3, 3), (70, 1001), (1, 6), (9,), (0, 4))
STEPS = 4


def parts_agree(row, shapes):
    """Weights cut in two along dimension 0, one part empty where there is one row."""
    rule, works, whole = row.rule(), ([], []), []
    guard, paths = Guard.of(row.rule()), []
    for weight in random_weights(shapes):
        if not weight.ndim:
            continue
        graph = lower(guard, tuple(weight.shape), weight.dtype)
        paths.append(Specialization.of(graph, len(guard.numbers), weight.dtype, weight.device))
        state, at = rule.init(weight), len(weight) // 3
        whole.append((weight, state))
        for part, rows in zip(works, (slice(at), slice(at, None)), strict=True):
            own = {k: (x[rows] if x.ndim else x).clone() for k, x in state.items()}
            part.append(Work(weight[rows].clone(), torch.empty_like(weight[rows]), own))
    kernels = dict.fromkeys(path.kernel for path in paths)
    for step in range(STEPS):
        for i, (weight, state) in enumerate(whole):
            kind = FAMILIES[(i + step) % 4] if weight.ndim > 1 and weight.numel() else "random"
            grad = gradient(kind, weight, torch.Generator().manual_seed(step), step)
            for part in works:
                before = 0 if part is works[0] else len(works[0][i].weight)
                part[i].grad.copy_(grad[before : before + len(part[i].weight)])
            whole[i] = rule.step(weight, grad, state)
        for kernel in kernels:
            own = [i for i, path in enumerate(paths) if path.kernel == kernel]
            walks = []
            for part in works:
                batch = Batch(kernel, [(paths[i], part[i]) for i in own])
                numbers = vector(guard.numbers, torch.device("cpu"))
                walks.append(batch.by_passes([part[i] for i in own], numbers))
            for totals in zip(*walks, strict=True):
                added = sum(each.clone() for each in totals)
                for each in totals:
                    each.copy_(added)
    for i, (weight, state) in enumerate(whole):
        assert_close(torch.cat([part[i].weight for part in works]), weight)
        for name, value in state.items():
            found = [part[i].state[name] for part in works]
            assert_close(torch.cat(found) if value.ndim else found[0], value)
            assert value.ndim or torch.equal(*found)


@pytest.mark.parametrize("row", PART_ROWS, ids=lambda row: row.id)
def test_parts_of_weights_step_as_whole_ones(row):
    parts_agree(row, SHAPES)
