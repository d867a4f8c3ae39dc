"""Recipes that break one promise each, and the words of the message that names it."""

from dataclasses import field, replace
from itertools import count

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import spherenorm as sn
from spherenorm import rules as r

calls = count(1)


def towards(update, direction):
    return replace(update, direction=direction)


class Faulty(sn.Rule):
    """An average, in which a subclass plants its fault."""

    beta: float = 0.9
    state_names = ("m",)

    def average(self, update, state):
        return self.beta * state["m"] + (1 - self.beta) * update.direction

    def update(self, update, state):
        average = self.average(update, state)
        return towards(update, average), {"m": average}


class Counting(Faulty):
    def average(self, update, state):
        return super().average(update, state) * next(calls)


class CountingRules(Faulty):
    """Each rule differs from the one before."""

    scale: float = field(default_factory=lambda: next(calls))

    def average(self, update, state):
        return super().average(update, state) * self.scale


class InPlace(Faulty):
    def average(self, update, state):
        return state["m"].mul_(self.beta).add_(update.direction, alpha=0.1)


class IntoTheGradient(Faulty):
    def average(self, update, state):
        update.grad.mul_(0.5)
        return super().average(update, state)


class WritesWhenMeasuring(Faulty):
    def measure(self, update, state):
        return {"sum": update.grad.abs_().sum()}


class RowState(Faulty):
    def update(self, update, state):
        average = self.average(update, state)
        return towards(update, average), {"m": average.sum(0)}


class Forgetful(Faulty):
    def update(self, update, state):
        return towards(update, self.average(update, state)), {}


class HalfState(Faulty):
    def init(self, weight):
        return {"m": torch.zeros_like(weight)}


class TinySquares(Faulty):
    """Squares that float32 cannot hold."""

    def average(self, update, state):
        average = super().average(update, state)
        return average.sign() * ((1e-30 * average) ** 2).sqrt() * 1e30


class Branching(Faulty):
    def average(self, update, state):
        return super().average(update, state) if self.beta < 0.95 else update.direction


class Unguarded(Faulty):
    """Divides by a norm of 0."""

    def average(self, update, state):
        return update.direction / (update.direction**2).sum().sqrt()


class OtherWhenRecorded(Faulty):
    """Reads whether a recorder watches."""

    def average(self, update, state):
        watched = bool(_get_current_dispatch_mode_stack())
        return super().average(update, state) * (1 if watched else 2)


class Tagged(torch.Tensor):
    """Tensors of a class of one's own, which a checkpoint does not know."""


class OwnTensors(Faulty):
    def init(self, weight):
        return {"m": torch.zeros_like(weight).as_subclass(Tagged)}


class PlainTensors(Faulty):
    """A plain tensor beside those that lie in parts."""

    def average(self, update, state):
        x = update.direction
        scale = torch.linspace(1, 2, x.numel(), dtype=x.dtype, device=x.device)
        return super().average(update, state) * scale.reshape(x.shape)


class LocalMean(Faulty):
    """A mean of the rows that lie here."""

    def average(self, update, state):
        here = getattr(update.direction, "_local_tensor", update.direction)
        return super().average(update, state) * (1 + here.abs().sum())


def recipe_of(rule, alone=False):
    """A recipe of a faulty rule, with a step size behind unless it stands alone."""

    def faulty(lr=0.1, beta=0.9):
        return rule(beta) if alone else sn.chain(rule(beta), r.StepSize(lr))

    faulty.__module__, faulty.__qualname__ = __name__, f"recipe_of.{rule.__name__}"
    return faulty


FAULTS = {
    Counting: ("pure", "the same step a second time: the weight .* is off by"),
    CountingRules: ("pure", "the same step by the rule made anew: the weight .* is off by"),
    InPlace: ("writes into nothing", "the rule writes into the state 'm'"),
    IntoTheGradient: ("writes into nothing", "the rule writes into the gradient"),
    WritesWhenMeasuring: ("writes into nothing", "the rule writes into the gradient"),
    RowState: ("shapes", r"steps of shape \(4, 3\): .*RowState.*'m' must have shape \(4, 3\)"),
    Forgetful: ("shapes", r"Forgetful.*update returns the state \[\], its states are \['m'\]"),
    TinySquares: ("dtypes", "float32 differs from float64: the weight"),
    Branching: ("vmap", "vmap over beta: RuntimeError: vmap: .*data-dependent control flow"),
    Unguarded: ("finite", "gradients of 0: the weight of shape .* is not finite"),
    OwnTensors: ("resumes", "Weights only load failed"),
}
"""By a rule: the promise that it breaks, and the message."""

BARE_FAULTS = {
    HalfState: ("dtypes", r"the state 'm' is \(4, 3\) of torch.bfloat16, not .* torch.float32"),
}
"""In a chain these do no harm: there `init` is given a float32 weight."""

SLOW_FAULTS = {
    OtherWhenRecorded: ("compiled", "other numbers than the rule's own code: the weight is off"),
    PlainTensors: ("sharded", "mixed torch.Tensor and DTensor"),
    LocalMean: ("sharded", "the weight of shape .* is off by"),
}
