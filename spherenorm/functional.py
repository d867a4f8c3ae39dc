"""Pure functions of a dict of parameters: steps, training runs, and sweeps as one computation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

from spherenorm.compile import RuleKey
from spherenorm.global_sums import copy_shared_states_from_furthest, sum_over_weights
from spherenorm.numerics import (
    as_number,
    refuse_unless_real,
    to_accumulation_dtype,
    to_compute_dtype,
    without_autocast,
)
from spherenorm.registry import Bound, Recipe, bind, is_builtin
from spherenorm.rule import Rule, State, initial_state, make_checked_update
from spherenorm.torch_internals import pytree

__all__ = ["Params", "Run", "Sweep", "eval_weight", "init", "step", "sweep", "unroll"]

Params = dict[str, Tensor]
"""The parameters of a model, by name.

Example:
    >>> model = torch.nn.Linear(2, 1)
    >>> params: Params = dict(model.named_parameters())
    >>> list(params)
    ['weight', 'bias']
"""


def init(rule: Rule, params: Mapping[str, Tensor]) -> dict[str, State]:
    """Return the state of every parameter before the first step, by its name.

    Args:
        rule: the rule that is to step every parameter, or a `partition`.
        params: the parameters by name, as `torch.func.functional_call` takes them.

    Raises:
        TypeError: a parameter is complex or integer.
        ValueError: a pattern of a partition's labels names no parameter.

    Example:
        >>> init(sn.recipes.sgd(momentum=0.9), {"w": torch.ones(2)})
        {'w': {'momentum_buffer': tensor([0., 0.])}}
    """
    for name, weight in params.items():
        refuse_unless_real(weight, f"parameter {name!r}")
    if rule.is_partition:
        rule.check_patterns(params)  # type: ignore[attr-defined]
    return {
        name: initial_state(rule.rule_for(name, weight), weight) for name, weight in params.items()
    }


def step(
    rule: Rule,
    params: Mapping[str, Tensor],
    grads: Mapping[str, Tensor],
    state: Mapping[str, State],
) -> tuple[Params, dict[str, State]]:
    """Take one step of every parameter.

    Global sums (`Rule.global_sum_terms`) are taken over these parameters. A parameter that joins
    late, with an initial state, takes over the shared states of the others.

    Args:
        rule: the rule that steps every parameter, or a `partition`.
        params: the parameters by name, as `torch.func.functional_call` takes them.
        grads: the gradients by name, as `torch.func.grad` returns them.
        state: the result of `init`, or of the last step.

    Returns:
        The new parameters and states; the arguments are left alone.

    Raises:
        ValueError: the names of `grads` differ from the parameters', or `state` lacks one.
        TypeError: a parameter is complex or integer.

    Example:
        >>> params, grads = {"w": torch.ones(2)}, {"w": torch.ones(2)}
        >>> step(sn.recipes.sgd(lr=0.5), params, grads, {"w": {}})
        ({'w': tensor([0.5000, 0.5000])}, {'w': {}})
    """
    for name, weight in params.items():
        refuse_unless_real(weight, f"parameter {name!r}")
    if grads.keys() != params.keys():
        raise ValueError(f"grads and params differ in {sorted(grads.keys() ^ params.keys())}")
    for name in params:
        if name not in state:
            raise ValueError(
                f"state has no entry for parameter {name!r}; a first step takes the state that "
                "spherenorm.functional.init(rule, params) returns"
            )
    rules = {name: rule.rule_for(name, weight) for name, weight in params.items()}
    global_sums = None
    if rule.needs_global_sums:
        updates = {
            name: make_checked_update(rules[name], weight, grads[name], state[name])
            for name, weight in params.items()
        }
        state = copy_shared_states_from_furthest(rules, {name: state[name] for name in params})
        global_sums = sum_over_weights(
            (rules[name].at_next_step(state[name]), updates[name], state[name]) for name in params
        )
    new_params, new_state = {}, {}
    for name, weight in params.items():
        new_weight, new_weight_state = rules[name].step(
            weight, grads[name], state[name], global_sums
        )
        new_params[name], new_state[name] = new_weight, new_weight_state
    return new_params, new_state


def eval_weight(rule: Rule, params: Mapping[str, Tensor], state: Mapping[str, State]) -> Params:
    """Return the weights to evaluate with; see `Rule.eval_weight`.

    Args:
        rule: the rule that steps every parameter, or a `partition`.
        params: the parameters by name.
        state: the result of the last step.

    Example:
        >>> rule, params = sn.zoo.schedulefree_sgd(lr=1.0), {"w": torch.tensor([0.0])}
        >>> state = init(rule, params)
        >>> for _ in range(2):
        ...     params, state = step(rule, params, {"w": torch.tensor([-1.0])}, state)
        >>> eval_weight(rule, params, state)  # the mean of 1 and 2
        {'w': tensor([1.5000])}
    """
    result = {}
    for name, weight in params.items():
        rule_of_weight = rule.rule_for(name, weight).at_last_step(state[name])
        value = rule_of_weight.eval_weight(to_compute_dtype(weight), state[name])
        result[name] = value.to(weight.dtype)
    return result


@dataclass(frozen=True)
class Run:
    """Parameters, states and losses of a training run, as functions of where it began.

    Attributes:
        params: the parameters after the last step.
        state: the states after the last step, as `init` returns them.
        loss: the loss before each step, shape (T,).

    Example:
        >>> start = {"w": torch.tensor(1.0)}
        >>> run = unroll("sgd", lambda p, _: p["w"] ** 2, start, range(2), lr=0.25)
        >>> run.loss, run.params["w"]
        (tensor([1.0000, 0.2500]), tensor(0.2500))
    """

    params: Params
    state: dict[str, State]
    loss: Tensor


def unroll(
    recipe: str | Recipe | Rule,
    loss: Callable[[Params, Any], Tensor],
    params: Mapping[str, Tensor],
    batches: Iterable[Any],
    *,
    checkpoint_every: int | None = None,
    **hyper_parameters: Any,
) -> Run:
    """Train for one step per batch, as a differentiable function of all of its arguments.

    w_{t+1} = step(w_t, grad loss(w_t, batch_t)), so that derivatives of `Run.loss`, or of a loss
    at `Run.params`, in hyper-parameters, initial parameters and batches pass through all steps.

    By default the run composes with `torch.func.grad`, `jacfwd`, `vmap` and autograd, and keeps
    what the derivative needs of every step. With `checkpoint_every=k` autograd keeps k steps at
    once, and recomputes each stretch of k steps once; `torch.func` transforms do not pass through
    checkpoints, so let the tensors require a gradient and call `backward`.

    Args:
        recipe: a recipe, its registered name, or a rule, which may be a `partition`.
        loss: `loss(params, batch)`: a scalar, computed without side effects.
        params: the initial parameters by name.
        batches: a batch for each of the T steps; `range(T)` if the loss needs none.
        checkpoint_every: k, at least 1; about sqrt(T) needs the least memory. None: no checkpoints.
        **hyper_parameters: hyper-parameters of the recipe, numbers or 0-dim tensors.

    Raises:
        TypeError: `batches` is no iterable, or the loss returns something else than a scalar.
        ValueError: no batches; `checkpoint_every` is below 1; hyper-parameters beside a rule, which
            has its own; or one outside its interval.

    Example:
        >>> start = {"w": torch.tensor(1.0)}
        >>> def final_loss(lr):
        ...     run = unroll("sgd", lambda p, _: p["w"] ** 2, start, range(3), lr=lr)
        ...     return run.params["w"] ** 2  # (1 - 2 lr)^6
        >>> torch.func.grad(final_loss)(torch.tensor(0.25))  # -12 (1 - 2 lr)^5
        tensor(-0.3750)

    Source: Maclaurin et al. 2015 (gradients of hyper-parameters through a training run); Chen et
    al. 2016 (checkpoints).
    """
    if isinstance(batches, type) or not isinstance(batches, Iterable):
        raise TypeError(f"unroll: batches must be an iterable, a batch per step, got {batches!r}")
    all_batches = list(batches)
    if not all_batches:
        raise ValueError("unroll needs at least one batch, which is a step")
    if checkpoint_every is not None and checkpoint_every < 1:
        raise ValueError(f"checkpoint_every must be at least 1, got {checkpoint_every!r}")
    if isinstance(recipe, Rule):
        if hyper_parameters:
            raise ValueError(
                f"unroll takes hyper-parameters with a recipe; the rule {type(recipe).__name__} "
                f"has its own, so leave out {', '.join(sorted(hyper_parameters))}"
            )
        rule = recipe
    else:
        rule = bind(recipe, **hyper_parameters).rule
    weights, state = dict(params), init(rule, params)
    loss = _with_checked_result(loss, "unroll calls loss for one batch")
    losses = []
    stretch = checkpoint_every or len(all_batches)
    for start in range(0, len(all_batches), stretch):
        arguments = rule, loss, weights, state, all_batches[start : start + stretch]
        if checkpoint_every is None:
            weights, state, values = _train(grad_and_value, *arguments)
        else:
            weights, state, values = checkpoint(
                _train, _grad_and_value_by_autograd, *arguments, use_reentrant=False
            )
        losses.append(values)
    return Run(weights, state, torch.cat(losses))


def _train(
    grad_transform: Callable[..., Any],
    rule: Rule,
    loss: Callable[[Params, Any], Tensor],
    weights: Params,
    state: dict[str, State],
    batches: Sequence[Any],
) -> tuple[Params, dict[str, State], Tensor]:
    """Take one step per batch.

    Args:
        grad_transform: makes a function of the gradients and the value from the loss, as
            `torch.func.grad_and_value` does.
        rule, loss, weights, state, batches: the arguments of `unroll`.

    Returns:
        The parameters and states after the last step, and the loss before each.
    """
    losses = []
    for batch in batches:
        grads, value = grad_transform(loss)(weights, batch)
        weights, state = step(rule, weights, grads, state)
        losses.append(value)
    return weights, state, torch.stack(losses)


def _grad_and_value_by_autograd(
    loss: Callable[[Params, Any], Tensor],
) -> Callable[[Params, Any], tuple[Params, Tensor]]:
    """Do what `torch.func.grad_and_value` does, in a form that checkpoints pass through.

    A checkpoint hooks into saved tensors, which `torch.func` does not allow.
    """

    def differentiate(weights: Params, batch: Any) -> tuple[Params, Tensor]:
        with torch.enable_grad():
            leaves = {
                name: weight if weight.requires_grad else weight.detach().requires_grad_()
                for name, weight in weights.items()
            }
            value = loss(leaves, batch)
            derivatives = torch.autograd.grad(value, list(leaves.values()), create_graph=True)
        return dict(zip(leaves, derivatives, strict=True)), value

    return differentiate


MIN_TRACED_STEPS = 8
"""The number of steps from which a trace pays. Tracing costs about as much as ten steps."""

Points = dict[str, Any]
"""K values of each swept hyper-parameter, by name: a tensor of shape (K,), or a tuple of such."""


@dataclass(frozen=True)
class Sweep:
    """Trained parameters and losses of `sweep`, for K points, S seeds and T steps.

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
        >>> result
        Sweep of 1 points and 1 seeds over 2 steps; loss before the last step by point: 0.25
    """

    params: Params
    loss: Tensor
    records: Any

    def __repr__(self) -> str:
        n_steps, n_points, n_seeds = self.loss.shape
        seeds = f", mean over {n_seeds} seeds" if n_seeds > 1 else ""
        losses = " ".join(f"{x:.4g}" for x in self.loss[-1].mean(1).tolist())
        return (
            f"Sweep of {n_points} points and {n_seeds} seeds over {n_steps} steps; loss before the "
            f"last step by point{seeds}: {losses}"
        )


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

    All points and seeds are in memory at once. A point has the same results in any sweep, so one
    that does not fit in memory can be split.

    Args:
        recipe: a recipe, its registered name, or `module:function`.
        loss: `loss(params)` or, with `batches`, `loss(params, batch)`: a scalar, computed without
            side effects.
        params: the initial parameters with a leading dimension S, one entry per seed
            (`torch.func.stack_module_state`).
        hyper_parameters: K values of each hyper-parameter, by name (tensors on any device, or
            sequences); a point is one row of them: they are zipped, not multiplied. `betas` may be
            a pair of such, or a list of K pairs.
        steps: the number of steps T.
        batches: `batches(t)` returns the batch of step t, every tensor in it with a leading
            dimension S, of equal shapes for all t.
        schedule: `schedule(t)` returns the factor of the learning rates at step t.
        record: `record(before, after)` returns a pytree of tensors, measured on the parameters of
            one point and seed at each step.
        **fixed: hyper-parameters that all points share.

    Raises:
        ValueError: an unknown hyper-parameter, one outside its interval (at any step of the
            schedule), lengths that differ, or parameters on several devices.
        TypeError: `steps` is no whole number; the schedule returns something else than a number,
            or the loss than a scalar.

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
    steps = as_number(steps)
    if not isinstance(steps, int):
        raise TypeError(f"sweep: steps must be a whole number, got {steps!r}")
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    n_points = len(pytree.tree_leaves(points)[0])
    weights = {name: w.expand(n_points, *w.shape).clone() for name, w in params.items()}
    device_points = _move_points(device, points)
    init_all = _vmap_seeds_and_points(
        lambda point, w: init(bound.replace(**point).rule, w), (None, 0), (0, None)
    )
    state: dict[str, State] = init_all(device_points, dict(params))
    checked_loss = _with_checked_result(loss, "sweep calls loss for one point and one seed")
    take_step: Callable[..., Any] = _make_step(bound, checked_loss, record)
    if steps >= MIN_TRACED_STEPS:
        take_step = _TracedStep(take_step, bound, points, device)
    losses, records = [], []
    with torch.no_grad():
        for t in range(steps):
            points_now = device_points
            if schedule is not None:
                points_now = _move_points(device, _schedule_points(bound, points, schedule, t))
            batch = (batches(t),) if batches else ()
            weights, state, value, recorded = take_step(points_now, weights, state, batch)
            losses.append(value)
            records.append(recorded)
    stacked = pytree.tree_map(lambda *x: torch.stack(x), *records) if record else None
    return Sweep(weights, torch.stack(losses), stacked)


def _with_checked_result(loss: Callable[..., Tensor], call: str) -> Callable[..., Tensor]:
    """Return a loss that refuses to be anything but a scalar, and to read a parameter that is not.

    Args:
        loss: takes the parameters, and a batch if there is one.
        call: who calls it, for the message.
    """

    def checked_loss(params: Params, *batch: Any) -> Tensor:
        try:
            value = loss(params, *batch)
        except KeyError as error:
            raise ValueError(
                f"{call}, which raised KeyError: {error}; params has {', '.join(params)}"
            ) from error
        if not isinstance(value, Tensor) or value.ndim:
            got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
            raise TypeError(f"{call}, which must return a scalar tensor, got {got}")
        return value

    return checked_loss


def _device_of(params: Mapping[str, Tensor]) -> torch.device:
    """Return the device of all parameters.

    Raises:
        ValueError: they are on several.
    """
    devices = {w.device: name for name, w in params.items()}
    if len(devices) > 1:
        locations = ", ".join(f"{name!r} is on {device}" for device, name in devices.items())
        raise ValueError(f"params must be on one device, which steps them together; {locations}")
    return next(iter(devices))


def _move_points(device: torch.device, points: Points) -> Points:
    """Return points, which are checked on the CPU, on the device of the weights."""

    def move(values: Tensor) -> Tensor:
        if values.dtype is torch.float64:
            return to_accumulation_dtype(values, device)
        return values.to(device)

    return pytree.tree_map(move, points)  # type: ignore[no-any-return]


def _make_step(
    bound: Bound, loss: Callable[..., Tensor], record: Callable[[Params, Params], Any] | None
) -> Callable[..., Any]:
    """Return a training step of all points and seeds, of (points, weights, state, batch)."""

    def take_step(
        point: Points, weights: Params, state: dict[str, State], batch: tuple[Any, ...]
    ) -> Any:
        rule = bound.replace(**point).rule
        grads, value = grad_and_value(loss)(weights, *batch)
        new_weights, new_state = step(rule, weights, grads, state)
        return new_weights, new_state, value, record(weights, new_weights) if record else ()

    return _vmap_seeds_and_points(take_step, (None, 0, 0, 0), (0, 0, 0, None))


def _vmap_seeds_and_points(
    function: Callable[..., Any],
    seed_dims: tuple[int | None, ...],
    point_dims: tuple[int | None, ...],
) -> Callable[..., Any]:
    """Vectorize a function of one point and one seed, over all seeds and then over all points."""
    over_seeds = vmap(function, in_dims=seed_dims, randomness="different")
    return vmap(over_seeds, in_dims=point_dims, randomness="different")


def _schedule_points(
    bound: Bound, points: Points, schedule: Callable[[int], float], t: int
) -> Points:
    """Return the points at step t, with all learning rates multiplied by the schedule's factor."""
    result = schedule(t)
    factor = result.item() if isinstance(result, Tensor) else as_number(result)
    if not isinstance(factor, int | float):
        raise TypeError(f"schedule({t}) must be a number, got {result!r}")
    scaled = {**points, "lr": points["lr"] * factor}
    try:
        _refuse_outside_intervals(bound, scaled)
    except ValueError as error:
        raise ValueError(f"schedule({t}) is {result!r}: {error}") from error
    return scaled


class _TracedStep:
    """A step that is traced once, and again when the recipe makes other rules."""

    def __init__(
        self, function: Callable[..., Any], bound: Bound, points: Points, device: torch.device
    ) -> None:
        self.function, self.bound, self.points = function, bound, points
        self.device = device
        self.replay = function
        self.traced_key: Any = None

    def __call__(self, *arguments: Any) -> Any:
        key = _trace_key(self.bound, self.points)
        if key is None:
            return self.function(*arguments)
        if key != self.traced_key:
            self.replay, self.traced_key = make_fx(self.function)(*arguments), key
        # The casts of the loss are in the trace; autocast would add others to those of the step.
        with without_autocast(self.device):
            return self.replay(*arguments)


def _trace_key(bound: Bound, points: Points) -> Any:
    """Return a key of the recipe's rules at all points, for which a traced step is valid.

    None if a rule may read values that change unnoticed; its step is then not traced.
    """
    if is_builtin(bound.recipe):
        return ()  # it reads nothing but its arguments
    keys: list[RuleKey] = []

    def read_numbers(point: Points) -> list[Tensor]:
        rule = bound.replace(**point).rule
        keys[:] = map(RuleKey.of, rule.children if rule.is_partition else (rule,))
        scalars = [number for key in keys for number in key.scalars]
        return [torch.as_tensor(number, dtype=torch.float64) for number in scalars]

    numbers = vmap(read_numbers)(points)
    if any(key.foreign or key.unsupported_because is not None for key in keys):
        return None
    return [key.structure for key in keys], [x.numpy(force=True).tobytes() for x in numbers]


def _bind_points(
    recipe: str | Recipe, swept: Mapping[str, Any], fixed: Mapping[str, Any]
) -> tuple[Bound, Points]:
    """Bind the fixed hyper-parameters, and check the points of the others.

    Raises:
        ValueError: see `sweep`.
    """
    bound = bind(recipe, **{**swept, **fixed})
    for name in fixed.keys() & swept.keys():
        raise ValueError(f"{name} is both among the hyper_parameters and fixed to {fixed[name]!r}")
    points = {name: _as_points(name, value) for name, value in swept.items()}
    leaves = [(name, leaf) for name, value in points.items() for leaf in pytree.tree_leaves(value)]
    _require_common_length("hyper_parameters", leaves)
    _refuse_outside_intervals(bound, points)
    return bound, points


def _refuse_outside_intervals(bound: Bound, points: Points) -> None:
    """Refuse points with a hyper-parameter outside its interval.

    Raises:
        ValueError: a point has one.
    """
    # Intervals are convex, so the two extremes stand for all points. nan is an extreme, too.
    for extreme in (torch.amin, torch.amax):
        point = pytree.tree_map(lambda values, extreme=extreme: float(extreme(values)), points)
        bound.replace(**point).rule  # noqa: B018  (it raises)


def _as_points(name: str, value: Any) -> Any:
    """Return K values of a hyper-parameter as a tensor on the CPU, or as a tuple of such."""
    if isinstance(value, list) and value and all(isinstance(item, tuple) for item in value):
        value = tuple(map(list, zip(*value, strict=True)))  # K pairs become a pair of K values
    if isinstance(value, tuple):
        return tuple(_as_points(name, item) for item in value)
    if not isinstance(value, Tensor):
        try:
            value = torch.as_tensor(value, dtype=torch.float64, device="cpu")
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name} needs one number for each point, got {value!r}") from error
    if value.ndim > 1:
        raise ValueError(
            f"{name} needs one number for each point, got a tensor of shape {tuple(value.shape)}"
        )
    return value.detach().cpu()


def _require_common_length(what: str, tensors: Sequence[tuple[str, Tensor]]) -> None:
    """Require tensors to have one leading length.

    Raises:
        ValueError: lengths differ, or one is 0 or missing.
    """
    lengths = {name: len(tensor) if tensor.ndim else None for name, tensor in tensors}
    if not all(lengths.values()) or len(set(lengths.values())) != 1:
        raise ValueError(f"{what} need one common leading length, at least 1, got {lengths}")
