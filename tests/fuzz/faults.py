"""Faults to plant in a path, each of which the fuzz has to find."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from unittest import mock

import torch

from spherenorm import _rule as rule
from spherenorm import rules as r
from spherenorm._manifold import Geodesic, Sphere
from spherenorm._update import Invariance
from spherenorm.rules import _decay as decay
from spherenorm.rules import _momentum as momentum
from spherenorm.rules import _preconditioner as preconditioner


def derived_average(past, entering, beta):
    """At a decay of 0 this keeps a rounding error of the past."""
    return past + (1 - beta) * (entering - past)


def _fields(cls, **of):
    """A plain update with other numbers than its own."""
    usual = cls.update
    return lambda self, update, state: usual(
        replace(self, **{name: make(self) for name, make in of.items()}), update, state
    )


def _averages(function):
    return lambda: [
        mock.patch.object(module, "averaged", function) for module in (momentum, preconditioner)
    ]


def _transposed(self, update, state, usual=r.HeavyBall.update):
    """Reads its state along the other dimension, where that has the same shape."""
    past = state[self.buffer]
    square = past.ndim == 2 and past.shape[0] == past.shape[1]
    return usual(self, update, {**state, self.buffer: past.T if square else past})


def _late(cls):
    """Counts one step more in its bias correction than there is."""
    usual = cls.update

    def update(self, update, state):
        return usual(self, replace(update, count=update.step + 1), state)

    return update


def _no_thin_rows(self, weight, x, removed, usual=Invariance.without_radial_part):
    """Leaves rows of one entry as they are."""
    return x if weight.ndim and weight[:1].numel() == 1 else usual(self, weight, x, removed)


def _eps_inside(self, update, state, usual=r.AdaptiveMoments.update):
    """sqrt(v + eps^2) in place of sqrt(v) + eps."""
    with mock.patch.object(preconditioner, "root", lambda x: (x + self.eps**2).sqrt()):
        return usual(replace(self, eps=0.0), update, state)


def _twice(self, update, state, usual=r.DecoupledDecay.update):
    return usual(self, usual(self, update, state)[0], state)


def _of_one_row(x, factor):
    """`x`, of which the row of index 0 is multiplied by `factor`."""
    first = torch.zeros_like(x, dtype=torch.bool)
    first[:1] = True
    return torch.where(first, factor * x, x)


def _turned(factor, usual=Sphere.retract):
    """Turns one unit by another angle."""

    def retract(self, weight, direction):
        return usual(self, weight, _of_one_row(direction, factor) if weight.ndim else direction)

    return lambda: [mock.patch.object(Sphere, "retract", retract)]


def _carried(self, vector, usual=Geodesic.transport):
    """Carries a vector a little too long for one row."""
    carried = usual(self, vector)
    return _of_one_row(carried, 1.01) if vector.ndim else carried


def _lost(self, usual=Geodesic.weight):
    """Loses one unit on a move of many turns, of which rounding decides the end."""
    moved = usual.__get__(self)
    lost = _of_one_row(torch.ones_like(moved), float("nan")) if moved.ndim else moved
    return torch.where(self.angle > 1e3, lost * moved, moved)


def _squared_first(past, entering, beta):
    """Overflows before the multiplication by 1 - beta."""
    return beta * past + (1 - beta) * (entering * entering)


def _dropped_at_zero(x, scale, y):
    """Chooses x at a scale of 0, where its derivative by the scale is lost."""
    return torch.where(torch.as_tensor(scale) == 0, x, x + scale * y)


def _tangent_root(x, usual=preconditioner.root):
    """A root whose first derivative is taken for a constant."""
    at = usual(x.detach())
    return at + (x - x.detach()) / torch.where(at == 0, 1, 2 * at)


def _in(modules, name, function):
    return lambda: [mock.patch.object(module, name, function) for module in modules]


def _update(cls: type[rule.Rule], function: Callable[..., object]):
    return lambda: [mock.patch.object(cls, "update", function)]


FAULTS = {
    "the derived average": _averages(derived_average),
    "dampening dropped": _update(r.HeavyBall, _fields(r.HeavyBall, dampening=lambda self: 0.0)),
    "a state transposed": _update(r.HeavyBall, _transposed),
    "the bias correction off by one": _update(r.AdaptiveMoments, _late(r.AdaptiveMoments)),
    "beta2 for beta1": _update(
        r.AdaptiveMoments, _fields(r.AdaptiveMoments, beta1=lambda self: self.beta2)
    ),
    "rows of one entry not projected": lambda: [
        mock.patch.object(Invariance, "without_radial_part", _no_thin_rows)
    ],
    "decay twice": _update(r.DecoupledDecay, _twice),
    "eps inside the root": _update(r.AdaptiveMoments, _eps_inside),
    "one row turned by 1 % more": _turned(1.01),
    "one row turned backwards": _turned(-1),
    "one row carried 1 % too long": lambda: [mock.patch.object(Geodesic, "transport", _carried)],
    "one row lost on a long move": lambda: [mock.patch.object(Geodesic, "weight", property(_lost))],
    "an early overflow": lambda: [
        mock.patch.object(preconditioner, "averaged_square", _squared_first)
    ],
}

OF_DERIVATIVES = {
    "a scale of 0 without a derivative": _in((momentum, decay), "plus_scaled", _dropped_at_zero),
    "a root without a second derivative": _in((preconditioner,), "root", _tangent_root),
    "a power without a second derivative at 0": _in(
        (preconditioner, momentum), "power", lambda base, exponent: base**exponent
    ),
}
"""Faults that leave values as they are, for the path "derivative"."""


@contextlib.contextmanager
def planted(name: str) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for patch in (FAULTS | OF_DERIVATIVES)[name]():
            stack.enter_context(patch)
        yield
