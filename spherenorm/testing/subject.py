"""The subject of a check: a recipe, weights to step with it, and gradients of several kinds."""

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
"""Wide and tall matrices, a convolution, a bias, a number, a single unit, and nothing at all."""

STEPS = 4

Stepped = tuple[Tensor, State]


class RefusedError(Exception):
    """The promise does not concern this recipe; the message says why.

    Example:
        >>> def sparse(subject):
        ...     raise RefusedError("no step of the library is sparse")
        >>> sn.testing.PROPERTIES["sparse"] = sparse
        >>> print(sn.testing.check("sgd", only=("sparse",)))
        sgd
        promise  verdict  why
        sparse   refused  no step of the library is sparse
        >>> _ = sn.testing.PROPERTIES.pop("sparse")
    """


@dataclass(frozen=True)
class Subject:
    """A recipe under check.

    Attributes:
        bound: the recipe with its hyper-parameters.
        shapes: of the weights that it takes.
        refused: why it does not take the other shapes that were tried.

    Example:
        >>> subject = Subject.of(sn.bind("sgdg"))
        >>> rule, weight = subject.rule(), subject.weight((4, 3))
        >>> moved, _ = rule.step(weight, subject.grad(weight, 0), rule.init(weight))
        >>> moved.norm(dim=1)  # sgdg keeps each row on the unit sphere
        tensor([1.0000, 1.0000, 1.0000, 1.0000], dtype=torch.float64)
    """

    bound: Bound
    shapes: Sequence[tuple[int, ...]] = SHAPES
    refused: Mapping[tuple[int, ...], str] = field(default_factory=dict)

    @classmethod
    def of(cls, bound: Bound) -> Subject:
        """The recipe with those of `SHAPES` whose weights its rule takes."""
        refused: dict[tuple[int, ...], str] = {}
        for shape in SHAPES:
            try:
                trial_state(bound.rule, torch.ones(shape))
            except (TypeError, ValueError) as error:
                refused[shape] = str(error)
        return cls(bound, [shape for shape in SHAPES if shape not in refused], refused)

    def rule(self, **replaced: Any) -> Rule:
        """The recipe's rule, made anew."""
        return self.bound.replace(**replaced).rule

    def weight(self, shape: tuple[int, ...], dtype: torch.dtype = torch.float64) -> Tensor:
        """A random weight, with a norm of 1 in each row, as training on a sphere starts."""
        generator = torch.Generator().manual_seed(len(shape))
        weight = torch.randn(shape, generator=generator, dtype=torch.float64)
        if weight.ndim >= 2 and weight.numel():
            weight = weight / View(0).norm(weight)
        return weight.to(dtype)

    def grad(self, weight: Tensor, step: int) -> Tensor:
        """A gradient: random, orthogonal to each row, to the whole weight, and small."""
        generator = torch.Generator().manual_seed(step)
        drawn = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        start = weight.detach().double()
        if weight.ndim >= 2 and weight.numel() and step % 4 in (1, 2):
            view = View(0) if step % 4 == 1 else View(None)
            drawn = drawn - view.radial_coefficient(start, drawn) * start
        return (drawn * (1e-3 if step % 4 == 3 else 1.0)).to(weight.dtype)

    def run(self, rule: Rule, weight: Tensor, steps: int = STEPS) -> Stepped:
        """The weight and its state after some steps."""
        state = trial_state(rule, weight)
        for step in range(steps):
            weight, state = rule.step(weight, self.grad(weight, step), state)
        return weight, state

    def warm(self) -> Iterator[tuple[Tensor, Tensor, State]]:
        """(weight, gradient, state) after a step, of each shape."""
        for shape in self.shapes:
            weight, state = self.run(self.rule(), self.weight(shape), 1)
            yield weight, self.grad(weight, 1), state


def apart(ours: Stepped, theirs: Stepped, tolerance: float) -> str | None:
    """The first difference of two results of a step, in words; None if there is none.

    Args:
        tolerance: relative to the largest entry of each tensor; 0 asks for equal bits.
    """
    if ours[1].keys() != theirs[1].keys():
        return f"the states are {sorted(ours[1])} and {sorted(theirs[1])}"
    pairs = {"the weight": (ours[0], theirs[0])}
    pairs |= {f"the state {name!r}": (ours[1][name], theirs[1][name]) for name in ours[1]}
    for what, (x, y) in pairs.items():
        if (x.shape, x.dtype) != (y.shape, y.dtype):
            kinds = f"{tuple(x.shape)} of {x.dtype}, not {tuple(y.shape)} of {y.dtype}"
            return f"{what} is {kinds}"
        if torch.equal(x, y) or not y.numel():
            continue
        same = (x == y) | (x.isnan() & y.isnan())
        gap = torch.where(same, 0, (x.double() - y.double()).abs()).max().item()
        size = y.double().nan_to_num(0, 0, 0).abs().max().item()
        if not gap <= tolerance * max(size, 1e-30):
            return f"{what} of shape {tuple(y.shape)} is off by {gap:.1e}, of {size:.1e}"
    return None


@contextlib.contextmanager
def named(what: str) -> Iterator[None]:
    """Put what was tried before the message of whatever the recipe raises."""
    try:
        yield
    except (RefusedError, AssertionError):
        raise
    except InPlaceError as error:
        raise RefusedError("the rule writes into its arguments") from error
    except Exception as error:
        raise AssertionError(f"{what}: {told(error)}") from error


def told(error: BaseException) -> str:
    """The kind and the first line of an error, and the rule whose code was running."""
    first = str(error).strip().partition("\n")[0]
    if "data-dependent control flow" in first:
        first = "a Python branch on a tensor's values; use torch.where"
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    running = [type(frame.f_locals.get("self")) for frame in frames]
    rules = [cls.__name__ for cls in running if issubclass(cls, Rule) and cls is not Chain]
    return f"{type(error).__name__}{f' in {rules[-1]}' if rules else ''}: {first}"
