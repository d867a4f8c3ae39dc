"""Random inputs of a step, on which a law is compared with its code."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import sympy as sp
import torch
from torch import Tensor

from spherenorm import Interval, Rule, View
from spherenorm_theory.algebra import TraceError
from spherenorm_theory.laws._evaluation import Inputs, symbol_values
from spherenorm_theory.laws._one_step import OneStep

ROUNDING = 1e-15
"""A cosine of w and g that rounding leaves where they are orthogonal; a law must not notice it."""

RADIAL = 2.0
"""The radial part of a gradient that no test takes for an orthogonal one."""

TOGETHER = 0.3
"""The share of gradients whose units are orthogonal to the weight together, and none by itself."""

NEAR = (1e-3,)
"""The share of an interval, or the distance, from an end; code may decide otherwise there."""

FAR = (3.0, 1e3)
"""The distance from the only end of an interval."""


@dataclass(frozen=True)
class Case(Inputs):
    """Inputs of one step, with the hyper-parameters by their own names and the rule itself."""

    hyper_parameters: Mapping[str, float]
    rule: Rule


def rule_of(step: OneStep, numbers: Mapping[str, float]) -> Rule:
    """The rule with its hyper-parameters as tensors, as it was recorded."""
    return step.traced.build({n: torch.tensor(x, dtype=torch.float64) for n, x in numbers.items()})


def draw_cases(
    step: OneStep, view: View, shape: tuple[int, ...], count: int, seed: int
) -> Iterator[Case]:
    """Cases with the first state, with states that steps leave, with any states, in turn.

    Hyper-parameters are drawn from their intervals, some of them at 0; numbers of the state have
    both signs where the law allows them; counters are early and late.
    """
    for n in range(count):
        rng = np.random.default_rng([seed, n])
        numbers = _draw_hyper_parameters(step, rng, at_zero=n >= count // 2)
        rule = rule_of(step, numbers)
        weight = torch.tensor(rng.normal(size=shape) * rng.uniform(0.5, 2))
        state = rule.init(weight)
        _refuse_other_states(step, state, shape)
        for _ in range((0, 1, 3)[n % 3]):
            weight, state = rule.step(weight, _gradient(step, view, weight, rng), state)
        if n % 3 == 2:
            state = {k: _draw_state(step, k, x, rng) for k, x in state.items()}
        grad, values = _gradient(step, view, weight, rng), symbol_values(step.traced, numbers)
        yield Case(weight, grad, state, values, numbers, rule)


def _refuse_other_states(
    step: OneStep, state: Mapping[str, Tensor], shape: tuple[int, ...]
) -> None:
    """Refuse a rule that keeps other states for this shape than the law has."""
    traced = step.traced.outputs[1:]
    if set(state) != set(traced):
        here = f"{sorted(state)} for a weight of shape {shape}"
        raise TraceError(
            f"{step.traced.name}: its states depend on the shape: {here}, {sorted(traced)} for the "
            f"shape {step.traced.shape} of the law"
        )


def _draw_hyper_parameters(
    step: OneStep, rng: np.random.Generator, at_zero: bool
) -> dict[str, float]:
    numbers = {}
    for name, number in step.traced.numbers.items():
        interval = step.traced.intervals[name]
        if not isinstance(number, sp.Symbol):
            numbers[name] = float(number)
        elif at_zero and 0 in interval and rng.random() < 0.3:
            numbers[name] = 0.0
        else:
            numbers[name] = _draw_from(interval, rng)
    return numbers


def _draw_from(interval: Interval, rng: np.random.Generator) -> float:
    low, high = interval.low, interval.high
    if math.isinf(low) and math.isinf(high):
        return float(rng.uniform(0.05, 1.5) * rng.choice([-1, 1]))
    if math.isinf(high):
        return float(low + rng.uniform(0.02, 0.9))
    if math.isinf(low):
        return float(high - rng.uniform(0.02, 0.9))
    return float(low + (high - low) * rng.uniform(0.05, 0.95))


def vary_each_number(step: OneStep, case: Case) -> Iterator[Case]:
    """The case with one hyper-parameter at a time near an end of its interval, or far from it."""
    for name in step.traced.symbols:
        for number in _spread(step.traced.intervals[name]):
            numbers = {**case.hyper_parameters, name: number}
            values, rule = symbol_values(step.traced, numbers), rule_of(step, numbers)
            yield replace(case, values=values, hyper_parameters=numbers, rule=rule)


def _spread(interval: Interval) -> list[float]:
    low, high = interval.low, interval.high
    if math.isfinite(low) and math.isfinite(high):
        shares = (*NEAR, *(1 - share for share in NEAR))
        return [low + (high - low) * share for share in shares]
    distances = (*NEAR, *FAR)
    above = [low + x for x in distances] if math.isfinite(low) else [*distances]
    below = [high - x for x in distances] if math.isfinite(high) else [-x for x in distances]
    return [x for x in (*above, *below) if x in interval]


def _gradient(step: OneStep, view: View, weight: Tensor, rng: np.random.Generator) -> Tensor:
    """A random gradient, orthogonal to each unit up to rounding where the law assumes that.

    Elsewhere each unit has a radial part of either sign, and now and then all of them together
    have none.
    """
    grad = torch.tensor(rng.normal(size=tuple(weight.shape)))
    radial = view.radial_coefficient(weight, grad)
    orthogonal = ("w", "g") in step.algebra.space.known
    cosine = torch.tensor(rng.choice([-1.0, 1.0], size=tuple(radial.shape)))
    cosine = cosine * (ROUNDING if orthogonal else RADIAL)
    if not orthogonal and cosine.numel() > 1 and rng.random() < TOGETHER:
        squares = view.inner(weight, weight)
        cosine = cosine - (cosine * squares).sum() / squares.sum()
    return grad - (radial - cosine) * weight


def _draw_state(step: OneStep, name: str, value: Tensor, rng: np.random.Generator) -> Tensor:
    """A random state of the signs that the law allows, in place of one that steps have left."""
    symbol = step.scalars.get(step.letters[name])
    if symbol is None:
        drawn = torch.tensor(rng.normal(size=tuple(value.shape)))
        return drawn.abs() if bool((value >= 0).all()) else drawn
    if value.ndim == 0 and float(value).is_integer():
        late = rng.choice([1, 2, 9, 57, 299, 300, 4000])
        return torch.full_like(value, float(late) if float(value) > 0 else float(value))
    drawn = torch.tensor(rng.normal(size=tuple(value.shape)))
    return drawn if symbol.is_nonnegative is None else drawn.abs() + 0.1
