"""Faults to plant in a path, each of which the fuzz has to find.

Adam's rule is written anew here, without the library's arithmetic; each of its pieces may be wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

import spherenorm as sn
from spherenorm import rules as r
from tests.fuzz.cases import STEPS

Planted = Callable[[], AbstractContextManager[Any]]


def square_average(past: Tensor, entering: Tensor, beta: Any, share: Any) -> Tensor:
    return beta * past + (share * entering) * entering


def root(x: Tensor) -> Tensor:
    return torch.where(x == 0, 0, torch.where(x == 0, 1, x).sqrt())


def power(base: Any, exponent: Tensor) -> Tensor:
    """A product, which has all its derivatives at 0."""
    product = torch.ones_like(exponent)
    for k in range(1, STEPS + 1):
        product = torch.where(exponent >= k, product * base, product)
    return product


def adam(
    average: Any = torch.lerp,
    square: Any = square_average,
    root: Any = root,
    power: Any = power,
    late: int = 0,
    inside: bool = False,
) -> Planted:
    """Adam's rule, and how it may be wrong: `late` steps in the correction, eps in the root."""

    def update(rule: Any, given: sn.Update, state: sn.State) -> tuple[sn.Update, sn.State]:
        entering, step = given.direction, state["step"] + late

        def like(x: Any) -> Any:
            return x.to(entering.dtype) if isinstance(x, Tensor) else x

        share1, share2, eps = like(1 - rule.beta1), like(1 - rule.beta2), like(rule.eps)
        m = average(state["exp_avg"], entering, share1)
        v = square(state["exp_avg_sq"], entering, like(rule.beta2), share2)
        first = second = torch.ones((), dtype=step.dtype)
        if rule.bias_correction:
            first, second = 1 - power(rule.beta1, step), 1 - power(rule.beta2, step)
        length = root(v) * like(1 / second.sqrt())
        length = root(length**2 + eps**2) if inside else length + eps
        numerator = average(m, entering, share1) if rule.nesterov else m
        direction = numerator * like(1 / first) / length
        after = given.replace(direction=direction, notes={**given.notes, "second_moment": v})
        return after, {"exp_avg": m, "exp_avg_sq": v}

    return lambda: mock.patch.object(r.AdaptiveMoments, "update", update)


def update_of(cls: type[sn.Rule], function: Callable[..., Any]) -> Planted:
    """The rule's update by `function`, which is given the usual one first."""
    usual = cls.update
    return lambda: mock.patch.object(cls, "update", lambda *of: function(usual, *of))


def with_other(cls: type[sn.Rule], **numbers: Callable[[Any], Any]) -> Planted:
    def update(usual: Any, rule: Any, *of: Any) -> Any:
        return usual(replace(rule, **{name: make(rule) for name, make in numbers.items()}), *of)

    return update_of(cls, update)


def twice(usual: Any, rule: Any, update: Any, state: Any) -> Any:
    return usual(rule, usual(rule, update, state)[0], state)


def transposed(usual: Any, rule: Any, update: Any, state: Any) -> Any:
    past = state[rule.buffer]
    square = past.ndim == 2 and past.shape[0] == past.shape[1]
    return usual(rule, update, {**state, rule.buffer: past.T if square else past})


def thin_kept(usual: Any, rule: Any, update: Any, state: Any) -> Any:
    thin = update.weight.ndim and update.weight[:1].numel() == 1
    return (update, {}) if thin else usual(rule, update, state)


def dropped_at_zero(usual: Any, rule: Any, update: Any, state: Any) -> Any:
    """Leaves the term out at a scale of 0, where its derivative by the scale is lost."""
    scale = torch.as_tensor(rule.weight_decay)
    decayed = update.direction + scale.to(update.weight.dtype) * update.weight
    return update.replace(direction=torch.where(scale == 0, update.direction, decayed)), {}


def first_row(x: Tensor, factor: float) -> Tensor:
    """`x`, of which the row of index 0 is multiplied by `factor`."""
    return torch.cat([factor * x[:1], x[1:]]) if x.ndim else x


def sphere(move: Callable[..., Any]) -> Planted:
    usual = sn.Sphere.move
    return lambda: mock.patch.object(sn.Sphere, "move", lambda *of: move(usual, *of))


def turned(factor: float) -> Planted:
    return sphere(lambda usual, at, weight, d, x: usual(at, weight, first_row(d, factor), x))


def carried_too_far(usual: Any, at: sn.Sphere, weight: Tensor, d: Tensor, x: Any) -> Any:
    moved, carried = usual(at, weight, d, x)
    return moved, {name: first_row(each, 1.01) for name, each in carried.items()}


def lost_on_a_long_move(usual: Any, at: sn.Sphere, weight: Tensor, d: Tensor, x: Any) -> Any:
    """Of a move of many turns, rounding decides the end."""
    (moved, carried), view = usual(at, weight, d, x), sn.as_view(at.view)
    far = view.norm(d) > 1e3 * view.norm(weight)
    return torch.where(far, first_row(moved, float("nan")), moved), carried


def squared_first(past: Tensor, entering: Tensor, beta: Any, share: Any) -> Tensor:
    """Overflows before the multiplication by 1 - beta."""
    return beta * past + share * (entering * entering)


def derived_average(past: Tensor, entering: Tensor, share: Any) -> Tensor:
    """At a decay of 0 this keeps a rounding error of the past."""
    return past + share * (entering - past)


def tangent_root(x: Tensor) -> Tensor:
    """A root whose first derivative is taken for a constant."""
    at = root(x.detach())
    return at + (x - x.detach()) / torch.where(at == 0, 1, 2 * at)


ADAM, SPHERE = r"AdaptiveMoments|adam[pw]?\(", r"Sphere|sgdg|adamg"
HEAVY_BALL = r"HeavyBall|sgd[pw]?\(|rmsprop"
FAULTS = {
    "the derived average": (ADAM, adam(average=derived_average)),
    "the bias correction off by one": (ADAM, adam(late=1)),
    "eps inside the root": (ADAM, adam(inside=True)),
    "an early overflow": (ADAM, adam(square=squared_first)),
    "beta2 for beta1": (ADAM, with_other(r.AdaptiveMoments, beta1=lambda rule: rule.beta2)),
    "dampening dropped": (HEAVY_BALL, with_other(r.HeavyBall, dampening=lambda rule: 0.0)),
    "a state transposed": (HEAVY_BALL, update_of(r.HeavyBall, transposed)),
    "rows of one entry not projected": ("Projection", update_of(r.RadialProjection, thin_kept)),
    "decay twice": ("Decoupled|adamp|adamw|sgdp|sgdw", update_of(r.DecoupledDecay, twice)),
    "one row turned by 1 % more": (SPHERE, turned(1.01)),
    "one row turned backwards": (SPHERE, turned(-1.0)),
    "one row carried 1 % too long": (SPHERE, sphere(carried_too_far)),
    "one row lost on a long move": (SPHERE, sphere(lost_on_a_long_move)),
}
"""Faults, and which sources have the rule, as a regular expression."""
OF_DERIVATIVES = {
    "a scale of 0 without a derivative": ("Coupled", update_of(r.CoupledDecay, dropped_at_zero)),
    "a root without a second derivative": (ADAM, adam(root=tangent_root)),
    "a power without a second derivative at 0": (ADAM, adam(power=torch.pow)),
}
"""Faults that leave values as they are, for the path "derivative"."""
CONTROL = (ADAM, adam())
"""No fault: a right rule, planted in the same way."""
