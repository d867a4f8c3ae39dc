"""`RecipeUnderTest`: a recipe with weights and gradients of several kinds to step it with."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from spherenorm.registry import Bound
from spherenorm.rule import Chain, InPlaceError, Rule, State, trial_state
from spherenorm.views import View

SHAPES = ((4, 3), (3, 5), (3, 2, 2, 2), (5,), (), (1, 4), (0, 3))
"""Tall and wide matrices, a convolution, a bias, a scalar, a single unit, and no entries."""

N_STEPS = 4
"""Steps of a run."""

StepResult = tuple[Tensor, State]
"""A new weight and its new state."""


class RefusedError(Exception):
    """The promise does not concern this recipe; the message says why.

    Example:
        >>> def sparse(under_test):
        ...     raise RefusedError("no step of the library is sparse")
        >>> sn.testing.PROPERTIES["sparse"] = sparse
        >>> print(sn.testing.check("sgd", only=("sparse",)))
        sgd
        promise  verdict  why
        sparse   refused  no step of the library is sparse
        >>> _ = sn.testing.PROPERTIES.pop("sparse")
    """


@dataclass(frozen=True)
class RecipeUnderTest:
    """A recipe with weights and gradients to step it with.

    Attributes:
        bound: the recipe with its hyper-parameters.
        shapes: the shapes of weights that it takes.
        refused_shapes: the other shapes that were tried, each with the reason why it was refused.

    Example:
        >>> under_test = RecipeUnderTest.from_bound(sn.bind("sgdg"))
        >>> rule, weight = under_test.make_rule(), under_test.make_weight((4, 3))
        >>> grad = under_test.make_grad(weight, 0)
        >>> new_weight, _ = rule.step(weight, grad, rule.init(weight))
        >>> new_weight.norm(dim=1)  # sgdg keeps each row on the unit sphere
        tensor([1.0000, 1.0000, 1.0000, 1.0000], dtype=torch.float64)
    """

    bound: Bound
    shapes: Sequence[tuple[int, ...]] = SHAPES
    refused_shapes: Mapping[tuple[int, ...], str] = field(default_factory=dict)

    @classmethod
    def from_bound(cls, bound: Bound) -> RecipeUnderTest:
        """Return the recipe with those of `SHAPES` that its rule takes."""
        refused_shapes: dict[tuple[int, ...], str] = {}
        for shape in SHAPES:
            try:
                trial_state(bound.rule, torch.ones(shape))
            except (TypeError, ValueError) as error:
                refused_shapes[shape] = str(error)
        shapes = [shape for shape in SHAPES if shape not in refused_shapes]
        return cls(bound, shapes, refused_shapes)

    def make_rule(self, **hyper_parameters: Any) -> Rule:
        """Build the recipe's rule anew, with other values of some hyper-parameters."""
        return self.bound.replace(**hyper_parameters).rule

    def make_weight(self, shape: tuple[int, ...], dtype: torch.dtype = torch.float64) -> Tensor:
        """Return a random weight, with a norm of 1 in each row, as training on a sphere starts."""
        generator = torch.Generator().manual_seed(len(shape))
        weight = torch.randn(shape, generator=generator, dtype=torch.float64)
        if weight.ndim >= 2 and weight.numel():
            weight = weight / View(0).norm(weight)
        return weight.to(dtype)

    def make_grad(self, weight: Tensor, step: int) -> Tensor:
        """Return a gradient of one of four kinds, by the step.

        They are random, orthogonal to each row of the weight, orthogonal to the whole weight, and
        small.
        """
        generator = torch.Generator().manual_seed(step)
        grad = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        weight64 = weight.detach().double()
        if weight.ndim >= 2 and weight.numel() and step % 4 in (1, 2):
            view = View(0) if step % 4 == 1 else View(None)
            grad = grad - view.radial_coefficient(weight64, grad) * weight64
        return (grad * (1e-3 if step % 4 == 3 else 1.0)).to(weight.dtype)

    def run(self, rule: Rule, weight: Tensor, steps: int = N_STEPS) -> StepResult:
        """Return the weight and its state after some steps."""
        state = trial_state(rule, weight)
        for step in range(steps):
            weight, state = rule.step(weight, self.make_grad(weight, step), state)
        return weight, state

    def after_one_step(self) -> Iterator[tuple[Tensor, Tensor, State]]:
        """Yield (weight, gradient, state) for a second step, for each shape."""
        for shape in self.shapes:
            weight, state = self.run(self.make_rule(), self.make_weight(shape), 1)
            yield weight, self.make_grad(weight, 1), state


def find_difference(result: StepResult, expected: StepResult, tolerance: float) -> str | None:
    """Return the first difference of two results of a step, in words; None if there is none.

    Args:
        result: a weight and its state.
        expected: another weight and its state.
        tolerance: largest difference, relative to the largest entry of each expected tensor; 0
            requires equal bits.
    """
    weight, state = result
    expected_weight, expected_state = expected
    if state.keys() != expected_state.keys():
        return f"the states are {sorted(state)} and {sorted(expected_state)}"
    pairs = {"the weight": (weight, expected_weight)}
    for name, value in state.items():
        pairs[f"the state {name!r}"] = value, expected_state[name]
    for label, (x, y) in pairs.items():
        if (x.shape, x.dtype) != (y.shape, y.dtype):
            return f"{label} is {tuple(x.shape)} of {x.dtype}, not {tuple(y.shape)} of {y.dtype}"
        if torch.equal(x, y) or not y.numel():
            continue
        is_equal = (x == y) | (x.isnan() & y.isnan())
        difference = torch.where(is_equal, 0, (x.double() - y.double()).abs()).max().item()
        magnitude = y.double().nan_to_num(0, 0, 0).abs().max().item()
        if not difference <= tolerance * max(magnitude, 1e-30):
            return (
                f"{label} of shape {tuple(y.shape)} is off by {difference:.1e}, of {magnitude:.1e}"
            )
    return None


@contextlib.contextmanager
def error_context(action: str) -> Iterator[None]:
    """Put what was tried before the message of any error that the recipe raises.

    Raises:
        AssertionError: the recipe has raised an error.
        RefusedError: the recipe writes into its arguments, which is another promise's failure.
    """
    try:
        yield
    except (RefusedError, AssertionError):
        raise
    except InPlaceError as error:
        raise RefusedError("the rule writes into its arguments") from error
    except Exception as error:
        raise AssertionError(f"{action}: {describe(error)}") from error


def describe(error: BaseException) -> str:
    """Return the class and first line of an error, and the rule whose code was running."""
    message = str(error).strip().partition("\n")[0]
    if "data-dependent control flow" in message:
        message = "a Python branch on a tensor's values; use torch.where"
    rule_name = ""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        owner_class = type(frame.f_locals.get("self"))
        if issubclass(owner_class, Rule) and owner_class is not Chain:
            rule_name = f" in {owner_class.__name__}"
    return f"{type(error).__name__}{rule_name}: {message}"
