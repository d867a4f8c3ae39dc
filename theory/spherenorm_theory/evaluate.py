"""Formal results in numbers: each vector an array, each inner product the one of the arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import sympy as sp
import torch
from torch import Tensor

from spherenorm import Update, View
from spherenorm_theory.opaque_rules import replace_opaque_rules, states_of_opaque_rules
from spherenorm_theory.printing import show
from spherenorm_theory.step import Step
from spherenorm_theory.symbols import DIMENSION, Inner, Norm, Vector, is_entry
from spherenorm_theory.tracing import Trace, count_units
from spherenorm_theory.vectors import OpaqueVector, VectorAlgebra

if TYPE_CHECKING:  # norm_law verifies its laws with this module
    from spherenorm_theory.norm_law import NormLaw

Array = np.ndarray[Any, Any]


@dataclass
class Values:
    """Numbers for what a step on formal vectors takes, and from them for all that it makes.

    Many units are evaluated at once: a vector is then a matrix with one unit per row, a scalar an
    array with one number per unit.

    Args:
        algebra: of the step.
        vectors: an array for each atom that is an input, as w, g, m, of shape (..., entries).
        numbers: of each scalar input by its name, of shape () or (...).
        apply: the direction that the rule of a letter gives of its argument.

    Example:
        >>> one = Values(Formal(), {"w": np.array([3.0, 4.0])}, {"lr": 0.1})
        >>> one.scalar(Norm("w") ** 2 * sp.Symbol("lr", positive=True)).item()
        2.5
    """

    algebra: VectorAlgebra
    vectors: dict[str, Array]
    numbers: Mapping[str, Any]
    apply: Callable[[OpaqueVector, Array], Array] | None = None
    _known: dict[sp.Symbol, Array] = field(default_factory=dict)

    def with_values(self, known: Mapping[sp.Symbol, Any]) -> Values:
        """The same numbers, but for some norms and products."""
        return replace(self, _known={s: np.asarray(x, dtype=float) for s, x in known.items()})

    def scalar(self, expression: sp.Basic) -> Array:
        """A formula or a relation in numbers; nan where it has no value, as 1 / 0."""
        symbols, function = _compiled(sp.sympify(expression))
        arrays = [self._symbol(symbol) for symbol in symbols]
        if len({array.shape for array in arrays}) > 1:
            arrays = [*np.broadcast_arrays(*arrays)]
        value = np.asarray(function(*arrays))
        return np.where(np.isfinite(value), value, np.nan) if value.dtype.kind in "fi" else value

    def vector(self, x: Vector) -> Array:
        """A combination of atoms as an array."""
        zero = np.zeros_like(self.vectors["w"])
        return sum((self.scalar(c)[..., None] * self._atom(a) for a, c in x.items()), zero)

    def _atom(self, name: str) -> Array:
        if name not in self.vectors:
            self.vectors[name] = self._make(name)
        return self.vectors[name]

    def _make(self, name: str) -> Array:
        if name == "1":
            return np.ones_like(self.vectors["w"])
        if name in self.algebra.combinations:
            return self.vector(self.algebra.combinations[name])
        if name not in self.algebra.opaque_vectors:
            raise ValueError(f"the law needs the vector {name}, which the units do not have")
        made = self.algebra.opaque_vectors[name]
        if self.apply is not None and made.rule is not None and made.argument is not None:
            return self.apply(made, self.vector(made.argument))
        symbols, function = _compiled(made.formula)
        shape = self.vectors["w"].shape
        arrays = (
            self._atom(s.name) if is_entry(s) else self._symbol(s)[..., None] for s in symbols
        )
        return np.array(np.broadcast_to(function(*arrays), shape), dtype=float)

    def _symbol(self, symbol: sp.Symbol) -> Array:
        if symbol not in self._known:
            self._known[symbol] = np.asarray(self._find(symbol), dtype=float)
        return self._known[symbol]

    def _find(self, symbol: sp.Symbol) -> Any:
        if isinstance(symbol, Norm):
            return np.linalg.norm(self._atom(symbol.a), axis=-1)
        if isinstance(symbol, Inner):
            return (self._atom(symbol.a) * self._atom(symbol.b)).sum(-1)
        if symbol in self.algebra.facts.open_branches:
            return self.scalar(self.algebra.facts.open_branches[symbol])
        if symbol == DIMENSION:
            return self.vectors["w"].shape[-1]
        if symbol.name not in self.numbers:
            raise ValueError(f"the law needs the number {symbol.name}, which the units do not have")
        return self.numbers[symbol.name]


@lru_cache(maxsize=4096)
def _compiled(expression: sp.Basic) -> tuple[tuple[sp.Symbol, ...], Callable[..., Any]]:
    """The symbols of a formula, and the function of their values."""
    symbols = tuple(sorted(expression.free_symbols, key=str))
    plain = {s: sp.Dummy() for s in symbols}
    formula = expression.xreplace({**plain, sp.zoo: sp.nan})
    function = sp.lambdify([*plain.values()], formula, "numpy", cse=True)

    def quiet(*arguments: Array) -> Any:
        with np.errstate(all="ignore"):
            return function(*arguments)

    return symbols, quiet


# A step on symbols in numbers: of all units of a weight at once, within its hypotheses.


ALMOST = 1e-9
"""<w, g> = 0 up to rounding: a cosine below this."""


class OutsideError(ValueError):
    """An assumption of the law does not hold for the inputs."""


@dataclass(frozen=True)
class VerifiedDomain:
    """The weights for which a law was compared with its code, and agrees.

    Attributes:
        view: the view that splits a weight into the units of the law.
        multi_unit: True if the law holds for each unit of a weight of several units.
        dimensions: number of dimensions of a weight of one unit; 0 where `multi_unit`.
        closed_form_verified: True if the closed form agrees with a run from its first step on.
    """

    view: View
    multi_unit: bool
    dimensions: int
    closed_form_verified: bool

    @property
    def note(self) -> str:
        """The units that the law is about, in text."""
        if not self.multi_unit:
            return f"the weight is one unit, of {self.dimensions} dimensions"
        names = {"channel": "each index of dimension 0", "layer": "the whole tensor"}
        return f"units: {names.get(self.view.name, f'those of the view {self.view}')} of a weight"

    def require(self, name: str, weight: Tensor) -> None:
        """Refuse a weight that the law is not about.

        Raises:
            OutsideError: it has several units, or another number of dimensions.
        """
        units = count_units(self.view, tuple(weight.shape))
        if not self.multi_unit and (units != 1 or weight.ndim != self.dimensions):
            raise OutsideError(
                f"{name}: {self.note}; got {units} units and {weight.ndim} dimensions"
            )


UNVERIFIED = VerifiedDomain(View(None), False, 0, False)
"""The domain of a law that was not compared with its code yet: no weight has 0 dimensions."""


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
    for other in step.traced.views if step.facts.tests_assumed_false else ():
        there = read_units(step, other, inputs)
        if any(there.scalar(test).any() for test in step.facts.tests_assumed_false):
            raise OutsideError(
                f"{step.traced.name}: the law assumes that no projection acts; the test of the "
                f"view {other} passes for these numbers"
            )
    after = {
        name: _join(name, step.states[letter], numbers, view, inputs)
        for name, letter in step.state_atoms.items()
        if name not in step.traced.opaque_states
    }
    return view.from_rows(torch.tensor(numbers.vector(step.weight)), inputs.weight), after


def read_step(law: NormLaw, view: View, inputs: Inputs, new: Tensor) -> Values:
    """The numbers of a step for each unit, with w' and s of the new weight."""
    numbers = read_units(law.step, view, inputs)
    keep, vectors = numbers.scalar(law.retention), numbers.vectors
    vectors["w'"] = view.rows(new.double()).numpy()
    vectors["s"] = vectors["w'"] - keep[..., None] * vectors["w"]
    return numbers


def read_units(step: Step, view: View, inputs: Inputs) -> Values:
    """The numbers of a step for each unit of a weight; of the states, those that units have.

    Raises:
        ValueError: a state is missing.
    """
    if missing := step.state_atoms.keys() - inputs.state.keys():
        raise ValueError(f"{step.traced.name}: the state has no {', '.join(sorted(missing))}")
    w, g = (view.rows(x.double()).numpy() for x in (inputs.weight, inputs.grad))
    vectors, scalars = {"w": w, "g": g}, dict[str, Any](inputs.values)
    for name, letter in step.state_atoms.items():
        value, like = inputs.state[name].double(), inputs.weight
        if value.shape == like.shape and letter not in step.scalars:
            vectors[letter] = view.rows(value).numpy()
        elif value.numel() == 1:
            scalars[letter] = np.full(len(w), value.item())
        elif value.shape == view.total(like).shape:
            scalars[letter] = view.units(value).reshape(-1).numpy()
        if letter in scalars and letter not in step.scalars:
            vectors[letter] = np.broadcast_to(scalars[letter][:, None], w.shape)
    return Values(step.algebra, vectors, scalars, _rules(step.traced, view, inputs))


def _rules(
    traced: Trace, view: View, inputs: Inputs
) -> Callable[[OpaqueVector, Array], Array] | None:
    """The function that applies the rules of letters, unit by unit as the rules do."""
    if not traced.opaque_rules:
        return None
    numbers = {n: inputs.values[s.name] for n, s in traced.symbols.items()}
    tensors = {n: torch.tensor(x, dtype=torch.float64) for n, x in numbers.items()}
    rule, found = replace_opaque_rules(traced.build(tensors))
    states = states_of_opaque_rules(rule)

    def apply(made: OpaqueVector, direction: Array) -> Array:
        letter, weight = found[made.rule_index], inputs.weight.double()
        own: dict[str, Any] = {
            n: inputs.state[outer] for n, outer in states[made.rule_index].items()
        }
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
    if ("w", "g") in step.algebra.given_products and abs(cosine) > ALMOST:
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
