"""`sweep`: many hyper-parameter points and seeds, trained as one batched computation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves, tree_map

from spherenorm._numerics import as_number
from spherenorm._registry import Bound, Recipe, bind, is_own
from spherenorm.compile import Guard
from spherenorm.core import State
from spherenorm.functional._parameters import Params, init, step
from spherenorm.support import require_module

PROBED = 64
"""Points of a sweep whose rules are compared from step to step."""

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
    max_memory: int | None = None,
    progress: Callable[[int, int], None] | bool = False,
    **fixed: Any,
) -> Sweep:
    """Train K hyper-parameter points times S seeds at once: vmap of the pure step over both.

    The step of a chain of the library's rules is traced once and replayed, and traced again when
    the recipe makes another chain; a rule class of yours runs its own code at every step, and so
    does a sweep of fewer than 8 steps. `loss`
    and `record` are traced along: they must be pure functions of their arguments. A point that
    explodes to inf or nan leaves the others alone.

    Args:
        recipe: a recipe, its registered name, or `module:function`.
        loss: `loss(params)` or, with `batches`, `loss(params, batch)`: a scalar, computed without
            side effects.
        params: the initial parameters with a leading dimension S, one entry per seed
            (`torch.func.stack_module_state`).
        hyper_parameters: by name, K values each (tensors or sequences); points are their rows, not
            their product. `betas` may be a pair of such, or a list of K pairs.
        steps: the number of steps T.
        batches: `batches(t)` gives step t's batch, every tensor in it with a leading dimension S,
            alike for all t.
        schedule: `schedule(t)` multiplies the learning rates at step t.
        record: `record(before, after)`, a pytree of tensors measured on one point's parameters at
            each step.
        max_memory: bytes that parameters, gradients, states and temporaries of the optimizer may
            take; as many points as fit are trained at a time. Memory that the loss itself
            allocates, and the records, come on top.
        progress: True shows a bar (needs rich: `pip install 'spherenorm[experiments]'`); a
            function is called with (done, total) training steps instead.
        **fixed: hyper-parameters that all points share.

    Raises:
        ValueError: an unknown hyper-parameter, one outside its interval (at any step of the
            schedule), lengths that differ, or a `max_memory` that does not hold one point.
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
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    count = _count(points)
    start, take_step = _batched_start(bound), _batched_step(bound, loss, record)
    training = _Training(bound, start, take_step, steps, schedule, batches)
    size = count
    if max_memory is not None:
        size = _points_that_fit(max_memory, params, start(_rows(points, 0, 1), dict(params)))
    chunks = []
    with _shown(progress) as report:
        for first in range(0, count, size):
            chunk = _rows(points, first, first + size)

            def done(taken: int, first: int = first, chunk: Points = chunk) -> None:
                report(first * steps + taken * _count(chunk), count * steps)

            chunks.append(training.run(chunk, params, done))
    final, losses, records = zip(*chunks, strict=True)
    return Sweep(
        tree_map(lambda *x: torch.cat(x), *final),
        torch.cat(losses, dim=1),
        tree_map(lambda *x: torch.cat(x, dim=1), *records) if record else None,
    )


def _batched_start(bound: Bound) -> Callable[..., dict[str, State]]:
    """The states of all points and seeds before the first step, of (points, params)."""

    def start(point: Points, weights: Params) -> dict[str, State]:
        return init(bound.replace(**point).rule, weights)

    return _vmapped(start, seeds=(None, 0), points=(0, None))


def _batched_step(
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

    return _vmapped(take_step, seeds=(None, 0, 0, 0), points=(0, 0, 0, None))


def _vmapped(
    function: Callable[..., Any], seeds: tuple[int | None, ...], points: tuple[int | None, ...]
) -> Callable[..., Any]:
    """`function` of one point and one seed, over all seeds and then over all points."""
    over_seeds = vmap(function, in_dims=seeds, randomness="different")
    return vmap(over_seeds, in_dims=points, randomness="different")


@dataclass(frozen=True)
class _Training:
    """The training of some points with all seeds."""

    bound: Bound
    start: Callable[..., dict[str, State]]
    step: Callable[..., Any]
    steps: int
    schedule: Callable[[int], float] | None
    batches: Callable[[int], Any] | None

    def run(
        self, points: Points, params: Mapping[str, Tensor], done: Callable[[int], None]
    ) -> tuple[Params, Tensor, Any]:
        """The final parameters, losses and records; `done` is called with the steps taken."""
        count = _count(points)
        weights = {name: w.expand(count, *w.shape).clone() for name, w in params.items()}
        state = self.start(points, dict(params))
        take_step = self.step
        if self.steps >= TRACED_FROM:
            take_step = _Replayed(self.step, self.bound, points)
        losses, records = [], []
        with torch.no_grad():
            for t in range(self.steps):
                now = points
                if self.schedule is not None:
                    now = self._scheduled(points, t)
                batch = (self.batches(t),) if self.batches else ()
                weights, state, value, recorded = take_step(now, weights, state, batch)
                losses.append(value)
                records.append(recorded)
                done(t + 1)
        return weights, torch.stack(losses), tree_map(lambda *x: torch.stack(x), *records)

    def _scheduled(self, points: Points, t: int) -> Points:
        """The points at step t, with all learning rates multiplied by the schedule's factor."""
        assert self.schedule is not None
        given = self.schedule(t)
        factor = given.item() if isinstance(given, Tensor) else as_number(given)
        if not isinstance(factor, int | float):
            raise TypeError(f"schedule({t}) must be a number, got {given!r}")
        now = {**points, "lr": points["lr"] * factor}
        try:
            _refuse_outside(self.bound, now)
        except ValueError as error:
            raise ValueError(f"schedule({t}) is {given!r}: {error}") from error
        return now


class _Replayed:
    """A step that is traced once, and again when the recipe makes other rules."""

    def __init__(self, function: Callable[..., Any], bound: Bound, points: Points) -> None:
        self.function, self.bound, self.points = function, bound, points
        self.replay: Callable[..., Any] | None = None
        self.traced_for: Any = None

    def __call__(self, *arguments: Any) -> Any:
        now = _identity(self.bound, self.points)
        if self.replay is None or now is None or now != self.traced_for:
            self.replay = self.function if now is None else make_fx(self.function)(*arguments)
            self.traced_for = now
        return self.replay(*arguments)


def _identity(bound: Bound, points: Points) -> Any:
    """The keys and numbers for which a traced step holds; others need a new trace.

    None if the rule may read values that change unnoticed; its step is then not traced.
    """
    count = _count(points)
    found = []
    for i in sorted({round(k * (count - 1) / max(PROBED - 1, 1)) for k in range(PROBED)}):
        point = tree_map(lambda v, i=i: float(v[i]), points)
        guard = Guard.of(bound.replace(**point).rule)
        if guard.foreign or guard.refusal:
            return None
        found.append((guard.key, [repr(float(n)) for n in guard.numbers]))
        if is_own(bound.recipe):
            break  # which reads nothing but its arguments
    return found


def _bind_points(
    recipe: str | Recipe, swept: Mapping[str, Any], fixed: Mapping[str, Any]
) -> tuple[Bound, Points]:
    """The recipe with the fixed hyper-parameters, and the points of the others, all checked."""
    bound = bind(recipe, **{**swept, **fixed})
    if both := [name for name in fixed if name in swept]:
        value = fixed[both[0]]
        raise ValueError(f"{both[0]} is both among the hyper_parameters and fixed to {value!r}")
    points = {name: _as_points(name, value) for name, value in swept.items()}
    leaves = [
        (name, t)
        for name, value in points.items()
        for t in (value if isinstance(value, tuple) else (value,))
    ]
    _require_common_length("hyper_parameters", leaves)
    _refuse_outside(bound, points)
    return bound, points


def _refuse_outside(bound: Bound, points: Points) -> None:
    """Refuse points of which a hyper-parameter lies outside its interval.

    Raises:
        ValueError: one does.
    """
    # Intervals are convex, and nan is the extreme of what holds it.
    for extreme in (torch.amin, torch.amax):
        point = tree_map(lambda v, extreme=extreme: float(extreme(v)), points)
        bound.replace(**point).rule  # noqa: B018  (it raises)


def _points_that_fit(
    max_memory: int, params: Mapping[str, Tensor], state: Mapping[str, State]
) -> int:
    """The number of points whose parameters, states, gradients and temporaries fit in `max_memory`.

    Parameters and states count twice, old and new; the optimizer's temporaries take as much as all
    of these together.
    """
    weights = sum(t.numel() * t.element_size() for t in params.values())
    states = sum(t.numel() * t.element_size() for each in state.values() for t in each.values())
    point = 2 * (2 * weights + 2 * states + weights)
    if max_memory < point:
        raise ValueError(
            f"max_memory={max_memory} does not hold one point, which takes {point} bytes"
        )
    return max_memory // point


def _count(points: Points) -> int:
    return len(next(iter(tree_leaves(points))))


def _rows(points: Points, first: int, last: int) -> Points:
    rows: Points = tree_map(lambda v: v[first:last], points)
    return rows


def _as_points(name: str, value: Any) -> Any:
    if isinstance(value, list) and value and all(isinstance(v, tuple) for v in value):
        value = tuple(map(list, zip(*value, strict=True)))  # K pairs: a pair of K values
    if isinstance(value, tuple):
        return tuple(_as_points(name, v) for v in value)
    try:
        made = torch.as_tensor(value, dtype=None if isinstance(value, Tensor) else torch.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} needs one number for each point, got {value!r}") from error
    if made.ndim > 1:
        shape = f"a tensor of shape {tuple(made.shape)}"
        raise ValueError(f"{name} needs one number for each point, got {shape}")
    return made.detach()


def _require_common_length(what: str, tensors: Sequence[tuple[str, Tensor]]) -> None:
    lengths = {name: len(tensor) if tensor.ndim else None for name, tensor in tensors}
    if not all(lengths.values()) or len(set(lengths.values())) != 1:
        raise ValueError(f"{what} need one common leading length, at least 1, got {lengths}")


@contextmanager
def _shown(progress: Callable[[int, int], None] | bool) -> Iterator[Callable[[int, int], object]]:
    """The function to call with (done, total): the given one; a bar for True; nothing for False.

    Raises:
        MissingExtraError: a bar is asked for, and rich is not installed.
    """
    if not isinstance(progress, bool):
        yield progress
    elif not progress:
        yield lambda done, total: None
    else:
        missing = "progress=True needs rich: pip install 'spherenorm[experiments]'"
        with require_module("rich.progress", missing).Progress() as bar:
            task = bar.add_task("sweep")
            yield lambda done, total: bar.update(task, completed=done, total=total)
