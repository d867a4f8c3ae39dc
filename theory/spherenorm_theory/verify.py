"""Comparison of a law with the code that it came from: no law is returned that differs from it.

Law and rule take one step from the same random inputs, for one unit and for weights of several
units, and the claims are evaluated along a run, as they are printed. A rule is built with plain
numbers, as a user builds it, and with tensors, as it was recorded. The hyper-parameters are

| numbers | drawn |
|---|---|
| usual | at random, not near the ends of their intervals |
| wide | at random, from near one end to near the other, or far above 1 |
| default | not drawn: the recipe's defaults, and the numbers that were given for the law |

`verify_numbers` compares a law at other numbers, before it is evaluated there.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import sympy as sp
import torch
from torch import Tensor

from spherenorm import Interval, Rule, State, View
from spherenorm import rules as r
from spherenorm_theory.claim import Claim
from spherenorm_theory.evaluate import (
    Inputs,
    OutsideError,
    Result,
    Values,
    VerifiedDomain,
    check_assumptions,
    evaluate_batch,
    read_step,
    read_units,
)
from spherenorm_theory.hyper_parameters import scalar_names, scalars_by_name
from spherenorm_theory.opaque_rules import scale_of
from spherenorm_theory.printing import show
from spherenorm_theory.step import Step
from spherenorm_theory.symbols import Norm, t
from spherenorm_theory.tracing import Trace, TraceError, count_units

if TYPE_CHECKING:  # norm_law imports this module
    from spherenorm_theory.norm_law import NormLaw

Shape = tuple[int, ...]

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}
"""Largest difference of law and code, relative to the largest entry of the result, or to 1."""
ROUNDING_COSINE = 1e-15
"""Cosine of w and g that rounding leaves where they are orthogonal; a law must not notice it."""
ROUNDING_CHANGE = {torch.float64: 1e-14, torch.float32: 1e-6}
"""Relative change of a weight that rounding may make in a few operations."""
ROUNDING_DRAWS = 8
"""Draws of such changes, of which the largest counts: one alone may happen to be small."""
RADIAL_COEFFICIENT = 2.0
"""Radial part of a gradient that no test takes for an orthogonal one."""
STEPS_BEFORE = {"first": 0, "any": 1, "later": 3}
"""Steps before the compared one, by the kind of its state: the first, any, one that steps leave."""
REACHED_STEPS = 12
"""Steps from the start after each of which law and code are compared."""
MAX_RUN_NORM = 100.0
"""Norm at which a run ends, as large numbers cancel."""
RUN_STEPS = 6
"""Steps of the run on which the printed claims are evaluated."""
DEFAULT_RUN_STEPS = 3
"""Steps of the run at the recipe's default numbers."""
MATRIX: Shape = (3, 5)
"""Shape of the weight of one unit, for a law with opaque rules."""
MULTI_UNIT_SHAPES: tuple[Shape, ...] = (
    *((7,), (3, 5), (5, 3), (4, 4), (3, 2, 4), (4, 3, 2), (3, 2, 2, 2), (4, 3, 5, 5)),
    *((3, 2, 2, 2, 2), (17, 33)),
)
"""Shapes of weights of several units, of each number of dimensions."""
ONE_UNIT_SHAPES: tuple[Shape, ...] = (
    *((7,), (1, 9), (9, 1), (1, 3, 2), (3, 1, 2), (1, 3, 2, 2)),
    *((4,), (1, 4), (4, 1), (1, 600), (600, 1)),
)
"""Shapes of weights of one unit, in some views or in others, of an odd and an even size."""
STEP_COUNTS = (1, 2, 9, 57, 299, 300, 4000, 10**6)
"""Step counts of a random state, beside those near a hyper-parameter."""
WIDE_DRAWS = 6
"""Draws of wide hyper-parameters, for the step of one unit."""
OTHER_COUNTS = (3, 20, 120, 1000, 30000)
"""Further step counts at which a step with a counter is compared at the default numbers."""
SCALES = (1.0, 1e-2, 4.0)
"""Factors of weights and gradients, so that a decision by a length falls either way."""
FAR_SCALES = ((1e-3, 1.0), (1e3, 1.0), (1.0, 1e-3), (1.0, 1e3))
"""Factors of a weight and of its gradient, for code that asks for a length as it runs."""
LENGTH_SPREAD = 3.0
"""Powers of ten between the middle unit of a weight and the others, where lengths are spread.

A decision by the length of each unit then falls either way in one weight, and one by the length of
the whole weight does not.
"""


class DifferenceError(TraceError):
    """A law is not the step of its code."""


class Comparison(Enum):
    """The result of a comparison of law and code on the inputs of one step."""

    AGREES = "agrees"
    DIFFERS = "differs"
    OUTSIDE = "outside"
    """The inputs do not meet the assumptions of the law, or the step has no finite value."""


@dataclass(frozen=True)
class Case(Inputs):
    """Inputs of one step, with the rule itself.

    Attributes:
        rule: the rule at the numbers of the case.
        similar_rule: the rule at numbers that rounding may change to, or `rule` itself.
    """

    rule: Rule
    similar_rule: Rule

    @property
    def dtype(self) -> torch.dtype:
        """The type of the weight, in which the rule computes."""
        return self.weight.dtype


# Entry points


@torch.no_grad()  # as optimizers take their steps
def verify_against_code(law: NormLaw, claims: Sequence[Claim]) -> VerifiedDomain:
    """Compare a law and its claims with the step of its rule, on random inputs.

    Returns:
        The weights for which the law holds.

    Raises:
        DifferenceError: law and code differ.
    """
    step, traced = law.split_step, law.step.traced
    views = traced.views or (View(0), View(None))
    _refuse_defaults_outside(step)
    _verify_one_unit(step)
    _verify_reached_states(step, *_one_unit(traced))
    closed_form_verified = verify_claims_on_run(law, claims)
    for view in views:
        if _agrees_at_shapes(step, view, MULTI_UNIT_SHAPES):
            return VerifiedDomain(view, True, 0, closed_form_verified)
    n_dims = len(traced.shape)
    other_shapes = [
        shape
        for shape in ONE_UNIT_SHAPES
        if len(shape) == n_dims and count_units(views[0], shape) == 1
    ]
    if not _agrees_at_shapes(step, views[0], [traced.shape, *other_shapes]):
        splitting = [view for view in traced.views if count_units(view, (6, 6)) > 1]
        if len(splitting) > 1:
            raise TraceError(
                f"{traced.name}: units interact: the rule steps rows and columns by turns (its "
                f"views {' and '.join(map(str, splitting))} cross), so that no unit moves by itself"
            )
        raise DifferenceError(
            f"{traced.name}: the step depends on the shape of the weight: the law is that of "
            f"{traced.shape}, and the code takes another step at one of the shapes "
            f"{', '.join(map(str, other_shapes))}"
        )
    return VerifiedDomain(views[0], False, n_dims, closed_form_verified)


@torch.no_grad()
def is_about_units(law: NormLaw, view: View, shape: Shape) -> bool:
    """Tell if a law that agrees with its code does so for the units of a view in a weight.

    Example:
        >>> from spherenorm_theory import norm_growth
        >>> law = norm_growth("lamb")
        >>> is_about_units(law, View(0), (4, 3)), is_about_units(law, View(None), (4, 3))
        (False, True)
    """
    rule_views, domain = law.step.traced.views, law.verified_domain
    if rule_views and view not in rule_views:
        return False
    if not domain.multi_unit:
        return count_units(view, shape) == 1 and len(shape) == domain.dimensions
    if rule_views:
        return True
    return _agrees_at_shapes(law.split_step, view, MULTI_UNIT_SHAPES)


def verify_numbers(law: NormLaw, values: Mapping[sp.Symbol, float]) -> None:
    """Compare a law with its code at numbers for its free hyper-parameters.

    Args:
        law: a law that agrees with its code at other numbers.
        values: numbers by symbol, as `Trace.free_values` returns them.

    Raises:
        DifferenceError: the code takes another step at these numbers.
    """
    _verify_numbers(law, tuple(values.items()))


@lru_cache(maxsize=4096)  # a run asks for each of its weights
@torch.no_grad()
def _verify_numbers(law: NormLaw, values: tuple[tuple[sp.Symbol, float], ...]) -> None:
    step, traced, by_symbol = law.split_step, law.step.traced, dict(values)
    numbers = _default_numbers(traced, np.random.default_rng(3))
    numbers |= {name: by_symbol[s] for name, s in traced.symbols.items() if s in by_symbol}
    view, shape = _one_unit(traced)
    options = {"plain_numbers": True, "numbers": numbers}
    draws = [_Draw(kind, (4, n), options) for n, kind in enumerate(("later", "any", "any"))]
    for count in _counts_near(numbers) if step.counters else ():
        draws.append(_Draw("any", (5, count), {"counts": [count], **options}))
    _verify_draws(step, view, shape, draws)


def _one_unit(traced: Trace) -> tuple[View, Shape]:
    """Return a view and a shape of a weight that is one unit."""
    view = traced.views[0] if traced.views else View(None)
    return view, MATRIX if traced.opaque_rules else traced.shape


def _refuse_defaults_outside(step: Step) -> None:
    """Refuse a law that assumes of hyper-parameters what the recipe's defaults do not meet.

    Raises:
        DifferenceError: naming the assumption.
    """
    traced = step.traced
    defaults = {
        traced.symbols[name]: sp.Float(float(x), 25)
        for name, x in _defaults_inside_intervals(traced).items()
    }
    for relation in step.facts.hypotheses:
        is_decidable = relation.free_symbols and relation.free_symbols <= defaults.keys()
        if is_decidable and relation.xreplace(defaults) == sp.false:
            names = [n for n, s in traced.symbols.items() if s in relation.free_symbols]
            raise DifferenceError(
                f"{traced.name}: the law assumes {show(relation)}, which the recipe's own numbers "
                f"do not meet; {_advice(traced, names)}"
            )


# Hyper-parameters


def _usual_numbers(traced: Trace, rng: np.random.Generator) -> dict[str, Any]:
    """Draw usual hyper-parameters, by the names of inputs; given numbers stay."""
    return {
        name: float(traced.given_values.get(s, _draw_usual(traced.intervals[name], rng)))
        for name, s in traced.symbols.items()
    }


def _wide_numbers(traced: Trace, rng: np.random.Generator) -> dict[str, Any]:
    """Draw hyper-parameters that may be tiny, large, or near the ends of their intervals."""
    return {
        name: float(traced.given_values.get(s, _draw_wide(traced.intervals[name], rng)))
        for name, s in traced.symbols.items()
    }


def _default_numbers(traced: Trace, rng: np.random.Generator) -> dict[str, Any]:
    """Return the recipe's numbers; usual ones in place of those outside the law's intervals."""
    return {**_usual_numbers(traced, rng), **_defaults_inside_intervals(traced)}


def default_values(traced: Trace) -> dict[sp.Symbol, float]:
    """Return the recipe's numbers that the law is about, by the free symbols."""
    defaults = _defaults_inside_intervals(traced)
    return {s: float(defaults[name]) for name, s in traced.symbolic.items() if name in defaults}


def _defaults_inside_intervals(traced: Trace) -> dict[str, Any]:
    """Return the recipe's numbers, default or given, that the law is about, by input."""
    numbers = scalars_by_name(traced.hyper_parameters)
    return {
        name: numbers[name]
        for name, symbol in traced.symbols.items()
        if symbol in traced.given_values or float(numbers[name]) in traced.intervals[name]
    }


def _draw_usual(interval: Interval, rng: np.random.Generator) -> float:
    """Draw a number of an interval that is not near its ends."""
    low, high = interval.low, interval.high
    if np.isinf(low) and np.isinf(high):
        return float(rng.uniform(0.05, 1.5) * rng.choice([-1, 1]))
    if np.isinf(high):
        return float(low + rng.uniform(0.02, 0.9))
    if np.isinf(low):
        return float(high - rng.uniform(0.02, 0.9))
    return float(low + (high - low) * rng.uniform(0.05, 0.95))


def _draw_wide(interval: Interval, rng: np.random.Generator) -> float:
    """Draw a number of an interval on a logarithmic scale, from either end or from 0."""
    low, high, distance = interval.low, interval.high, float(10 ** rng.uniform(-3, 3))
    if np.isinf(low) and np.isinf(high):
        return distance * float(rng.choice([-1, 1]))
    if np.isinf(high):
        return low + distance
    if np.isinf(low):
        return high - distance
    return low + (high - low) * distance / (1 + distance)


def _accepts(traced: Trace, numbers: Mapping[str, Any]) -> bool:
    """Tell if the recipe takes these numbers together."""
    try:
        traced.build(numbers)
    except ValueError:
        return False
    return True


def _counts_near(numbers: Mapping[str, Any]) -> list[int]:
    """Return the step counts next to each number above 1."""
    above_one = [int(x) for x in map(float, numbers.values()) if 1 < x < 1e9]
    return sorted({x + n for x in above_one for n in (-1, 0, 1)})


def _advice(traced: Trace, names: Sequence[str]) -> str:
    """Say how to derive a law of code that takes some numbers otherwise than others."""
    values = traced.hyper_parameters
    inputs = scalar_names(values)
    affected = [name for name in values if not set(names).isdisjoint(inputs[name])]
    arguments = ", ".join(f"{name}={values[name]!r}" for name in affected)
    return (
        "the code may take some numbers otherwise than others: a law for given ones is "
        f"norm_growth(..., {arguments}), or fewer of them"
    )


# Random inputs


def draw_case(
    step: Step, view: View, shape: Shape, kind: str, *seed: int, weight_scale: float = 1.0,
    grad_scale: float | None = None, plain_numbers: bool = False,
    numbers: Mapping[str, Any] | None = None, with_similar_rule: bool = False,
    counts: Sequence[int] | None = None, dtype: torch.dtype = torch.float64,
) -> Case:  # fmt: skip
    """Draw the inputs of one step.

    Scalar states have both signs where the law allows them; step counts are early and late.

    Args:
        step: the step of the law.
        view: view of the units of the weight.
        shape: shape of the weight.
        kind: the state before the step, a key of `STEPS_BEFORE`.
        seed: seed of the inputs.
        weight_scale: factor of the weight.
        grad_scale: factor of the gradient; by default 1 or `weight_scale`, at random.
        plain_numbers: build the rule with Python numbers; else with tensors, as it was recorded.
        numbers: hyper-parameters by the names of inputs; usual ones are drawn by default.
        with_similar_rule: give the case a second rule, whose numbers differ by rounding.
        counts: step counts to choose from; early and late ones by default.
        dtype: type in which the rule computes.

    Raises:
        DifferenceError: the states of the rule depend on the numbers.
        TraceError: they depend on the shape.
    """
    traced, rng = step.traced, np.random.default_rng(seed)
    numbers = _usual_numbers(traced, rng) if numbers is None else numbers

    def build(numbers: Mapping[str, Any]) -> Rule:
        # 1 and 1.0 are equal keys, and their representations are not.
        key = tuple((name, x, repr(x)) for name, x in numbers.items())
        return _build_rule(traced, key, plain_numbers)

    rule = build(numbers)
    if grad_scale is None:
        grad_scale = rng.choice([1.0, weight_scale])
    weight = torch.tensor(rng.normal(size=shape) * rng.uniform(0.5, 2) * weight_scale)
    weight = weight.to(dtype)
    state = rule.init(weight)
    if set(state) != set(traced.states):
        same_shape = len(shape) == len(traced.shape) and count_units(view, shape) == 1
        error_type = DifferenceError if same_shape else TraceError
        raise error_type(
            f"{traced.name}: its states depend on the {'numbers' if same_shape else 'shape'}: "
            f"{sorted(state)} for a weight of shape {shape}, {sorted(traced.states)} for the shape "
            f"{traced.shape} of the law; {_advice(traced, [*traced.symbolic])}"
        )
    for _ in range(STEPS_BEFORE[kind]):
        weight, state = rule.step(weight, _draw_gradient(step, view, weight, rng), state)
    if kind == "any":
        counts = [*STEP_COUNTS, *_counts_near(numbers)] if counts is None else counts
        state = {name: _draw_state(step, name, x, rng, counts) for name, x in state.items()}
    grad = _draw_gradient(step, view, weight, rng) * grad_scale
    values = {s.name: float(numbers[name]) for name, s in traced.symbols.items()}
    if not with_similar_rule:
        return Case(weight, grad, state, values, rule, rule)
    similar = {
        n: float(x) * (1 + ROUNDING_CHANGE[dtype] * rng.choice([-1, 1])) for n, x in numbers.items()
    }
    return Case(weight, grad, state, values, rule, build(similar))


@lru_cache(maxsize=64)  # many cases have the recipe's own numbers
def _build_rule(
    traced: Trace, numbers: tuple[tuple[str, Any, str], ...], plain_numbers: bool
) -> Rule:
    if plain_numbers:
        return traced.build({name: x for name, x, _ in numbers})
    tensors = {name: torch.tensor(float(x), dtype=torch.float64) for name, x, _ in numbers}
    return traced.build(tensors)


def _draw_gradient(step: Step, view: View, weight: Tensor, rng: np.random.Generator) -> Tensor:
    """Draw a gradient, orthogonal to each unit up to rounding where the law assumes that."""
    w = view.rows(weight.double()).numpy()
    g = rng.normal(size=w.shape)
    lengths = np.linalg.norm(w, axis=1)
    lengths[lengths == 0] = np.inf  # nothing is parallel to a unit of 0
    radial = (w * g).sum(1) / lengths**2
    size = RADIAL_COEFFICIENT
    if ("w", "g") in step.algebra.given_products:
        size = ROUNDING_COSINE * np.linalg.norm(g, axis=1) / lengths
    coefficient = np.where(rng.random(len(w)) < 0.5, -size, size)
    rows = g - (radial - coefficient)[:, None] * w
    return view.from_rows(torch.from_numpy(rows), weight).to(weight.dtype)


def _spread_lengths(view: View, case: Case) -> Case:
    """Return a case with units of lengths that are far apart, and gradients of the reverse."""
    weight = _spread_units(view, case.weight, LENGTH_SPREAD)
    return replace(case, weight=weight, grad=_spread_units(view, case.grad, -LENGTH_SPREAD))


def _spread_units(view: View, x: Tensor, powers: float) -> Tensor:
    """Multiply the units of a tensor by 10^powers, ..., 10^-powers."""
    rows = view.rows(x)
    factors = torch.logspace(powers, -powers, len(rows), dtype=x.dtype)
    return view.from_rows(rows * factors[:, None], x)


def _draw_state(
    step: Step, name: str, value: Tensor, rng: np.random.Generator, counts: Sequence[int]
) -> Tensor:
    """Draw a state with the signs that the law allows, in place of one that steps have left."""
    if name in step.traced.opaque_states:
        return value
    symbol = step.scalars.get(step.state_atoms[name])
    random = torch.tensor(rng.normal(size=tuple(value.shape)))
    if symbol is None:
        return random.abs() if bool((value >= 0).all()) else random
    if value.ndim == 0 and float(value).is_integer():
        count = rng.choice(counts)
        return torch.full_like(value, float(count) if float(value) > 0 else float(value))
    return random if symbol.is_nonnegative is None else random.abs() + 0.1


# The comparison of one step


def _verify_one_unit(step: Step) -> None:
    """Compare the step of one unit with its rule, at usual, wide and default numbers.

    Raises:
        DifferenceError: they differ, or no inputs meet the assumptions.
    """
    traced, (view, shape) = step.traced, _one_unit(step.traced)
    random, default, further = list[_Draw](), list[_Draw](), list[_Draw]()
    for n, (scale, kind) in enumerate(itertools.product((*SCALES, 1.0), STEPS_BEFORE)):
        random.append(_Draw(kind, (0, n), {"weight_scale": scale}))
    random.append(_Draw("first", (0, 12), {"plain_numbers": True}))
    for n, kind in zip(range(WIDE_DRAWS), itertools.cycle(["any", "later"]), strict=False):
        numbers = _wide_numbers(traced, np.random.default_rng([8, n]))
        options = {"plain_numbers": True, "numbers": numbers, "with_similar_rule": True}
        random.append(_Draw(kind, (9, n), options))
    defaults = _default_numbers(traced, np.random.default_rng(10))
    options = {"plain_numbers": _accepts(traced, defaults), "numbers": defaults}
    for n, kind in enumerate(("first", "later")):
        default.append(_Draw(kind, (11, n), options))
    counts = [9, *((*OTHER_COUNTS, *_counts_near(defaults)) if step.counters else ())]
    for n, count in enumerate(counts):
        further.append(_Draw("any", (12, n), {"counts": [count], **options}))
    for n, (scales, kind) in enumerate(itertools.product(FAR_SCALES, ("first", "later"))):
        weight_scale, grad_scale = scales
        lengths = {"weight_scale": weight_scale, "grad_scale": grad_scale}
        further.append(_Draw(kind, (14, n), {**lengths, **options}))
    if not traced.opaque_rules:  # an iteration computes in a type of its own
        further.append(_Draw("later", (15,), {"dtype": torch.float32, **options}))
    further.append(_Draw("later", (13,), {"numbers": defaults}))
    draws = [*random, *default, *further]
    n_compared = _verify_draws(step, view, shape, draws)
    n_inside = [sum(n_compared[: len(random)]), sum(n_compared[len(random) :][: len(default)])]
    for n, inputs in zip(n_inside, ("random inputs", "inputs at its own numbers"), strict=True):
        if not n:
            assumed = "; ".join(map(show, step.facts.hypotheses))
            raise DifferenceError(
                f"{traced.name}: no {inputs} meet the assumptions of the law, so that it cannot be "
                f"held against its code: {assumed}"
            )


def _verify_reached_states(step: Step, view: View, shape: Shape) -> None:
    """Compare consecutive steps of a run from the start, at the recipe's own numbers.

    A drawn state seldom is one that a rule's own counter reaches, at which a branch acts.

    Raises:
        DifferenceError: they differ, or a step leaves a state that the law assumes away.
    """
    traced, rng = step.traced, np.random.default_rng(16)
    numbers = _default_numbers(traced, rng)
    is_plain = _accepts(traced, numbers)
    case = draw_case(step, view, shape, "first", 17, plain_numbers=is_plain, numbers=numbers)
    cases, by_code = [case], [case.rule.step(case.weight, case.grad, dict(case.state))]
    for _ in range(REACHED_STEPS):
        weight, state = by_code[-1]
        if not all(bool(x.isfinite().all()) for x in (weight, *state.values())):
            break
        grad = _draw_gradient(step, view, weight, rng)
        cases.append(replace(case, weight=weight, grad=grad, state=state))
        by_code.append(case.rule.step(weight, grad, dict(state)))
    # A state that stays as at the start does so up to rounding, which the first step shows.
    assumed = [x for x in step.facts.hypotheses if not isinstance(x, sp.Eq)]
    assumed_of_numbers = [relation for relation in assumed if _is_of_numbers(step, relation)]
    for n, comparison in enumerate(_compare_with(step, view, cases, by_code)):
        if comparison is Comparison.DIFFERS:
            raise DifferenceError(
                f"{traced.name}: the law differs from the code at step {n + 1} of a run from the "
                "start, at the recipe's own numbers"
            )
        if comparison is Comparison.AGREES or n == 0:  # an average of squares starts at 0
            continue
        values = read_units(step, view, cases[n])
        # A momentum of an earlier momentum is 0 for some steps.
        for relation in assumed if n > REACHED_STEPS // 2 else assumed_of_numbers:
            if not np.all(values.scalar(relation)):
                raise DifferenceError(
                    f"{traced.name}: the law assumes {show(relation)}, which step {n} of a run "
                    "does not leave so"
                )


def _is_of_numbers(step: Step, relation: sp.Rel) -> bool:
    """Tell if a hypothesis is about states of one number and hyper-parameters alone."""
    scalars = step.facts.scalars
    origins = step.facts.origins(relation)
    return bool(origins & scalars) and origins <= scalars | step.facts.domains.keys()


@dataclass(frozen=True)
class _Draw:
    """The arguments of `draw_case` beside step, view and shape."""

    kind: str
    seed: tuple[int, ...]
    options: Mapping[str, Any]


def _verify_draws(step: Step, view: View, shape: Shape, draws: Sequence[_Draw]) -> list[bool]:
    """Refuse a law that differs from its code in one of several cases of one shape.

    Args:
        step: the step of the law.
        view: view of the units of the weights.
        shape: shape of the weights.
        draws: what to draw.

    Returns:
        For each case True if it was compared, False if its inputs are outside of the law.

    Raises:
        DifferenceError: law and code differ.
    """
    cases: dict[int, Case] = {}
    for n, draw in enumerate(draws):
        try:
            cases[n] = draw_case(step, view, shape, draw.kind, *draw.seed, **draw.options)
        except ValueError as error:
            # A recipe may refuse plain numbers that it takes as tensors.
            if not draw.options.get("plain_numbers") or isinstance(error, TraceError):
                raise
    comparisons = dict(zip(cases, _compare_steps(step, view, [*cases.values()]), strict=True))
    for n, comparison in comparisons.items():
        if comparison is Comparison.DIFFERS:
            case, is_plain = cases[n], draws[n].options.get("plain_numbers")
            numbers = ", ".join(f"{name}={x:.4g}" for name, x in case.values.items())
            raise DifferenceError(
                f"{step.traced.name}: the law differs from the step of the code at {numbers} "
                f"({'plain numbers' if is_plain else 'tensors'}), weight {case.weight.tolist()}, "
                f"gradient {case.grad.tolist()}; {_advice(step.traced, [*step.traced.symbolic])}"
            )
    return [comparisons.get(n) is Comparison.AGREES for n in range(len(draws))]


def _agrees_at_shapes(step: Step, view: View, shapes: Iterable[Shape]) -> bool:
    """Tell if law and code agree at all shapes that the rule takes, and not at vectors alone.

    One case of a shape is enough, unless the law leaves branches open.
    """
    has_branches = bool(step.algebra.facts.open_branches)
    dims_compared, dims_at_defaults = set[int](), set[int]()
    defaults = _default_numbers(step.traced, np.random.default_rng(2))
    scales = SCALES if has_branches else SCALES[:1]
    for shape, scale in itertools.product(shapes, scales):
        for kind in ("any", "later", "first") if count_units(view, shape) else ():
            comparison = Comparison.OUTSIDE
            with contextlib.suppress(Exception):  # the rule may take no such weight
                case = draw_case(step, view, shape, kind, 1, weight_scale=scale)
                comparison = _compare_step(step, view, case)
            if comparison is Comparison.DIFFERS:
                return False
            if comparison is Comparison.AGREES:
                dims_compared.add(len(shape))
                if not has_branches:
                    break
        # At the default numbers, one shape of each number of dimensions is compared.
        if scale != 1.0 or len(shape) in dims_at_defaults:
            continue
        dims_at_defaults.add(len(shape))
        options: dict[str, Any] = {"plain_numbers": True, "numbers": defaults}
        with contextlib.suppress(Exception):
            case = draw_case(step, view, shape, "any", 2, **options)
            cases = [case, _spread_lengths(view, case)]
            if Comparison.DIFFERS in _compare_steps(step, view, cases):
                return False
    return bool(dims_compared - {1})


def _compare_step(step: Step, view: View, case: Case) -> Comparison:
    """Compare the steps of law and rule in a case."""
    return _compare_steps(step, view, [case])[0]


def _compare_steps(step: Step, view: View, cases: Sequence[Case]) -> list[Comparison]:
    """Compare the steps of law and rule in cases of one shape, whose laws are evaluated at once."""
    by_code = [case.rule.step(case.weight, case.grad, dict(case.state)) for case in cases]
    return _compare_with(step, view, cases, by_code)


def _compare_with(
    step: Step, view: View, cases: Sequence[Case], by_code: Sequence[tuple[Tensor, State]]
) -> list[Comparison]:
    """Compare the step of a law in cases of one shape with the steps of their rules."""
    try:
        by_law = evaluate_batch(step, view, cases)
    except ValueError as error:
        by_law = [error] * len(cases)
    triples = zip(cases, by_code, by_law, strict=True)
    return [_compare_results(case, code, law) for case, code, law in triples]


def _compare_results(
    case: Case, by_code: tuple[Tensor, State], by_law: Result | ValueError
) -> Comparison:
    """Compare the new weights and states of law and rule."""
    weight, state = by_code
    tolerance = TOLERANCE[case.dtype]
    if not all(bool(x.isfinite().all()) for x in (weight, *state.values())):
        return Comparison.OUTSIDE
    if isinstance(by_law, ValueError):
        is_outside = isinstance(by_law, OutsideError)
        return Comparison.OUTSIDE if is_outside else Comparison.DIFFERS
    law_weight, law_state = by_law
    pairs = [(law_weight, weight), *((x, state[name]) for name, x in law_state.items())]
    if not all(bool(law_value.isfinite().all()) for law_value, _ in pairs):
        return Comparison.OUTSIDE
    if all(_values_agree(law_value, value, tolerance) for law_value, value in pairs):
        return Comparison.AGREES
    slacks = _rounding_slacks(case, [value for _, value in pairs], [*law_state])
    is_close = [
        _values_agree(law_value, value, tolerance, slack)
        for (law_value, value), slack in zip(pairs, slacks, strict=True)
    ]
    return Comparison.AGREES if all(is_close) else Comparison.DIFFERS


def _rounding_slacks(case: Case, results: Sequence[Tensor], states: Sequence[str]) -> list[float]:
    """Return for each result of a step ten times what rounding of its inputs changes in it.

    A difference counts only beyond it: where large numbers cancel, the code is as inexact.

    Args:
        case: the inputs of the step.
        results: the new weight and the new states, as the code computed them.
        states: names of the states.
    """
    shape, change = case.weight.shape, ROUNDING_CHANGE[case.dtype]
    generator = torch.Generator().manual_seed(0)  # the caller's random numbers stay as they are

    def rounded(x: Tensor) -> Tensor:
        if x.shape != shape:
            return x
        return x * (1 + change * torch.randn(shape, dtype=x.dtype, generator=generator))

    slacks = [0.0] * len(results)
    for _ in range(ROUNDING_DRAWS):
        state = {name: rounded(x) for name, x in case.state.items()}
        new_weight, new_state = case.similar_rule.step(
            rounded(case.weight), rounded(case.grad), state
        )
        rounded_results = [new_weight, *(new_state[name] for name in states)]
        for n, (x, result) in enumerate(zip(rounded_results, results, strict=True)):
            slacks[n] = max(slacks[n], 10 * float((x - result).abs().max()))
    return slacks


def _values_agree(a: Tensor, b: Tensor, tolerance: float, slack: float = 0.0) -> bool:
    if a.shape != b.shape or not b.numel():
        return a.shape == b.shape
    allowed = tolerance * max(1.0, float(b.abs().max())) + slack
    return bool(((a - b.double()).abs() <= allowed).all())


# The claims along a run, as they are printed


@torch.no_grad()
def verify_claims_on_run(
    law: NormLaw, claims: Sequence[Claim], n_steps: int = RUN_STEPS, use_defaults: bool = False
) -> bool:
    """Evaluate the relations of a law's claims along a run, as they are printed.

    Args:
        law: the law.
        claims: what it says.
        n_steps: length of the run.
        use_defaults: run with the recipe's default numbers; else with usual ones, as tensors.

    Returns:
        True if the closed form holds from the first step on.

    Raises:
        DifferenceError: another claim is false on the run.
    """
    try:
        run = [*_run(law, n_steps, use_defaults)]
    except Exception:  # the rule may take no such weight
        return False
    inside = [_satisfies_assumptions(law.split_step, numbers) for numbers in run[:-1]]
    closed_form_holds = True
    for claim, time in itertools.product(claims, range(len(inside) - 1)):
        has_sum = claim.relation.has(sp.Sum)
        if not all(inside[: time + 2] if has_sum else inside[time : time + 2]):
            if has_sum and not inside[0]:
                closed_form_holds = False
            continue
        lhs, rhs = (_value_on_run(side, run, time) for side in claim.relation.args)
        # A side without a value is nan, which differs from nothing.
        differs = abs(lhs - rhs) > 1e-8 * max(abs(lhs), abs(rhs), 1e-2)
        if differs and not has_sum:
            raise DifferenceError(
                f"{law.name}: the law says {show(claim.relation)}; at t = {time} of a run "
                f"its sides are {lhs:.10g} and {rhs:.10g}"
            )
        closed_form_holds = closed_form_holds and not differs
    return closed_form_holds


def _run(law: NormLaw, n_steps: int, use_defaults: bool) -> Iterator[Values]:
    """Yield the numbers of each step of a run, with w' and s, and at last those of w alone."""
    step, rng = law.split_step, np.random.default_rng(5)
    view, shape = _one_unit(step.traced)
    view = view if count_units(view, shape) == 1 else View(None)
    numbers = None
    if use_defaults:
        numbers = _default_numbers(step.traced, np.random.default_rng(6))
    case = draw_case(step, view, shape, "first", 7, plain_numbers=use_defaults, numbers=numbers)
    weight, state = case.weight, case.state
    for _ in range(n_steps):
        inputs = Inputs(weight, _draw_gradient(step, view, weight, rng), state, case.values)
        weight, state = case.rule.step(weight, inputs.grad, dict(state))
        values = read_step(law, view, inputs, weight)
        for name, opaque in step.algebra.opaque_vectors.items():
            if isinstance(opaque.rule, r.Orthogonalize):
                c, rank = scale_of(opaque.rule, shape), min(shape[0], shape[1])
                q = float(values.scalar(Norm(name)).item()) ** 2 / (c**2 * rank)
                values.numbers = {**values.numbers, "c": c, "q": q, "rank": rank}
        yield values
        if not float(view.norm(weight).max()) < MAX_RUN_NORM:
            break
    no_weight = torch.full_like(weight, torch.nan)
    yield read_step(law, view, Inputs(weight, inputs.grad, state, case.values), no_weight)


def _satisfies_assumptions(step: Step, values: Values) -> bool:
    with contextlib.suppress(OutsideError):
        check_assumptions(step, values)
        return True
    return False


@lru_cache(maxsize=1024)  # sides of claims repeat, and so do the times of two runs
def _formula_at_time(x: sp.Expr, time: int) -> tuple[sp.Expr, frozenset[sp.Indexed]]:
    """Return a printed formula at one time, with its sums written out, and its indexed symbols."""
    at_time = x.xreplace({t: sp.Integer(time)})
    if at_time.has(sp.Sum):
        at_time = at_time.replace(lambda e: isinstance(e, sp.Sum), lambda e: e.doit())
    return at_time, frozenset(at_time.atoms(sp.Indexed))


def _value_on_run(x: sp.Expr, run: list[Values], time: int) -> float:
    """Return the value of a printed formula at one time of a run; nan where it has none."""
    formula, indexed = _formula_at_time(sp.sympify(x), time)
    indexed_symbols = {symbol for i in indexed for symbol in i.free_symbols}
    values = {i: run[int(i.indices[0])].scalar(i.base.label) for i in indexed}
    values |= {s: run[time].scalar(s) for s in formula.free_symbols - indexed_symbols}
    try:
        digits = {symbol: sp.Float(float(value.item()), 25) for symbol, value in values.items()}
        return float(formula.xreplace(digits).evalf(25))
    except (TypeError, KeyError):
        return float("nan")
