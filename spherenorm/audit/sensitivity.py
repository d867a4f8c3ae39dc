"""Radial and tangential sensitivity of a model's outputs to its weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from spherenorm.audit.model import Point, Subject
from spherenorm.views import View

_NUDGE = 1e-3
"""The jitter of all parameters that shows how much an output moves with them."""
_LEAST_UNIT = 1e-5
"""The least unit of an output that may be constant up to rounding, as a share of the largest."""
_TINY = 32
"""A jitter that shows rounding, in units of it."""
_RELATIVE_ROUNDING = 1e-13
"""Units less sensitive than this share of the weight's most sensitive one are ignored."""


@dataclass(frozen=True, eq=False)
class Sums:
    """<w, g>, |w|^2 and |g|^2 of one weight, for g the gradient of the outputs in one direction.

    Attributes:
        shape: of the weight.
        along: for a dimension, the three sums at each of its indices, shape (3, length).
    """

    shape: torch.Size
    along: Mapping[int, Tensor]
    _known: dict[View, tuple[Tensor, Tensor]] = field(default_factory=dict)

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
        # (<a, b> at each index of dimension 0, without memory for a * b)
        rows = [torch.bmm(a.flatten(1)[:, None], b.flatten(1)[:, :, None]) for a, b in pairs]
        finest = cls(weight.shape, {0: torch.stack([x.flatten() for x in rows]).cpu()})
        statistic, shows = finest.statistic(View(0))
        if len(dims) == 1 or (shows.any() and bool((statistic[shows] <= exact).all())):
            return finest
        rest = {dim: [d for d in range(weight.ndim) if d != dim] for dim in dims if dim}
        space = torch.empty_like(weight)
        products = (torch.mul(a, b, out=space) for a, b in pairs)
        totals = [[product.sum(others) for others in rest.values()] for product in products]
        along = [torch.stack(each).cpu() for each in zip(*totals, strict=True)]
        return cls(weight.shape, {**finest.along, **dict(zip(rest, along, strict=True))})

    @property
    def sensitivity(self) -> float:
        """|w| |g|: the change of the outputs when the weight turns by one radian at most."""
        _, weight, grad = next(iter(self.along.values())).sum(1).tolist()
        return math.sqrt(weight * grad) if math.isfinite(weight * grad) else math.inf

    def statistic(self, view: View) -> tuple[Tensor, Tensor]:
        """sqrt(dim(w)) |cos(w, g)| of each unit, and the units that show anything.

        A scale-invariant unit has 0 up to rounding, and one that shows nothing has 0; a random
        direction has about 1.
        """
        if view not in self._known:
            self._known[view] = self._statistic(view)
        return self._known[view]

    def _statistic(self, view: View) -> tuple[Tensor, Tensor]:
        dim = 0 if view.dim is None else view.dim % len(self.shape)
        if dim not in self.along:  # left out
            count = view.groups or self.shape[dim]
            return torch.zeros(count), torch.zeros(count, dtype=torch.bool)
        product, weight, grad = view.sums_of_index_groups(self.along[dim])
        sensitivity = weight.sqrt() * grad.sqrt()
        shows = sensitivity > _RELATIVE_ROUNDING * sensitivity.max()
        size = math.prod(self.shape) / len(product)
        return torch.where(shows, math.sqrt(size) * product.abs() / sensitivity, 0), shows


@dataclass(frozen=True)
class Measured:
    """The outputs and sums that were measured at one point.

    Attributes:
        point: the place.
        sums: of each weight, for each random direction.
        outputs: there.
        units: the unit of each entry of the outputs: how much it moves with the parameters.
    """

    point: Point
    sums: list[dict[str, Sums]]
    outputs: list[Tensor]
    units: list[Tensor]


def measure(
    subject: Subject,
    point: Point,
    dims: Mapping[str, Sequence[int]],
    exact: float,
    *,
    near: Measured | None = None,
    directions: int = 1,
    watch: Any = None,
) -> Measured | None:
    """The sensitivity at one point of <r, outputs>, with random r, to the named weights.

    Each entry of the outputs counts in units of how much it moves with the parameters. So neither
    a mask, such as -1e9, nor a large scale hides other entries, of the same output or of another.

    Args:
        subject: the model.
        point: the place.
        dims: for each weight, the dimensions that may count units.
        exact: see `Sums.of`.
        near: measured at the same place, with another eps: its units are taken.
        directions: the number of random r.
        watch: a context for the first pass; see `Subject.outputs`.

    Returns:
        None if no entry of the outputs is finite, or a gradient is not.
    """
    moved = None if near else subject.outputs(replace(point, nudge=_NUDGE), watch=watch)
    subject.place(point)
    with subject.evaluation(point) as mode:
        outputs = subject.run(point, mode)
    plain = [x.detach() for x in outputs]
    if outputs and not any(bool(x.isfinite().any()) for x in plain):
        return None
    units = near.units if near else []
    if moved is not None or shapes_of(units) != shapes_of(plain):
        units = _units_of(subject, point, plain, moved or [])
    every = []
    for number in range(directions):
        tested = _in_random_direction(outputs, units, point.seed + 1 + number, subject.dtype)
        weights = [subject.parameters[name] for name in dims]
        grads: Sequence[Tensor | None] = [None] * len(weights)
        if tested.requires_grad and weights:
            with subject.evaluation(point):
                grads = _gradients(tested, weights, keep=number + 1 < directions)
        sums = {}
        for (name, by), weight, grad in zip(dims.items(), weights, grads, strict=True):
            dense = torch.zeros_like(weight) if grad is None else grad.to_dense()
            sums[name] = Sums.of(weight.detach(), dense, by, exact)
        if not all(math.isfinite(each.sensitivity) for each in sums.values()):
            return None
        every.append(sums)
    return Measured(point, every, plain, units)


def _gradients(scalar: Tensor, weights: Sequence[Tensor], keep: bool) -> Sequence[Tensor | None]:
    """`torch.autograd.grad`, within which a function mode stays on.

    torch switches it off in its own; a checkpoint would repeat its forward pass with another eps.
    """
    engine = torch.autograd.Variable._execution_engine
    given = (scalar,), (torch.ones_like(scalar),), keep, False, tuple(weights)
    found: Sequence[Tensor | None] = engine.run_backward(
        *given, allow_unreachable=True, accumulate_grad=False
    )
    return found


def _in_random_direction(
    outputs: Sequence[Tensor], units: Sequence[Tensor], seed: int, dtype: torch.dtype
) -> Tensor:
    """<r, outputs> with a random r, over the finite entries, each in its unit."""
    generator = torch.Generator().manual_seed(seed)
    total = torch.zeros((), dtype=dtype)
    for x, unit in zip(outputs, units, strict=True):
        if x.requires_grad:
            finite = x.isfinite()
            if not finite.all():
                x, unit = x[finite], unit[finite]  # noqa: PLW2901
            noise = torch.randn(x.shape, generator=generator, dtype=torch.float64).to(unit)
            total = total.to(x) + (noise / unit * x).sum()
    return total


def shapes_of(outputs: Sequence[Tensor]) -> list[torch.Size]:
    """Their shapes, which may depend on values, as those of a selection do."""
    return [x.shape for x in outputs]


def _units_of(
    subject: Subject, point: Point, outputs: Sequence[Tensor], nudged: Sequence[Tensor]
) -> list[Tensor]:
    """The units of the outputs at a point, at which the subject is, by those next to it.

    What is constant up to rounding does not count as much as the others; a tiny jitter tells it, by
    cancellation too, from what moves clearly, though far less than others.
    """
    moves = _moves(outputs, nudged)
    largest = max((float(move.max()) for move in moves), default=0.0) / _NUDGE
    units = [(move / _NUDGE).clamp(min=_LEAST_UNIT * largest or 1.0) for move in moves]
    eps = torch.finfo(subject.dtype).eps
    # Clear is the middle of what a smooth output shows, a nudge in units of the tiny jitter, and of
    # what rounding alone does, 1.
    clear = math.sqrt(_NUDGE / (_TINY * eps))

    def small(roundings: Sequence[Tensor]) -> list[Tensor]:
        """The entries that move clearly, by less than the least unit."""
        every = zip(moves, roundings, units, strict=True)
        return [(move > clear * x) & (move / _NUDGE < unit) for move, x, unit in every]

    roundings = [eps * x.abs() for x in outputs]
    if shapes_of(outputs) == shapes_of(nudged) and any(map(Tensor.any, small(roundings))):
        noise = _moves(outputs, subject.outputs(replace(point, nudge=_TINY * eps)))
        subject.place(point)  # to the last bit, so that the graph still holds
        own = small([torch.maximum(*pair) for pair in zip(roundings, noise, strict=True)])
        every = zip(own, moves, units, strict=True)
        units = [torch.where(clearly, move / _NUDGE, unit) for clearly, move, unit in every]
    return units


def _moves(outputs: Sequence[Tensor], nearby: Sequence[Tensor]) -> list[Tensor]:
    """The moves of all entries; their sizes, if there are not as many nearby."""
    if shapes_of(outputs) != shapes_of(nearby):
        nearby = [torch.zeros_like(x) for x in outputs]
    pairs = zip(outputs, nearby, strict=True)
    return [(x - near).abs().nan_to_num(0.0, 0.0) for x, near in pairs]
