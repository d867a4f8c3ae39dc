"""Recipes that the tests of laws share, and rules that the library does not have."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn import functional

from spherenorm import Rule, chain, recipes
from spherenorm import rules as r
from spherenorm_theory import norm_growth

WITHOUT_LAWS = ("muown", "mdmuon")
"""Recipes whose units interact."""
WITH_LAWS = [name for name in recipes.__all__ if name not in WITHOUT_LAWS]
MATRICES = ("muon", "muonh", "normuon", "scion")
"""Recipes that orthogonalize."""


@functools.cache
def law_of(recipe, **settings):
    """The law of a recipe, derived once for all tests of a process."""
    return norm_growth(recipe, **settings)


@dataclass(frozen=True)
class By(Rule):
    """The direction by a function of weight, direction and numbers."""

    function: Callable[..., Any]
    numbers: tuple[Any, ...] = ()

    def update(self, update, state):
        direction = self.function(update.weight, update.direction, *self.numbers)
        return replace(update, direction=direction), {}


def count(weight):
    """A state of one number, which starts at 0."""
    return torch.zeros((), dtype=torch.float64)


@dataclass(frozen=True)
class Keeps(Rule):
    """The direction and states of its own by a function of weight, direction, states and numbers.

    Attributes:
        names: of the states, in one text.
    """

    function: Callable[..., Any]
    begin: Callable[..., Any] = count
    names: str = "kept"
    numbers: tuple[Any, ...] = ()

    @property
    def state_names(self):
        return tuple(self.names.split())

    def init(self, weight):
        return {name: self.begin(weight) for name in self.state_names}

    def update(self, update, state):
        states = [state[name] for name in self.state_names]
        direction, *new = self.function(update.weight, update.direction, *states, *self.numbers)
        return replace(update, direction=direction), dict(zip(self.state_names, new, strict=True))


def by(function):
    """A recipe of SGD with momentum behind a function of weight and direction."""
    return lambda lr=0.1, momentum=0.9: chain(By(function), r.HeavyBall(momentum), r.StepSize(lr))


def keeps(function, begin=count, names="kept"):
    return lambda lr=0.1, momentum=0.9: chain(
        Keeps(function, begin, names), r.HeavyBall(momentum), r.StepSize(lr)
    )


def scaled(function):
    """A recipe of SGD with momentum behind a factor by weight and direction."""
    return by(lambda w, d: d * function(w, d))


def inner(a, b):
    """The product of each row."""
    return (a * b).sum(tuple(range(1, a.ndim)), keepdim=True)


def counted(lr=0.1, momentum=0.9, weight_decay=0.1):
    return chain(
        r.CoupledDecay(weight_decay),
        r.ExponentialAverage(momentum, bias_correction=True),
        r.StepSize(lr),
    )


def accumulated(lr=0.1, momentum=0.9, weight_decay=0.1):
    test = r.AccumulatedInvarianceTest()
    return chain(
        r.HeavyBall(momentum),
        test,
        r.RadialProjection(),
        r.DecoupledDecay(weight_decay, 0.1),
        r.StepSize(lr),
    )


def warm(lr=0.1, momentum=0.9, weight_decay=0.1):
    """SGD's momentum times sqrt(1 - 0.9^t)."""

    def factor(w, d, t):
        return (1 - 0.9 ** (t + 1)).sqrt() * d, t + 1

    last = Keeps(factor, names="step"), r.DecoupledDecay(weight_decay), r.StepSize(lr)
    return chain(r.HeavyBall(momentum), *last)


NUMBERS = {
    "norm": lambda w, d: 1 / d.norm(),
    "norm of rows": lambda w, d: 1 / d.norm(dim=1, keepdim=True),
    "vector_norm": lambda w, d: torch.linalg.vector_norm(w) / torch.linalg.vector_norm(d),
    "normalize": lambda w, d: functional.normalize(d, dim=1) @ d.T,
    "cosine_similarity": lambda w, d: 2 + functional.cosine_similarity(w, w + d, dim=1),
    "dot": lambda w, d: torch.dot(w.flatten(), (w + d).flatten()),
    "vdot": lambda w, d: torch.vdot(d.flatten(), d.flatten()).rsqrt(),
    "addmm": lambda w, d: torch.addmm(torch.ones(1, 1).to(d), w, (w + d).T, beta=2.0, alpha=0.5),
    "einsum": lambda w, d: torch.einsum("ij,ij->i", d, d)[:, None],
    "a row": lambda w, d: (w @ w[0])[:, None],
    "clamp": lambda w, d: d.norm().clamp(max=1.5),
    "clamp_min": lambda w, d: d.norm().clamp_min(1.5),
    "clamp_max": lambda w, d: d.norm().clamp_max(1.5),
    "maximum": lambda w, d: torch.maximum(d.norm(), w.norm()),
    "full_like": lambda w, d: torch.full_like(d, 0.5),
    "zeros_like": lambda w, d: torch.zeros_like(d) + torch.ones(1, 1, dtype=d.dtype),
    "log": lambda w, d: torch.log(d.norm()),
    "log1p": lambda w, d: torch.log1p(d.norm()),
    "tanh": lambda w, d: torch.tanh(d.norm()),
    "sigmoid": lambda w, d: torch.sigmoid(-d.norm()),
    "softplus": lambda w, d: functional.softplus(d.norm(), beta=2),
    "exp": lambda w, d: torch.exp(-d.square().mean()),
    "in place, by a view": lambda w, d: (
        (c := d.clone(), c.view(-1).mul_(2.0)) and (c * c).sum(1, keepdim=True)
    ),
}


ENTRIES = {
    "sign": lambda w, d: torch.sign(d),
    "sin": lambda w, d: torch.sin(d),
    "exp": lambda w, d: torch.exp(d),
    "log": lambda w, d: torch.log(d.abs()),
    "log1p": lambda w, d: torch.log1p(d.abs()),
    "tanh": lambda w, d: torch.tanh(d),
    "sigmoid": lambda w, d: torch.sigmoid(d),
    "softplus": lambda w, d: functional.softplus(d, beta=2),
    "clamp": lambda w, d: d.clamp(-0.5, 0.5),
    "minimum": lambda w, d: torch.minimum(d, w + d),
    "remainder": lambda w, d: torch.remainder(d, 0.3),
    "ge": lambda w, d: torch.where(d >= 0.1, d, -w),
    "le": lambda w, d: torch.where(d <= 0.1, d, w.new_full((), 3.0)),
    "ne": lambda w, d: torch.where((d != 0) & torch.logical_not(d == 1), d, w),
    "full": lambda w, d: d + torch.full(d.shape, 2.0, dtype=d.dtype),
    "zeros_like": lambda w, d: torch.where(d > 0, torch.zeros_like(d), 1 / torch.rsqrt(d**2)),
}
