"""Checks of the laws on float64 runs; a broken assumption is named with its number.

A check runs the one simulation loop, `simulate`, on a problem and compares it with the law:

| law | check | on |
|---|---|---|
| norm growth | `check`, `Check` | networks and a toy problem, `PROBLEMS` |
| equilibrium | `check_equilibrium` | random gradients |
| turn in equilibrium | `check_turn` | random gradients |

On three of `PROBLEMS` the assumptions of the laws hold; two others break one assumption each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice, repeat
from math import cos, inf, pi
from typing import Any

import numpy as np
import sympy as sp
import torch
from torch import Generator, Tensor
from torch.nn import functional

from spherenorm import Recipe, Rule, State, View, as_view, bind
from spherenorm.support import unknown_name
from spherenorm_theory.equilibria.equilibrium import equilibrium, equilibrium_turn
from spherenorm_theory.evaluate import Array, Inputs, Values, evaluate, read_step
from spherenorm_theory.hyper_parameters import (
    resolve_recipe,
    static_arguments,
    static_arguments_of_run,
)
from spherenorm_theory.norm_law import CROSS, NormLaw, norm_growth
from spherenorm_theory.step import S, W
from spherenorm_theory.symbols import Inner, Norm
from spherenorm_theory.tracing import Trace
from spherenorm_theory.verify import is_about_units

Weights = dict[str, Tensor]
Loss = Callable[[Weights, Generator], Tensor]

TINY = 1e-30
"""The eps of normalization layers: torch asks for a positive one, and float64 loses this one.

Scale invariance is exact without eps.
"""


def _normal(*shape: int, generator: Generator) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


@dataclass(frozen=True)
class Problem:
    """A training problem, from random weights.

    Attributes:
        weights: shape of each weight, and the view whose units are (meant to be)
            scale-invariant.
        loss: the loss of the weights, with noise from a generator.
    """

    weights: Mapping[str, tuple[tuple[int, ...], str]]
    loss: Loss

    def start(self, generator: Generator) -> Weights:
        """Draw Gaussian weights."""
        return {name: _normal(*x, generator=generator) for name, (x, _) in self.weights.items()}

    def gradients(self, weights: Weights, generator: Generator) -> Weights:
        """Return the gradient of the loss with respect to each weight."""
        leaves = {name: w.clone().requires_grad_() for name, w in weights.items()}
        grads = torch.autograd.grad(self.loss(leaves, generator), [*leaves.values()])
        return dict(zip(leaves, grads, strict=True))


@dataclass(frozen=True)
class RandomGradients:
    """Random gradients, orthogonal to their units, of one weight "w".

    Their mean length is sqrt(d - 1) / |w|, as that of a scale-invariant loss is.

    Attributes:
        shape: shape of the weight.
        view: view whose units the gradients are orthogonal to.
        norm: norm of each unit at the start.
    """

    shape: tuple[int, ...]
    view: str = "channel"
    norm: float = 1.0

    def start(self, generator: Generator) -> Weights:
        """Draw a random direction for each unit."""
        weight = _normal(*self.shape, generator=generator)
        return {"w": self.norm * weight / as_view(self.view).norm(weight)}

    def gradients(self, weights: Weights, generator: Generator) -> Weights:
        """Draw a random tangent vector for each unit."""
        view, weight = as_view(self.view), weights["w"]
        grad = _normal(*weight.shape, generator=generator)
        grad = grad - view.radial_coefficient(weight, grad) * weight
        return {"w": grad / view.norm(weight)}


def _network(eps: float = TINY, decay: float = 0.0) -> Loss:
    """Return the cross-entropy of a normalized network on random clusters.

    Linear, BatchNorm, ReLU, linear, LayerNorm, ReLU, l2-normalized linear head.
    """

    def loss(weights: Weights, generator: Generator) -> Tensor:
        labels = torch.randint(0, 4, (16,), generator=generator)
        x = _normal(16, 6, generator=generator) + functional.one_hot(labels, 6)
        h = _batch_norm(x @ weights["bn"].T, eps)
        h = functional.layer_norm((h + 0.1).relu() @ weights["ln"].T, (10,), eps=eps)
        logits = 4 * h.relu() @ functional.normalize(weights["head"], dim=1, eps=TINY).T
        penalty = sum((w * w).sum() for w in weights.values())
        total: Tensor = functional.cross_entropy(logits, labels) + 0.5 * decay * penalty
        return total

    return loss


def _convolutions(weights: Weights, generator: Generator) -> Tensor:
    """Return the cross-entropy of convolutions with batch, group and layer norm.

    Convolution, BatchNorm, convolution, GroupNorm, transposed convolution, BatchNorm, LayerNorm.
    Their units are the outputs of the first, two groups of outputs of the second, the outputs of
    the transposed one, which are on dim 1, and the whole last weight.
    """
    labels = torch.randint(0, 5, (6,), generator=generator)
    x = _normal(6, 3, 6, 6, generator=generator)
    h = _batch_norm(functional.conv2d(x, weights["bn"]))
    h = functional.group_norm(functional.conv2d((h + 0.1).relu(), weights["gn"]), 2, eps=TINY)
    h = _batch_norm(functional.conv_transpose2d((h + 0.1).relu(), weights["transposed"]))
    pooled = (h + 0.1).relu().mean((2, 3)) + 0.1 * _normal(6, 3, generator=generator)
    logits = functional.layer_norm(pooled @ weights["ln"].T, (5,), eps=TINY)
    return functional.cross_entropy(logits, labels)


def _batch_norm(h: Tensor, eps: float = TINY) -> Tensor:
    return functional.batch_norm(h, None, None, training=True, eps=eps)


def _quotient(weights: Weights, generator: Generator) -> Tensor:
    """Return the Rayleigh quotient sum_i i w_i^2 / |w|^2 of one unit."""
    square = weights["w"][0] ** 2
    return (torch.arange(len(square)) * square).sum() / square.sum()


NETWORK = {"bn": ((8, 6), "channel"), "ln": ((10, 8), "layer"), "head": ((4, 10), "channel")}
CONVOLUTIONS = {
    "bn": ((6, 3, 3, 3), "channel"),
    "gn": ((4, 6, 3, 3), "groups=2"),
    "transposed": ((4, 3, 2, 2), "dim=1"),
    "ln": ((5, 3), "layer"),
}

PROBLEMS: dict[str, Problem] = {
    "network": Problem(NETWORK, _network()),
    "convolutions": Problem(CONVOLUTIONS, _convolutions),
    "toy-3d": Problem({"w": ((1, 3), "channel")}, _quotient),
    "network-eps": Problem(NETWORK, _network(eps=1e-5)),
    "l2-in-loss": Problem(NETWORK, _network(decay=1e-2)),
}
"""Problems by name: three on which the assumptions hold, and two that break one on purpose.

Layers with an eps of 1e-5, and coupled decay in the loss, (0.01 / 2) |w|^2, give gradients a part
along the weight.
"""


def simulate(
    rules: Iterable[Rule], source: Problem | RandomGradients, seed: int
) -> Iterator[dict[str, tuple[Inputs, Tensor]]]:
    """Run a rule on a source of gradients.

    Args:
        rules: the rule of each step; all are of one recipe, as under a schedule.
        source: gives the initial weights, and the gradients at each step.
        seed: seed of the generator that the source draws from.

    Yields:
        For each step and weight, the inputs of the step and the new weight.
    """
    generator = torch.Generator().manual_seed(seed)
    weights, states = source.start(generator), dict[str, State]()
    for rule in rules:
        grads, steps = source.gradients(weights, generator), {}
        for name, weight in weights.items():
            state = states.get(name) or rule.init(weight)
            with torch.no_grad():  # as optimizers take their steps
                new, states[name] = rule.step(weight, grads[name], state)
            steps[name] = Inputs(weight, grads[name], state, {}), new
        yield steps
        weights = {name: new for name, (_, new) in steps.items()}


# Norm growth on training problems


TOLERANCE = 1e-10
"""Relative tolerance of |w|^2 after hundreds of steps.

Rounding gives about steps x 1e-16 x |w|^2-terms, a wrong law 1e-6 and more.
"""

SAMPLES = 16
"""Number of steps of a run that are compared entry by entry, beside the first two."""

MAX_ROUNDING_COSINE = 1e-10
"""A cosine of w and g above this is not caused by rounding.

float64 gradients of an exactly invariant function stay below 1e-12.
"""

Schedule = Callable[[float], float]
"""From the share of the run that is over, in [0, 1), to a factor of the learning rate."""

SCHEDULES: dict[str, Schedule] = {
    "constant": lambda share: 1.0,
    "warm-up": lambda share: min(1.0, 0.01 + 4 * share),
    "cosine": lambda share: 0.5 * (1 + cos(pi * share)),
}
"""Schedules by name: a linear warm-up over the first quarter, half a cosine down to 0."""


RecordedStep = tuple[Inputs, Tensor, Values]
"""The inputs of a step of a run, the weight after it, and its numbers unit by unit."""


@dataclass(frozen=True)
class WeightCheck:
    """The check of one weight.

    Attributes:
        measured: |w_t|^2 of the run, of shape (steps + 1, units).
        predicted: |w_t|^2 of the law, of the same shape.
        step_errors: relative differences of the law's own step to the rule's, for some steps.
        notes: the assumptions that fail for the weight, with numbers.
        view: the view whose units of the weight are scale-invariant.
        applies: False if the law fails and is about other units.
        identity: True if |w_t|^2 is an identity in the steps, which shows nothing by itself.
    """

    measured: Array = field(repr=False)
    predicted: Array = field(repr=False)
    step_errors: tuple[float, ...]
    notes: tuple[str, ...]
    view: View
    applies: bool
    identity: bool

    @property
    def residual(self) -> float:
        """Largest relative difference of |w_t|^2 to the prediction."""
        return float(np.nan_to_num(np.abs(self.predicted / self.measured - 1), nan=inf).max())

    @property
    def error(self) -> float:
        """Largest relative difference of norms and steps; inf if nothing was compared."""
        nothing_compared = self.identity and not self.step_errors
        return inf if nothing_compared else max(self.residual, *self.step_errors, 0.0)

    @property
    def passed(self) -> bool:
        """True if the law holds up to rounding, for the norms and for the steps."""
        return self.error <= TOLERANCE

    def __str__(self) -> str:
        steps = "no step compared"
        if self.step_errors:
            steps = f"steps to {max(self.step_errors):.1e}"
        factor = float((self.measured[-1] / self.measured[0]).max())
        growth = "did not grow" if factor < 1.0005 else f"grew {factor:.4g}-fold at most"
        return f"norms to {self.residual:.1e}, {steps}, |w|^2 {growth}"


@dataclass(frozen=True)
class Check:
    """The comparison of a law with a run.

    Attributes:
        law: the law. If its cross term is open, it is measured on the run; then the norm is the
            identity |(1 - kappa) w + s|^2, and the steps are what is checked.
        run: the recipe, the problem and the schedule, in words.
        hyper_parameters: hyper-parameters of the run.
        weights: the check of each weight.
        differences: what differs between the run and the law's assumptions.

    Example:
        >>> result = check("sgdp", "toy-3d", steps=50, momentum=0.9)
        >>> result.passed, result.residual < 1e-10
        (True, True)
    """

    law: NormLaw
    run: str
    hyper_parameters: Mapping[str, Any]
    weights: Mapping[str, WeightCheck]
    differences: tuple[str, ...]

    @property
    def residual(self) -> float:
        """Largest residual of all weights, of norms and of steps."""
        return max(weight.error for weight in self.weights.values())

    @property
    def passed(self) -> bool:
        """True if the law holds for every weight."""
        return all(weight.passed for weight in self.weights.values())

    @property
    def failed_assumptions(self) -> list[str]:
        """The assumptions that failed, with numbers."""
        notes = [
            f"{name}: {note}" for name, weight in self.weights.items() for note in weight.notes
        ]
        return [*self.differences, *notes]

    @property
    def verdict(self) -> str:
        """The weights for which the law holds, and how far off it is for the others, and why."""
        steps = max(len(weight.measured) for weight in self.weights.values()) - 1
        if self.passed:
            duration = "one step" if steps == 1 else f"{steps} steps"
            return f"relative error at most {self.residual:.1e} over {duration}"
        sentences = []
        passed = [name for name, weight in self.weights.items() if weight.passed]
        if passed:
            sentences.append(f"holds for {_enumerate(passed)}")
        wrong = {n: x for n, x in self.weights.items() if not x.passed and x.applies}
        if wrong:
            sentences.append(f"does not hold for {_enumerate_errors(wrong)}")
        foreign = {n: x for n, x in self.weights.items() if not x.passed and not x.applies}
        if foreign:
            weight_views = _enumerate(dict.fromkeys(str(x.view) for x in foreign.values()))
            weights = "this weight is" if len(foreign) == 1 else "these weights are"
            sentences.append(
                f"does not apply to {_enumerate_errors(foreign)}: {_describe_units(self.law)}, "
                f"but {weights} scale-invariant in {weight_views}"
            )
        first, *others = sentences
        return ". ".join([first, *(sentence[0].upper() + sentence[1:] for sentence in others)])

    def __str__(self) -> str:
        kind = ""
        if self.law.open_because:
            kind = " (identity only: the cross term is open, and measured)"
        lines = [f"checked on runs: law of {self.law.name}, {self.run}{kind}: {self.verdict}"]
        lines += [f"with {', '.join(f'{n}={v}' for n, v in self.hyper_parameters.items())}"]
        lines += [f"{name}: {weight}" for name, weight in self.weights.items()]
        # The verdict has the reason of the weights whose units the rule does not act on.
        lines += self.differences
        for name, weight in self.weights.items():
            lines += [f"{name}: {note}" for note in weight.notes if weight.applies]
        return "\n  ".join(lines)

    @property
    def unexplained_failures(self) -> list[str]:
        """The failed assumptions of the weights that the verdict does not explain."""
        return [
            f"{name}: {note}"
            for name, weight in self.weights.items()
            if weight.applies and not weight.passed
            for note in weight.notes
        ]

    __repr__ = __str__


def _enumerate(names: Iterable[str]) -> str:
    """Return names with commas, and with an "and" before the last."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _describe_units(law: NormLaw) -> str:
    """Return what a law is about: the views of its rule, or the units that it was verified for."""
    views = law.step.traced.views
    if views and law.verified_domain.multi_unit:
        return f"the rule acts on {' or '.join(map(str, views))}"
    return f"the law of {law.name} is about {law.verified_domain.unit}"


def _enumerate_errors(weights: Mapping[str, WeightCheck]) -> str:
    return _enumerate([f"{name} (off by {x.error:.1e})" for name, x in weights.items()])


def check(
    recipe: str | Recipe,
    problem: str | Problem = "network",
    *,
    steps: int = 200,
    seed: int = 0,
    law: NormLaw | None = None,
    schedule: str | Schedule = "constant",
    **hyper_parameters: Any,
) -> Check:
    """Train with `recipe` in float64, and compare the run with its law.

    At every step |w_t|^2 is compared with the prediction from |w_0|^2 and the lengths of the steps,
    and at some of them the rule's step with the one that the law's formulas give.

    Args:
        recipe: a recipe, its registered name, or "module:function"; it takes the steps, whatever
            the law.
        problem: a name from `PROBLEMS`, or a problem of your own.
        steps: number of steps.
        seed: seed of weights and data.
        law: the law to check; by default the recipe's own. Another one fails, and shows how far off
            it is.
        schedule: schedule of the learning rate: a name from `SCHEDULES`, or a function from the
            finished share of the run to a factor.
        **hyper_parameters: hyper-parameters of the run; the rest have their defaults. Where a
            default of 0 would leave a part of the recipe out, such as SGD's momentum, the part is
            switched on.

    Raises:
        ValueError: no such problem, schedule, recipe or hyper-parameter; `steps` or `seed` is no
            count; or the law was derived for a step with other states.

    Example:
        >>> check("sgdp", "toy-3d", steps=100, momentum=0.9).passed
        True
    """
    for name, value, minimum in (("steps", steps, 1), ("seed", seed, 0)):
        if not isinstance(value, int) or value < minimum:
            raise ValueError(f"{name} must be a whole number of at least {minimum}, got {value!r}")
    if isinstance(problem, str) and problem not in PROBLEMS:
        raise unknown_name("problem", problem, PROBLEMS)
    if isinstance(schedule, str) and schedule not in SCHEDULES:
        raise unknown_name("schedule", schedule, SCHEDULES)
    task, label = problem, "a problem of its own"
    if isinstance(problem, str):
        task, label = PROBLEMS[problem], problem
    function = resolve_recipe(recipe)
    name = bind(function, **hyper_parameters).name  # refuses unknown hyper-parameters
    if law is None:
        law = norm_growth(function, **static_arguments(hyper_parameters))
    traced = law.step.traced
    run_values = {**switch_on(function, traced), **hyper_parameters}
    values = bind(function, **run_values).hyper_parameters
    factor = SCHEDULES[schedule] if isinstance(schedule, str) else schedule
    factors = [factor(time / steps) for time in range(steps)]
    if "lr" not in values and any(x != 1 for x in factors):
        raise ValueError(f"{name} has no hyper-parameter lr to schedule")
    numbers = [{**values, "lr": x * values["lr"]} if x != 1 else dict(values) for x in factors]
    run_states = function(**values).state_keys
    if {*run_states} != {*traced.states}:
        raise ValueError(
            f"the law was derived for a step with the states {sorted(traced.states)}, the run's "
            f"rule has {sorted(run_states)}: at the number 0 a recipe may leave a rule out, hold "
            "the same hyper-parameters at 0"
        )
    differences = list[str]()
    if law.name != name:
        differences.append(f"the law is that of {law.name}, the run that of {name}")
    differences += [
        f"the law was derived for {n} = {x!r}, the run has {values[n]!r}"
        for n, x in traced.static_arguments.items()
        if n in values and values[n] != x
    ]
    schedule_name = schedule if isinstance(schedule, str) else "a"
    run = f"{name} on {label}"
    if schedule_name != "constant":
        run += f", {schedule_name} schedule"
    assert isinstance(task, Problem)
    weights = _check_weights(law, task, function, numbers, seed)
    return Check(law, run, values, weights, tuple(differences))


def switch_on(recipe: Recipe, traced: Trace) -> dict[str, float]:
    """Return values for hyper-parameters whose default of 0 switches a rule off.

    A momentum, which is below 1, gets 0.9, any other one 0.01.

    Args:
        recipe: the recipe of the run.
        traced: the trace of the law, whose symbols are switched on.
    """
    values = {}
    for name, default in bind(recipe).defaults.items():
        if name in traced.symbols and default == 0 and default is not False:
            values[name] = 0.9 if traced.intervals[name].high == 1 else 0.01
    return values


def _check_weights(
    law: NormLaw, problem: Problem, recipe: Recipe, numbers: list[dict[str, Any]], seed: int
) -> dict[str, WeightCheck]:
    """Return the check of each weight of a run."""
    traced = law.step.traced
    symbolic = bind(traced.recipe).defaults.keys() - traced.static_arguments.keys()
    views = {name: as_view(view) for name, (_, view) in problem.weights.items()}
    runs: dict[str, list[RecordedStep]] = {name: [] for name in views}
    run = simulate((recipe(**values) for values in numbers), problem, seed)
    for hyper_parameters, steps in zip(numbers, run, strict=True):
        values = traced.all_values(**{n: x for n, x in hyper_parameters.items() if n in symbolic})
        for name, (recorded_inputs, new) in steps.items():
            inputs = replace(recorded_inputs, values=values)
            runs[name].append((inputs, new, read_step(law, views[name], inputs, new)))
    return {name: _check_weight(law, views[name], run) for name, run in runs.items()}


def _check_weight(law: NormLaw, view: View, run: list[RecordedStep]) -> WeightCheck:
    """Compare the norms, steps and cross terms of one weight of a run with the law."""
    values = [step_values for _, _, step_values in run]
    w, g = (np.stack([x.scalar(Norm(name)) for x in values]) for name in "wg")
    measured = np.concatenate([w, values[-1].scalar(Norm("w'"))[None]]) ** 2
    # A gradient that consists of rounding errors has any direction, so that the cosine is of the
    # largest products, not the largest of the cosines.
    radial = np.stack([np.abs(x.scalar(Inner("w", "g"))) for x in values]).max(0)
    longest = (w * g).max(0)
    cosine = float((radial / np.where(longest > 0, longest, 1)).max())
    errors, outside_because = _compare_steps(law, view, run)
    notes = []
    if cosine > MAX_ROUNDING_COSINE:
        notes.append(f"<w, g> = 0 fails: |cos(w, g)| up to {cosine:.1e}")
    elif outside_because:
        notes.append(f"steps not compared: {outside_because.removeprefix(f'{law.name}: ')}")
    predicted = _predict(law, measured, values)
    result = WeightCheck(measured, predicted, errors, (), view, True, bool(law.open_because))
    shape = tuple(run[0][0].weight.shape)
    applies = result.passed or is_about_units(law, view, shape)
    if not applies:
        notes.append(f"{_describe_units(law)}, but the weight is scale-invariant in {view}")
    return replace(result, notes=tuple(notes), applies=applies)


def _predict(law: NormLaw, measured: Array, run: list[Values]) -> Array:
    """Return |w_t|^2 at every step, from |w_0|^2 and the law alone.

    The law takes |s_t| from the run (and <m_t, s_t> where it needs that), and the scalar states and
    hyper-parameters of each step. The cross terms start as they were measured, which is at 0 where
    buffers are 0, and follow their own recursion from the second step on. A law whose cross term is
    open takes <w_t, s_t> from the run, which leaves an identity to check.
    """
    # The first step may be of another kind, as torch's dampening makes it: start with the second.
    start, recursion, norm = 1, law.recursion, law.equation.rhs
    if law.open_because or law.sets_norm:
        start, recursion = 0, {}
    if law.open_because:
        norm = law.retention**2 * W + S + 2 * law.retention * CROSS
    predicted, crosses = [*measured[: start + 1]], dict[sp.Symbol, Array]()
    for values in run[start:]:
        crosses = crosses or {x: values.scalar(x) for x in recursion}
        known_norm = np.sqrt(np.maximum(predicted[-1], 0))
        given_values = values.with_values({Norm("w"): known_norm, **crosses})
        predicted.append(np.broadcast_to(given_values.scalar(norm), measured[0].shape))
        crosses = {x: given_values.scalar(after) for x, after in recursion.items()}
    return np.stack(predicted)


def _compare_steps(
    law: NormLaw, view: View, run: list[RecordedStep]
) -> tuple[tuple[float, ...], str]:
    """Return the errors of the law's steps for some of a run, and why there is none for others."""
    errors, outside_because, last = list[float](), "", len(run) - 1
    samples = np.linspace(0, last, SAMPLES).astype(int).tolist()
    for time in sorted({0, min(1, last), *samples}):
        inputs, after, _ = run[time]
        if not all(view.rows(x).any(1).all() for x in (inputs.weight, inputs.grad)):
            continue  # the law says nothing about a weight or a gradient of 0
        try:
            if law.sets_norm:  # the norm is held with several units, too; the step is of one
                law.verified_domain.require(law.name, inputs.weight)
            new, _ = evaluate(law.split_step, view, inputs)
            error = view.norm(new - after) / view.norm(after)
            errors.append(float(error.nan_to_num(nan=inf).max()))
        except ValueError as refusal:
            # The first step may be of another kind.
            outside_because = outside_because or str(refusal) if time else ""
    return tuple(errors), outside_because


# Laws about random gradients


RUN_TOLERANCE = 0.02
"""Relative tolerance of |w| and of the effective step.

The formula leaves out, for d = 256: fluctuations of |g|^2 and of <m, g>, of relative size
sqrt(2 / d), which enter by their squares (0.4 % each); those of an entrywise second moment, of
relative variance 2 (1 - beta2) / (1 + beta2), 1 % at beta2 = 0.99 (a longer memory would take as
many steps to settle); and the error of the mean over 64 units and the run, below 0.5 %.
"""

SHAPE = (64, 256)
"""Shape of the weight: the units, and the entries of each."""


@dataclass(frozen=True)
class RunCheck:
    """The values that a law predicts, beside those of a run.

    Attributes:
        name: name of the law and of the run.
        values: (predicted, measured) by quantity.
        tolerance: relative tolerance of each quantity.

    Example:
        >>> print(RunCheck("mine", {"|w|": (2.0, 2.01)}, 0.02))
        mine: |w| 2 predicted, 2.01 measured; off by 0.50% (tolerance 2.00%)
    """

    name: str
    values: Mapping[str, tuple[float, float]]
    tolerance: float

    @property
    def error(self) -> float:
        """Largest relative difference; nan if one of them is."""
        errors = [abs(measured / predicted - 1) for predicted, measured in self.values.values()]
        return float(np.max(errors))  # max() would drop a nan that is not the first

    @property
    def passed(self) -> bool:
        """True if all values agree within the tolerance."""
        return self.error <= self.tolerance

    def __str__(self) -> str:
        values = [f"{n} {a:.6g} predicted, {b:.6g} measured" for n, (a, b) in self.values.items()]
        error = f"off by {self.error:.2%} (tolerance {self.tolerance:.2%})"
        return f"{self.name}: {'; '.join([*values, error])}"

    __repr__ = __str__


def _measure(
    rule: Rule, source: RandomGradients, warm_up: int, steps: int, seed: int
) -> tuple[float, float, float]:
    """Return root mean squares over units and steps: |w|, the effective step, |w| |g|."""
    view, mean_squares = as_view(source.view), list[list[float]]()
    run = simulate(repeat(rule, warm_up + steps), source, seed)
    for weights in islice(run, warm_up, None):
        inputs, new = weights["w"]
        chord = new / view.norm(new) - inputs.weight / view.norm(inputs.weight)
        norm, step, grad = (view.inner(x, x) for x in (inputs.weight, chord, inputs.grad))
        mean_squares.append([x.mean().item() for x in (norm, step, norm * grad)])
    norm, effective_step, gamma = np.sqrt(np.mean(mean_squares, 0)).tolist()
    return norm, effective_step, gamma


def check_equilibrium(
    recipe: str | Recipe,
    *,
    shape: tuple[int, ...] = SHAPE,
    steps: int = 600,
    warm_up: int = 600,
    seed: int = 0,
    **hyper_parameters: Any,
) -> RunCheck:
    """Run `recipe` with weight decay under random gradients, and compare with its equilibrium.

    Args:
        recipe: a recipe, its registered name, or "module:function".
        shape: shape of the weight: one unit per index of dimension 0; for an orthogonal factor, one
            matrix.
        steps: number of measured steps.
        warm_up: number of steps before these, from half the predicted |w|^2.
        seed: seed of the weight and the gradients.
        **hyper_parameters: hyper-parameters of the run; lr * weight_decay * warm_up should be some
            units.

    Raises:
        NoEquilibriumError: the law has no equilibrium.

    Example:
        >>> check_equilibrium("sgdw", lr=0.1, weight_decay=0.1, momentum=0.9).passed
        True
    """
    law = equilibrium(recipe, **static_arguments_of_run(recipe, hyper_parameters))
    values = law.traced.free_values(**hyper_parameters)
    is_matrix = law.orthogonal_factor_step is not None
    entries = math.prod(shape if is_matrix else shape[1:])
    unit = shape if is_matrix else entries
    expected = law.squared_norm(values, unit, math.sqrt(entries - 1))
    view = "layer" if is_matrix else "channel"
    source = RandomGradients(shape, view, norm=math.sqrt(expected / 2))
    rule = law.traced.recipe(**hyper_parameters)
    norm, effective_step, gamma = _measure(rule, source, warm_up, steps, seed)
    pairs = {
        "|w|": (law.squared_norm(values, unit, gamma) ** 0.5, norm),
        "effective step": (law.effective_step(values, shape), effective_step),
    }
    return RunCheck(f"{law.name} on random gradients", pairs, RUN_TOLERANCE)


def check_turn(
    recipe: str | Recipe,
    *,
    shape: tuple[int, ...] = SHAPE,
    view: str = "channel",
    steps: int = 600,
    warm_up: int = 600,
    seed: int = 0,
    **hyper_parameters: Any,
) -> RunCheck:
    """Run `recipe` under random gradients, and compare with its turn in equilibrium.

    Args:
        recipe: a recipe, its registered name, or "module:function".
        shape: shape of the weight.
        steps: number of measured steps.
        warm_up: number of steps before these.
        seed: seed of the weight and the gradients.
        view: view of the units; a recipe that has a `view` takes it, too.
        **hyper_parameters: hyper-parameters of the run.

    Raises:
        NoEquilibriumError: the law has no turn.

    Example:
        >>> check_turn("adamh", lr=0.05, betas=(0.9, 0.99)).passed
        True
    """
    function = resolve_recipe(recipe)
    if "view" in bind(function).defaults:
        hyper_parameters = {"view": view, **hyper_parameters}
    predicted = equilibrium_turn(recipe, shape=shape, **hyper_parameters)
    rule, source = function(**hyper_parameters), RandomGradients(shape, view)
    _, effective_step, _ = _measure(rule, source, warm_up, steps, seed)
    measured = 2 * math.asin(effective_step / 2)
    return RunCheck(f"{recipe}", {"turn": (predicted, measured)}, RUN_TOLERANCE)
