"""One step of a recipe in explicit coordinates, where entrywise operations are exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import sympy as sp

from spherenorm_theory.algebra import Array, Coordinates, Trace, interpret
from spherenorm_theory.laws._one_step import choose_letters


def step_in_coordinates(
    traced: Trace, weight: list[Any], grad: list[Any], **values: Any
) -> tuple[Array, dict[str, Array], Coordinates]:
    """Read the recorded step of a recipe in coordinates.

    Args:
        traced: a trace of dimension len(weight).
        weight, grad: sympy coordinates.
        values: hyper-parameters, and states by their letter (m, v, t): a list of coordinates, or a
            number. Hyper-parameters that are not given stay symbols; states that are not given are
            0, as on the first step.

    Returns:
        The new weight, the new states by their letters, and the algebra with its assumptions; the
        arrays have the shape of the traced weight.

    Raises:
        ValueError: the weight has another number of coordinates than the trace.

    Example:
        >>> plain = trace("sgd", dimension=2, momentum=0.0, weight_decay=0.0)
        >>> (new,), states, _ = step_in_coordinates(plain, [1, 2], [-2, 1])
        >>> print(new)
        [2*lr + 1 2 - lr]
    """
    if len(weight) != traced.dimension:
        raise ValueError(
            f"the recipe was traced for dimension {traced.dimension}, "
            f"the weight has {len(weight)} coordinates"
        )
    given = {"weight": weight, "grad": grad}
    inputs = [_input(traced, kind, name, given, values) for kind, name in traced.inputs]
    algebra = Coordinates()
    new, *states = interpret(traced.record, algebra, inputs)
    return new, dict(zip(choose_letters(traced).values(), states, strict=True)), algebra


def _input(
    traced: Trace, kind: str, name: str, given: dict[str, list[Any]], values: dict[str, Any]
) -> Array:
    """The array of an input of the record."""
    if kind == "hyper":
        return np.array(sp.sympify(values.get(name, traced.numbers[name])), dtype=object)
    letter = choose_letters(traced).get(name, "")
    if kind == "state" and name in traced.scalar_states:
        return np.array(sp.sympify(values.get(letter, 0)), dtype=object)
    zeros = [sp.Integer(0)] * traced.dimension
    coordinates = given[kind] if kind in given else values.get(letter, zeros)
    return np.array([*map(sp.sympify, coordinates)], dtype=object).reshape(traced.shape)
