"""The check of what gradients say: scaling an invariant weight must not change the outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from spherenorm.audit.model import Point, Subject, with_noise
from spherenorm.audit.sensitivity import Measured, shapes_of
from spherenorm.views import View

_TOLERANCE = 1e-5
"""The change of an output when one weight is scaled, in units of that when it turns."""
_ALL_AT_ONCE = 1e-6
"""The same when all weights are scaled or turn, which a weight of a small branch hardly shows."""
_ROUNDING, _LEFT_BY_EPS = 64, 1e-9
"""Changes up to these do not count: in units of the type's rounding, and of the output's unit."""
_SMALLER = 1e-6
"""The eps of the check of single weights, as a share of that of all at once."""
_DOUBLINGS = 6
"""Units are scaled by factors of 8 to 64, up and down: a norm may be bounded on one side. (Far
below, what is left of an eps would show, and in float32 all rounding.)"""


def fails_scaling_check(
    subject: Subject, measured: Measured, found: Mapping[str, View]
) -> list[str]:
    """The weights whose scaling changes the outputs, though their gradients are tangential.

    It finds what gradients hide: custom backward passes, and detached parts of a weight. All
    weights are scaled at once; only if this changes the outputs is each scaled alone.

    Args:
        subject: the model.
        measured: what was measured at the place of the check.
        found: the view of each weight.
    """
    point, units = measured.point, measured.units
    start = _finite(measured.outputs)
    if not found or _hold(subject, point, start, units, found, _ALL_AT_ONCE):
        return []
    again = _finite(subject.outputs(point))
    every = zip(start, again, units, strict=True)
    same = [_within(x, y, _LEFT_BY_EPS * unit) for x, y, unit in every]
    if not all(same):
        subject.doubts[
            "the model's passes differ by themselves, as with a counter or a random generator of"
            " its own: no outputs that differ show whether scaling a weight changes them"
        ] = None
        units = [unit if each else unit * torch.inf for unit, each in zip(units, same, strict=True)]
    # Of a small branch the shares of an eps are large: units that shrink by 64 would show them.
    if point.eps_factor < 1:
        point = replace(point, eps_factor=point.eps_factor * _SMALLER)
        start = _finite(subject.outputs(point))
    return [
        name
        for name, view in found.items()
        if not _hold(subject, point, start, units, {name: view}, _TOLERANCE)
    ]


def _hold(
    subject: Subject,
    point: Point,
    start: list[Tensor],
    units: list[Tensor],
    views: Mapping[str, View],
    tolerance: float,
) -> bool:
    """True if scaling these weights changes each output far less than turning them does.

    Changes are not relative to an output's size: a mask's -1e9, or a constant, would hide them.
    """

    def outputs(change: Callable[[], None]) -> list[Tensor] | None:
        """None if the model refuses the change, as one that bounds a norm, or the shapes differ."""
        try:
            found = _finite(subject.outputs(point, change))
        except Exception:
            return None
        return found if shapes_of(found) == shapes_of(start) else None

    def unchanged(now: list[Tensor], shares: list[float]) -> bool:
        every = zip(start, now, units, shares, strict=True)
        return all(_within(x, y, share * unit) for x, y, unit, share in every)

    scaled = [outputs(partial(_scale, subject, point, views, way)) for way in (1, -1)]
    ends = [x for x in scaled if x is not None]
    if len(ends) < len(scaled):
        return False
    left = [_LEFT_BY_EPS] * len(units)
    if all(unchanged(x, left) for x in ends):
        return True
    turned = outputs(partial(_turn, subject, point, views))
    if turned is None:
        turned = [x + unit for x, unit in zip(start, units, strict=True)]
    every = zip(start, turned, units, strict=True)
    moves = [float(((x - y) / unit).abs().max()) for x, y, unit in every]
    shares = [max(tolerance * move, _LEFT_BY_EPS) for move in moves]
    return all(unchanged(x, shares) for x in ends)


def _within(x: Tensor, y: Tensor, allowed: Tensor) -> bool:
    """True if each entry changes by as much as is allowed at most, and by rounding."""
    rounding = _ROUNDING * torch.finfo(x.dtype).eps * x.abs()
    return bool(((x - y).abs() <= allowed + rounding).all())


def _turn(subject: Subject, point: Point, names: Mapping[str, View]) -> None:
    """Turn weights by about a tenth of a radian at most."""
    values = [subject.parameters[name].data for name in names]
    for _, piece, noise in with_noise(values, point.seed + 2):
        piece.addcmul_(piece, noise, value=0.1)


def _scale(subject: Subject, point: Point, views: Mapping[str, View], way: int) -> None:
    """Multiply each unit by a random factor, or in the other way, -1, divide it by that.

    All grow, or all shrink, so that each threshold that a norm may cross is crossed.
    """
    generator = torch.Generator().manual_seed(point.seed)
    for name, view in views.items():
        value = subject.parameters[name].data
        count = value.numel() // view.size(value)
        exponents = (1 + torch.rand(count, generator=generator).to(value)) / 2  # not near 0
        value.mul_(view.expand(2 ** (way * _DOUBLINGS * exponents), value))


def _finite(outputs: list[Tensor]) -> list[Tensor]:
    return [x.nan_to_num(0.0, 0.0, 0.0) for x in outputs]
