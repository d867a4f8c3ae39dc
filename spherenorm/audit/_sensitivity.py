"""Radial and tangential sensitivity of a model's outputs to its weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from spherenorm._views import View
from spherenorm.audit._model import Point, Subject

_NUDGE = 1e-3
"""The jitter of all parameters that shows how much an output moves with them."""
_LEAST_UNIT = 1e-5
"""The least unit of an output that may be constant up to rounding, as a share of the largest."""
_TINY = 32
"""A jitter that shows rounding, in units of it."""
_RELATIVE_ROUNDING = 1e-13
"""Units less sensitive than this share of the weight's most sensitive one are ignored."""


@dataclass(frozen=True)
class Sums:
    """<w, g>, |w|^2 and |g|^2 of one weight, for g the gradient of the outputs in one direction.

    Attributes:
        shape: of the weight.
        along: for a dimension, the three sums at each of its indices, shape (3, length).
    """

    shape: torch.Size
    along: Mapping[int, Tensor]

    @classmethod
    def of(cls, weight: Tensor, grad: Tensor, dims: Sequence[int], exact: float) -> Sums:
        """The sums of a weight of two or more dimensions.

        Args:
            weight, grad: of one shape.
            dims: at whose indices to sum, 0 among them. If all units of dimension 0 are
                invariant, the others are left out: no view of them is finer.
            exact: the statistic below which a unit is invariant.
        """
        pairs = (weight, grad), (weight, weight), (grad, grad)
        finest = cls(weight.shape, {0: torch.stack([_of_rows(*pair) for pair in pairs]).cpu()})
        others = {dim: [d for d in range(weight.ndim) if d != dim] for dim in dims if dim}
        statistic, shows = finest.statistic(View(0))
        if not others or (shows.any() and bool((statistic[shows] <= exact).all())):
            return finest
        product, along = weight * grad, dict(finest.along)
        for dim, rest in others.items():
            norms = [torch.linalg.vector_norm(x, dim=rest) for x in (weight, grad)]
            along[dim] = torch.stack([product.sum(rest), *(x.square() for x in norms)]).cpu()
        return cls(weight.shape, along)

    @property
    def sensitivity(self) -> float:
        """|w| |g|: the change of the outputs when the weight turns by one radian at most."""
        _, weight, grad = next(iter(self.along.values())).sum(1).tolist()
        return math.sqrt(weight * grad) if math.isfinite(weight * grad) else math.inf

    def statistic(self, view: View) -> tuple[Tensor, Tensor]:
        """sqrt(dim(w)) |cos(w, g)| of each unit, and the units that show anything.

        A scale-invariant unit has 0 up to rounding, a random direction about 1.
        """
        dim = next(iter(self.along)) if view.dim is None else view.dim % len(self.shape)
        if dim not in self.along:  # left out
            count = view.groups or self.shape[dim]
            return torch.zeros(count), torch.zeros(count, dtype=torch.bool)
        sums = view.of_indices(self.along[dim])
        product, weight, grad = sums
        sensitivity = weight.sqrt() * grad.sqrt()
        shows = sensitivity > _RELATIVE_ROUNDING * sensitivity.max()
        size = math.prod(self.shape) / len(product)
        cosine = product.abs() / torch.where(shows, sensitivity, 1)
        return math.sqrt(size) * cosine, shows


def _of_rows(a: Tensor, b: Tensor) -> Tensor:
    """<a, b> at each index of dimension 0, without memory for a * b."""
    return torch.bmm(a.flatten(1)[:, None], b.flatten(1)[:, :, None]).flatten()


@dataclass(frozen=True)
class Measured:
    """The outputs, their units and the sums at one point.

    Attributes:
        point: the place.
        sums: of each weight, for each random direction.
        outputs: there.
        units: the unit of each entry of the outputs; see `units_of`.
    """

    point: Point
    sums: list[dict[str, Sums]]
    outputs: list[Tensor]
    units: list[Tensor]

    @property
    def is_finite(self) -> bool:
        return all(math.isfinite(x.sensitivity) for each in self.sums for x in each.values())


def default_dims(ndim: int) -> tuple[int, ...]:
    """The dimensions that may count units: not those of a kernel."""
    return tuple(range(min(ndim, 3))) if ndim <= 3 else (0, 1)


def measure(
    subject: Subject,
    point: Point,
    dims: Mapping[str, Sequence[int]],
    exact: float,
    units: list[Tensor] | None = None,
    directions: int = 1,
    watch: Any = None,
    enough: Callable[[Measured], bool] | None = None,
) -> Measured | None:
    """The sensitivity at one point of <r, outputs>, with random r, to the named weights.

    Args:
        subject: the model.
        point: the place.
        dims: for each weight, the dimensions that may count units.
        exact: see `Sums.of`.
        units: of the outputs, if they are known from the same place.
        directions: the number of random r.
        watch: a context for the first pass; see `Subject.outputs`.
        enough: true of a result by the entries that move most, if no look at those that move far
            less, which takes two more passes, can change what is made of it.

    Returns:
        None if no entry of the outputs is finite, or a gradient is not.
    """
    moved = []
    if units is None:
        moved = subject.outputs(replace(point, nudge=_NUDGE), watch=watch)
    subject.place(point)
    with subject.evaluation(point) as mode:
        outputs = subject.run(point, mode)
    plain = [x.detach() for x in outputs]
    if outputs and not any(bool(x.isfinite().any()) for x in plain):
        return None
    if units is None or shapes_of(units) != shapes_of(plain):
        units = units_of(plain, moved)
        if _some_small(plain, moved, units):
            if enough is not None:
                sums = _sums(subject, point, outputs, units, 0, True, dims, exact)
                found = Measured(point, [sums], plain, units)
                if found.is_finite and enough(found):
                    return found
            units = _units_of_small(subject, point, plain, moved, units)
            subject.place(point)  # to the last bit, so that the graph still holds
    every = [
        _sums(subject, point, outputs, units, number, number + 1 < directions, dims, exact)
        for number in range(directions)
    ]
    found = Measured(point, every, plain, units)
    return found if found.is_finite else None


def _sums(
    subject: Subject,
    point: Point,
    outputs: Sequence[Tensor],
    units: Sequence[Tensor],
    number: int,
    keep: bool,
    dims: Mapping[str, Sequence[int]],
    exact: float,
) -> dict[str, Sums]:
    """The sums of each weight in a random direction of the outputs; `keep` keeps their graph."""
    tested = _in_random_direction(outputs, units, point.seed + 1 + number, subject.dtype)
    weights = [subject.parameters[name] for name in dims]
    grads: Sequence[Tensor | None] = [None] * len(weights)
    if tested.requires_grad and weights:
        with subject.evaluation(point):
            grads = _gradients(tested, weights, keep)
    found = {}
    for (name, by), weight, grad in zip(dims.items(), weights, grads, strict=True):
        dense = torch.zeros_like(weight) if grad is None else grad.to_dense()
        found[name] = Sums.of(weight.detach(), dense, by, exact)
    return found


def _gradients(scalar: Tensor, weights: Sequence[Tensor], keep: bool) -> Sequence[Tensor | None]:
    """`torch.autograd.grad`, within which a function mode stays on.

    torch switches it off in its own; a checkpoint would repeat its forward pass with another eps.
    """
    engine = torch.autograd.Variable._execution_engine
    found: Sequence[Tensor | None] = engine.run_backward(
        (scalar,),
        (torch.ones_like(scalar),),
        keep,
        False,
        tuple(weights),
        allow_unreachable=True,
        accumulate_grad=False,
    )
    return found


def _in_random_direction(
    outputs: Sequence[Tensor], units: Sequence[Tensor], seed: int, dtype: torch.dtype
) -> Tensor:
    """<r, outputs> with a random r, over the finite entries, each in its unit."""
    generator = torch.Generator().manual_seed(seed)
    total = torch.zeros((), dtype=dtype)
    for output, its_unit in zip(outputs, units, strict=True):
        if output.requires_grad:
            finite = output.isfinite()
            whole = bool(finite.all())
            x, unit = (output, its_unit) if whole else (output[finite], its_unit[finite])
            noise = torch.randn(x.shape, generator=generator, dtype=torch.float64).to(unit)
            total = total.to(x) + (noise / unit * x).sum()
    return total


def shapes_of(outputs: Sequence[Tensor]) -> list[torch.Size]:
    """Their shapes, which may depend on values, as those of a selection do."""
    return [x.shape for x in outputs]


def units_of(outputs: Sequence[Tensor], nearby: Sequence[Tensor]) -> list[Tensor]:
    """The unit of each entry of the outputs: how much it moves with the parameters.

    So neither a mask, such as -1e9, nor a large scale hides other entries, of the same output or of
    another. What is constant up to rounding does not count as much as the others.

    Args:
        outputs, nearby: at a point and next to it. Outputs whose number or shapes differ there
            are measured by their values.
    """
    moves = [move / _NUDGE for move in _moves(outputs, nearby)]
    largest = max((float(move.max()) for move in moves), default=0.0)
    return [move.clamp(min=_LEAST_UNIT * largest or 1.0) for move in moves]


def _moves(outputs: Sequence[Tensor], nearby: Sequence[Tensor]) -> list[Tensor]:
    if shapes_of(outputs) != shapes_of(nearby):
        nearby = [torch.zeros_like(x) for x in outputs]
    pairs = zip(outputs, nearby, strict=True)
    return [(x - near).abs().nan_to_num(0.0, 0.0) for x, near in pairs]


def _clear(dtype: torch.dtype) -> float:
    """A move is clear beyond so many units of rounding.

    It is the middle of what a smooth output shows, a nudge in units of the tiny jitter, and of what
    rounding alone does, 1.
    """
    return math.sqrt(_NUDGE / (_TINY * torch.finfo(dtype).eps))


def _some_small(
    outputs: Sequence[Tensor], nearby: Sequence[Tensor], units: Sequence[Tensor]
) -> bool:
    """True if an entry moves by more than its rounding, and less than its unit."""
    if shapes_of(outputs) != shapes_of(nearby):
        return False
    for x, move, unit in zip(outputs, _moves(outputs, nearby), units, strict=True):
        rounding = _clear(x.dtype) * torch.finfo(x.dtype).eps * x.abs()
        if bool(((move > rounding) & (move / _NUDGE < unit)).any()):
            return True
    return False


def _units_of_small(
    subject: Subject,
    point: Point,
    outputs: Sequence[Tensor],
    nearby: Sequence[Tensor],
    units: Sequence[Tensor],
) -> list[Tensor]:
    """The units, with those of entries that move clearly, though far less than others.

    A tiny jitter tells them from entries that are constant up to rounding, by cancellation too.
    """
    jitter = _TINY * torch.finfo(subject.dtype).eps
    points = [replace(point, nudge=sign * jitter) for sign in (1, -1)]
    noises = [_moves(outputs, subject.outputs(each)) for each in points]
    found = []
    for x, move, unit, *noise in zip(outputs, _moves(outputs, nearby), units, *noises, strict=True):
        clear = _clear(x.dtype)
        rounding = torch.maximum(*noise).maximum(torch.finfo(x.dtype).eps * x.abs())
        found.append(torch.where(move > clear * rounding, move / _NUDGE, unit))
    return found
