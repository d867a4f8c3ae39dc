"""The check of what gradients say: scaling an invariant weight must not change the outputs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from spherenorm._views import View
from spherenorm.audit._model import Point, Subject, with_noise
from spherenorm.audit._sensitivity import Measured, shapes_of

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
    if not found:
        return []
    point, start = measured.point, _finite(measured.outputs)
    units = measured.units
    if _hold(subject, point, start, units, found, _ALL_AT_ONCE):
        return []
    again = _finite(subject.outputs(point))
    same = [
        _within(x, y, _LEFT_BY_EPS * unit) for x, y, unit in zip(start, again, units, strict=True)
    ]
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
    one_by_one = ((name, {name: view}) for name, view in found.items())
    return [
        name for name, one in one_by_one if not _hold(subject, point, start, units, one, _TOLERANCE)
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
    by_scale = []
    for way in (1, -1):
        scale = functools.partial(_scale, subject, point, views, way)
        scaled = _outputs_alike(subject, point, scale, start)
        if scaled is None:
            return False
        by_scale.append(scaled)
    if all(_all_within(start, scaled, units, [_LEFT_BY_EPS] * len(units)) for scaled in by_scale):
        return True
    turned = _outputs_alike(subject, point, lambda: _turn(subject, point, views), start)
    if turned is None:
        turned = [x + unit for x, unit in zip(start, units, strict=True)]
    turns = [
        max(tolerance * float(((x - y) / unit).abs().max()), _LEFT_BY_EPS)
        for x, y, unit in zip(start, turned, units, strict=True)
    ]
    return all(_all_within(start, scaled, units, turns) for scaled in by_scale)


def _all_within(
    start: list[Tensor], now: list[Tensor], units: list[Tensor], shares: list[float]
) -> bool:
    """True if each output changes by no more than its share of its unit."""
    every = zip(start, now, units, shares, strict=True)
    return all(_within(x, y, share * unit) for x, y, unit, share in every)


def _outputs_alike(
    subject: Subject, point: Point, change: Callable[[], None], start: list[Tensor]
) -> list[Tensor] | None:
    """The outputs after a change; None if the model refuses it, or gives other shapes."""
    try:
        outputs = _finite(subject.outputs(point, change))
    except Exception:  # so does a model that bounds a norm
        return None
    return outputs if shapes_of(outputs) == shapes_of(start) else None


def _within(x: Tensor, y: Tensor, allowed: Tensor) -> bool:
    """True if each entry changes by as much as is allowed at most, and by rounding."""
    rounding = _ROUNDING * torch.finfo(x.dtype).eps * x.abs()
    return bool(((x - y).abs() <= allowed + rounding).all())


def _turn(subject: Subject, point: Point, names: Iterable[str]) -> None:
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
        factors = 2 ** (way * _DOUBLINGS * exponents)
        value.mul_(view.expand(factors, value))


def _finite(outputs: list[Tensor]) -> list[Tensor]:
    return [x.nan_to_num(0.0, 0.0, 0.0) for x in outputs]
