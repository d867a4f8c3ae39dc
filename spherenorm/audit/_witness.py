"""A second witness: scaling weights, which must not change the outputs."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from spherenorm._views import View
from spherenorm.audit._subject import Point, Subject

__all__ = ["refuted"]

_TOLERANCE = 1e-3
_DOUBLINGS = 6
"""Units are scaled by factors from 1/64 to 64: a bound on a norm may hold at one norm only."""


def refuted(subject: Subject, point: Point, found: Mapping[str, View]) -> list[str]:
    """The weights whose scaling changes the outputs, of those whose gradients are tangential.

    It sees what a gradient does not: functions with another backward pass than their own, and
    parts of the weight that are detached. All weights are scaled at once; only if this changes the
    outputs is each scaled alone.

    Args:
        subject: the model.
        point: the place.
        found: the view of each weight.
    """
    if not found:
        return []
    subject.place(point)
    start = _outputs(subject, point)
    _scale(subject, point, found)
    if max(_changes(start, _outputs(subject, point)), default=0) <= _TOLERANCE:
        return []
    return [name for name, view in found.items() if not _holds(subject, point, start, name, view)]


def _holds(subject: Subject, point: Point, start: list[Tensor], name: str, view: View) -> bool:
    """True if scaling one weight changes the outputs far less than turning it does."""
    subject.place(point)
    _scale(subject, point, {name: view})
    by_scale = _changes(start, _outputs(subject, point))
    subject.place(point)
    value = subject.parameters[name].data
    value.mul_(1 + 0.1 * torch.rand(value.shape, generator=_generator(point)).to(value))
    by_turn = _changes(start, _outputs(subject, point))
    return all(a <= _TOLERANCE * b for a, b in zip(by_scale, by_turn, strict=True) if b > 0)


def _scale(subject: Subject, point: Point, views: Mapping[str, View]) -> None:
    """Multiply each unit by a random factor."""
    generator = _generator(point)
    for name, view in views.items():
        value = subject.parameters[name].data
        count = value.shape[view.dim] if view.dim is not None else 1
        exponents = 2 * torch.rand(view.groups or count, generator=generator).to(value) - 1
        factors = 2 ** (_DOUBLINGS * exponents)
        if view.dim is not None:
            shape = [1] * value.ndim
            shape[view.dim] = count
            factors = factors.repeat_interleave(count // len(factors)).reshape(shape)
        value.mul_(factors)


def _changes(start: list[Tensor], now: list[Tensor]) -> list[float]:
    """The largest change of each output, in units of its spread."""
    spreads = (x.std() if x.numel() > 1 else x.abs().max() for x in start)
    return [
        float((x - y).abs().max() / spread)
        for x, y, spread in zip(start, now, spreads, strict=True)
        if spread > 0
    ]


def _outputs(subject: Subject, point: Point) -> list[Tensor]:
    with subject.evaluation(point):
        return [x.detach().nan_to_num(0.0, 0.0, 0.0) for x in subject.run(point)]


def _generator(point: Point) -> torch.Generator:
    return torch.Generator().manual_seed(point.seed)
