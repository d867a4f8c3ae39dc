"""A law against the code that it came from: no law is shown that differs from its step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from spherenorm import View
from spherenorm_theory.algebra import count_units
from spherenorm_theory.laws._agreement import Agreement, Path, read_path, write_dimensions
from spherenorm_theory.laws._evaluation import OutsideError, evaluate, read_units
from spherenorm_theory.laws._input_kinds import check_scalar_and_dtype_inputs
from spherenorm_theory.laws._inputs import Case, draw_cases
from spherenorm_theory.laws._localize_mismatch import (
    DifferenceError,
    decides_together,
    find_mixing,
    find_operation,
)
from spherenorm_theory.laws._one_step import OneStep
from spherenorm_theory.laws._quantities import W
from spherenorm_theory.laws._step_law import StepLaw

Shape = tuple[int, ...]

TOLERANCE = 1e-10
"""Relative to the largest entry of the result, or to 1."""

CASES = 9
"""Of one unit: three first steps, three after some steps, three with any state."""

SHAPES: tuple[Shape, ...] = (
    *((7,), (600,)),
    *((3, 5), (5, 3), (4, 4), (2, 1030), (260, 3), (70, 72)),
    *((3, 2, 4), (4, 3, 2), (70, 2, 67)),
    *((3, 2, 2, 2), (4, 3, 5, 5), (70, 66, 1, 3)),
    (3, 2, 2, 2, 2),
)
"""Of weights of several units: of each number of dimensions; oblong, square, wide."""

SINGLE = ((7,), (1, 5), (5, 1), (1, 1030), (1030, 1), (1, 3, 2), (3, 1, 2), (1, 3, 2, 2))
"""Of weights of one unit, some of them in one view and some in others."""


@torch.no_grad()  # as optimizers take their steps
def compare(step: OneStep, constant: bool) -> Agreement:
    """Hold a step on symbols against the step of the rule, on random inputs.

    Args:
        step: from a general state, with the first one.
        constant: the law says that the norm never changes.

    Raises:
        DifferenceError: they differ; with the operation at which they do.
    """
    views = step.traced.views or (View(0), View(None))
    _compare_one_unit(step)
    check_scalar_and_dtype_inputs(step)
    held: list[tuple[Agreement, tuple[Case, ...]]] = []
    paths = _paths(step, SHAPES)
    for view in views:
        held.append(_hold(step, view, paths))
        if held[-1][0].everywhere:
            return held[-1][0]
    best = max((agreement for agreement, _ in held), key=lambda each: len(each.dimensions - {1}))
    if best.dimensions - {1}:
        return best
    mixing = (find_mixing(step, each.view, case) for each, differing in held for case in differing)
    where = next(filter(None, mixing), "")
    if step.traced.sized and step.traced.sized in (where or step.traced.sized):
        raise DifferenceError(
            f"{step.traced.name}: a number depends on the shape of the weight, and not by the "
            f"count of a unit's entries; it is in {step.traced.sized}"
        )
    if constant:
        _refuse_unless_constant(step, views[0], [s for s, path in paths.items() if path], where)
    single = [shape for shape in SINGLE if count_units(views[0], shape) == 1]
    alone, _ = _hold(step, views[0], _paths(step, (step.traced.shape, *single)))
    norm = ", for the step; the norm is constant for each of several units too" if constant else ""
    return replace(alone, several=False, note=f"the weight is one unit{norm}{where}")


def _hold(
    step: OneStep, view: View, paths: Mapping[Shape, Path | None]
) -> tuple[Agreement, tuple[Case, ...]]:
    """Compare a law with its code, with the cases in which they differ.

    Shapes at which the code takes the same path count as one.
    """
    results: dict[Path, list[Case | None]] = {}
    choosy = {len(shape) for shape, path in paths.items() if path is None}
    for shape, path in paths.items():
        if path is None or not count_units(view, shape):
            continue
        compared = [
            (case, difference)
            for case in draw_cases(step, view, shape, 3, 1)
            if (difference := _difference(step, view, case)) is not None
        ]
        if compared:
            unlike = (
                case
                for case, difference in compared
                if difference or decides_together(step, view, case)
            )
            found = next(unlike, None)
            results.setdefault(path, []).append(found)
    agreeing = tuple(path for path, cases in results.items() if not any(cases))
    refused = tuple(path for path in results if path not in agreeing)
    differing = tuple(case for cases in results.values() for case in cases if case is not None)
    agreement = Agreement(view, True, _note(view), agreeing, refused, frozenset(choosy))
    if agreement.everywhere or not agreeing:
        return agreement, differing
    note = f"{_note(view)} of {write_dimensions(sorted(agreement.dimensions))}"
    return replace(agreement, note=note), differing


def _paths(step: OneStep, shapes: Iterable[Shape]) -> dict[Shape, Path | None]:
    """The branches that the rule takes at each shape; None for one that it refuses."""
    paths: dict[Shape, Path | None] = dict.fromkeys(shapes)
    for shape in paths:
        with contextlib.suppress(Exception):
            case = next(draw_cases(step, View(None), shape, 1, 0))
            paths[shape] = read_path(case.rule, case.weight, case.grad, case.state)
    return paths


def compare_products(law: StepLaw) -> None:
    """Hold |w'|^2 and the recursions of a law against the arrays that its step gives.

    The step itself is the one of the code, as `compare` has shown.

    Raises:
        DifferenceError: a formula gives another number.
    """
    step, view = law.step, View(None)
    with torch.no_grad():
        cases = [*draw_cases(step, view, step.traced.shape, CASES, 2)]
    for case in cases:
        try:
            numbers = read_units(step, view, case)
        except OutsideError:
            continue
        after = {"w": numbers.vector(law.split_step.weight)}
        after |= {m: numbers.vector(step.states[m]) for m in step.buffers}
        numbers.vectors["s"] = numbers.vector(law.drive)
        formulas = {W: law.law.rhs, **law.recursion}
        for product, formula in formulas.items():
            a, b = ("w", "w") if product == W else (str(product)[1:-1].split(","))
            given, made = numbers.scalar(formula).item(), (after[a] * after[b]).sum().item()
            scale = float(np.linalg.norm(after[a]) * np.linalg.norm(after[b]))
            if not np.isfinite([given, made]).all():
                continue  # as |s|^2 / lr at a learning rate of 0
            if not abs(given - made) <= 1e-9 * max(1.0, scale):
                raise DifferenceError(
                    f"{step.traced.name}: the law gives {given:.10g} for {product} after the step, "
                    f"the code {made:.10g}; the formula is {formula}"
                )


def _refuse_unless_constant(step: OneStep, view: View, shapes: Iterable[Shape], where: str) -> None:
    """Reject a constant-norm law that holds only for single-unit weights."""
    shapes = [shape for shape in shapes if len(shape) > 1]
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


def _compare_one_unit(step: OneStep) -> None:
    compared = 0
    for case in draw_cases(step, View(None), step.traced.shape, CASES, 0):
        difference = _difference(step, View(None), case)
        compared += difference is not None
        if difference:
            raise find_operation(step, case)
    if not compared:
        assumptions = "; ".join(step.facts.assumptions)
        raise DifferenceError(
            f"{step.traced.name}: no random inputs meet the assumptions of the law, so that it "
            f"cannot be held against its code: {assumptions}"
        )


def _difference(step: OneStep, view: View, case: Case) -> bool | None:
    """Tell if law and rule differ in a case; None if the case is outside of the law."""
    weight, state = case.rule.step(case.weight, case.grad, dict(case.state))
    if not all(bool(x.isfinite().all()) for x in (weight, *state.values())):
        return None
    try:
        new, after = evaluate(step, view, case)
    except OutsideError:
        return None
    except ValueError:
        return True
    pairs = [(new, weight), *((after[name], state[name]) for name in state)]
    return not all(_agree(a, b) for a, b in pairs)


def _agree(a: Tensor, b: Tensor) -> bool:
    scale = max(1.0, float(b.abs().max()))
    return a.shape == b.shape and bool(((a - b.double()).abs() <= TOLERANCE * scale).all())
