"""The steps of a case on every path, as moments that compare with the reference's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import spherenorm as sn
from spherenorm.compile import BATCHED_DEVICES, CUDA_KERNEL_DEVICES
from tests.fuzz.cases import STEPS, Case, laid_out
from tests.fuzz.reference import Gradients, Moment, Place

EXECUTOR_DEVICES = {"batched": BATCHED_DEVICES, "shim": CUDA_KERNEL_DEVICES}
"""The devices of the executors that plain weights on a CPU take on these paths alone."""


def run(path: str, case: Case, gradients: Gradients) -> list[Moment]:
    if path == "sweep":
        return by_sweep(case, gradients)
    if path not in EXECUTOR_DEVICES:
        return by_optimizer(case, gradients, path)
    EXECUTOR_DEVICES[path].add("cpu")
    try:
        return by_optimizer(case, gradients, "compiled")
    finally:
        EXECUTOR_DEVICES[path].discard("cpu")


def by_optimizer(
    case: Case,
    gradients: Gradients,
    backend: str,
    place: Callable[[Tensor, Any], Tensor] = lambda x, weight: x,
    whole: Callable[[Tensor], Tensor] = lambda x: x,
) -> list[Moment]:
    """Args:
    place: puts a weight or its gradient where it lives.
    whole: brings it back.
    """
    weights = {
        p: place(laid_out(drawn.first(), drawn.layout), drawn).requires_grad_()
        for p, drawn in case.weights.items()
    }
    cls = sn.torch_optimizer(case.structure.recipe)

    def group_of(g: int, step: int) -> dict[str, Any]:
        of_group = [weight for place, weight in weights.items() if place[0] == g]
        return {"params": of_group, **case.groups[g].numbers[step]}

    def make(step: int) -> sn.optim.RecipeOptimizer:
        groups = [group_of(g, step) for g in present]
        return cls(groups, maximize=case.maximize, backend=backend)

    present = [g for g, group in enumerate(case.groups) if group.since == 0]
    optimizer = make(0)
    moments: list[Moment] = []
    for step in range(STEPS):
        if (step, "state_dict") in case.changes:
            saved = optimizer.state_dict()
            optimizer = make(step)
            optimizer.load_state_dict(saved)
        if (step, "deepcopy") in case.changes:
            optimizer = copy.deepcopy(optimizer)
            for g, group in zip(present, optimizer.param_groups, strict=True):
                weights.update({(g, i): weight for i, weight in enumerate(group["params"])})
        for g, each in enumerate(case.groups):
            if 0 < each.since == step:
                optimizer.add_param_group(group_of(g, step))
                present.append(g)
        for g, group in zip(present, optimizer.param_groups, strict=True):
            group.update(case.groups[g].numbers[step])
        for p, weight in weights.items():
            grad, drawn = gradients[step][p], case.weights[p]
            weight.grad = None if grad is None else place(laid_out(grad, drawn.grad_layout), drawn)
        optimizer.step()
        moments.append({})
        for p, weight in weights.items():
            state = optimizer.state.get(weight, {})
            shown = {name: _snapshot(whole(value)) for name, value in state.items()}
            moments[-1][p] = _snapshot(whole(weight)), shown
    return moments


def _snapshot(x: Tensor) -> Tensor:
    return x.detach().clone(memory_format=torch.contiguous_format)


def by_sweep(case: Case, gradients: Gradients) -> list[Moment]:
    """All points and seeds at once, without states. The gradient of sum <w, b> is the batch b."""
    first, points = case.groups[0], [group.numbers[0] for group in case.groups]
    names = {f"weight{i}": [(0, i), (0, i + 1)] for i in range(0, len(first.weights), 2)}
    swept = {n for n in points[0] if n == "lr" or points[0][n] != points[1][n]}

    def of_seeds(tensor: Callable[[Place], Tensor]) -> dict[str, Tensor]:
        return {
            name: torch.stack([tensor(place) for place in pair]) for name, pair in names.items()
        }

    records = sn.functional.sweep(
        case.structure.recipe,
        lambda weights, batch: sum((weights[name] * batch[name]).sum() for name in weights),
        of_seeds(lambda place: case.weights[place].first()),
        {n: [point[n] for point in points] for n in swept},
        steps=STEPS,
        batches=lambda t: of_seeds(lambda place: gradients[t][place]),
        schedule=(lambda t: case.factors[t]) if set(case.factors) != {1.0} else None,
        record=lambda before, after: after,
        **{n: v for n, v in points[0].items() if n not in swept},
    ).records
    assert records is not None
    return [
        {
            (k, i): (records[name][t, k, seed], None)
            for name, pair in names.items()
            for seed, (_, i) in enumerate(pair)
            for k in range(len(points))
        }
        for t in range(STEPS)
    ]
