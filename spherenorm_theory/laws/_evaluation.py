"""The step that a law says, in numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import sympy as sp
import torch
from torch import Tensor

from spherenorm import View
from spherenorm_theory.algebra import Array, NumericEvaluator, Trace, Vector
from spherenorm_theory.laws._one_step import OneStep

ALMOST = 1e-9
"""<w, g> = 0 up to rounding: a cosine below this."""


class OutsideError(ValueError):
    """An assumption of the law does not hold for the inputs."""


@dataclass(frozen=True)
class Unit:
    """One unit of a weight, its gradient and its state by letter, as arrays or numbers."""

    weight: Array
    grad: Array
    state: Mapping[str, Array | float]


def evaluate(
    step: OneStep,
    first: OneStep | None,
    view: View,
    weight: Tensor,
    gradient: Tensor,
    state: Mapping[str, Tensor],
    values: Mapping[str, float],
) -> tuple[Tensor, dict[str, Tensor]]:
    """The new weight and the new state, unit by unit.

    Args:
        step, first: the step on symbols, from a general state and from the first one.
        view: splits the weight into units.
        weight, gradient: of one shape, in float64.
        state: as the rule's `init` or `step` returns it.
        values: numbers for the hyper-parameters, by the names of their symbols.

    Raises:
        OutsideError: an assumption of the law does not hold for these inputs.
        ValueError: a state is missing, or does not split into units.
    """
    units = split(step, view, weight, gradient, state)
    starting = first is not None and is_start(step.traced, weight, state)
    used = first if starting and first is not None else step
    _refuse_projection(used, weight, gradient, state, values)
    results = [_evaluate_unit(used, unit, values) for unit in units]
    new = view.from_rows(torch.tensor(np.stack([w for w, _ in results])), weight)
    letters = step.letters
    after = {
        name: _join(name, [state[letters[name]] for _, state in results], view, weight, value)
        for name, value in state.items()
    }
    return new, after


def symbol_values(traced: Trace, numbers: Mapping[str, float]) -> dict[str, float]:
    """Numbers of hyper-parameters, by the names of their symbols."""
    return {symbol.name: numbers[name] for name, symbol in traced.symbols.items()}


def require_states(step: OneStep, state: Mapping[str, Tensor]) -> None:
    """Refuse a state without all of its tensors."""
    if missing := step.letters.keys() - state.keys():
        raise ValueError(f"{step.traced.name}: the state has no {', '.join(sorted(missing))}")


def split(
    step: OneStep, view: View, weight: Tensor, gradient: Tensor, state: Mapping[str, Tensor]
) -> list[Unit]:
    """The units of a weight with its gradient and its state."""
    letters = step.letters
    require_states(step, state)
    weights, grads = (view.rows(x.double()).numpy() for x in (weight, gradient))
    parts = {n: _split_state(n, state[n], view, weight, len(weights)) for n in letters}
    for name, entries in parts.items():
        if name in step.traced.scalar_states:
            parts[name] = [float(np.asarray(x).reshape(-1)[0]) for x in entries]
    return [
        Unit(w, g, {letters[n]: entries[i] for n, entries in parts.items()})
        for i, (w, g) in enumerate(zip(weights, grads, strict=True))
    ]


def _split_state(name: str, value: Tensor, view: View, weight: Tensor, units: int) -> list[Any]:
    """The part of a state that each unit has."""
    value = value.double()
    if value.ndim == 0:
        return [value.item()] * units
    if value.shape == weight.shape:
        return [*view.rows(value).numpy()]
    if value.shape == view.total(weight).shape:
        return [x.item() for x in view.units(value)]
    if value.numel() == weight.numel() and units == 1:
        return [value.flatten().numpy()]
    if value.numel() == 1:
        return [value.item()] * units
    raise ValueError(
        f"the state {name!r} of shape {tuple(value.shape)} does not split into the units of a "
        f"weight of shape {tuple(weight.shape)} in the view {view}"
    )


def _join(name: str, parts: list[Any], view: View, weight: Tensor, like: Tensor) -> Tensor:
    """The state of the whole weight from that of each unit."""
    if like.shape == weight.shape:
        rows = [np.broadcast_to(part, weight.numel() // len(parts)) for part in parts]
        return view.from_rows(torch.tensor(np.stack(rows)), weight)
    values = torch.tensor(np.array(parts, dtype=float))
    if values.ndim > 1 or like.numel() not in (1, len(values)):
        raise ValueError(
            f"the state {name!r} of shape {tuple(like.shape)} is not one number for each unit of a "
            f"weight of shape {tuple(weight.shape)} in the view {view}"
        )
    total = view.total(torch.zeros_like(weight, dtype=torch.float64))
    if like.ndim and like.shape == total.shape:
        return view.from_rows(
            values.reshape(-1, 1).expand(-1, weight.numel() // len(parts)).contiguous(), weight
        ).reshape(weight.shape)[tuple(slice(0, n) for n in total.shape)]
    if like.numel() > 1:
        return values.reshape(like.shape)
    if len(values) > 1 and not torch.allclose(values, values[:1].expand(len(values)), rtol=1e-9):
        raise ValueError(f"the units do not agree on the state {name!r}, of which there is one")
    return values[0].reshape(like.shape)


def is_start(traced: Trace, weight: Tensor, state: Mapping[str, Tensor]) -> bool:
    """Tell if a state is the one that `init` returns."""
    for name, value in state.items():
        start = traced.starts.get(name)
        if start is None:
            continue
        of_weight, constant = start if isinstance(start, tuple) else (0, start)
        expected = float(constant) + (float(of_weight) * weight if of_weight != 0 else 0)
        if not torch.equal(value.double(), torch.as_tensor(expected).expand(value.shape).double()):
            return False
    return True


def unit_numbers(step: OneStep, unit: Unit, values: Mapping[str, float]) -> NumericEvaluator:
    """The numbers of a step for one unit.

    Raises:
        OutsideError: an assumption does not hold.
    """
    vectors = {"w": unit.weight, "g": unit.grad}
    scalars = dict(values)
    for letter, value in unit.state.items():
        if letter in step.scalars:
            scalars[letter] = float(value)
        else:
            vectors[letter] = np.asarray(value)
    numbers = NumericEvaluator(step.algebra, vectors, scalars)
    _check_assumptions(step, unit, numbers)
    return numbers


def _check_assumptions(step: OneStep, unit: Unit, numbers: NumericEvaluator) -> None:
    name, lengths = step.traced.name, [np.linalg.norm(x) for x in (unit.weight, unit.grad)]
    if not all(length > 0 for length in lengths):
        raise OutsideError(f"{name}: the law assumes w, g not 0")
    cosine = float(unit.weight @ unit.grad) / (lengths[0] * lengths[1])
    if ("w", "g") in step.algebra.space.known and abs(cosine) > ALMOST:
        raise OutsideError(
            f"{name}: the law assumes <w, g> = 0, cos(w, g) is {cosine:.3g}; "
            "scale_invariant=False gives the law of any gradient"
        )
    for letter, symbol in step.scalars.items():
        value = unit.state[letter]
        if (symbol.is_positive and not value > 0) or (symbol.is_nonnegative and not value >= 0):
            sign = "positive" if symbol.is_positive else "at least 0"
            raise OutsideError(
                f"{name}: the law has {letter} {sign}, as steps leave it; got {value}"
            )
    for text, condition in zip(step.facts.assumptions, step.facts.conditions, strict=True):
        if not numbers.holds(*condition):
            raise OutsideError(f"{name}: the law assumes {text}, which these numbers do not meet")


def _refuse_projection(
    step: OneStep,
    weight: Tensor,
    gradient: Tensor,
    state: Mapping[str, Tensor],
    values: Mapping[str, float],
) -> None:
    """Refuse a scale-invariance test that passes in a view of the rule, which the law says fails.

    A view of the rule may have other units than the law: all rows together may be orthogonal to
    their gradient where no row is.
    """
    shaped = {n: x for n, x in state.items() if x.shape == weight.shape}
    single = {step.letters[n]: float(x) for n, x in state.items() if x.ndim == 0}
    names = ["w", "g", *(step.letters[n] for n in shaped)]
    for view in step.traced.views if step.facts.failed else ():
        rows = (view.rows(x.double()).numpy() for x in (weight, gradient, *shaped.values()))
        for unit in zip(*rows, strict=True):
            vectors = dict(zip(names, unit, strict=True))
            numbers = NumericEvaluator(step.algebra, vectors, {**values, **single})
            if any(numbers.holds(test.func, *test.args) for test in step.facts.failed):
                raise OutsideError(
                    f"{step.traced.name}: the law assumes that no projection acts; the test of the "
                    f"view {view} passes for these numbers"
                )


def _evaluate_unit(
    step: OneStep, unit: Unit, values: Mapping[str, float]
) -> tuple[Array, dict[str, Any]]:
    """The new weight of a unit, and its new state by letter."""
    numbers = unit_numbers(step, unit, values)
    after = {
        letter: numbers.vector(x) if isinstance(x, Vector) else numbers.scalar(sp.sympify(x))
        for letter, x in step.states.items()
    }
    return numbers.vector(step.weight), after
