"""The kinds of inputs that a recipe trains with, which its record does not show.

A record is made in float64, with tensors in the place of hyper-parameters. An optimizer has plain
numbers there, and its weights are parameters, most of them of single precision.
"""

from __future__ import annotations

from collections.abc import Mapping

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
            another step.
    """
    name = step.traced.name
    cases = [case for shape in (step.traced.shape, (3, 4)) for case in _draw(step, shape)]
    for case in cases:
        _compare_plain(step, case)
        parameter = nn.Parameter(case.weight.float())
        start = case.rule.init(case.weight)
        expected = _run(case.rule, case.weight, case.grad, start)
        single = _run(case.rule, parameter, case.grad.float(), start)
        if not _agree(single, expected, SINGLE):
            raise DifferenceError(
                f"{name}: the code does another step for a parameter in float32 than for a "
                "tensor in float64: it asks for the type of the weight, or overflows"
            )
    for case in cases[:1]:
        for other in vary_each_number(step, case):
            _compare_plain(step, other, steps=2)  # a momentum is seen in the second one


def _compare_plain(step: OneStep, case: Case, steps: int = STEPS) -> None:
    start = case.rule.init(case.weight)
    expected = _run(case.rule, case.weight, case.grad, start, steps)
    if not _agree(_run_plain(step, case, start, steps), expected, PLAIN):
        shown = ", ".join(f"{name} = {x:g}" for name, x in case.hyper_parameters.items())
        raise DifferenceError(
            f"{step.traced.name}: the code does another step where hyper-parameters are plain "
            "numbers than where they are tensors of float64: it asks for their type or size, or "
            f"rounds them ({shown})"
        )


def _draw(step: OneStep, shape: tuple[int, ...]) -> list[Case]:
    """Cases without hyper-parameters of 0; none if the rule refuses this shape."""
    try:
        return [next(draw_cases(step, View(None), shape, 2, seed)) for seed in (3, 4)]
    except Exception:
        return []


def _run_plain(step: OneStep, case: Case, start: State, steps: int) -> Tensor | None:
    numbers: Mapping[str, float] = case.hyper_parameters
    try:
        rule = step.traced.build(numbers)
    except Exception:
        return None
    return _run(rule, case.weight, case.grad, start, steps)


def _run(
    rule: Rule, weight: Tensor, grad: Tensor, start: State, steps: int = STEPS
) -> Tensor | None:
    """The weight after some steps; None if the code raises or a result overflows.

    A random first state is another one each time, so that it is `start` here.
    """
    try:
        with torch.no_grad():
            state, again = rule.init(weight), rule.init(weight)
            if any(not torch.equal(x, again[name]) for name, x in state.items()):
                state = {name: start[name].to(x.dtype) for name, x in state.items()}
            for _ in range(steps):
                weight, state = rule.step(weight, grad, dict(state))
                grad = grad.roll(1, -1)
    except Exception:
        return None
    return weight.double() if bool(weight.isfinite().all()) else None


def _agree(found: Tensor | None, expected: Tensor | None, tolerance: float) -> bool:
    """False if both ran and differ."""
    if found is None or expected is None:
        return True
    scale = max(1.0, float(expected.abs().max()))
    return bool(((found - expected).abs() <= tolerance * scale).all())
