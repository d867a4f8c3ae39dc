"""Radial and tangential sensitivity of a model's outputs to its weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from spherenorm._views import View
from spherenorm.audit._copies import memory_of
from spherenorm.audit._subject import Point, Subject

_NUDGE = 1e-3
"""The jitter of all parameters that shows how much an output moves with them."""
_LEAST_UNIT = 1e-5
"""The least unit of an output, as a share of the largest one."""
_SHOWN = 1e6
"""A move counts as one from so many units of rounding on: less may be what cancellation leaves."""
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
        """The sums of a weight of two or more dimensions; overwrites the gradient.

        Args:
            weight, grad: of one shape.
            dims: at whose indices to sum, 0 among them. If all units of dimension 0 are
                invariant, the others are left out: no view of them is finer.
            exact: the statistic below which a unit is invariant.
        """
        rows, grads = weight.flatten(1), grad.flatten(1)
        norms = [torch.linalg.vector_norm(x, dim=1) for x in (rows, grads)]
        product = torch.bmm(rows[:, None], grads[:, :, None]).flatten()  # row by row, in place
        finest = cls(weight.shape, {0: _stacked(product, norms)})
        others = {dim: [d for d in range(weight.ndim) if d != dim] for dim in dims if dim}
        statistic, shows = finest.statistic(View(0))
        if not others or (shows.any() and bool((statistic[shows] <= exact).all())):
            return finest
        more = {
            dim: [torch.linalg.vector_norm(x, dim=rest) for x in (weight, grad)]
            for dim, rest in others.items()
        }
        grad.mul_(weight)
        sums = {dim: _stacked(grad.sum(rest), more[dim]) for dim, rest in others.items()}
        return cls(weight.shape, {**finest.along, **sums})

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


class Measured(NamedTuple):
    """The sums and the outputs at one point.

    Attributes:
        point: the place.
        sums: of each weight.
        outputs, nearby: there and next to it.
    """

    point: Point
    sums: dict[str, Sums]
    outputs: list[Tensor]
    nearby: list[Tensor]


def _stacked(product: Tensor, norms: Sequence[Tensor]) -> Tensor:
    return torch.stack([product, *(norm.square() for norm in norms)]).cpu()


def default_dims(ndim: int) -> tuple[int, ...]:
    """The dimensions that may count units: not those of a kernel."""
    return tuple(range(min(ndim, 3))) if ndim <= 3 else (0, 1)


def measure(
    subject: Subject, point: Point, dims: Mapping[str, Sequence[int]], exact: float
) -> Measured | None:
    """The sensitivity at one point of <r, outputs>, with random r, to the named weights.

    Args:
        subject: the model.
        point: the place.
        dims: for each weight, the dimensions that may count units.
        exact: see `Sums.of`.

    Returns:
        None if no entry of the outputs is finite, or a gradient is not.
    """
    nearby = nudged(subject, point)
    subject.place(point)
    with subject.evaluation(point):
        outputs = subject.run(point)
        generator = torch.Generator().manual_seed(point.seed + 1)
        if outputs and not any(bool(x.isfinite().any()) for x in outputs):
            return None
        plain = [x.detach() for x in outputs]
        units = units_of(plain, nearby)
        if _hides(plain, nearby, units):
            subject.doubts[_HIDDEN] = None
        tested = _in_random_direction(outputs, units, generator, subject.dtype)
        if tested.requires_grad:
            _run_backward(tested)
    found = {}
    for name, by in dims.items():
        weight = subject.parameters[name].detach()
        found[name] = Sums.of(weight, _gradient(subject, name), by, exact)
        if not math.isfinite(found[name].sensitivity):
            return None
    return Measured(point, found, plain, nearby)


def _gradient(subject: Subject, name: str) -> Tensor:
    """The gradient by the entries of a weight: of all parameters that lie in its memory."""
    own = subject.parameters[name]
    sharing = subject.sharing[memory_of(own)]
    if len(sharing) == 1:
        return torch.zeros_like(own) if own.grad is None else own.grad.to_dense()
    size = own.untyped_storage().size() // own.element_size()
    memory = torch.zeros(size, dtype=own.dtype, device=own.device)
    for each in sharing:
        if each.grad is not None:
            part = memory.as_strided(each.shape, each.stride(), each.storage_offset())
            part.add_(each.grad.to_dense())
    return memory.as_strided(own.shape, own.stride(), own.storage_offset())


def _run_backward(scalar: Tensor) -> None:
    """`scalar.backward()`, within which a function mode stays on.

    torch switches it off in its own; a checkpoint would repeat its forward pass with another eps.
    """
    engine = torch.autograd.Variable._execution_engine
    one = (torch.ones_like(scalar),)
    engine.run_backward(
        (scalar,), one, False, False, (), allow_unreachable=True, accumulate_grad=True
    )


def _in_random_direction(
    outputs: Sequence[Tensor],
    units: Sequence[Tensor],
    generator: torch.Generator,
    dtype: torch.dtype,
) -> Tensor:
    """<r, outputs> with a random r, over the finite entries, each in its unit."""
    total = torch.zeros((), dtype=dtype)
    for x, unit in zip(outputs, units, strict=True):
        if x.requires_grad:
            finite = x.isfinite()
            values = x[finite]
            noise = torch.randn(values.shape, generator=generator, dtype=torch.float64).to(values)
            total = total.to(x) + (noise / unit[finite] * values).sum()
    return total


def nudged(subject: Subject, point: Point) -> list[Tensor]:
    """The outputs next to a point."""
    return subject.outputs(replace(point, nudge=_NUDGE))


_HIDDEN = (
    f"an output moves {_LEAST_UNIT:g} times as much as another with the parameters, or less: what"
    " holds of it is hardly seen; audit it alone, by loss="
)


def _hides(outputs: Sequence[Tensor], nearby: Sequence[Tensor], units: Sequence[Tensor]) -> bool:
    """True if an entry moves, by more than its rounding, and less than its unit."""
    if shapes_of(outputs) != shapes_of(nearby):
        return False
    for x, near, unit in zip(outputs, nearby, units, strict=True):
        move = (x - near).abs()
        rounding = _SHOWN * torch.finfo(x.dtype).eps * x.abs()
        if bool(((move > rounding) & (move / _NUDGE < unit)).any()):
            return True
    return False


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
    if shapes_of(outputs) != shapes_of(nearby):
        nearby = [torch.zeros_like(x) for x in outputs]
    moves = [
        ((x - near) / _NUDGE).abs().nan_to_num(0.0, 0.0)
        for x, near in zip(outputs, nearby, strict=True)
    ]
    largest = max((float(move.max()) for move in moves), default=0.0)
    return [move.clamp(min=_LEAST_UNIT * largest or 1.0) for move in moves]
