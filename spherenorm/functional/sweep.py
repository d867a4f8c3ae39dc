"""`sweep`: many hyper-parameter points and seeds, trained as one batched computation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves, tree_map

from spherenorm.compile import RuleKey
from spherenorm.functional.parameters import Params, init, step
from spherenorm.numerics import as_number, to_accumulation_dtype, without_autocast
from spherenorm.registry import Bound, Recipe, bind, is_builtin
from spherenorm.rule import State

TRACED_FROM = 8
"""Steps from which on a trace, which costs about as much as ten steps, is worth while."""

Points = dict[str, Any]
"""K values of each swept hyper-parameter: a tensor of shape (K,), or a tuple of such."""


@dataclass(frozen=True)
class Sweep:
    """The result of `sweep`, for K points, S seeds and T steps.

    Attributes:
        params: the final parameters, each with leading dimensions (K, S).
        loss: the loss before each step, shape (T, K, S).
        records: the results of `record` after each step, each tensor with leading dimensions
            (T, K, S); None without it.

    Example:
        >>> params, rates = {"w": torch.ones(1)}, {"lr": [0.25]}  # a seed, a point
        >>> result = sweep("sgd", lambda p: p["w"] ** 2, params, rates, steps=2)
        >>> result.loss.flatten(), result.params["w"]
        (tensor([1.0000, 0.2500]), tensor([[0.2500]]))
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
    **fixed: Any,
) -> Sweep:
    """Train K hyper-parameter points times S seeds at once: vmap of the pure step over both.

    The step of a chain of the library's rules is traced once and replayed, and traced again when
    the recipe makes another chain; a rule class of yours runs its own code at every step, and so
    does a sweep of fewer than 8 steps. `loss` and `record` are traced along: they must be pure
    functions of their arguments. A point that explodes to inf or nan leaves the others alone.

    Memory holds all points and seeds at once. A sweep of some of the points gives them the same
    results, so a sweep that does not fit can be taken in parts.

    Args:
        recipe: a recipe, its registered name, or `module:function`.
        loss: `loss(params)` or, with `batches`, `loss(params, batch)`: a scalar, computed without
            side effects.
        params: the initial parameters with a leading dimension S, one entry per seed
            (`torch.func.stack_module_state`).
        hyper_parameters: by name, K values each (tensors on any device, or sequences); points are
            their rows, not their product. `betas` may be a pair of such, or a list of K pairs.
        steps: the number of steps T.
        batches: `batches(t)` gives step t's batch, every tensor in it with a leading dimension S,
            alike for all t.
        schedule: `schedule(t)` multiplies the learning rates at step t.
        record: `record(before, after)`, a pytree of tensors measured on one point's parameters at
            each step.
        **fixed: hyper-parameters that all points share.

    Raises:
        ValueError: an unknown hyper-parameter, one outside its interval (at any step of the
            schedule), lengths that differ, or parameters on several devices.
        TypeError: the schedule returns something else than a number.

    Example:
        >>> rates = {"lr": [0.1, 0.2, 0.3]}
        >>> result = sweep("sgd", lambda p: p["w"] ** 2, {"w": torch.ones(2)}, rates, steps=5)
        >>> result.loss.shape  # steps, points, seeds
        torch.Size([5, 3, 2])
    """
    bound, points = _bind_points(recipe, hyper_parameters, fixed)
    if schedule is not None and "lr" not in hyper_parameters:
        raise ValueError("a schedule needs lr among the hyper_parameters")
    _require_common_length("params", list(params.items()))
    device = _device_of(params)
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    count = len(tree_leaves(points)[0])
    weights = {name: w.expand(count, *w.shape).clone() for name, w in params.items()}
    start = _vmapped(lambda point, w: init(bound.replace(**point).rule, w), (None, 0), (0, None))
    moved = _points_on(device, points)
    state: dict[str, State] = start(moved, dict(params))
    take_step: Callable[..., Any] = _step_of_all(bound, loss, record)
    if steps >= TRACED_FROM:
        take_step = _Replayed(take_step, bound, points, device)
    losses, records = [], []
    with torch.no_grad():
        for t in range(steps):
            now = moved
            if schedule is not None:
                now = _points_on(device, _scheduled(bound, points, schedule, t))
            batch = (batches(t),) if batches else ()
            weights, state, value, recorded = take_step(now, weights, state, batch)
            losses.append(value)
            records.append(recorded)
    stacked = tree_map(lambda *x: torch.stack(x), *records) if record else None
    return Sweep(weights, torch.stack(losses), stacked)


def _device_of(params: Mapping[str, Tensor]) -> torch.device:
    """Return the device of all parameters.

    Raises:
        ValueError: they are on several.
    """
    devices = {w.device: name for name, w in params.items()}
    if len(devices) > 1:
        where = ", ".join(f"{name!r} is on {device}" for device, name in devices.items())
        raise ValueError(f"params must be on one device, which steps them together; {where}")
    return next(iter(devices))


def _points_on(device: torch.device, points: Points) -> Points:
    """Return points, which are checked on the CPU, on the device of the weights."""

    def move(values: Tensor) -> Tensor:
        return (
            to_accumulation_dtype(values, device)
            if values.dtype is torch.float64
            else values.to(device)
        )

    return tree_map(move, points)  # type: ignore[no-any-return]


def _step_of_all(
    bound: Bound, loss: Callable[..., Tensor], record: Callable[[Params, Params], Any] | None
) -> Callable[..., Any]:
    """A training step of all points and seeds, of (points, weights, state, batch)."""

    def take_step(
        point: Points, weights: Params, state: dict[str, State], batch: tuple[Any, ...]
    ) -> Any:
        rule = bound.replace(**point).rule
        grads, value = grad_and_value(loss)(weights, *batch)
        new_weights, new_state = step(rule, weights, grads, state)
        return new_weights, new_state, value, record(weights, new_weights) if record else ()

    return _vmapped(take_step, (None, 0, 0, 0), (0, 0, 0, None))


def _vmapped(
    function: Callable[..., Any], seeds: tuple[int | None, ...], points: tuple[int | None, ...]
) -> Callable[..., Any]:
    """`function` of one point and one seed, over all seeds and then over all points."""
    over_seeds = vmap(function, in_dims=seeds, randomness="different")
    return vmap(over_seeds, in_dims=points, randomness="different")


def _scheduled(bound: Bound, points: Points, schedule: Callable[[int], float], t: int) -> Points:
    """The points at step t, with all learning rates multiplied by the schedule's factor."""
    given = schedule(t)
    factor = given.item() if isinstance(given, Tensor) else as_number(given)
    if not isinstance(factor, int | float):
        raise TypeError(f"schedule({t}) must be a number, got {given!r}")
    now = {**points, "lr": points["lr"] * factor}
    try:
        _refuse_outside(bound, now)
    except ValueError as error:
        raise ValueError(f"schedule({t}) is {given!r}: {error}") from error
    return now


class _Replayed:
    """A step that is traced once, and again when the recipe makes other rules."""

    def __init__(
        self, function: Callable[..., Any], bound: Bound, points: Points, device: torch.device
    ) -> None:
        self.function, self.bound, self.points = function, bound, points
        self.device = device
        self.replay = function
        self.traced_for: Any = None

    def __call__(self, *arguments: Any) -> Any:
        now = _identity(self.bound, self.points)
        if now is None:
            return self.function(*arguments)
        if now != self.traced_for:
            self.replay, self.traced_for = make_fx(self.function)(*arguments), now
        # The casts of the loss are in the trace; autocast would add others to those of the step.
        with without_autocast(self.device):
            return self.replay(*arguments)


def _identity(bound: Bound, points: Points) -> Any:
    """The recipe's rules at all points, for which a traced step holds.

    None if a rule may read values that change unnoticed; its step is then not traced.
    """
    if is_builtin(bound.recipe):
        return ()  # it reads nothing but its arguments
    keys: list[RuleKey] = []

    def numbers(point: Points) -> list[Tensor]:
        keys.append(RuleKey.of(bound.replace(**point).rule))
        return [torch.as_tensor(n, dtype=torch.float64) for n in keys[-1].scalars]

    of_points = vmap(numbers)(points)
    (key,) = keys
    known = not key.foreign and key.unsupported_because is None
    return (key.structure, [x.numpy(force=True).tobytes() for x in of_points]) if known else None


def _bind_points(
    recipe: str | Recipe, swept: Mapping[str, Any], fixed: Mapping[str, Any]
) -> tuple[Bound, Points]:
    """The recipe with the fixed hyper-parameters, and the points of the others, all checked."""
    bound = bind(recipe, **{**swept, **fixed})
    for name in fixed.keys() & swept.keys():
        both = f"both among the hyper_parameters and fixed to {fixed[name]!r}"
        raise ValueError(f"{name} is {both}")
    points = {name: _as_points(name, value) for name, value in swept.items()}
    leaves = [(name, leaf) for name, value in points.items() for leaf in tree_leaves(value)]
    _require_common_length("hyper_parameters", leaves)
    _refuse_outside(bound, points)
    return bound, points


def _refuse_outside(bound: Bound, points: Points) -> None:
    """Raise a ValueError if a hyper-parameter of a point lies outside its interval."""
    # Intervals are convex, and nan is the extreme of what holds it.
    for extreme in (torch.amin, torch.amax):
        point = tree_map(lambda v, extreme=extreme: float(extreme(v)), points)
        bound.replace(**point).rule  # noqa: B018  (it raises)


def _as_points(name: str, value: Any) -> Any:
    if isinstance(value, list) and value and all(isinstance(v, tuple) for v in value):
        value = tuple(map(list, zip(*value, strict=True)))  # K pairs: a pair of K values
    if isinstance(value, tuple):
        return tuple(_as_points(name, v) for v in value)
    try:
        made = (
            value
            if isinstance(value, Tensor)
            else torch.as_tensor(value, dtype=torch.float64, device="cpu")
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} needs one number for each point, got {value!r}") from error
    if made.ndim > 1:
        shape = f"a tensor of shape {tuple(made.shape)}"
        raise ValueError(f"{name} needs one number for each point, got {shape}")
    return made.detach().cpu()


def _require_common_length(what: str, tensors: Sequence[tuple[str, Tensor]]) -> None:
    lengths = {name: len(tensor) if tensor.ndim else None for name, tensor in tensors}
    if not all(lengths.values()) or len(set(lengths.values())) != 1:
        raise ValueError(f"{what} need one common leading length, at least 1, got {lengths}")
