"""A law against the code that it came from: no law is shown that differs from its step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from spherenorm import View
from theory.laws._difference import DifferenceError, find_mixing, find_operation
from theory.laws._evaluation import (
    OutsideError,
    evaluate,
    split,
    symbol_values,
    unit_numbers,
)
from theory.laws._inputs import Case, draw_cases
from theory.laws._one_step import OneStep
from theory.laws._quantities import W
from theory.laws._step_law import StepLaw

__all__ = ["Agreement", "compare", "compare_products"]

TOLERANCE = 1e-10
"""Relative to the largest entry of the result, or to 1."""

CASES = 9
"""Of one unit: three first steps, three after some steps, three with any state."""

SHAPES: tuple[tuple[int, ...], ...] = ((3, 5), (5, 3), (4, 4), (3, 2, 2, 2))
"""Of weights of several units: oblong, square, with more than two dimensions."""


@dataclass(frozen=True)
class Agreement:
    """The weights for which a law gives the step of its code.

    Attributes:
        view: splits them into the units that the law is about.
        several: the law holds for each unit of a weight of several ones.
        note: what this assumes, in text.
    """

    view: View
    several: bool
    note: str


def compare(step: OneStep, first: OneStep | None, constant: bool = False) -> Agreement:
    """Hold a step on symbols against the step of the rule, on random inputs.

    Args:
        step, first: the step from a general state, and from the first one.
        constant: the law says that the norm never changes.

    Raises:
        DifferenceError: they differ; with the operation at which they do.
    """
    views = step.traced.views or (View(0), View(None))
    _compare_one_unit(step, first)
    shapes = [shape for shape in SHAPES if _is_stepped(step, shape)]
    differing: list[tuple[View, Case]] = []
    for limit in (4, 2):
        within = [shape for shape in shapes if len(shape) <= limit]
        for view in views:
            cases = (_differing(step, first, view, shape) for shape in within)
            case = next(filter(None, cases), None)
            if case is None and within:
                flat = "" if within == shapes else " of two dimensions"
                return Agreement(view, True, _note(view) + flat)
            differing += [(view, case)] if case is not None else []
    where = next(filter(None, (find_mixing(step, view, case) for view, case in differing)), "")
    if step.traced.sized and step.traced.sized in (where or step.traced.sized):
        raise DifferenceError(
            f"{step.traced.name}: a number depends on the shape of the weight, and not by the "
            f"count of a unit's entries; it is in {step.traced.sized}"
        )
    if constant:
        _refuse_unless_constant(step, views[0], shapes, where)
    return Agreement(views[0], False, f"the weight is one unit{where}")


def compare_products(law: StepLaw) -> None:
    """Hold |w'|^2 and the recursions of a law against the arrays that its step gives.

    The step itself is the one of the code, as `compare` has shown.

    Raises:
        DifferenceError: a formula gives another number.
    """
    step, view = law.step, View(None)
    for case in draw_cases(step, view, step.traced.shape, CASES, 2):
        values = symbol_values(step.traced, case.hyper_parameters)
        (unit,) = split(step, view, case.weight, case.grad, case.state)
        try:
            numbers = unit_numbers(step, unit, values)
        except OutsideError:
            continue
        after = {"w": numbers.vector(law.split_step.weight)}
        after |= {m: numbers.vector(step.states[m]) for m in step.buffers}
        numbers.vectors["s"] = numbers.vector(law.drive)
        formulas = {W: law.law.rhs, **law.recursion}
        for product, formula in formulas.items():
            a, b = ("w", "w") if product == W else (str(product)[1:-1].split(","))
            given, made = numbers.scalar(formula), float(after[a] @ after[b])
            scale = float(np.linalg.norm(after[a]) * np.linalg.norm(after[b]))
            if not np.isfinite([given, made]).all():
                continue  # as |s|^2 / lr at a learning rate of 0
            if not abs(given - made) <= 1e-9 * max(1.0, scale):
                raise DifferenceError(
                    f"{step.traced.name}: the law gives {given:.10g} for {product} after the step, "
                    f"the code {made:.10g}; the formula is {formula}"
                )


def _refuse_unless_constant(
    step: OneStep, view: View, shapes: list[tuple[int, ...]], where: str
) -> None:
    """Refuse a constant norm that is one of a weight of a single unit alone."""
    for case in (case for shape in shapes for case in draw_cases(step, view, shape, 3, 1)):
        new, _ = case.rule.step(case.weight, case.grad, dict(case.state))
        if bool(new.isfinite().all()) and not _agree(view.norm(new), view.norm(case.weight)):
            raise DifferenceError(
                f"{step.traced.name}: the norm is constant for a weight of one unit and for no "
                f"other{where}"
            )


def _note(view: View) -> str:
    return f"units: {_NAMES.get(view.name, f'those of the view {view}')} of a weight"


_NAMES = {"channel": "each index of dimension 0", "layer": "the whole tensor"}


def _is_stepped(step: OneStep, shape: tuple[int, ...]) -> bool:
    """Tell if the rule takes a weight of this shape."""
    try:
        case = next(draw_cases(step, View(None), shape, 1, 0))
        case.rule.step(case.weight, case.grad, dict(case.state))
    except Exception:
        return False
    return True


def _compare_one_unit(step: OneStep, first: OneStep | None) -> None:
    compared = 0
    for case in draw_cases(step, View(None), step.traced.shape, CASES, 0):
        difference = _difference(step, first, View(None), case)
        compared += difference is not None
        if difference:
            raise find_operation(step, first, case)
    if not compared:
        assumptions = "; ".join(step.algebra.assumptions)
        raise DifferenceError(
            f"{step.traced.name}: no random inputs meet the assumptions of the law, so that it "
            f"cannot be held against its code: {assumptions}"
        )


def _differing(
    step: OneStep, first: OneStep | None, view: View, shape: tuple[int, ...]
) -> Case | None:
    """A case in which a weight of several units differs from the law; None if none does."""
    for case in draw_cases(step, view, shape, 3, 1):
        if _difference(step, first, view, case):
            return case
    return None


def _difference(step: OneStep, first: OneStep | None, view: View, case: Case) -> bool | None:
    """Tell if law and rule differ in a case; None for one that the law is not about."""
    weight, state = case.rule.step(case.weight, case.grad, dict(case.state))
    if not all(bool(x.isfinite().all()) for x in (weight, *state.values())):
        return None
    values = symbol_values(step.traced, case.hyper_parameters)
    try:
        new, after = evaluate(step, first, view, case.weight, case.grad, case.state, values)
    except OutsideError:
        return None
    except ValueError:
        return True
    pairs = [(new, weight), *((after[name], state[name]) for name in state)]
    return not all(_agree(a, b) for a, b in pairs)


def _agree(a: Tensor, b: Tensor) -> bool:
    scale = max(1.0, float(b.abs().max()))
    return a.shape == b.shape and bool(((a - b.double()).abs() <= TOLERANCE * scale).all())
