"""The step that a law says, in numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
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
class Inputs:
    """Inputs of one step.

    Attributes:
        weight, grad: of one shape.
        state: as the rule's `init` or `step` returns it.
        values: numbers for the hyper-parameters, by the names of their symbols.
    """

    weight: Tensor
    grad: Tensor
    state: Mapping[str, Tensor]
    values: Mapping[str, float]


def evaluate(step: OneStep, view: View, inputs: Inputs) -> tuple[Tensor, dict[str, Tensor]]:
    """The new weight and the new state, in float64.

    Args:
        step: the step on symbols, with the first one.
        view: splits the weight into units.
        inputs: of the step.

    Raises:
        OutsideError: an assumption of the law does not hold for these inputs.
        ValueError: a state is missing, or does not split into units.
    """
    used = choose_step(step, inputs)
    numbers = read_units(used, view, inputs)
    _refuse_projection(used, inputs)
    weight = inputs.weight
    new = view.from_rows(torch.tensor(numbers.vector(used.weight)), weight)
    after = {
        name: _join(name, used.states[letter], numbers, view, weight, inputs.state[name])
        for name, letter in step.letters.items()
    }
    return new, after


def symbol_values(traced: Trace, numbers: Mapping[str, float]) -> dict[str, float]:
    """Numbers of hyper-parameters, by the names of their symbols."""
    return {symbol.name: numbers[name] for name, symbol in traced.symbols.items()}


def require_states(step: OneStep, state: Mapping[str, Tensor]) -> None:
    """Refuse a state without all of its tensors."""
    if missing := step.letters.keys() - state.keys():
        raise ValueError(f"{step.traced.name}: the state has no {', '.join(sorted(missing))}")


def choose_step(step: OneStep, inputs: Inputs) -> OneStep:
    """The first step where the state is the one that `init` returns, else the general one."""
    if step.first is None:
        return step
    starts = step.traced.starts
    for name, value in inputs.state.items():
        start = starts.get(name)
        if start is None:
            continue
        of_weight, constant = start if isinstance(start, tuple) else (0, start)
        share = float(of_weight) * inputs.weight if of_weight != 0 else 0
        expected = torch.as_tensor(float(constant) + share, dtype=torch.float64)
        if not torch.equal(value, expected.to(value.dtype).expand(value.shape)):
            return step
    return step.first


def read_units(step: OneStep, view: View, inputs: Inputs) -> NumericEvaluator:
    """The numbers of a step for each unit of a weight.

    Raises:
        OutsideError: an assumption does not hold.
        ValueError: a state is missing, or does not split into units.
    """
    require_states(step, inputs.state)
    w, g = (view.rows(x.double()).numpy() for x in (inputs.weight, inputs.grad))
    vectors, scalars = {"w": w, "g": g}, dict[str, Any](inputs.values)
    for name, letter in step.letters.items():
        entries = _split(name, inputs.state[name], view, inputs.weight)
        if letter in step.scalars:
            scalars[letter] = entries[:, 0]
        else:
            vectors[letter] = np.broadcast_to(entries, w.shape)
    numbers = NumericEvaluator(step.algebra, vectors, scalars)
    _check_assumptions(step, numbers)
    return numbers


def _split(name: str, value: Tensor, view: View, weight: Tensor) -> Array:
    """The part of a state that each unit has, one unit per row."""
    value, units = value.double(), len(view.rows(weight))
    if value.shape == weight.shape:
        return view.rows(value).numpy()
    if value.ndim and value.shape == view.total(weight).shape:
        return view.units(value).reshape(units, 1).numpy()
    if value.numel() == weight.numel() and units == 1:
        return value.reshape(1, -1).numpy()
    if value.numel() == 1:
        return np.full((units, 1), value.item())
    raise ValueError(
        f"the state {name!r} of shape {tuple(value.shape)} does not split into the units of a "
        f"weight of shape {tuple(weight.shape)} in the view {view}"
    )


def _join(
    name: str, x: Any, numbers: NumericEvaluator, view: View, weight: Tensor, like: Tensor
) -> Tensor:
    """The state of the whole weight from that of each unit."""
    shape = numbers.vectors["w"].shape
    if like.shape == weight.shape:
        return view.from_rows(torch.tensor(np.broadcast_to(numbers.entries(x), shape)), weight)
    if isinstance(x, Vector) or like.numel() not in (1, shape[0]):
        raise ValueError(
            f"the state {name!r} of shape {tuple(like.shape)} is not one number for each unit of a "
            f"weight of shape {tuple(weight.shape)} in the view {view}"
        )
    values = torch.tensor(np.broadcast_to(numbers.scalar(x), shape[:1]))
    if like.numel() > 1:
        return values.reshape(like.shape)
    if not torch.allclose(values, values[:1], rtol=1e-9):
        raise ValueError(f"the units do not agree on the state {name!r}, of which there is one")
    return values[0].reshape(like.shape)


def _check_assumptions(step: OneStep, numbers: NumericEvaluator) -> None:
    name, (w, g) = step.traced.name, (numbers.vectors[atom] for atom in "wg")
    lengths = [np.linalg.norm(x, axis=1) for x in (w, g)]
    if not all((length > 0).all() for length in lengths):
        raise OutsideError(f"{name}: the law assumes w, g not 0")
    cosines = (w * g).sum(1) / (lengths[0] * lengths[1])
    cosine = cosines[np.abs(cosines).argmax()]
    if ("w", "g") in step.algebra.space.known and abs(cosine) > ALMOST:
        raise OutsideError(
            f"{name}: the law assumes <w, g> = 0, cos(w, g) is {cosine:.3g}; "
            "scale_invariant=False gives the law of any gradient"
        )
    for letter, symbol in step.scalars.items():
        least = numbers.values[letter].min()
        if (symbol.is_positive and not least > 0) or (symbol.is_nonnegative and not least >= 0):
            sign = "positive" if symbol.is_positive else "at least 0"
            raise OutsideError(
                f"{name}: the law has {letter} {sign}, as steps leave it; got {least}"
            )
    for text, condition in step.facts.assumptions.items():
        if not numbers.holds(*condition).all():
            raise OutsideError(f"{name}: the law assumes {text}, which these numbers do not meet")


def _refuse_projection(step: OneStep, inputs: Inputs) -> None:
    """Refuse a scale-invariance test that passes in a view of the rule, which the law says fails.

    A view of the rule may have other units than the law: all rows together may be orthogonal to
    their gradient where no row is.
    """
    weight, state = inputs.weight, inputs.state
    shaped = {step.letters[n]: x for n, x in state.items() if x.shape == weight.shape}
    single = {step.letters[n]: float(x) for n, x in state.items() if x.ndim == 0}
    for view in step.traced.views if step.facts.failed else ():
        whole = {"w": weight, "g": inputs.grad, **shaped}
        vectors = {atom: view.rows(x.double()).numpy() for atom, x in whole.items()}
        numbers = NumericEvaluator(step.algebra, vectors, {**inputs.values, **single})
        if any(numbers.holds(test.func, *test.args).any() for test in step.facts.failed):
            raise OutsideError(
                f"{step.traced.name}: the law assumes that no projection acts; the test of the "
                f"view {view} passes for these numbers"
            )
