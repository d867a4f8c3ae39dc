"""A task of milliseconds, a study of it, and recipes with faults, for the tests of the engine."""

import functools
import itertools
import math
import os
import random
import signal
import time
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn
from torch.nn.functional import mse_loss

import spherenorm as sn
from spherenorm import rules as r
from spherenorm_experiments.pictures import Line, curves
from spherenorm_experiments.runs import Place
from spherenorm_experiments.spec import Spec
from spherenorm_experiments.study import Study
from spherenorm_experiments.tables import Table, mean_of, paper_columns
from spherenorm_experiments.task import Budget, Collected, Mean, PureTask, Splits, Task
from spherenorm_experiments.verdict import Claim


@dataclass(frozen=True)
class Tiny(Task):
    """Regression with BatchNorm and dropout.

    `delay` seconds of waiting make a step slow enough to be killed in.
    """

    scale: float = 1.0
    delay: float = 0.0

    name = "tiny"
    metric = "minus the squared error"
    tiers = {"smoke": Budget(2, 16), "small": Budget(4, 16), "full": Budget(8, 16)}  # noqa: RUF012

    def data(self):
        generator = torch.Generator().manual_seed(7)
        x = torch.randn(96, 6, generator=generator)
        y = self.scale * torch.tanh(x @ torch.randn(6, 1, generator=generator))
        return Splits((x[:64], y[:64]), (x[64:80], y[64:80]), (x[80:], y[80:]))

    def model(self):
        return nn.Sequential(
            nn.Linear(6, 8, bias=False),
            nn.BatchNorm1d(8),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(8, 1),
        )

    def loss(self, model, batch):
        time.sleep(self.delay)
        return mse_loss(model(batch[0]), batch[1])

    def evaluate(self, model, batch):
        return {"score": Mean(-(model(batch[0]) - batch[1]).square())}


@dataclass(frozen=True)
class Noisy(PureTask):
    """A parabola whose start is drawn from NumPy's and Python's random states."""

    name = "noisy"
    tiers = {"smoke": Budget(3), "small": Budget(3), "full": Budget(3)}  # noqa: RUF012

    def start(self, seed):
        return {"w": torch.full((2,), 1.0 + random.random() + np.random.rand())}

    def loss(self, params):
        return params["w"].square().sum()

    def summarize(self, seeds, start, swept):
        return {"last": swept.loss[-1]}, {"loss": swept.loss.movedim(0, 2)}


class TwoMetrics(Tiny):
    """Its second metric, of which less is better, comes first in the alphabet."""

    name = "two-metrics"

    def evaluate(self, model, batch):
        errors = (model(batch[0]) - batch[1]).square()
        return {"score": Mean(-errors), "error": Mean(errors)}


class Wide(Tiny):
    """The same in float64, with a weight that is invariant as a whole beside one by channels."""

    name = "wide"

    def data(self):
        return Splits(*(tuple(x.double() for x in part) for part in super().data()))

    def model(self):
        whole = nn.Linear(8, 8, bias=False), nn.LayerNorm(8, eps=0.0)
        return nn.Sequential(*list(super().model())[:3], *whole, nn.Linear(8, 1)).double()


class ScalesInPlace(Tiny):
    """Its model changes what it is given, and the splits are kept."""

    name = "scales-in-place"

    @functools.cache  # noqa: B019  (for the life of the tests)
    def data(self):
        return super().data()

    def model(self):
        return nn.Sequential(Doubled(), *super().model())


class Doubled(nn.Module):
    def forward(self, x):
        return x.mul_(2)


class TinyStudy(Study):
    """A study of the tiny task

    For the tests.
    """

    name = "tiny"
    seeds = {"smoke": 2, "small": 3, "full": 4}  # noqa: RUF012
    recipes = ()
    """In place of the two that are compared, and of the longer runs of the better one."""

    def trials(self, plan, runs):
        first = []
        for name in self.recipes or ("sgd", "sgdp"):
            place = Place("", name if ":" in name else name.upper())
            first += self.make_trials(plan, place, TASK, name, _setting_of(name))
        if self.recipes or len(runs) < len(first):
            return first
        better = max(("SGD", "SGDP"), key=lambda arm: runs.all_runs("", arm).validation.mean())
        longer = Place("", "longer")
        return first + self.make_trials(plan, longer, TASK, better.lower(), SETTING, epochs=3)

    def budget(self, plan, task):
        return Tiny.tiers[plan.tier]

    def tables(self, runs):
        rows = [
            (str(place), mean_of(runs.all_runs(*place).norm_last, ".3f"), "1")
            for place in runs.places
        ]
        return [Table("Norms", ("arm", "norm", *paper_columns("norm")), rows)]

    def pictures(self, runs):
        shown = [
            Line(str(place), "sgd", [item for item in runs if item.place == place])
            for place in runs.places
        ]
        return [curves(shown, "norm", "norm", "norms")]

    claims = (Claim("norm", "< 0", lambda runs: _norms(runs, "SGDP") - _norms(runs, "SGD"),
                    "SGDP's norm is smaller"),)  # fmt: skip


def _norms(runs, arm):
    return runs.all_runs("", arm).set_index("seed").norm_last


class FailingStudy(TinyStudy):
    """A run that ends, one that fails and one that diverges"""

    recipes = ("sgdp", "spherenorm_tiny:raising", "spherenorm_tiny:exploding")


class OwnStudy(TinyStudy):
    """A recipe of one's own"""

    recipes = ("sgd", "spherenorm_tiny:careful")


class AwayStudy(TinyStudy):
    """A recipe that is there at times"""

    recipes = ("spherenorm_away:early",)


class AgainStudy(TinyStudy):
    """The same runs in another study

    For the tests.
    """

    name = "again"


TASK = "spherenorm_tiny:Tiny"
SETTING = {"lr": 0.1, "momentum": 0.9}


def _setting_of(recipe):
    """A recipe of a test may have no momentum."""
    return SETTING if recipe in ("sgd", "sgdp") else {"lr": 0.1}


def tiny_spec(recipe="sgdp", seed=0, epochs=3, delay=0.0, **hyper_parameters):
    return Spec(
        TASK,
        recipe,
        hyper_parameters or SETTING,
        {"delay": delay},
        seed=seed,
        epochs=epochs,
        batch_size=16,
    )


@dataclass(frozen=True)
class Raises(r.StepSize):
    """Raises at the step after `at`."""

    at: float = 3.0
    state_names = ("count",)

    def init(self, weight):
        return {"count": torch.zeros(())}

    def update(self, update, state):
        if state["count"] >= self.at:
            raise RuntimeError("this recipe gave up")
        return super().update(update, state)[0], {"count": state["count"] + 1}


@dataclass(frozen=True)
class Explodes(r.StepSize):
    """Multiplies the direction by a number that no weight survives."""

    factor: float = field(default=1e30)

    def update(self, update, state):
        update, state = super().update(update, state)
        return sn.Update(update.weight, update.grad, self.factor * update.direction), state


def raising(lr=0.1, at=3.0):
    return sn.chain(Raises(lr, at))


def exploding(lr=0.1):
    return sn.chain(Explodes(lr))


def falling(lr=0.1, total_steps=None):
    """SGD whose rate falls along the cosine of a run's own schedule."""
    rate = lr if total_steps is None else sn.schedule.cosine(lr, total_steps)
    return sn.chain(r.HeavyBall(0.9), r.StepSize(rate))


def warmed_momentum(lr=0.1):
    """SGD with a schedule of its momentum, and none of its rate."""
    return sn.chain(r.HeavyBall(sn.schedule.trapezoid(0.8, 0.9, 2, 8, 2)), r.StepSize(lr))


def careful(lr=0.1, momentum=0.9, delta=0.1):
    """A recipe that no study lists."""
    return sn.chain(
        r.HeavyBall(momentum), r.ScaleInvarianceTest(delta), r.RadialProjection(), r.StepSize(lr)
    )


def picky(lr=0.1, size=1):
    """Raises what no command line expects."""
    if size != 1:
        raise KeyError(f"no size {size}")
    return sn.chain(r.StepSize(lr))


class RaisesInTables(TinyStudy):
    """A study that cannot show its tables

    And says so.
    """

    name = "raises-in-tables"

    def tables(self, runs):
        raise RuntimeError("no table today")


class RaisesInPart(TinyStudy):
    """A study that cannot show its claims and pictures

    And says so.
    """

    name = "raises-in-part"

    @property
    def claims(self):
        return {}["no such claim"]

    def pictures(self, runs):
        raise ValueError("no picture today")


class RaisesInTrials(TinyStudy):
    """A study that does not know what to run, from some round on."""

    name = "raises-in-trials"

    def trials(self, plan, runs):
        if len(runs) >= plan.overrides.get("probe_every", 0):
            raise KeyError("nothing to run")
        return super().trials(plan, runs)


@dataclass(frozen=True)
class Dies(r.StepSize):
    """Kills its process when it takes a step, as a segmentation fault does."""

    def update(self, update, state):
        os.kill(os.getpid(), signal.SIGSEGV)


def dying(lr=0.1):
    return sn.chain(Dies(lr))


STEPS = itertools.count(1)


def restless(lr=0.1):
    """Makes another rule each time."""
    return sn.chain(r.StepSize(lr * next(STEPS)))


def norm_of_update(step):
    """A probe."""
    moved = (step.after[name] - step.before[name] for name in step.after)
    return {"moved": sum(float(x.square().sum()) for x in moved) ** 0.5}


def undefined_probe(step):
    """A probe that has no number: 0/0."""
    return {"moved": 1.0, "ratio": math.nan}


class Plain(Tiny):
    """Its score is a number and no share of one."""

    name = "plain"

    def evaluate(self, model, batch):
        return {"score": 1.0}


@dataclass(frozen=True)
class Unnamed(Tiny):
    """A faulty task: `evaluate` returns a tensor in the place of metrics."""

    name = "unnamed"

    def evaluate(self, model, batch):
        return (model(batch[0]) - batch[1]).square().mean()


@dataclass(frozen=True)
class Unreduced(Tiny):
    """A faulty task: `loss` returns one number for each item."""

    name = "unreduced"

    def loss(self, model, batch):
        return mse_loss(model(batch[0]), batch[1], reduction="none")


@dataclass(frozen=True)
class Unscored(Tiny):
    """Its second metric has no value, as an area under a curve without positives.

    With `explode`, because the model's outputs are infinite.
    """

    explode: bool = False

    name = "unscored"

    def evaluate(self, model, batch):
        model(batch[0] * (torch.inf if self.explode else 1.0))
        return {"score": Mean(torch.zeros(2)), "area": Mean(torch.tensor([torch.nan]))}


@dataclass(frozen=True)
class Picky(Unscored):
    """Its metric raises, as a library's does on what is not a number; `at_once` of each batch."""

    at_once: bool = False

    name = "picky"

    def evaluate(self, model, batch):
        shares = super().evaluate(model, batch)
        return _refuse() if self.at_once else {**shares, "area": Collected(_refuse, batch[1])}


def _refuse(*_):
    raise ValueError("the metric refuses")
