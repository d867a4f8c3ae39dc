"""Recipes that invite false laws: each must give a true law or a refusal that names the cause.

A row is a recipe, the cause that a refusal must name, or "" where there must be a law.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from spherenorm import Rule, chain
from spherenorm import rules as r
from spherenorm._fields import hyper
from spherenorm._rule import scalar_state


@dataclass(frozen=True)
class By(Rule):
    """The direction by a function of weight, direction and numbers."""

    function: Callable[..., Any]
    numbers: tuple[Any, ...] = ()

    def update(self, update, state):
        moved = self.function(update.weight, update.direction, *self.numbers)
        return replace(update, direction=moved), {}


@dataclass(frozen=True)
class Keeps(Rule):
    """The direction and a state of its own by a function of weight, direction and the state."""

    function: Callable[..., Any]
    begin: Callable[..., Any]
    called: str = "kept"
    numbers: tuple[Any, ...] = ()

    @property
    def state_names(self):
        return (self.called,)

    def init(self, weight):
        return {self.called: self.begin(weight)}

    def update(self, update, state):
        moved, kept = self.function(
            update.weight, update.direction, state[self.called], *self.numbers
        )
        return replace(update, direction=moved), {self.called: kept}


@dataclass(frozen=True)
class Decay(Rule):
    """A rule of declared numbers: weight decay that is switched by their signs."""

    wd: Any = hyper("[0, inf)", 0.1)
    function: Any = None

    def update(self, update, state):
        return replace(
            update, direction=self.function(update.weight, update.direction, self.wd)
        ), {}


def by(function):
    """A recipe of SGD with momentum behind a function of weight and direction."""
    return lambda lr=0.1, momentum=0.9: chain(By(function), r.HeavyBall(momentum), r.StepSize(lr))


def keeps(function, begin=scalar_state, called="kept"):
    return lambda lr=0.1, momentum=0.9: chain(
        Keeps(function, begin, called), r.HeavyBall(momentum), r.StepSize(lr)
    )


def one(weight):
    return torch.ones((), dtype=torch.float64)


def inner(a, b):
    return (a * b).sum(tuple(range(1, a.ndim)), keepdim=True)


def exactly(number):
    """A number or a tensor as a tensor that torch's functions take."""
    return torch.as_tensor(number, dtype=torch.float64)


def total(a, b):
    return (a * b).sum()


def shifted(lr=0.1, shift=0.3):
    return chain(By(lambda w, d, s: d + abs(s) * w, (shift,)), r.StepSize(lr))


def switched(lr=0.1, wd=0.1):
    return chain(
        Decay(wd, lambda w, d, wd: d + torch.where((x := exactly(wd)) > 0, x, 3.0 + 0 * x) * w),
        r.StepSize(lr),
    )


def gamma(lr=0.1, gamma=0.9, d=0.2, c1=0.1, r1=0.1):
    return chain(
        r.CoupledDecay(d),
        By(lambda w, x, c, e: x * (c + x.norm()) + e * w, (c1, r1)),
        r.HeavyBall(gamma),
        r.StepSize(lr),
    )


def correlated(w, d, kept):
    kept = 0.9 * kept + 0.1 * total(w, d + w)
    return d + torch.sign(kept) * 0.1 * w, kept


def fading(w, d, kept):
    return d + kept * 0.1 * w, 0.5 * kept


def gate(w, d, kept):
    kept = torch.clamp(kept + 0.1 - 0.05 * total(w, w), min=0.0)
    return torch.where(kept > 0, d, d + 0.5 * w), kept


def at_step(number):
    return lambda w, d, t: (torch.where(t + 1 == number, d + w, d), t + 1)


def remembers(w, d, kept):
    return d + 0.01 * kept, kept


def put_back(w, d):
    new = w - d
    return w - new * w.norm() / new.norm()


def back_recipe(lr=0.1, momentum=0.9):
    return chain(r.HeavyBall(momentum), r.StepSize(lr), By(put_back))


def by_rows(lr=0.1, wd=0.1):
    return chain(By(lambda w, d, wd: d + wd * max(w.shape) ** 0.5 * w, (wd,)), r.StepSize(lr))


def by_columns(lr=0.1, wd=0.1):
    return chain(By(lambda w, d, wd: d + wd * w.shape[-1] ** 0.3 * w, (wd,)), r.StepSize(lr))


def branching_on_size(lr=0.1):
    return chain(By(lambda w, d: d + w if w.numel() > 6 else d), r.StepSize(lr))


def unit_moments_decayed(lr=0.1, wd=0.1):
    return chain(r.UnitMoments(0.9, 0.99), r.DecoupledDecay(wd), r.StepSize(lr))


def newton_schulz(steps):
    def orthogonalized(w, d):
        x = d / d.norm()
        for _ in range(steps):
            square = x @ x.T
            x = 3.4445 * x - 4.775 * square @ x + 2.0315 * square @ square @ x
        return x

    return lambda lr=0.1, momentum=0.9, wd=0.01: chain(
        r.HeavyBall(momentum), By(orthogonalized), r.DecoupledDecay(wd), r.StepSize(lr)
    )


def by_rows_of_moments(w, d, rows):
    rows = 0.9 * rows + 0.1 * (d * d).mean(tuple(range(1, d.ndim)), keepdim=True)
    return d / rows.sqrt(), rows


def one_per_row(w):
    return torch.zeros(w.shape[0], *[1] * (w.ndim - 1), dtype=torch.float64)


def by_columns_of_moments(w, d, columns):
    columns = 0.9 * columns + 0.1 * (d * d).mean(0, keepdim=True)
    return d / columns.sqrt(), columns


def one_per_column(w):
    return torch.zeros(1, *w.shape[1:], dtype=torch.float64)


def counted_in(dtype):
    return keeps(lambda w, d, n: (d * (1 + n), n + 1), lambda w: torch.zeros((), dtype=dtype))


def asks_for_tensors(lr=0.1, wd=0.1):
    decays = isinstance(wd, torch.Tensor)
    return chain(By(lambda w, d: d + wd * w if decays else d), r.StepSize(lr))


LAWS = {
    "a second moment per row": keeps(by_rows_of_moments, one_per_row),
    "|shift| of any sign": shifted,
    "a branch at wd > 0": switched,
    "names of symbols": gamma,
    "the sign of an average": keeps(correlated),
    "a state that fades from 1": keeps(fading, one),
    "a gate that closes": keeps(gate),
    "step 300": keeps(at_step(300), called="step"),
    "a state e": keeps(
        lambda w, d, e: ((e := 0.9 * e + d).abs() * 0.1 + d, e), torch.zeros_like, "e"
    ),
    "starts at random": keeps(remembers, torch.rand_like),
    "put back to its norm": back_recipe,
    "unit moments, decoupled decay": unit_moments_decayed,
    "rows centred": by(lambda w, d: d - d.mean(tuple(range(1, d.ndim)), keepdim=True)),
    "one Newton-Schulz step": newton_schulz(1),
    "both of two conditions": by(
        lambda w, d: torch.where((w * d > 0) & ~(w.abs() >= 1) | (w < -2), d, d - w * d * w)
    ),
}
"""Recipes that have a true law."""

REFUSED = {
    "a second moment per column": (keeps(by_columns_of_moments, one_per_column), "not split"),
    "a branch on a parameter": (by(lambda w, d: d + w if w.requires_grad else d), "a parameter"),
    "a recipe that asks for tensors": (asks_for_tensors, "plain numbers"),
    "an int8 count": (counted_in(torch.int8), "'kept' is of torch.int8"),
    "in place": (by(lambda w, d: d.mul_(0.5)), "writes into"),
    "w - w.T": (by(lambda w, d: d + ((w - w.T) ** 2).sum() * w), "paired"),
    "rows that mix, |w| constant for one": (
        lambda lr=0.1: chain(
            By(lambda w, d: d - inner(w, d) / inner(w, w) * w),
            r.StepSize(lr),
            By(lambda w, d: w - (n := w - d) * w.sum(0).norm() / n.sum(0).norm()),
        ),
        "units|mix|one unit",
    ),
    "round": (by(lambda w, d: d + 0.1 * d.norm().round() * w), "round"),
    "float32": (by(lambda w, d: d.float().double()), "rounds"),
    "<w, g> > 0": (
        lambda lr=0.1: chain(
            By(lambda w, d: torch.where(inner(w, d) > 0, d + w, d)), r.StepSize(lr)
        ),
        "aten",
    ),
    "columns^0.3": (by_columns, "depends on the shape"),
    "a branch on the size": (branching_on_size, "other operations"),
    "all entries of one sign": (by(lambda w, d: d * (w > d).all()), "for all entries"),
    "a random number": (by(lambda w, d: d * (1 + random.random())), "draws a random number"),
    "one entry": (by(lambda w, d: d * w[0, 0]), "entry|select"),
}
"""Recipes that have none, and what a refusal says."""
