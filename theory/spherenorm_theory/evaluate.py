"""A step on symbols in numbers: for all units of a weight at once, within its hypotheses.

`Values` evaluates formulas: each vector is an array, and each inner product that of the arrays.
`evaluate` does so for the weight and the states of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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

if TYPE_CHECKING:  # norm_law imports this module
    from spherenorm_theory.norm_law import NormLaw

Array = np.ndarray[Any, Any]

ORTHOGONAL_COSINE = {torch.float64: 1e-9, torch.float32: 1e-6}
"""Largest |cos(w, g)| that counts as <w, g> = 0 up to rounding, by the type of w."""


class OutsideError(ValueError):
    """An assumption of the law does not hold for the inputs."""


# Formulas in numbers


@dataclass
class Values:
    """Numbers for the inputs of a step, and from them for all its formulas.

    Many units are evaluated at once: a vector is a matrix with one unit per row, and a scalar is an
    array with one number per unit.

    Args:
        algebra: the vector algebra of the step.
        vectors: array of shape (..., entries) for each atom that is an input, such as w, g, m.
        numbers: value of each scalar input by its name, of shape () or (...).
        apply: function that returns the direction of an opaque rule for its argument.

    Example:
        >>> values = Values(VectorAlgebra(), {"w": np.array([3.0, 4.0])}, {"lr": 0.1})
        >>> values.scalar(Norm("w") ** 2 * sp.Symbol("lr", positive=True)).item()
        2.5
    """

    algebra: VectorAlgebra
    vectors: dict[str, Array]
    numbers: Mapping[str, Any]
    apply: Callable[[OpaqueVector, Array], Array] | None = None
    _symbol_values: dict[sp.Symbol, Array] = field(default_factory=dict)

    @staticmethod
    def stack(parts: Sequence[Values]) -> Values:
        """Return the numbers of the units of several weights of one shape, one after another."""
        if len(parts) == 1:
            return parts[0]
        n_rows = len(parts[0].vectors["w"])
        vectors = {a: np.concatenate([part.vectors[a] for part in parts]) for a in parts[0].vectors}
        numbers = {
            name: np.concatenate(
                [np.broadcast_to(np.asarray(p.numbers[name], dtype=float), n_rows) for p in parts]
            )
            for name in parts[0].numbers
        }

        def apply_to_each(opaque: OpaqueVector, direction: Array) -> Array:
            pairs = zip(parts, np.split(direction, len(parts)), strict=True)
            return np.concatenate([part.apply(opaque, rows) for part, rows in pairs if part.apply])

        apply = None if parts[0].apply is None else apply_to_each
        return Values(parts[0].algebra, vectors, numbers, apply)

    def with_values(self, values: Mapping[sp.Symbol, Any]) -> Values:
        """Return the same numbers with other values of some norms and products."""
        arrays = {symbol: np.asarray(x, dtype=float) for symbol, x in values.items()}
        return replace(self, _symbol_values=arrays)

    def scalar(self, expression: sp.Basic) -> Array:
        """Evaluate a formula or a relation; nan where it has no value, as 1 / 0."""
        expression = sp.sympify(expression)
        if expression.is_Rational:  # most coefficients are 1 or -1
            return np.array(float(expression))
        symbols, function = _compile(expression)
        arrays = [self._symbol(symbol) for symbol in symbols]
        if len({array.shape for array in arrays}) > 1:
            arrays = [*np.broadcast_arrays(*arrays)]
        value = np.asarray(function(*arrays))
        is_number = value.dtype.kind in "fi"
        return np.where(np.isfinite(value), value, np.nan) if is_number else value

    def vector(self, x: Vector) -> Array:
        """Evaluate a linear combination of atoms."""
        zero = np.zeros_like(self.vectors["w"])
        return sum((self.scalar(c)[..., None] * self._atom(a) for a, c in x.items()), zero)

    def _atom(self, name: str) -> Array:
        if name not in self.vectors:
            self.vectors[name] = self._compute_atom(name)
        return self.vectors[name]

    def _compute_atom(self, name: str) -> Array:
        """Compute an atom that is no input: a named combination, or an opaque vector."""
        if name == "1":
            return np.ones_like(self.vectors["w"])
        if name in self.algebra.combinations:
            return self.vector(self.algebra.combinations[name])
        if name not in self.algebra.opaque_vectors:
            raise ValueError(f"the law needs the vector {name}, which the units do not have")
        opaque = self.algebra.opaque_vectors[name]
        if self.apply is not None and opaque.rule is not None and opaque.argument is not None:
            return self.apply(opaque, self.vector(opaque.argument))
        symbols, function = _compile(opaque.formula)
        arrays = (
            self._atom(s.name) if is_entry(s) else self._symbol(s)[..., None] for s in symbols
        )
        shape = self.vectors["w"].shape
        return np.array(np.broadcast_to(function(*arrays), shape), dtype=float)

    def _symbol(self, symbol: sp.Symbol) -> Array:
        if symbol not in self._symbol_values:
            value = self._compute_symbol(symbol)
            self._symbol_values[symbol] = np.asarray(value, dtype=float)
        return self._symbol_values[symbol]

    def _compute_symbol(self, symbol: sp.Symbol) -> Any:
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
def _compile(expression: sp.Basic) -> tuple[tuple[sp.Symbol, ...], Callable[..., Any]]:
    """Return the symbols of a formula, and the function of their values."""
    symbols = tuple(sorted(expression.free_symbols, key=str))
    # Without assumptions, so that x > 0 stays a question where x is the symbol of a norm.
    dummies = {symbol: sp.Dummy() for symbol in symbols}
    formula = expression.xreplace({**dummies, sp.zoo: sp.nan})
    function = sp.lambdify([*dummies.values()], formula, "numpy", cse=True)

    def without_warnings(*arguments: Array) -> Any:
        with np.errstate(all="ignore"):
            return function(*arguments)

    return symbols, without_warnings


# Steps in numbers


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
    def unit(self) -> str:
        """The unit that the law is about, in text."""
        if not self.multi_unit:
            return f"a weight of one unit and {self.dimensions} dimensions"
        names = {"channel": "one row of a weight", "layer": "a whole weight"}
        return names.get(self.view.name, f"one unit of a weight under the view {self.view}")

    def require(self, name: str, weight: Tensor) -> None:
        """Refuse a weight that the law is not about.

        Args:
            name: name of the recipe, for the message.
            weight: the weight.

        Raises:
            OutsideError: it has several units, or another number of dimensions.
        """
        n_units = count_units(self.view, tuple(weight.shape))
        if not self.multi_unit and (n_units != 1 or weight.ndim != self.dimensions):
            raise OutsideError(
                f"{name}: the law is about one unit of {self.dimensions} dimensions; this weight "
                f"has {n_units} units and {weight.ndim} dimensions"
            )


UNVERIFIED = VerifiedDomain(View(None), False, 0, False)
"""The domain of a law that was not compared with its code yet: no weight has 0 dimensions."""


@dataclass(frozen=True)
class Inputs:
    """Inputs of one step.

    Attributes:
        weight: the weight before the step.
        grad: the gradient, of the weight's shape.
        state: the state, as the rule's `init` or `step` returns it.
        values: numbers for the hyper-parameters, by the names of their symbols.
    """

    weight: Tensor
    grad: Tensor
    state: Mapping[str, Tensor]
    values: Mapping[str, float]


Result = tuple[Tensor, dict[str, Tensor]]
"""The new weight and the new state of a step."""


def evaluate(step: Step, view: View, inputs: Inputs) -> Result:
    """Return the new weight and the new state in float64, without the states of opaque rules.

    Args:
        step: the step on symbols.
        view: the view that splits the weight into units.
        inputs: the inputs of the step.

    Raises:
        OutsideError: an assumption of the law does not hold for these inputs.
        ValueError: a state is missing, or does not split into units.
    """
    (result,) = evaluate_batch(step, view, [inputs])
    if isinstance(result, ValueError):
        raise result
    return result


def evaluate_batch(
    step: Step, view: View, batch: Sequence[Inputs]
) -> list[Result | OutsideError | ValueError]:
    """Evaluate a step for several weights of one shape at once, as rows of the same formulas.

    Args:
        step: the step on symbols.
        view: the view that splits the weights into units.
        batch: the inputs of each weight.

    Returns:
        For each weight what `evaluate` returns, or the error that it raises.

    Raises:
        ValueError: a state is missing, or one that the step needs does not split into units.
    """
    units = [read_units(step, view, inputs) for inputs in batch]
    errors = _find_outside(step, view, batch, units)
    inside = [index for index, error in enumerate(errors) if error is None]
    results: list[Result | OutsideError | ValueError] = [error or ValueError() for error in errors]
    if not inside:
        return results
    values = Values.stack([units[index] for index in inside])
    weight_rows = values.vector(step.weight)
    state_rows: dict[str, Array] = {}
    for name, atom in step.state_atoms.items():
        if name not in step.traced.opaque_states:
            x = step.states[atom]
            state_rows[name] = values.vector(x) if isinstance(x, Vector) else values.scalar(x)
    n_rows = len(units[0].vectors["w"])
    for n, index in enumerate(inside):
        rows = slice(n * n_rows, (n + 1) * n_rows)
        inputs = batch[index]
        weight = view.from_rows(torch.tensor(weight_rows[rows]), inputs.weight)
        try:
            state = {
                name: _join_units(name, x[rows] if x.ndim else x, view, inputs, n_rows)
                for name, x in state_rows.items()
            }
        except ValueError as error:
            results[index] = error
        else:
            results[index] = weight, state
    return results


def _find_outside(
    step: Step, view: View, batch: Sequence[Inputs], units: Sequence[Values]
) -> list[OutsideError | None]:
    """Return the assumption that a weight does not meet, or None, for each weight of a batch."""
    errors: list[OutsideError | None] = [None] * len(batch)
    limits = [
        ORTHOGONAL_COSINE.get(x.weight.dtype, ORTHOGONAL_COSINE[torch.float64]) for x in batch
    ]
    n_rows = len(units[0].vectors["w"])
    largest_cosine = np.repeat(limits, n_rows)
    for is_met, reason in _test_assumptions(step, Values.stack(units), largest_cosine):
        is_met_by_weight = is_met.reshape(len(batch), n_rows).all(axis=1)
        for index in np.flatnonzero(~is_met_by_weight).tolist():
            if errors[index] is None:
                errors[index] = OutsideError(f"{step.traced.name}: {reason}")
    # A view of the rule may have other units than the law: all rows together may be orthogonal to
    # their gradient where no row is.
    for rule_view in step.traced.views if step.facts.tests_assumed_false else ():
        for index, inputs in enumerate(batch):
            if errors[index] is not None:
                continue
            in_rule_view = read_units(step, rule_view, inputs)
            if any(in_rule_view.scalar(test).any() for test in step.facts.tests_assumed_false):
                errors[index] = OutsideError(
                    f"{step.traced.name}: the law assumes that no projection acts; the test of the "
                    f"view {rule_view} passes for these numbers"
                )
    return errors


def read_step(law: NormLaw, view: View, inputs: Inputs, new: Tensor) -> Values:
    """Return the numbers of a step for each unit, with w' and s of the new weight."""
    values = read_units(law.step, view, inputs)
    retention, vectors = values.scalar(law.retention), values.vectors
    vectors["w'"] = view.rows(new.double()).numpy()
    vectors["s"] = vectors["w'"] - retention[..., None] * vectors["w"]
    return values


def read_units(step: Step, view: View, inputs: Inputs) -> Values:
    """Return the numbers of a step for each unit of a weight; of the states, those of units.

    Raises:
        ValueError: a state is missing.
    """
    missing = step.state_atoms.keys() - inputs.state.keys()
    if missing:
        raise ValueError(f"{step.traced.name}: the state has no {', '.join(sorted(missing))}")
    weight = inputs.weight
    w, g = (view.rows(x.double()).numpy() for x in (weight, inputs.grad))
    vectors, scalars = {"w": w, "g": g}, dict[str, Any](inputs.values)
    for name, atom in step.state_atoms.items():
        value = inputs.state[name].double()
        if value.shape == weight.shape and atom not in step.scalars:
            vectors[atom] = view.rows(value).numpy()
        elif value.numel() == 1:
            scalars[atom] = np.full(len(w), value.item())
        elif value.shape == view.unit_sums(weight).shape:
            scalars[atom] = view.units(value).reshape(-1).numpy()
        if atom in scalars and atom not in step.scalars:
            vectors[atom] = np.broadcast_to(scalars[atom][:, None], w.shape)
    return Values(step.algebra, vectors, scalars, _opaque_rules(step.traced, view, inputs))


def _opaque_rules(
    traced: Trace, view: View, inputs: Inputs
) -> Callable[[OpaqueVector, Array], Array] | None:
    """Return the function that applies opaque rules to all units, as the recipe does."""
    if not traced.opaque_rules:
        return None
    numbers = {name: inputs.values[s.name] for name, s in traced.symbols.items()}
    tensors = {name: torch.tensor(x, dtype=torch.float64) for name, x in numbers.items()}
    rule, opaque_rules = replace_opaque_rules(traced.build(tensors))
    states = states_of_opaque_rules(rule)

    def apply(opaque: OpaqueVector, direction: Array) -> Array:
        weight, grad = inputs.weight.double(), inputs.grad.double()
        names = states[opaque.rule_index]
        state: dict[str, Any] = {name: inputs.state[key] for name, key in names.items()}
        if "step" in state:
            state["step"] = state["step"] + 1
        direction_rows = view.from_rows(torch.tensor(direction), weight)
        update = Update(weight, grad, direction_rows)
        result = opaque_rules[opaque.rule_index].update(update, state)[0]
        return view.rows(result.direction).numpy()

    return apply


def _join_units(name: str, rows: Array, view: View, inputs: Inputs, n_rows: int) -> Tensor:
    """Return the state of the whole weight from that of each unit.

    Args:
        name: name of the state.
        rows: an array of shape (units, entries) for a vector, (units,) or () for a scalar.
        view: the view that splits the weight into units.
        inputs: the inputs of the step.
        n_rows: number of units.

    Raises:
        ValueError: the state does not split into units, or they do not agree on it.
    """
    before, weight, is_vector = inputs.state[name], inputs.weight, rows.ndim == 2
    if before.shape == weight.shape:
        entries = rows if is_vector else rows[..., None]
        shape = n_rows, weight.numel() // n_rows
        return view.from_rows(torch.tensor(np.broadcast_to(entries, shape)), weight)
    if is_vector or before.numel() not in (1, n_rows):
        raise ValueError(f"the state {name!r} does not split into the units of the view {view}")
    per_unit = torch.tensor(np.broadcast_to(rows, (n_rows,)))
    if before.numel() == 1 and not torch.allclose(per_unit, per_unit[:1], rtol=1e-9):
        raise ValueError(f"the units do not agree on the state {name!r}, of which there is one")
    return per_unit[: before.numel()].reshape(before.shape)


def check_assumptions(step: Step, values: Values, dtype: torch.dtype = torch.float64) -> None:
    """Refuse inputs that do not meet the hypotheses.

    Args:
        step: the step on symbols.
        values: its numbers.
        dtype: the type to which w and g were rounded.

    Raises:
        OutsideError: naming one.
    """
    limit = ORTHOGONAL_COSINE.get(dtype, ORTHOGONAL_COSINE[torch.float64])
    for is_met, reason in _test_assumptions(step, values, np.full(len(values.vectors["w"]), limit)):
        if not is_met.all():
            raise OutsideError(f"{step.traced.name}: {reason}")


def _test_assumptions(
    step: Step, values: Values, largest_cosine: Array
) -> Iterator[tuple[Array, str]]:
    """Yield which units meet an assumption, and what is wrong if one does not, for each of them.

    Args:
        step: the step on symbols.
        values: its numbers.
        largest_cosine: |cos(w, g)| that counts as 0, for each unit.
    """
    w, g = values.vectors["w"], values.vectors["g"]
    lengths = np.linalg.norm(w, axis=1) * np.linalg.norm(g, axis=1)
    yield lengths > 0, "the law assumes w, g not 0"
    if ("w", "g") in step.algebra.given_products:
        with np.errstate(invalid="ignore"):
            cosines = (w * g).sum(1) / lengths
        yield (
            ~(np.abs(cosines) > largest_cosine),
            f"the law assumes <w, g> = 0, cos(w, g) is {cosines[np.abs(cosines).argmax()]:.3g}; "
            "scale_invariant=False gives the law of any gradient",
        )
    for atom, symbol in step.scalars.items():
        numbers = np.broadcast_to(values.scalar(symbol), lengths.shape)
        if symbol.is_nonnegative:
            yield (
                numbers > 0 if symbol.is_positive else numbers >= 0,
                f"the law needs {atom} {'> 0' if symbol.is_positive else '>= 0'}, as steps leave "
                f"it; got {numbers.min()}",
            )
    for relation in step.facts.hypotheses:
        is_met = np.broadcast_to(values.scalar(relation), lengths.shape)
        reason = ""
        if not is_met.all():
            reason = f"the law assumes {show(relation)}, which these numbers do not meet"
        yield is_met, reason
