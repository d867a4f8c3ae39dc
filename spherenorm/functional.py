"""The pure forms: one weight's rule over a dict of parameters, and whole sweeps as one batched computation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves, tree_map

from spherenorm.compile.guard import Guard, UnsupportedRuleError
from spherenorm.progress import shown
from spherenorm.registry import Recipe, build, defaults, find_recipe, reference
from spherenorm.rule import Rule, State, refuse_unless_real

__all__ = ["Sweep", "init", "step", "sweep"]

Params = dict[str, Tensor]


def init(rule: Rule, params: Mapping[str, Tensor]) -> dict[str, State]:
    """The state of every parameter, by its name.

    Raises:
        TypeError: a parameter that is complex or integer.
    """
    for name, weight in params.items():
        refuse_unless_real(weight, f"parameter {name!r}")
    return {name: rule.init(weight) for name, weight in params.items()}


def step(
    rule: Rule,
    params: Mapping[str, Tensor],
    grads: Mapping[str, Tensor],
    state: Mapping[str, State],
) -> tuple[Params, dict[str, State]]:
    """One step of every parameter; the new parameters and states, the arguments left alone.

    Args:
        params: as `torch.func.functional_call` takes them.
        grads: as `torch.func.grad` returns them.

    Raises:
        ValueError: the names of `grads` differ from the parameters'; TypeError: a parameter that is complex or integer.
    """
    for name, weight in params.items():
        refuse_unless_real(weight, f"parameter {name!r}")
    if grads.keys() != params.keys():
        raise ValueError(f"grads and params differ in {sorted(grads.keys() ^ params.keys())}")
    stepped = {name: rule.step(weight, grads[name], state[name]) for name, weight in params.items()}
    return {name: weight for name, (weight, _) in stepped.items()}, {
        name: s for name, (_, s) in stepped.items()
    }


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
    hyper_parameters: Mapping[str, Any],
    *,
    steps: int,
    batches: Callable[[int], Any] | None = None,
    schedule: Callable[[int], float] | None = None,
    record: Callable[[Params, Params], Any] | None = None,
    max_memory: int | None = None,
    progress: Callable[[int, int], None] | bool = False,
    **fixed: Any,
) -> Sweep:
    """Train K hyper-parameter points times S seeds at once: vmap of the pure step over both.

    The step of a chain of the library's rules is traced once and replayed, and traced again when the recipe makes another
    chain; a rule class of yours runs its own code at every step. `loss` and `record` are traced along: they must be pure
    functions of their arguments. A point that explodes to inf or nan leaves the others alone.

    Args:
        recipe: which recipe.
        loss: `loss(params)` or, with `batches`, `loss(params, batch)`: a scalar, computed without side effects.
        params: the initial parameters with a leading dimension S, one entry per seed (`torch.func.stack_module_state`).
        hyper_parameters: by name, K values each (tensors or sequences); points are their rows, not their product.
            `betas` may be a pair of such.
        steps: how many steps T.
        batches: `batches(t)` gives step t's batch, every tensor in it with a leading dimension S, alike for all t.
        schedule: `schedule(t)` multiplies the learning rates at step t.
        record: `record(before, after)`, a pytree of tensors measured on one point's parameters at each step.
        max_memory: bytes that parameters, gradients, states and temporaries of the optimizer may take; as many points
            as fit are trained at a time. What the loss itself allocates, and the records, come on top.
        progress: True shows a bar (needs rich: `pip install 'spherenorm[experiments]'`); a function is called with (done,
            total) training steps instead.
        **fixed: hyper-parameters that all points share.

    Raises:
        ValueError: an unknown hyper-parameter, one outside its interval, lengths that differ, or a `max_memory` that does not
        hold one point.
    """
    function = find_recipe(recipe)
    known = defaults(function)
    for name in [*hyper_parameters, *fixed]:
        if name not in known:
            raise ValueError(
                f"recipe {reference(function)!r} has no hyper-parameter {name!r}; it has {', '.join(known)}"
            )
        if name in hyper_parameters and name in fixed:
            raise ValueError(
                f"{name} is both among the hyper_parameters and fixed to {fixed[name]!r}"
            )
    if schedule is not None and "lr" not in hyper_parameters:
        raise ValueError("a schedule needs lr among the hyper_parameters")
    points = {name: _as_points(value) for name, value in hyper_parameters.items()}
    leaves = [
        (name, t)
        for name, value in points.items()
        for t in (value if isinstance(value, tuple) else (value,))
    ]
    count = _common_length("hyper_parameters", leaves)
    for extreme in (
        torch.amin,
        torch.amax,
    ):  # intervals are convex, and nan is the extreme of what holds it
        build(function, {**tree_map(lambda v, extreme=extreme: float(extreme(v)), points), **fixed})
    seeds = _common_length("params", list(params.items()))
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")

    def start(point: dict[str, Any], weights: Params) -> dict[str, State]:
        return init(build(function, {**point, **fixed}), weights)

    def one_step(
        point: dict[str, Any], weights: Params, state: dict[str, State], batch: Any
    ) -> Any:
        rule = build(function, {**point, **fixed})
        grads, value = grad_and_value(loss)(weights, *batch)
        new_weights, new_state = step(rule, weights, grads, state)
        return new_weights, new_state, value, record(weights, new_weights) if record else ()

    initial = vmap(
        vmap(start, in_dims=(None, 0), randomness="different"),
        in_dims=(0, None),
        randomness="different",
    )
    batched = vmap(
        vmap(one_step, in_dims=(None, 0, 0, 0), randomness="different"),
        in_dims=(0, 0, 0, None),
        randomness="different",
    )
    size = (
        count
        if max_memory is None
        else _points_that_fit(
            max_memory, params, initial(tree_map(lambda v: v[:1], points), dict(params))
        )
    )
    chunks = []
    with shown(progress) as report:
        for first in range(0, count, size):
            chunk = tree_map(lambda v, first=first: v[first : first + size], points)
            weights = {
                name: weight.expand(min(size, count - first), *weight.shape).clone()
                for name, weight in params.items()
            }
            state, replay, recorded_for = initial(chunk, dict(params)), None, None
            losses, records = [], []
            with torch.no_grad():
                for t in range(steps):
                    now = {**chunk, "lr": chunk["lr"] * schedule(t)} if schedule else chunk
                    arguments = (now, weights, state, (batches(t),) if batches else ())
                    stands_for = _recordable(function, chunk, fixed)
                    if replay is None or stands_for is None or stands_for != recorded_for:
                        replay = batched if stands_for is None else make_fx(batched)(*arguments)
                        recorded_for = stands_for
                    weights, state, value, recorded = replay(*arguments)
                    losses.append(value)
                    records.append(recorded)
                    report(first * steps + (t + 1) * min(size, count - first), count * steps)
            chunks.append(
                (weights, torch.stack(losses), tree_map(lambda *x: torch.stack(x), *records))
            )
    assert all(weight.shape[1] == seeds for weight in chunks[0][0].values())
    final, losses_of, records_of = zip(*chunks, strict=True)
    return Sweep(
        tree_map(lambda *x: torch.cat(x), *final),
        torch.cat(losses_of, dim=1),
        tree_map(lambda *x: torch.cat(x, dim=1), *records_of) if record else None,
    )


PROBED = 64
"""Points of a sweep whose rules are compared from step to step."""


def _recordable(function: Recipe, points: dict[str, Any], fixed: Mapping[str, Any]) -> Any:
    """The keys and the numbers that a recorded step stands for, to notice other rules.

    None for a rule that may read what changes unseen, whose step is not recorded.
    """
    count = len(next(iter(tree_leaves(points))))
    found = []
    for i in sorted({round(k * (count - 1) / max(PROBED - 1, 1)) for k in range(PROBED)}):
        point = tree_map(lambda v, i=i: float(v[i]), points)
        try:
            guard = Guard.of(build(function, {**point, **fixed}))
        except UnsupportedRuleError:
            return None
        if guard.foreign:
            return None
        found.append((guard.key, [repr(float(n)) for n in guard.numbers]))
        if function.__module__ == "spherenorm.recipes":
            break  # which reads nothing but its arguments
    return found


def _points_that_fit(
    max_memory: int, params: Mapping[str, Tensor], state: Mapping[str, State]
) -> int:
    """Old and new parameters and states, gradients, and as much again for the optimizer's temporaries."""
    weights = sum(t.numel() * t.element_size() for t in params.values())
    states = sum(t.numel() * t.element_size() for each in state.values() for t in each.values())
    point = 2 * (2 * weights + 2 * states + weights)
    if max_memory < point:
        raise ValueError(
            f"max_memory={max_memory} does not hold one point, which takes {point} bytes"
        )
    return max_memory // point


def _as_points(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_as_points(v) for v in value)
    return value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)


def _common_length(what: str, tensors: Sequence[tuple[str, Tensor]]) -> int:
    lengths = {name: len(tensor) if tensor.ndim else None for name, tensor in tensors}
    if not all(lengths.values()) or len(set(lengths.values())) != 1:
        raise ValueError(f"{what} need one common leading length, at least 1, got {lengths}")
    return next(iter(lengths.values()))  # type: ignore[return-value]
