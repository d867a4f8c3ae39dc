"""A step on symbols in numbers: of all units of a weight at once, within its hypotheses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spherenorm import Update, View
from spherenorm_theory.algebra.formal import Made
from spherenorm_theory.algebra.letters import marked, states_of_letters
from spherenorm_theory.algebra.printing import show
from spherenorm_theory.algebra.symbols import Vector
from spherenorm_theory.algebra.trace import Trace
from spherenorm_theory.algebra.units import count_units
from spherenorm_theory.algebra.values import Array, Values
from spherenorm_theory.laws.split import Split
from spherenorm_theory.laws.step import Step

ALMOST = 1e-9
"""<w, g> = 0 up to rounding: a cosine below this."""


class OutsideError(ValueError):
    """An assumption of the law does not hold for the inputs."""


@dataclass(frozen=True)
class Agreement:
    """The weights for which a law was held against its code, and agrees.

    Attributes:
        view: splits them into the units that the law is about.
        several: the law holds for each unit of a weight of several ones.
        dimensions: of a weight of one unit.
        from_start: the closed form was held against a run from the first step on.
    """

    view: View
    several: bool
    dimensions: int
    from_start: bool

    @property
    def note(self) -> str:
        """The units that the law is about, in text."""
        if not self.several:
            return f"the weight is one unit, of {self.dimensions} dimensions"
        names = {"channel": "each index of dimension 0", "layer": "the whole tensor"}
        return f"units: {names.get(self.view.name, f'those of the view {self.view}')} of a weight"

    def require(self, name: str, weight: Tensor) -> None:
        """Refuse a weight that the law is not about.

        Raises:
            OutsideError: it has several units, or another number of dimensions.
        """
        units = count_units(self.view, tuple(weight.shape))
        if not self.several and (units != 1 or weight.ndim != self.dimensions):
            raise OutsideError(
                f"{name}: {self.note}; got {units} units and {weight.ndim} dimensions"
            )


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


def evaluate(step: Step, view: View, inputs: Inputs) -> tuple[Tensor, dict[str, Tensor]]:
    """The new weight and the new state, in float64; the states of letters are left out.

    Args:
        step: the step on symbols.
        view: splits the weight into units.
        inputs: of the step.

    Raises:
        OutsideError: an assumption of the law does not hold for these inputs.
        ValueError: a state is missing, or does not split into units.
    """
    numbers = read_units(step, view, inputs)
    check_assumptions(step, numbers)
    # A view of the rule may have other units than the law: all rows together may be orthogonal to
    # their gradient where no row is.
    for other in step.traced.views if step.facts.failed else ():
        there = read_units(step, other, inputs)
        if any(there.scalar(test).any() for test in step.facts.failed):
            raise OutsideError(
                f"{step.traced.name}: the law assumes that no projection acts; the test of the "
                f"view {other} passes for these numbers"
            )
    after = {
        name: _join(name, step.states[letter], numbers, view, inputs)
        for name, letter in step.letters.items()
        if name not in step.traced.inside
    }
    return view.from_rows(torch.tensor(numbers.vector(step.weight)), inputs.weight), after


def read_step(law: Split, view: View, inputs: Inputs, new: Tensor) -> Values:
    """The numbers of a step for each unit, with w' and s of the new weight."""
    numbers = read_units(law.step, view, inputs)
    keep, vectors = numbers.scalar(law.keep), numbers.vectors
    vectors["w'"] = view.rows(new.double()).numpy()
    vectors["s"] = vectors["w'"] - keep[..., None] * vectors["w"]
    return numbers


def read_units(step: Step, view: View, inputs: Inputs) -> Values:
    """The numbers of a step for each unit of a weight; of the states, those that units have.

    Raises:
        ValueError: a state is missing.
    """
    if missing := step.letters.keys() - inputs.state.keys():
        raise ValueError(f"{step.traced.name}: the state has no {', '.join(sorted(missing))}")
    w, g = (view.rows(x.double()).numpy() for x in (inputs.weight, inputs.grad))
    vectors, scalars = {"w": w, "g": g}, dict[str, Any](inputs.values)
    for name, letter in step.letters.items():
        value, like = inputs.state[name].double(), inputs.weight
        if value.shape == like.shape and letter not in step.scalars:
            vectors[letter] = view.rows(value).numpy()
        elif value.numel() == 1:
            scalars[letter] = np.full(len(w), value.item())
        elif value.shape == view.unit_sums(like).shape:
            scalars[letter] = view.units(value).reshape(-1).numpy()
        if letter in scalars and letter not in step.scalars:
            vectors[letter] = np.broadcast_to(scalars[letter][:, None], w.shape)
    return Values(step.algebra, vectors, scalars, _rules(step.traced, view, inputs))


def _rules(traced: Trace, view: View, inputs: Inputs) -> Callable[[Made, Array], Array] | None:
    """The function that applies the rules of letters, unit by unit as the rules do."""
    if not traced.letters:
        return None
    numbers = {n: inputs.values[s.name] for n, s in traced.symbols.items()}
    tensors = {n: torch.tensor(x, dtype=torch.float64) for n, x in numbers.items()}
    rule, found = marked(traced.build(tensors))
    states = states_of_letters(rule)

    def apply(made: Made, direction: Array) -> Array:
        letter, weight = found[made.place], inputs.weight.double()
        own: dict[str, Any] = {n: inputs.state[outer] for n, outer in states[made.place].items()}
        own |= {"step": own["step"] + 1} if "step" in own else {}
        given = view.from_rows(torch.tensor(direction), weight)
        update = letter.update(Update(weight, inputs.grad.double(), given), own)[0]
        return view.rows(update.direction).numpy()

    return apply


def _join(name: str, x: Any, numbers: Values, view: View, inputs: Inputs) -> Tensor:
    """The state of the whole weight from that of each unit.

    Raises:
        ValueError: the state does not split into units, or they do not agree on it.
    """
    like, shape = inputs.state[name], numbers.vectors["w"].shape
    if like.shape == inputs.weight.shape:
        rows = numbers.vector(x) if isinstance(x, Vector) else numbers.scalar(x)[..., None]
        return view.from_rows(torch.tensor(np.broadcast_to(rows, shape)), inputs.weight)
    if isinstance(x, Vector) or like.numel() not in (1, shape[0]):
        raise ValueError(f"the state {name!r} does not split into the units of the view {view}")
    values = torch.tensor(np.broadcast_to(numbers.scalar(x), shape[:1]))
    if like.numel() == 1 and not torch.allclose(values, values[:1], rtol=1e-9):
        raise ValueError(f"the units do not agree on the state {name!r}, of which there is one")
    return values[: like.numel()].reshape(like.shape)


def check_assumptions(step: Step, numbers: Values) -> None:
    """Refuse inputs that do not meet the hypotheses.

    Raises:
        OutsideError: naming one.
    """
    name, (w, g) = step.traced.name, (numbers.vectors[atom] for atom in "wg")
    lengths = np.linalg.norm(w, axis=1) * np.linalg.norm(g, axis=1)
    if not (lengths > 0).all():
        raise OutsideError(f"{name}: the law assumes w, g not 0")
    cosines = (w * g).sum(1) / lengths
    cosine = cosines[np.abs(cosines).argmax()]
    if ("w", "g") in step.algebra.known and abs(cosine) > ALMOST:
        raise OutsideError(
            f"{name}: the law assumes <w, g> = 0, cos(w, g) is {cosine:.3g}; "
            "scale_invariant=False gives the law of any gradient"
        )
    for letter, symbol in step.scalars.items():
        least = np.min(numbers.scalar(symbol))
        if (symbol.is_positive and not least > 0) or (symbol.is_nonnegative and not least >= 0):
            sign = "positive" if symbol.is_positive else "at least 0"
            raise OutsideError(
                f"{name}: the law has {letter} {sign}, as steps leave it; got {least}"
            )
    for relation in step.facts.hypotheses:
        if not numbers.scalar(relation).all():
            raise OutsideError(
                f"{name}: the law assumes {show(relation)}, which these numbers do not meet"
            )
