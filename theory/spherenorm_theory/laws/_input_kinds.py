"""The kinds of inputs that a recipe trains with, which its record does not show.

A record is made in float64, with tensors in the place of hyper-parameters. An optimizer has plain
numbers there, and its weights are parameters, most of them of single precision.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from spherenorm import Rule, State, View
from spherenorm_theory.laws._inputs import Case, draw_cases, vary_each_number
from spherenorm_theory.laws._localize_mismatch import DifferenceError
from spherenorm_theory.laws._one_step import OneStep

STEPS = 3
PLAIN = 1e-10
"""Relative to the largest entry of the result, or to 1."""
SINGLE = 1e-3
"""Likewise; far above what single precision loses in a few steps, and below a decision's share."""


def check_scalar_and_dtype_inputs(step: OneStep) -> None:
    """Hold a rule of tensors in float64 against the same rule as it is trained with.

    Raises:
        DifferenceError: plain numbers for the hyper-parameters, or a parameter in float32, give
            another step, or none.
    """
    cases = [case for shape in (step.traced.shape, (3, 4)) for case in _draw(step, shape)]
    for case in cases:
        _compare_plain(step, case)
        _compare_single(step, case)
    for case in cases[:1]:
        for other in vary_each_number(step, case):
            _compare_plain(step, other, steps=2)  # a momentum is seen in the second one


def _draw(step: OneStep, shape: tuple[int, ...]) -> list[Case]:
    """Cases without hyper-parameters of 0; none if the rule refuses this shape."""
    try:
        return [next(draw_cases(step, View(None), shape, 2, seed)) for seed in (3, 4)]
    except Exception:
        return []


def _compare_plain(step: OneStep, case: Case, steps: int = STEPS) -> None:
    try:
        rule = step.traced.build(case.hyper_parameters)
    except Exception:
        return  # the recipe refuses these numbers; it takes its defaults, as its trace has shown
    shown = ", ".join(f"{name} = {x:g}" for name, x in case.hyper_parameters.items())
    _compare(
        *(step, case, rule, case.weight, case.grad, steps, PLAIN),
        kind="where hyper-parameters are plain numbers",
        other="where they are tensors of float64: it asks for their type or size, or rounds them "
        f"({shown})",
    )


def _compare_single(step: OneStep, case: Case) -> None:
    _compare(
        *(step, case, case.rule, nn.Parameter(case.weight.float()), case.grad.float()),
        *(STEPS, SINGLE),
        kind="for a parameter in float32",
        other="for a tensor in float64: it asks for the type of the weight, or overflows",
    )


def _compare(
    step: OneStep,
    case: Case,
    rule: Rule,
    weight: Tensor,
    grad: Tensor,
    steps: int,
    tolerance: float,
    *,
    kind: str,
    other: str,
) -> None:
    """Compare some steps of a rule with those of the case's; inputs that overflow say nothing."""
    start = case.rule.init(case.weight)
    try:
        expected = _run(case.rule, case.weight, case.grad, start, steps)
    except Exception:
        return
    try:
        found = _run(rule, weight, grad, start, steps)
    except Exception as error:
        why = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise DifferenceError(
            f"{step.traced.name}: the code takes no step {kind}, but one {other}: {why}"
        ) from error
    if not (found.isfinite().all() and expected.isfinite().all()):
        return
    scale = max(1.0, float(expected.abs().max()))
    if bool(((found - expected).abs() > tolerance * scale).any()):
        raise DifferenceError(f"{step.traced.name}: the code does another step {kind} than {other}")


def _run(rule: Rule, weight: Tensor, grad: Tensor, start: State, steps: int) -> Tensor:
    """The weight after some steps, as float64.

    A random first state is another one each time, so that it is `start` here.
    """
    with torch.no_grad():
        state, again = rule.init(weight), rule.init(weight)
        if any(not torch.equal(x, again[name]) for name, x in state.items()):
            state = {name: start[name].to(x.dtype) for name, x in state.items()}
        for _ in range(steps):
            weight, state = rule.step(weight, grad, dict(state))
            grad = grad.roll(1, -1)
    return weight.double()
