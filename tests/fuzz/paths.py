"""The steps of a case on every path, as moments that compare with the reference's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import spherenorm as sn
import spherenorm.compile
from spherenorm import functional, optim
from tests.fuzz.cases import STEPS, Case, Lent, laid_out
from tests.fuzz.reference import Gradients, Moment, Place

PATHS = ("auto", "rule", "compiled", "sweep", "dtensor")


def run(path: str, case: Case, gradients: Gradients) -> list[Moment]:
    if path == "sweep":
        return by_sweep(case, gradients)
    return by_optimizer(case, gradients, {"backend": path})


def by_optimizer(
    case: Case,
    gradients: Gradients,
    arguments: dict[str, Any],
    place: Callable[[Tensor, Any], Tensor] = lambda x, weight: x,
    whole: Callable[[Tensor], Tensor] = lambda x: x,
) -> list[Moment]:
    """Args:
    arguments: of the optimizer.
    place: puts a weight or its gradient where it lives.
    whole: brings it back.
    """
    weights = {
        (g, i): place(laid_out(weight.first(), weight.layout), weight).requires_grad_()
        for g, group in enumerate(case.groups)
        for i, weight in enumerate(group.weights)
    }
    if case.overlap is not None:
        _overlap(case, weights)
    cls = sn.torch_optimizer(case.structure.recipe)

    def group_of(g: int, step: int) -> dict[str, Any]:
        return {
            "params": [weights[p] for p in weights if p[0] == g],
            **case.groups[g].numbers[step],
        }

    def make(present: list[int], step: int) -> optim.RecipeOptimizer:
        return cls([group_of(g, step) for g in present], maximize=case.maximize, **arguments)

    present = [g for g, group in enumerate(case.groups) if group.since == 0]
    optimizer = make(present, 0)
    moments = []
    for step in range(STEPS):
        if (step, "state_dict") in case.changes:
            saved = optimizer.state_dict()
            optimizer = make(present, step)
            optimizer.load_state_dict(saved)
        if (step, "deepcopy") in case.changes:
            optimizer = copy.deepcopy(optimizer)
            for g, group in zip(present, optimizer.param_groups, strict=True):
                weights.update({(g, i): weight for i, weight in enumerate(group["params"])})
        for g, group in enumerate(case.groups):
            if 0 < group.since == step:
                optimizer.add_param_group(group_of(g, step))
                present.append(g)
        for g, group in zip(present, optimizer.param_groups, strict=True):
            group.update(case.groups[g].numbers[step])
        for p, weight in weights.items():
            grad, drawn = gradients[step][p], case.groups[p[0]].weights[p[1]]
            weight.grad = None if grad is None else place(laid_out(grad, drawn.grad_layout), drawn)
        for state in optimizer.state.values() if step in case.negated else ():
            state.update({name: torch._neg_view(-value) for name, value in state.items()})
        for lent in case.lent:
            if lent.step == step:
                _lend(lent, weights, optimizer, gradients[step])
        optimizer.step()
        moments.append(
            {
                p: (
                    _snapshot(whole(weight)),
                    {
                        n: _snapshot(whole(value))
                        for n, value in optimizer.state.get(weight, {}).items()
                    },
                )
                for p, weight in weights.items()
            }
        )
    return moments


def _overlap(case: Case, weights: dict[Place, Tensor]) -> None:
    assert case.overlap is not None
    one, other, count = case.overlap
    first, last = weights[one], weights[other]
    memory = torch.empty(first.numel() + last.numel() - count, dtype=first.dtype)
    memory[: first.numel()] = first.detach().view(-1)
    memory[-last.numel() :] = last.detach().view(-1)
    first.data = memory[: first.numel()].view(first.shape)
    last.data = memory[-last.numel() :].view(last.shape)


def _lend(
    lent: Lent,
    weights: dict[Place, Tensor],
    optimizer: optim.RecipeOptimizer,
    gradients: dict[Place, Tensor | None],
) -> None:
    """Let a gradient lie in a weight or a state, and keep a copy of it for the reference."""
    weight, owner = weights[lent.place], weights[lent.owner].detach()
    if lent.state:
        owner = next(iter(optimizer.state.get(weights[lent.owner], {}).values()), owner)
    kind = owner.dtype, owner.is_contiguous(), owner.numel() >= weight.numel()
    if kind == (weight.dtype, True, True):
        weight.grad = owner.view(-1)[owner.numel() - weight.numel() :].view(weight.shape)
        gradients[lent.place] = weight.grad.clone(memory_format=torch.contiguous_format)


def _snapshot(x: Tensor) -> Tensor:
    return x.detach().clone(memory_format=torch.contiguous_format)


def by_sweep(case: Case, gradients: Gradients) -> list[Moment]:
    """All points and seeds at once, without states. The gradient of sum <w, b> is the batch b."""
    first, points = case.groups[0], [group.numbers[0] for group in case.groups]
    names = {f"weight{i}": [(0, i), (0, i + 1)] for i in range(0, len(first.weights), 2)}
    swept = {n for n in points[0] if n == "lr" or points[0][n] != points[1][n]}
    sweep = functional.sweep(
        case.structure.recipe,
        lambda weights, batch: sum((weights[name] * batch[name]).sum() for name in weights),
        {
            name: torch.stack([first.weights[i].first() for _, i in pair])
            for name, pair in names.items()
        },
        {n: [point[n] for point in points] for n in swept},
        steps=STEPS,
        batches=lambda t: {
            name: torch.stack([gradients[t][p] for p in pair]) for name, pair in names.items()
        },
        schedule=(lambda t: case.factors[t]) if set(case.factors) != {1.0} else None,
        record=lambda before, after: after,
        **{n: v for n, v in points[0].items() if n not in swept},
    )
    assert sweep.records is not None
    return [
        {
            (k, i): (sweep.records[name][t, k, s], None)
            for name, pair in names.items()
            for s, (_, i) in enumerate(pair)
            for k in range(len(points))
        }
        for t in range(STEPS)
    ]
