"""The pure forms: one weight's rule over a dict of parameters, and whole sweeps as one batched computation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap
from torch.utils._pytree import tree_map

from spherenorm.registry import Recipe, build, defaults, find_recipe, reference
from spherenorm.rule import Rule, State

__all__ = ["Sweep", "init", "step", "sweep"]

Params = dict[str, Tensor]


def init(rule: Rule, params: Mapping[str, Tensor]) -> dict[str, State]:
    """The state of every parameter, by its name."""
    return {name: rule.init(weight) for name, weight in params.items()}


def step(
    rule: Rule, params: Mapping[str, Tensor], grads: Mapping[str, Tensor], state: Mapping[str, State]
) -> tuple[Params, dict[str, State]]:
    """One step of every parameter; the new parameters and states, the arguments left alone.

    Args:
        params: as `torch.func.functional_call` takes them.
        grads: as `torch.func.grad` returns them; raises ValueError if their names differ from the parameters'.
    """
    if grads.keys() != params.keys():
        raise ValueError(f"grads and params differ in {sorted(grads.keys() ^ params.keys())}")
    stepped = {name: rule.step(weight, grads[name], state[name]) for name, weight in params.items()}
    return {name: weight for name, (weight, _) in stepped.items()}, {name: s for name, (_, s) in stepped.items()}


@dataclass(frozen=True)
class Sweep:
    """What `sweep` returns, for K points, S seeds and T steps.

    Attributes:
        params: the final parameters, each with leading dimensions (K, S).
        loss: the loss before each step, shape (T, K, S).
        records: what `record` returned after each step, each tensor with leading dimensions (T, K, S); None without it.
    """

    params: Params
    loss: Tensor
    records: Any


def sweep(
    recipe: str | Recipe,
    loss: Callable[..., Tensor],
    params: Mapping[str, Tensor],
    hyper_parameters: Mapping[str, Tensor | Sequence[float]],
    *,
    steps: int,
    batches: Callable[[int], Any] | None = None,
    schedule: Callable[[int], float] | None = None,
    record: Callable[[Params, Params], Any] | None = None,
    **fixed: Any,
) -> Sweep:
    """Train K hyper-parameter points times S seeds at once: vmap of the pure step over both.

    Args:
        recipe: which recipe.
        loss: `loss(params)` or, with `batches`, `loss(params, batch)`: a scalar, computed without side effects.
        params: the initial parameters with a leading dimension S, one entry per seed (`torch.func.stack_module_state`).
        hyper_parameters: by name, K values each; points are their rows, not their product. `betas` may be a pair of such.
        steps: how many steps T.
        batches: `batches(t)` gives step t's batch, every tensor in it with a leading dimension S.
        schedule: `schedule(t)` multiplies the learning rates at step t.
        record: `record(before, after)`, a pytree of tensors measured on one point's parameters at each step.
        **fixed: hyper-parameters that all points share.

    Raises:
        ValueError: an unknown hyper-parameter, or lengths that differ.
    """
    function = find_recipe(recipe)
    known = defaults(function)
    for name in [*hyper_parameters, *fixed]:
        if name not in known:
            raise ValueError(f"recipe {reference(function)!r} has no hyper-parameter {name!r}; it has {', '.join(known)}")
    if schedule is not None and "lr" not in hyper_parameters:
        raise ValueError("a schedule needs lr among the hyper_parameters")
    points = {name: _as_points(value) for name, value in hyper_parameters.items()}
    count = _common_length(
        "hyper_parameters", [(name, t) for name, value in points.items() for t in (value if isinstance(value, tuple) else (value,))]
    )
    seeds = _common_length("params", list(params.items()))
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")

    def one_step(point: dict[str, Any], weights: Params, state: dict[str, State], batch: Any) -> Any:
        rule = build(function, {**point, **fixed})
        grads, value = grad_and_value(loss)(weights, *batch)
        new_weights, new_state = step(rule, weights, grads, state)
        return new_weights, new_state, value, record(weights, new_weights) if record else ()

    over_seeds = vmap(one_step, in_dims=(None, 0, 0, 0), randomness="different")
    over_points = vmap(over_seeds, in_dims=(0, 0, 0, None), randomness="different")

    def start(point: dict[str, Any], weights: Params) -> dict[str, State]:
        return init(build(function, {**point, **fixed}), weights)

    state = vmap(vmap(start, in_dims=(None, 0)), in_dims=(0, None))(points, dict(params))
    weights = {name: weight.expand(count, *weight.shape) for name, weight in params.items()}
    losses, records = [], []
    with torch.no_grad():
        for t in range(steps):
            factor = schedule(t) if schedule else 1.0
            now = {**points, "lr": points["lr"] * factor} if schedule else points
            batch = (batches(t),) if batches else ()
            weights, state, value, recorded = over_points(now, weights, state, batch)
            losses.append(value)
            records.append(recorded)
    stacked = tree_map(lambda *x: torch.stack(x), *records) if record else None
    assert all(weight.shape[:2] == (count, seeds) for weight in weights.values())
    return Sweep(weights, torch.stack(losses), stacked)


def _as_points(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_as_points(v) for v in value)
    return value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)


def _common_length(what: str, tensors: Sequence[tuple[str, Tensor]]) -> int:
    lengths = {name: len(tensor) if tensor.ndim else None for name, tensor in tensors}
    if None in lengths.values() or len(set(lengths.values())) != 1:
        raise ValueError(f"{what} need one common leading length, got {lengths}")
    return next(iter(lengths.values()))  # type: ignore[return-value]
