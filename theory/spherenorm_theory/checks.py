"""Small float64 problems on which the laws are checked, and the one simulation loop.

On three of `PROBLEMS` the assumptions of the laws hold; two others break one assumption each.
Beside them are random gradients, for the laws about many steps.
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
from spherenorm_theory.equilibria.equilibrium import equilibrium, turn_at_rest
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
        weights: for each weight, its shape and the view whose units are (meant to be)
            scale-invariant.
        loss: the loss of the weights, with noise from a generator.
    """

    weights: Mapping[str, tuple[tuple[int, ...], str]]
    loss: Loss

    def start(self, generator: Generator) -> Weights:
        """Gaussian weights."""
        return {name: _normal(*x, generator=generator) for name, (x, _) in self.weights.items()}

    def gradients(self, weights: Weights, generator: Generator) -> Weights:
        """The gradient of the loss with respect to each weight."""
        leaves = {name: w.clone().requires_grad_() for name, w in weights.items()}
        grads = torch.autograd.grad(self.loss(leaves, generator), [*leaves.values()])
        return dict(zip(leaves, grads, strict=True))


@dataclass(frozen=True)
class RandomGradients:
    """Random gradients, orthogonal to their units, of one weight "w".

    Their length is sqrt(d - 1) / |w| in the mean, as that of a scale-invariant loss is.

    Attributes:
        shape: of the weight.
        view: of its units.
        norm: of each unit at the start.
    """

    shape: tuple[int, ...]
    view: str = "channel"
    norm: float = 1.0

    def start(self, generator: Generator) -> Weights:
        """One random direction per unit."""
        weight = _normal(*self.shape, generator=generator)
        return {"w": self.norm * weight / as_view(self.view).norm(weight)}

    def gradients(self, weights: Weights, generator: Generator) -> Weights:
        """One random tangent vector per unit."""
        view, weight = as_view(self.view), weights["w"]
        grad = _normal(*weight.shape, generator=generator)
        grad = grad - view.radial_coefficient(weight, grad) * weight
        return {"w": grad / view.norm(weight)}


def _network(eps: float = TINY, decay: float = 0.0) -> Loss:
    """The cross-entropy of a normalized network on random clusters.

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
    """Convolution, BatchNorm, convolution, GroupNorm, transposed convolution, BatchNorm, LayerNorm.

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
    """The Rayleigh quotient sum_i i w_i^2 / |w|^2 of one unit."""
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
    """Run a rule on a source of gradients: the inputs of each weight's step, and the new weight.

    Args:
        rules: the rule of each step, of one recipe, as under a schedule.
        source: gives the initial weights, and the gradients at each step.
        seed: of the generator that the source draws from.
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


# The derived laws against float64 runs; a broken assumption is named with its number.


TOLERANCE = 1e-10
"""Relative, on |w|^2 after hundreds of steps.

Rounding gives about steps x 1e-16 x |w|^2-terms, a wrong law 1e-6 and more.
"""

SAMPLES = 16
"""The steps of a run that are compared themselves, beside the first two."""

NOT_ORTHOGONAL = 1e-10
"""A cosine of w and g above this is no rounding.

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


Step = tuple[Inputs, Tensor, Values]
"""The inputs of a step of a run, the weight after it, and its numbers unit by unit."""


@dataclass(frozen=True)
class WeightCheck:
    """One weight of a check.

    Attributes:
        measured, predicted: |w_t|^2 of the run and of the law, of shape (steps + 1, units).
        step_errors: the relative differences of the law's own step to the rule's, for some steps.
        notes: the assumptions that fail for the weight, with numbers.
        applies: the rule acts on the units of the weight, and not on others.
        identity: |w_t|^2 is an identity in the steps, which shows nothing without one of them.
    """

    measured: Array = field(repr=False)
    predicted: Array = field(repr=False)
    step_errors: tuple[float, ...]
    notes: tuple[str, ...]
    applies: bool
    identity: bool

    @property
    def residual(self) -> float:
        """The greatest relative difference of |w_t|^2 to the prediction."""
        return float(np.nan_to_num(np.abs(self.predicted / self.measured - 1), nan=inf).max())

    @property
    def error(self) -> float:
        """The greatest relative difference, of the norms and of the steps; inf if none is shown."""
        nothing = self.identity and not self.step_errors
        return inf if nothing else max(self.residual, *self.step_errors, 0.0)

    @property
    def passed(self) -> bool:
        """True if the law holds up to rounding, for the norms and for the steps."""
        return self.error <= TOLERANCE

    def __str__(self) -> str:
        compared = f"steps to {max(self.step_errors, default=0):.1e}"
        steps = compared if self.step_errors else "no step compared"
        grew = float((self.measured[-1] / self.measured[0]).max())
        return f"norms to {self.residual:.1e}, {steps}, |w|^2 grew {grew:.3g}-fold at most"


@dataclass(frozen=True)
class Check:
    """A law against a run.

    Attributes:
        law: the law. If its cross term is open, that is measured: of the norm then only the
            identity |(1 - kappa) w + s|^2 is checked, beside the steps.
        run: the recipe, the problem and the schedule, in words.
        hyper_parameters: of the run.
        weights: the check of each weight.
        differences: the respects in which the run is another one than the law's.

    Example:
        >>> found = check("sgdp", "toy-3d", steps=50, momentum=0.9)
        >>> found.passed, found.residual < 1e-10
        (True, True)
    """

    law: NormLaw
    run: str
    hyper_parameters: Mapping[str, Any]
    weights: Mapping[str, WeightCheck]
    differences: tuple[str, ...]

    @property
    def residual(self) -> float:
        """The greatest residual of all weights, of norms and of steps."""
        return max(each.error for each in self.weights.values())

    @property
    def passed(self) -> bool:
        """True if the law holds for every weight."""
        return all(each.passed for each in self.weights.values())

    @property
    def failed_assumptions(self) -> list[str]:
        """The assumptions that failed, with numbers."""
        notes = [f"{name}: {note}" for name, each in self.weights.items() for note in each.notes]
        return [*self.differences, *notes]

    @property
    def verdict(self) -> str:
        """The weights for which the law holds, first of all, and how far off it is for others."""
        if self.passed:
            return f"holds to {self.residual:.1e}"
        why = ", as an assumption fails" if self.failed_assumptions else ""
        held = ", ".join(name for name, each in self.weights.items() if each.passed)
        if not held:
            return f"DOES NOT HOLD{why}: off by {self.residual:.1e}"
        off = (f"{n} (off by {x.error:.1e})" for n, x in self.weights.items() if not x.passed)
        return f"HOLDS FOR {held} ALONE, NOT FOR {', '.join(off)}{why}"

    def __str__(self) -> str:
        open_cross = " (identity only: the cross term is open, and measured)"
        kind = open_cross if self.law.open_because else ""
        lines = [f"checked on runs: law of {self.law.name}, {self.run}{kind}: {self.verdict}"]
        lines += [f"with {', '.join(f'{n}={v}' for n, v in self.hyper_parameters.items())}"]
        lines += [f"{name}: {each}" for name, each in self.weights.items()]
        return "\n  ".join([*lines, *self.failed_assumptions])

    __repr__ = __str__


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
        recipe: as for `norm_growth`; it takes the steps, whatever the law.
        problem: a name from `PROBLEMS`, or a problem of your own.
        steps: how many.
        seed: of weights and data.
        law: the law to check; by default the recipe's own. Another one fails, and shows how far off
            it is.
        schedule: of the learning rate: a name from `SCHEDULES`, or a function from the share of the
            run that is over to a factor.
        hyper_parameters: of the run; the rest have their defaults. Where a default of 0 would
            leave a part of the recipe out, such as SGD's momentum, the part is switched on.

    Raises:
        ValueError: no such problem, schedule, recipe or hyper-parameter; `steps` or `seed` is no
            count; or the law was derived for a step with other states.

    Example:
        >>> check("sgdp", "toy-3d", steps=100, momentum=0.9).passed
        True
    """
    for name, value, least in (("steps", steps, 1), ("seed", seed, 0)):
        if not isinstance(value, int) or value < least:
            raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
    if isinstance(problem, str) and problem not in PROBLEMS:
        raise unknown_name("problem", problem, PROBLEMS)
    if isinstance(schedule, str) and schedule not in SCHEDULES:
        raise unknown_name("schedule", schedule, SCHEDULES)
    label = problem if isinstance(problem, str) else "a problem of its own"
    task = PROBLEMS[problem] if isinstance(problem, str) else problem
    function = resolve_recipe(recipe)
    bind(function, **hyper_parameters)  # refuses what it does not have
    own = law or norm_growth(function, **static_arguments(hyper_parameters))
    used = bind(
        function, **{**switch_on(function, own.step.traced), **hyper_parameters}
    ).hyper_parameters
    factor = SCHEDULES[schedule] if isinstance(schedule, str) else schedule
    factors = [factor(time / steps) for time in range(steps)]
    if "lr" not in used and any(x != 1 for x in factors):
        raise ValueError(f"{bind(function).name} has no hyper-parameter lr to schedule")
    numbers = [{**used, "lr": x * used["lr"]} if x != 1 else dict(used) for x in factors]
    present, known = function(**used).state_keys, own.step.traced.states
    if {*present} != {*known}:
        raise ValueError(
            f"the law was derived for a step with the states {sorted(known)}, the run's rule has "
            f"{sorted(present)}: at the number 0 a recipe may leave a rule out, hold the same "
            "hyper-parameters at 0"
        )
    name, differences = bind(function).name, list[str]()
    if own.name != name:
        differences.append(f"the law is that of {own.name}, the run that of {name}")
    differences += [
        f"the law was derived for {n} = {x!r}, the run has {used[n]!r}"
        for n, x in own.step.traced.structure.items()
        if n in used and used[n] != x
    ]
    other = schedule if isinstance(schedule, str) else "a"
    run = f"{name} on {label}" + f", {other} schedule" * (other != "constant")
    weights = _check_weights(own, task, function, numbers, seed)
    return Check(own, run, used, weights, tuple(differences))


def switch_on(recipe: Recipe, traced: Trace) -> dict[str, float]:
    """Values for a run: a hyper-parameter whose default switches a rule off gets another one.

    A momentum, which is below 1, gets 0.9, all else 0.01.

    Args:
        recipe: of the run.
        traced: of the law; hyper-parameters that are symbols of it are switched on.
    """
    defaults = bind(recipe).defaults
    off = (n for n, x in defaults.items() if n in traced.symbols and x == 0 and x is not False)
    return {name: 0.9 if traced.intervals[name].high == 1 else 0.01 for name in off}


def _check_weights(
    law: NormLaw, problem: Problem, recipe: Recipe, numbers: list[dict[str, Any]], seed: int
) -> dict[str, WeightCheck]:
    """The check of each weight of a run."""
    traced = law.step.traced
    known = bind(traced.recipe).defaults.keys() - traced.structure.keys()
    views = {name: as_view(view) for name, (_, view) in problem.weights.items()}
    runs: dict[str, list[Step]] = {name: [] for name in views}
    run = simulate((recipe(**each) for each in numbers), problem, seed)
    for each, steps in zip(numbers, run, strict=True):
        values = traced.numbers(**{name: x for name, x in each.items() if name in known})
        for name, (made, new) in steps.items():
            inputs = replace(made, values=values)
            runs[name].append((inputs, new, read_step(law, views[name], inputs, new)))
    return {name: _check_weight(law, views[name], run) for name, run in runs.items()}


def _check_weight(law: NormLaw, view: View, run: list[Step]) -> WeightCheck:
    numbers = [each for _, _, each in run]
    w, g = (np.stack([each.scalar(Norm(name)) for each in numbers]) for name in "wg")
    measured = np.concatenate([w, numbers[-1].scalar(Norm("w'"))[None]]) ** 2
    # Not the greatest cosine: a gradient that consists of rounding errors has any direction.
    radial = np.stack([np.abs(each.scalar(Inner("w", "g"))) for each in numbers]).max(0)
    longest = (w * g).max(0)
    cosine = float((radial / np.where(longest > 0, longest, 1)).max())
    errors, outside = _compare_steps(law, view, run)
    predicted, views = _predict(law, measured, numbers), law.step.traced.views
    notes, applies = [], not views or view in views
    if cosine > NOT_ORTHOGONAL:
        notes.append(f"<w, g> = 0 fails: |cos(w, g)| up to {cosine:.1e}")
    elif outside:
        notes.append(f"the law says no step here: {outside}")
    found = WeightCheck(measured, predicted, errors, (), applies, bool(law.open_because))
    if not found.passed and not applies:
        units = f"the rule acts on units of the view {', '.join(map(str, views))}"
        notes.append(
            f"a unit may not move as if it were alone: {units}, the weight has those of {view}"
        )
    return replace(found, notes=tuple(notes))


def _predict(law: NormLaw, measured: Array, run: list[Values]) -> Array:
    """|w_t|^2 at every step, from |w_0|^2 and the law alone.

    The law is fed with |s_t| (and <m_t, s_t> where it holds that), with the numbers of the state
    and the hyper-parameters of each step. The cross terms start as they were measured, which is at
    0 where buffers are 0, and follow their own recursion from the second step on. A law whose cross
    term is open is fed with <w_t, s_t>, which leaves an identity to check.
    """
    # The first step may be of another kind, as torch's dampening has it: from the second on.
    first, recursion, norm = 1, law.recursion, law.equation.rhs
    if law.open_because or law.constant:
        first, recursion = 0, {}
    if law.open_because:
        norm = law.retention**2 * W + S + 2 * law.retention * CROSS
    predicted, crosses = [*measured[: first + 1]], dict[sp.Symbol, Array]()
    for numbers in run[first:]:
        crosses = crosses or {x: numbers.scalar(x) for x in recursion}
        told = numbers.with_values({Norm("w"): np.sqrt(np.maximum(predicted[-1], 0)), **crosses})
        predicted.append(np.broadcast_to(told.scalar(norm), measured[0].shape))
        crosses = {x: told.scalar(after) for x, after in recursion.items()}
    return np.stack(predicted)


def _compare_steps(law: NormLaw, view: View, run: list[Step]) -> tuple[tuple[float, ...], str]:
    """The errors of steps that a law says, for some of a run, and why it says none in others."""
    errors, outside, last = list[float](), "", len(run) - 1
    for time in sorted({0, min(1, last), *np.linspace(0, last, SAMPLES).astype(int).tolist()}):
        inputs, after, _ = run[time]
        if not all(view.rows(x).any(1).all() for x in (inputs.weight, inputs.grad)):
            continue  # the law says nothing about a weight or a gradient of 0
        try:
            if law.constant:  # a norm that is held is so with several units, too; a step is not
                law.verified_domain.require(law.name, inputs.weight)
            new, _ = evaluate(law.split_step, view, inputs)
            off = view.norm(new - after) / view.norm(after)
            errors.append(float(off.nan_to_num(nan=inf).max()))
        except ValueError as refusal:
            # The first step may be of another kind.
            outside = outside or str(refusal) if time else ""
    return tuple(errors), outside


# Laws about random gradients against float64 runs.


RUN_TOLERANCE = 0.02
"""Relative, on |w| and on the effective step.

The formula leaves out, for d = 256: fluctuations of |g|^2 and of <m, g>, of relative size
sqrt(2 / d), which enter by their squares (0.4 % each); those of an entrywise second moment, of
relative variance 2 (1 - beta2) / (1 + beta2), 1 % at beta2 = 0.99 (a longer memory would take as
many steps to settle); and the error of the mean over 64 units and the run, below 0.5 %.
"""

SHAPE = (64, 256)
"""Of the weight: units, and the entries of each."""


@dataclass(frozen=True)
class RunCheck:
    """The values that a law predicts, beside those of a run.

    Attributes:
        name: of the law and of the run.
        values: (predicted, measured) by quantity.
        tolerance: relative, on each of them.

    Example:
        >>> print(RunCheck("ours", {"|w|": (2.0, 2.01)}, 0.02))
        ours: |w| 2 predicted, 2.01 measured; off by 0.50% (tolerance 2.00%)
    """

    name: str
    values: Mapping[str, tuple[float, float]]
    tolerance: float

    @property
    def error(self) -> float:
        """The greatest relative difference; nan if one of them is."""
        off = [abs(measured / predicted - 1) for predicted, measured in self.values.values()]
        return float(np.max(off))  # (max() would drop a nan that is not the first)

    @property
    def passed(self) -> bool:
        """True if all values agree within the tolerance."""
        return self.error <= self.tolerance

    def __str__(self) -> str:
        values = (f"{n} {a:.6g} predicted, {b:.6g} measured" for n, (a, b) in self.values.items())
        off = f"off by {self.error:.2%} (tolerance {self.tolerance:.2%})"
        return f"{self.name}: {'; '.join([*values, off])}"

    __repr__ = __str__


def _measure(
    rule: Rule, source: RandomGradients, warm_up: int, steps: int, seed: int
) -> tuple[float, float, float]:
    """Root mean squares of |w|, of the effective step and of |w| |g| over units and steps."""
    view, found = as_view(source.view), list[list[float]]()
    for each in islice(simulate(repeat(rule, warm_up + steps), source, seed), warm_up, None):
        inputs, new = each["w"]
        turned = new / view.norm(new) - inputs.weight / view.norm(inputs.weight)
        norm, turn, grad = (view.inner(x, x) for x in (inputs.weight, turned, inputs.grad))
        found.append([x.mean().item() for x in (norm, turn, norm * grad)])
    norm, turn, gamma = np.sqrt(np.mean(found, 0)).tolist()
    return norm, turn, gamma


def check_equilibrium(
    recipe: str | Recipe,
    *,
    shape: tuple[int, ...] = SHAPE,
    steps: int = 600,
    warm_up: int = 600,
    seed: int = 0,
    **hyper_parameters: Any,
) -> RunCheck:
    """Run `recipe` with weight decay under random gradients, against its equilibrium law.

    Args:
        recipe: as for `equilibrium`.
        shape: of the weight: one unit per index of dimension 0; for an orthogonal factor, one
            matrix.
        steps, warm_up: how many are measured, and how many go before, from half the predicted
            |w|^2.
        seed: of the weight and the gradients.
        hyper_parameters: of the run; lr * weight_decay * warm_up should be some units.

    Raises:
        NoEquilibriumError: the law has no equilibrium.

    Example:
        >>> check_equilibrium("sgdw", lr=0.1, weight_decay=0.1, momentum=0.9).passed
        True
    """
    law = equilibrium(recipe, **static_arguments_of_run(recipe, hyper_parameters))
    values = law.traced.values(**hyper_parameters)
    whole = law.factor is not None
    entries = math.prod(shape if whole else shape[1:])
    unit = shape if whole else entries
    expected = law.squared_norm(values, unit, math.sqrt(entries - 1))
    view = "layer" if whole else "channel"
    source = RandomGradients(shape, view, norm=math.sqrt(expected / 2))
    rule = law.traced.recipe(**hyper_parameters)
    norm, turn, gamma = _measure(rule, source, warm_up, steps, seed)
    pairs = {
        "|w|": (law.squared_norm(values, unit, gamma) ** 0.5, norm),
        "effective step": (law.rotation(values, shape), turn),
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
    """Run `recipe` under random gradients, against its turn at rest.

    Args:
        recipe: as for `turn_at_rest`.
        shape, steps, warm_up, seed: as for `check_equilibrium`.
        view: of the units; a recipe that has a `view` takes it, too.
        hyper_parameters: of the run.

    Raises:
        NoEquilibriumError: the law has no turn.

    Example:
        >>> check_turn("adamh", lr=0.05, betas=(0.9, 0.99)).passed
        True
    """
    function = resolve_recipe(recipe)
    if "view" in bind(function).defaults:
        hyper_parameters = {"view": view, **hyper_parameters}
    predicted = turn_at_rest(recipe, shape=shape, **hyper_parameters)
    rule, source = function(**hyper_parameters), RandomGradients(shape, view)
    _, chord, _ = _measure(rule, source, warm_up, steps, seed)
    return RunCheck(f"{recipe}", {"turn": (predicted, 2 * math.asin(chord / 2))}, RUN_TOLERANCE)
