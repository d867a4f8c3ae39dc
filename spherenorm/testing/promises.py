"""The promises of a recipe, each a function of a `RecipeUnderTest`.

It returns what was compared, in words. It raises AssertionError with the first thing that does not
hold, or `NotApplicable` with the reason why nothing can be compared. `RecipeUnderTest` has weights
and gradients of several kinds to step a recipe with.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import multiprocessing
import socket
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spherenorm.compile import BackendError
from spherenorm.optim import torch_optimizer
from spherenorm.recipes import sgdp
from spherenorm.registry import Bound, Recipe, wrapper_call
from spherenorm.rule import (
    STEP_KEY,
    InPlaceError,
    Rule,
    State,
    initial_state_keeping_rng,
)
from spherenorm.schedule import Schedule
from spherenorm.testing.recording import (
    CastsMode,
    record_updates,
    record_writes,
    rule_class_of,
)
from spherenorm.torch_internals import pytree
from spherenorm.views import View

SHAPES = ((4, 3), (3, 5), (3, 2, 2, 2), (5,), (), (1, 4), (0, 3))
"""Tall and wide matrices, a convolution, a bias, a scalar, a single unit, and no entries."""

N_STEPS = 4
"""Steps of a run."""

StepResult = tuple[Tensor, State]
"""A new weight and its new state."""
ROUNDING = 1e-10
"""Relative rounding of a float64 step, through the cancellations of a projection."""
BATCH_ROUNDING = 1e-8
"""Relative rounding of a float64 step in a batch, through eigenvectors, which another order of sums
turns by rounding over the distance of eigenvalues."""
FLOAT32_ROUNDING = 1e-4
"""Relative rounding of a float32 step."""
N_STEPS_TO_ACT = 2 * N_STEPS
"""Steps that show a number which acts from the second step on, or every few steps."""
MIN_ENTRIES_OF_ENDS = 12
"""Entries of a weight at which no other result has the values of w - d by chance."""
MIN_ACTION = 1e-9
"""Smallest change that counts, relative to a weight's largest entry: less is rounding."""
UNUSED_BY_DESIGN: dict[Recipe, tuple[str, ...]] = {sgdp: ("eps",)}
"""Hyper-parameters that a recipe takes for another package's sake, as its docstring says."""
N_PROCESSES = 2
PROCESS_TIMEOUT_S = 60.0


class NotApplicable(Exception):  # noqa: N818
    """The promise does not concern this recipe; the message says why.

    Example:
        >>> def sparse(under_test):
        ...     raise NotApplicable("no step of the library is sparse")
        >>> sn.testing.PROPERTIES["sparse"] = sparse
        >>> print(sn.testing.check("sgd", only=("sparse",)))
        sgd
        promise  verdict  why
        sparse   refused  no step of the library is sparse
        >>> _ = sn.testing.PROPERTIES.pop("sparse")
    """


@dataclass(frozen=True)
class RecipeUnderTest:
    """A recipe with weights and gradients to step it with.

    Attributes:
        bound: the recipe with its hyper-parameters.
        shapes: the shapes of weights that it takes.
        refused_shapes: the other shapes that were tried, each with the reason why it was refused.

    Example:
        >>> under_test = RecipeUnderTest.from_bound(sn.bind("sgdg"))
        >>> rule, weight = under_test.make_rule(), under_test.make_weight((4, 3))
        >>> grad = under_test.make_grad(weight, 0)
        >>> new_weight, _ = rule.step(weight, grad, rule.init(weight))
        >>> new_weight.norm(dim=1)  # sgdg keeps each row on the unit sphere
        tensor([1.0000, 1.0000, 1.0000, 1.0000], dtype=torch.float64)
    """

    bound: Bound
    shapes: Sequence[tuple[int, ...]] = SHAPES
    refused_shapes: Mapping[tuple[int, ...], str] = field(default_factory=dict)

    @classmethod
    def from_bound(cls, bound: Bound) -> RecipeUnderTest:
        """Return the recipe with those of `SHAPES` that its rule takes."""
        refused_shapes: dict[tuple[int, ...], str] = {}
        if bound.rule.is_partition:
            raise TypeError(
                f"recipe {bound.name!r} returns a partition, which has no step of one weight; "
                "check the recipes of its parts"
            )
        for shape in SHAPES:
            try:
                initial_state_keeping_rng(bound.rule, torch.ones(shape))
            except (TypeError, ValueError) as error:
                refused_shapes[shape] = str(error)
        shapes = [shape for shape in SHAPES if shape not in refused_shapes]
        return cls(bound, shapes, refused_shapes)

    def make_rule(self, **hyper_parameters: Any) -> Rule:
        """Build the recipe's rule anew, with other values of some hyper-parameters."""
        return self.bound.replace(**hyper_parameters).rule

    def make_weight(self, shape: tuple[int, ...], dtype: torch.dtype = torch.float64) -> Tensor:
        """Return a random weight, with a norm of 1 in each row, as training on a sphere starts."""
        generator = torch.Generator().manual_seed(len(shape))
        weight = torch.randn(shape, generator=generator, dtype=torch.float64)
        if weight.ndim >= 2 and weight.numel():
            weight = weight / View(0).norm(weight)
        return weight.to(dtype)

    def make_grad(self, weight: Tensor, step: int) -> Tensor:
        """Return a gradient of one of four kinds, by the step.

        They are random, orthogonal to each row of the weight, orthogonal to the whole weight, and
        small.
        """
        generator = torch.Generator().manual_seed(step)
        grad = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        weight64 = weight.detach().double()
        if weight.ndim >= 2 and weight.numel() and step % 4 in (1, 2):
            view = View(0) if step % 4 == 1 else View(None)
            grad = grad - view.radial_coefficient(weight64, grad) * weight64
        return (grad * (1e-3 if step % 4 == 3 else 1.0)).to(weight.dtype)

    def run(self, rule: Rule, weight: Tensor, steps: int = N_STEPS) -> StepResult:
        """Return the weight and its state after some steps."""
        state = initial_state_keeping_rng(rule, weight)
        for step in range(steps):
            weight, state = rule.step(weight, self.make_grad(weight, step), state)
        return weight, state

    def after_one_step(self) -> Iterator[tuple[Tensor, Tensor, State]]:
        """Yield (weight, gradient, state) for a second step, for each shape."""
        for shape in self.shapes:
            weight, state = self.run(self.make_rule(), self.make_weight(shape), 1)
            yield weight, self.make_grad(weight, 1), state


def find_difference(result: StepResult, expected: StepResult, tolerance: float) -> str | None:
    """Return the first difference of two results of a step, in words; None if there is none.

    Args:
        result: a weight and its state.
        expected: another weight and its state.
        tolerance: largest difference, relative to the largest entry of each expected tensor; 0
            requires equal bits.
    """
    weight, state = result
    expected_weight, expected_state = expected
    if state.keys() != expected_state.keys():
        return f"the states are {sorted(state)} and {sorted(expected_state)}"
    pairs = {"the weight": (weight, expected_weight)}
    for name, value in state.items():
        pairs[f"the state {name!r}"] = value, expected_state[name]
    for label, (x, y) in pairs.items():
        if (x.shape, x.dtype) != (y.shape, y.dtype):
            return f"{label} is {tuple(x.shape)} of {x.dtype}, not {tuple(y.shape)} of {y.dtype}"
        if torch.equal(x, y) or not y.numel():
            continue
        is_equal = (x == y) | (x.isnan() & y.isnan())
        difference = torch.where(is_equal, 0, (x.double() - y.double()).abs()).max().item()
        magnitude = y.double().nan_to_num(0, 0, 0).abs().max().item()
        if not difference <= tolerance * max(magnitude, 1e-30):
            return (
                f"{label} of shape {tuple(y.shape)} is off by {difference:.1e}, of {magnitude:.1e}"
            )
    return None


@contextlib.contextmanager
def error_context(action: str) -> Iterator[None]:
    """Put what was tried before the message of any error that the recipe raises.

    Raises:
        AssertionError: the recipe has raised an error.
        NotApplicable: the recipe writes into its arguments, which is another promise's failure.
    """
    try:
        yield
    except (NotApplicable, AssertionError):
        raise
    except InPlaceError as error:
        raise NotApplicable("the rule writes into its arguments") from error
    except Exception as error:
        raise AssertionError(f"{action}: {describe(error)}") from error


def describe(error: BaseException) -> str:
    """Return the class and first line of an error, and the rule whose code was running."""
    message = str(error).strip().partition("\n")[0]
    if "data-dependent control flow" in message:
        message = "a Python branch on a tensor's values; use torch.where"
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    rule_class = rule_class_of(reversed(frames))
    rule_name = f" in {rule_class.__name__}" if rule_class is not None else ""
    return f"{type(error).__name__}{rule_name}: {message}"


# Promises


def check_shapes(under_test: RecipeUnderTest) -> str:
    """Check that weight and states keep shape and dtype, whatever the shape of the weight."""
    for shape in under_test.shapes:
        weight = under_test.make_weight(shape)
        with error_context(f"steps of shape {shape}"):
            initial_state = initial_state_keeping_rng(under_test.make_rule(), weight)
            new_weight, state = under_test.run(under_test.make_rule(), weight)
        assert new_weight.shape == weight.shape, (
            f"a weight of shape {shape} comes back as {new_weight.shape}"
        )
        assert state.keys() == initial_state.keys(), (
            f"{sorted(state)} after steps, {sorted(initial_state)} before"
        )
        for name, value in state.items():
            layout = tuple(value.shape), value.dtype
            initial_layout = tuple(initial_state[name].shape), initial_state[name].dtype
            assert layout == initial_layout, (
                f"the state {name!r} is {layout}, it was {initial_layout}"
            )
    refusals = "".join(
        f"; {shape} refused: {reason}" for shape, reason in under_test.refused_shapes.items()
    )
    assert under_test.shapes, f"no weight is taken{refusals}"
    return f"{', '.join(map(str, under_test.shapes))}{refusals}"


def check_writes_into_nothing(under_test: RecipeUnderTest) -> str:
    """Check that each rule's `init`, `global_sum_terms` and `update` write into no argument."""
    rule = under_test.make_rule()
    for weight, grad, state in under_test.after_one_step():
        with (
            record_writes(rule) as writes,
            error_context(f"a step of shape {tuple(weight.shape)}"),
        ):
            rule.init(weight)
            rule.step(weight, grad, state)
        assert not writes, f"{writes[0]}; return new tensors instead"
    return "weight, gradient and state are as before"


def check_pure(under_test: RecipeUnderTest) -> str:
    """Check that equal arguments give equal bits, also by a rule that is built anew."""
    rule = under_test.make_rule()
    for weight, grad, state in under_test.after_one_step():
        with error_context(f"a step of shape {tuple(weight.shape)}"):
            result = rule.step(weight, grad, state)
            repeated = rule.step(weight, grad, state)
            rebuilt = under_test.make_rule().step(weight, grad, state)
        difference = find_difference(repeated, result, 0)
        assert difference is None, f"the same step a second time: {difference}"
        difference = find_difference(rebuilt, result, 0)
        assert difference is None, f"the same step by the rule made anew: {difference}"
    return "equal bits a second time, and by the rule made anew"


def check_dtypes(under_test: RecipeUnderTest) -> str:
    """Check that half precision is the float32 step, rounded once, and float32 near float64.

    A float64 step whose rules go through a lower precision would pass the latter, so their casts
    are watched.
    """
    rule = under_test.make_rule()
    for shape in under_test.shapes:
        # Values of float32, so that both precisions start at the same weight.
        weight64 = under_test.make_weight(shape).float().double()
        with error_context(f"steps of shape {shape}"):
            for dtype in (torch.bfloat16, torch.float16):
                weight = weight64.to(dtype)
                grad = under_test.make_grad(weight, 0)
                result = rule.step(weight, grad, initial_state_keeping_rng(rule, weight))
                weight32 = weight.float()
                new_weight, state = rule.step(
                    weight32, grad.float(), initial_state_keeping_rng(rule, weight32)
                )
                difference = find_difference(result, (new_weight.to(dtype), state), 0)
                assert difference is None, (
                    f"a step in {dtype} is not the float32 step, rounded: {difference}"
                )
            grad64 = under_test.make_grad(weight64, 0).float().double()
            result64, _ = rule.step(weight64, grad64, initial_state_keeping_rng(rule, weight64))
            weight32 = weight64.float()
            result32, _ = rule.step(
                weight32, grad64.float(), initial_state_keeping_rng(rule, weight32)
            )
        assert result32.dtype is torch.float32, f"a float32 weight comes back as {result32.dtype}"
        difference = find_difference((result32.double(), {}), (result64, {}), FLOAT32_ROUNDING)
        assert difference is None, f"float32 differs from float64: {difference}"
        state64 = initial_state_keeping_rng(rule, weight64)
        watch = CastsMode({x.dtype for key, x in state64.items() if key != STEP_KEY})
        with error_context(f"a step of shape {shape}"), watch:
            rule.step(weight64, grad64, state64)
        assert not watch.casts, f"a step in float64 is rounded to {watch.casts[0]}"
    return "half precision is float32, rounded once; float32 is near float64"


def check_finite(under_test: RecipeUnderTest) -> str:
    """Check that gradients of 0, 1e-6 and 1e6 give finite steps."""
    rule = under_test.make_rule()
    for shape in under_test.shapes:
        for scale in (0.0, 1e-6, 1e6):
            weight = under_test.make_weight(shape)
            state = initial_state_keeping_rng(rule, weight)
            with error_context(f"gradients of {scale:g}"):
                for step in range(N_STEPS):
                    grad = scale * under_test.make_grad(weight, step)
                    weight, state = rule.step(weight, grad, state)
            for label, x in {"the weight": weight, **state}.items():
                assert x.isfinite().all(), (
                    f"gradients of {scale:g}: {label} of shape {tuple(x.shape)} is not finite"
                )
    return "gradients of 0, 1e-6 and 1e6"


# Hyper-parameters: each number and switch acts


def check_every_hyper_parameter_matters(under_test: RecipeUnderTest) -> str:
    """Check that each number and switch changes a step, and that lr = 0 moves nothing."""
    unused = _unused_by_design(under_test)
    nonzero_settings = _nonzero_settings(under_test)
    labels = []
    for name, default in under_test.bound.hyper_parameters.items():
        entries = enumerate(default) if isinstance(default, tuple | list) else [(None, default)]
        for index, entry in entries:
            if type(entry) not in (bool, int, float) or name in unused:
                continue
            label = name if index is None else f"{name}[{index}]"
            acts = any(
                _changes_a_step(under_test, name, index, _other_values(entry), settings)
                for settings in _settings_of_others(under_test, nonzero_settings, name)
            )
            assert acts, f"{label} acts nowhere: no other value of it changed a step"
            labels.append(label)
    if "lr" in under_test.bound.hyper_parameters and _is_accepted(under_test, {"lr": 0.0}):
        for settings in ({}, nonzero_settings):
            _check_moves_nothing(under_test, {**settings, "lr": 0.0})
    return ", ".join(labels) or "no numbers"


def _unused_by_design(under_test: RecipeUnderTest) -> set[str]:
    """Return the hyper-parameters without effect in a recipe, and in the recipes that it wraps."""
    unused: set[str] = set()
    recipes = [under_test.bound.recipe]
    for recipe in recipes:
        unused.update(UNUSED_BY_DESIGN.get(recipe, ()))
        call = wrapper_call(recipe)
        if call is not None:
            recipes.extend(call.inners)
            if "weight_decay" in call.fixed_names:
                # The wrapper steps a recipe without weight decay, of which wd_ratio is a factor.
                unused.add("wd_ratio")
    # A wrapped recipe has them with a prefix: base_eps, length_eps.
    return {
        name
        for name in under_test.bound.hyper_parameters
        if any(name == x or name.endswith(f"_{x}") for x in unused)
    }


def _other_values(default: Any) -> list[Any]:
    """Return values to compare a default with, from near to far."""
    if isinstance(default, bool):
        return [not default]
    if isinstance(default, int):
        return [default + 1, 2, 1, 0]
    nearby = [0.5 * default, 0.5 * (1 + default), default + 0.1]
    return [*nearby, 20.0 * default, 1.0, 0.0, 1e-3 * default]


def _nonzero_settings(under_test: RecipeUnderTest) -> dict[str, Any]:
    """Return values for the numbers that are 0 by default, which may switch others off.

    For example, sgd's dampening acts only beside a momentum.
    """
    settings: dict[str, Any] = {}
    for name, default in under_test.bound.hyper_parameters.items():
        if type(default) is not float or default != 0 or name == "lr":
            continue
        for value in (0.5, 2.0):
            if _is_accepted(under_test, {**settings, name: value}):
                settings[name] = value
                break
    return settings


def _settings_of_others(
    under_test: RecipeUnderTest, nonzero_settings: dict[str, Any], name: str
) -> Iterator[dict[str, Any]]:
    """Yield settings of the other hyper-parameters at which one may act.

    They are the defaults, the numbers that are 0 switched on, and each switch beside them.
    """
    settings = {key: value for key, value in nonzero_settings.items() if key != name}
    yield {}
    if settings:
        yield settings
    for key, default in under_test.bound.hyper_parameters.items():
        if isinstance(default, bool) and key != name:
            yield {**settings, key: not default}


def _changes_a_step(
    under_test: RecipeUnderTest,
    name: str,
    index: int | None,
    values: list[Any],
    settings: dict[str, Any],
) -> bool:
    """Return True if one of the values gives other weights than the default, for some weight.

    Args:
        under_test: the recipe.
        name: the hyper-parameter.
        index: index in it, if it is a tuple.
        values: the values to try.
        settings: settings of other hyper-parameters.
    """
    default = under_test.bound.hyper_parameters[name]
    if not _is_accepted(under_test, settings):
        return False
    trajectory = _trajectory(under_test, settings)
    for value in values:
        new_value = value if index is None else _replace_entry(default, index, value)
        new_settings = {**settings, name: new_value}
        if new_value == default or not _is_accepted(under_test, new_settings):
            continue
        for x, y in zip(trajectory, _trajectory(under_test, new_settings), strict=True):
            both_step = bool(x.any()) and bool(y.any())
            if both_step and find_difference((x, {}), (y, {}), MIN_ACTION) is not None:
                return True
    return False


def _replace_entry(values: Any, index: int, value: Any) -> Any:
    """Return a tuple or list with one entry replaced."""
    return type(values)((*values[:index], value, *values[index + 1 :]))


def _trajectory(under_test: RecipeUnderTest, settings: dict[str, Any]) -> list[Tensor]:
    """Return a weight of each shape, and its eval_weight, after two steps and after all.

    They are zeros for a shape that the rule refuses at these settings.
    """
    weights = []
    start_counts = _start_counts(under_test.make_rule())
    for shape, count in itertools.product(under_test.shapes, start_counts):
        rule = under_test.make_rule(**settings)
        weight = under_test.make_weight(shape)
        try:
            state = initial_state_keeping_rng(rule, weight)
        except (TypeError, ValueError):
            weights += [torch.zeros_like(weight)] * 4
            continue
        if count:
            state = {**state, STEP_KEY: torch.full_like(state[STEP_KEY], count)}
        with error_context(f"steps of shape {shape} at {settings}"):
            for step in range(N_STEPS_TO_ACT):
                weight, state = rule.step(weight, under_test.make_grad(weight, step), state)
                if step in (1, N_STEPS_TO_ACT - 1):
                    weights += [weight, rule.eval_weight(weight, state)]
    return weights


def _start_counts(rule: Rule) -> list[float]:
    """Return step counts to start at: 0, and the middle of each segment of a schedule."""
    counts = [0.0]
    for part in rule.walk():
        for item in fields(part):
            value = getattr(part, item.name)
            times = value.extreme_times() if isinstance(value, Schedule) else None
            counts += [(start + end) // 2 for start, end in itertools.pairwise(times or [])]
    return list(dict.fromkeys(counts))


def _check_moves_nothing(under_test: RecipeUnderTest, settings: dict[str, Any]) -> None:
    """Check that a weight stays where it is, up to rounding."""
    if not _is_accepted(under_test, settings):
        return
    for shape in under_test.shapes:
        weight = under_test.make_weight(shape)
        with error_context(f"steps of shape {shape} at {settings}"):
            new_weight, _ = under_test.run(under_test.make_rule(**settings), weight)
        difference = find_difference((new_weight, {}), (weight, {}), ROUNDING)
        without_lr = {name: value for name, value in settings.items() if name != "lr"}
        suffix = f" (and {without_lr})" if without_lr else ""
        assert difference is None, f"lr = 0{suffix} moves a weight: {difference}"


def check_endpoint_flag(under_test: RecipeUnderTest) -> str:
    """Check that each rule which computes where the step ends, w - d, declares it."""
    for weight, grad, state in under_test.after_one_step():
        if weight.numel() < MIN_ENTRIES_OF_ENDS:
            continue
        rule = under_test.make_rule()
        with (
            record_updates(rule) as records,
            error_context(f"a step of shape {tuple(weight.shape)}"),
        ):
            rule.step(weight, grad, state)
        for record in records:
            is_declared = any(part.uses_endpoint for part in record.rule.walk())
            assert is_declared or not record.computes_end(ROUNDING), (
                f"{type(record.rule).__name__} computes where the step ends, w - d, which a rule "
                "behind it may change; declare uses_endpoint = True in the class"
            )
    names = {type(part).__name__ for part in under_test.make_rule().walk() if part.uses_endpoint}
    return f"{', '.join(sorted(names)) or 'no rule'} sets or reads where the step ends"


def _is_accepted(under_test: RecipeUnderTest, settings: dict[str, Any]) -> bool:
    try:
        under_test.make_rule(**settings)
    except (ValueError, TypeError):
        return False
    return True


# vmap


def check_vmap(under_test: RecipeUnderTest) -> str:
    """Check that a batch of weights, or of values of a number, steps as they do one by one."""
    cases = list(under_test.after_one_step())
    for weight, grad, state in cases:
        _check_batch_of_weights(under_test, weight, grad, state)
    labels = ["weights"]
    for scalar in _float_hyper_parameters(under_test):
        for weight, grad, state in cases:
            _check_batch_of_values(under_test, scalar, weight, grad, state)
        labels.append(scalar.label)
    return ", ".join(labels)


class _Scalar(NamedTuple):
    """A number among the hyper-parameters, with values to try.

    Attributes:
        label: its name, and its index if it is the entry of a tuple.
        values: the values.
        settings_with: a function that returns the hyper-parameters with a value of it.
    """

    label: str
    values: list[float]
    settings_with: Callable[[Any], dict[str, Any]]


def _float_hyper_parameters(under_test: RecipeUnderTest) -> Iterator[_Scalar]:
    """Yield each float among the hyper-parameters."""
    for name, default in under_test.bound.hyper_parameters.items():
        is_sequence = isinstance(default, tuple | list)
        for index, entry in enumerate(default if is_sequence else (default,)):
            if type(entry) is not float:
                continue

            def settings_with(
                value: Any, name: str = name, index: int = index, default: Any = default
            ) -> dict[str, Any]:
                if isinstance(default, tuple | list):
                    value = _replace_entry(default, index, value)
                return {name: value}

            values = [0.9 * entry, 0.95 * entry, entry] if entry else [0.0, 0.01, 0.02]
            values = [x for x in values if _is_accepted(under_test, settings_with(x))]
            if not entry and values:
                # A Python 0 may leave a term out, and its state with it.
                state_keys = {
                    x: under_test.make_rule(**settings_with(x)).state_keys for x in values
                }
                values = [x for x in values if state_keys[x] == state_keys[values[-1]]]
            if values:
                yield _Scalar(f"{name}[{index}]" if is_sequence else name, values, settings_with)


def _check_batch_of_values(
    under_test: RecipeUnderTest, scalar: _Scalar, weight: Tensor, grad: Tensor, state: State
) -> None:
    """Check that a batch of values of a number gives what they give one after another."""

    def step_with(value: Any) -> tuple[Tensor, State]:
        rule = under_test.make_rule(**scalar.settings_with(value))
        return rule.step(weight, grad, {**initial_state_keeping_rng(rule, weight), **state})

    with error_context(f"vmap over {scalar.label}"):
        batch = torch.tensor(scalar.values, dtype=torch.float64)
        new_weights, new_states = torch.vmap(step_with)(batch)
    for i, value in enumerate(scalar.values):
        result = new_weights[i], {name: x[i] for name, x in new_states.items()}
        difference = find_difference(result, step_with(value), ROUNDING)
        assert difference is None, f"vmap over {scalar.label}, at {value:g}: {difference}"


def _check_batch_of_weights(
    under_test: RecipeUnderTest, weight: Tensor, grad: Tensor, state: State
) -> None:
    """Check that two weights, the second one step further, step in a batch as one by one."""
    rule = under_test.make_rule()
    with error_context(f"vmap over weights of shape {tuple(weight.shape)}"):
        next_weight, next_state = rule.step(weight, grad, state)
        next_grad = under_test.make_grad(next_weight, 3)
        cases = [(weight, grad, state), (next_weight, next_grad, next_state)]
        batch = pytree.tree_map(lambda *tensors: torch.stack(tensors), *cases)
        new_weights, new_states = torch.vmap(rule.step)(*batch)
        expected_results = [rule.step(*case) for case in cases]
    for i, expected in enumerate(expected_results):
        result = new_weights[i], {name: x[i] for name, x in new_states.items()}
        difference = find_difference(result, expected, BATCH_ROUNDING)
        assert difference is None, f"vmap over weights: {difference}"


# Optimizers


def check_compiled(under_test: RecipeUnderTest) -> str:
    """Check that `backend="compiled"` gives the numbers of the rule's own code."""
    expected_results = _train(under_test, "rule")
    try:
        results = _train(under_test, "compiled")
    except BackendError as error:
        # The backend compares a kernel with the rule's own code before it steps a weight.
        if "other numbers" in str(error):
            raise AssertionError(str(error)) from error
        raise NotApplicable(str(error)) from error
    for result, expected in zip(results, expected_results, strict=True):
        difference = find_difference(result, expected, 1e-8)
        assert difference is None, difference
    return f"{N_STEPS} steps of the rule's own code"


def check_resumes(under_test: RecipeUnderTest) -> str:
    """Check that a run continues bit for bit from a saved state_dict.

    The state_dict must load with weights_only=True.
    """
    expected_results = _train(under_test, "auto", steps=2 * N_STEPS)
    results = _train(under_test, "auto", steps=2 * N_STEPS, reload_at=N_STEPS)
    for result, expected in zip(results, expected_results, strict=True):
        difference = find_difference(result, expected, 0)
        assert difference is None, f"after loading: {difference}"
    return "equal bits after saving and loading"


def _train(
    under_test: RecipeUnderTest, backend: str, steps: int = N_STEPS, reload_at: int | None = None
) -> list[tuple[Tensor, dict[str, Tensor]]]:
    """Return weights and states after some steps of a torch optimizer.

    Args:
        under_test: the recipe.
        backend: the optimizer's backend.
        steps: number of steps.
        reload_at: step before which a new optimizer loads the saved state_dict; None: at no step.
    """
    weights = [under_test.make_weight(shape).requires_grad_() for shape in under_test.shapes]
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        optimizer = _make_optimizer(under_test, weights, backend)
        for step in range(steps):
            if step == reload_at:
                file = io.BytesIO()
                torch.save(optimizer.state_dict(), file)
                file.seek(0)
                optimizer = _make_optimizer(under_test, weights, backend)
                optimizer.load_state_dict(torch.load(file, weights_only=True))
            for weight in weights:
                weight.grad = under_test.make_grad(weight, step)
            optimizer.step()
    return [
        (weight.detach(), {name: x.detach() for name, x in optimizer.state[weight].items()})
        for weight in weights
    ]


def _make_optimizer(
    under_test: RecipeUnderTest, weights: list[Tensor], backend: str
) -> torch.optim.Optimizer:
    optimizer_class = torch_optimizer(under_test.bound.recipe)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Some weights cannot move on their sphere.
        return optimizer_class(weights, backend=backend, **under_test.bound.hyper_parameters)


def check_sharded(under_test: RecipeUnderTest) -> str:
    """Check that weights cut along their rows in two processes (gloo) step as whole ones do."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_gloo_available()):
        raise NotApplicable("gloo is not there")
    if sys.platform != "linux" or torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise NotApplicable("processes cannot be forked here")
    # A forked process has the recipe already, wherever it was defined.
    fork: Any = multiprocessing.get_context("fork")
    queue = fork.Queue()
    with socket.socket() as free_socket:
        free_socket.bind(("localhost", 0))
        port = free_socket.getsockname()[1]
    processes = [
        fork.Process(target=_run_rank, args=(rank, port, under_test, queue), daemon=True)
        for rank in range(N_PROCESSES)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # A fork beside threads warns.
        for process in processes:
            process.start()
    try:
        differences = [queue.get(timeout=PROCESS_TIMEOUT_S) for _ in processes]
    except Exception as error:
        raise AssertionError(f"no answer after {PROCESS_TIMEOUT_S:g} s") from error
    finally:
        for process in processes:
            process.kill()
            process.join()
    for difference in differences:
        assert difference is None, difference
    return f"weights in {N_PROCESSES} processes step as whole ones"


def _run_rank(rank: int, port: int, under_test: RecipeUnderTest, queue: Any) -> None:
    """Put the difference that a process finds, or its error, into the queue."""
    try:
        queue.put(_compare_with_whole_weights(rank, port, under_test))
    except Exception as error:
        message = describe(error)
        if "sharded dimension" in str(error):
            message += "; a reduction along rows needs keepdim=True, not a reshape"
        queue.put(message)


def _compare_with_whole_weights(rank: int, port: int, under_test: RecipeUnderTest) -> str | None:
    """Return the first difference between steps of sharded and of whole weights; None if none."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"tcp://localhost:{port}", rank=rank, world_size=N_PROCESSES
    )
    mesh = init_device_mesh("cpu", (N_PROCESSES,))
    weights = [
        under_test.make_weight(shape).requires_grad_() for shape in under_test.shapes if shape
    ]
    sharded_weights = [
        distribute_tensor(weight.detach(), mesh, [Shard(0)]).requires_grad_() for weight in weights
    ]
    optimizer = _make_optimizer(under_test, weights, "rule")
    sharded_optimizer = _make_optimizer(under_test, sharded_weights, "rule")
    for step in range(N_STEPS):
        for weight, sharded_weight in zip(weights, sharded_weights, strict=True):
            weight.grad = under_test.make_grad(weight, step)
            sharded_weight.grad = distribute_tensor(weight.grad, mesh, [Shard(0)])
        optimizer.step()
        sharded_optimizer.step()
    for weight, sharded_weight in zip(weights, sharded_weights, strict=True):
        sharded_state = sharded_optimizer.state[sharded_weight]
        state = {name: _unshard(x) for name, x in sharded_state.items()}
        result = _unshard(sharded_weight.detach()), state
        expected = weight.detach(), dict(optimizer.state[weight])
        difference = find_difference(result, expected, ROUNDING)
        if difference is not None:
            return difference
    return None


def _unshard(x: Any) -> Any:
    return x.full_tensor() if hasattr(x, "full_tensor") else x
