"""`Spec`: everything that decides the outcome of one run, as names and numbers."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, field, fields
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

from spherenorm.support import unknown_name

EUCLIDEAN_REST = {"recipe": "sgd", "lr": 0.01, "momentum": 0.9, "nesterov": True}
"""Cho and Lee's choice for what is not on the sphere: biases, gains and the last layer."""

HALVINGS = 12


def _tenths(*milestones: float) -> Callable[[float], float]:
    """A tenth of the factor before, from each milestone on."""
    return lambda progress: 0.1 ** sum(progress >= milestone for milestone in milestones)


SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda progress: 1.0,
    "cosine": lambda progress: 0.5 * (1 + math.cos(math.pi * progress)),
    "halving": lambda progress: 0.5 ** int(HALVINGS * progress),
    "linear": lambda progress: 1 - progress,
    "step": _tenths(0.3, 0.6, 0.9),
    "step-50-75": _tenths(0.5, 0.75),
    "step-25-50-75": _tenths(0.25, 0.5, 0.75),
    "step-70-90": _tenths(0.7, 0.9),
}
"""The factor on the learning rate as a function of progress in [0, 1).

Cosine and step are the paper's on ImageNet, linear its toys', halving its retrieval's (every 5 of
60 epochs); the other steps, named by their milestones in percent, are those of its adversarial
training, of Biased MNIST and of object detection.
"""

Count = Annotated[int, Field(ge=1, strict=True)]
Seed = Annotated[int, Field(ge=0, strict=True)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]


def _scheduled(name: str) -> str:
    if name not in SCHEDULES:
        raise unknown_name("schedule", name, SCHEDULES)
    return name


def _in_turn(optimizers: tuple[Mapping[str, Any], ...]) -> tuple[Mapping[str, Any], ...]:
    places = [each.get("after") for each in optimizers]
    named = all(isinstance(each.get("recipe"), str) for each in optimizers)
    numbers = [place for place in places if isinstance(place, int | float)]
    rising = numbers == sorted(set(numbers)) and all(0 < place < 1 for place in numbers)
    if not (named and rising and len(numbers) == len(places)):
        need = "mappings with a recipe's name and a share after, which rises within (0, 1)"
        raise ValueError(f"must be {need}, got {optimizers!r}")
    return optimizers


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Regime:
    """Options of a run on batches; the defaults change nothing.

        Regime(warmup=5, clip_norm=1.0, precision="bfloat16")

    Attributes:
        warmup: epochs over which the learning rate rises linearly: it is multiplied by
            min(1, (t + 1) / W) at step t, with W the steps of the warm-up.
        micro_batches: parts of a batch, whose gradients are added up before each step.
        clip_norm: the largest norm of the gradient of all weights together; None does not clip.
        ema: the decay d of an exponential moving average a <- d a + (1 - d) w of weights and
            buffers, which is evaluated in place of the weights; None keeps none.
        label_smoothing: for tasks whose loss calls `spherenorm_experiments.cross_entropy`.
        precision: float32, or by autocast bfloat16, or float16 with a scaled loss.
        frozen: a prefix of weights' names and a number of epochs, the first, in which these weights
            stay as they are and have no gradient; None freezes none.
        then: optimizers that follow, each a mapping of "recipe", "after" (the share of the
            steps that come before it, in (0, 1)) and hyper-parameters, with a state of its own.
        steps_of: a run in the same store, with the probe `steps` at every step. Each
            scale-invariant weight turns as far as in that run, in the direction of its own step;
            its norm is that of its own step.

    Raises:
        ValueError: a value of another type or out of its range, or an unknown option.
    """

    warmup: Annotated[Number, Field(ge=0)] = 0.0
    micro_batches: Count = 1
    clip_norm: Annotated[Number, Field(gt=0)] | None = None
    ema: Annotated[Number, Field(gt=0, lt=1)] | None = None
    label_smoothing: Annotated[Number, Field(ge=0, lt=1)] = 0.0
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    frozen: tuple[str, Number] | None = None
    then: Annotated[tuple[Mapping[str, Any], ...], AfterValidator(_in_turn)] = ()
    steps_of: Annotated[str, Field(min_length=1)] | None = None

    def to_json(self) -> dict[str, Any]:
        """The options that are not the default."""
        given, usual = asdict(self), asdict(Regime())
        return {name: value for name, value in given.items() if value != usual[name]}


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Spec:
    """One run: two equal specs give the same numbers to the last bit on the same kind of machine.

        Spec("digits", "sgdp", {"lr": 0.1, "momentum": 0.9}, epochs=13)

    A spec holds names only; `spherenorm_experiments.execute.Resolver` looks them up.

    Attributes:
        task: a task's name, or `module:Class`.
        recipe: a recipe's name, or `module:function`.
        hyper_parameters: the recipe's.
        options: the task's own (its dataclass fields).
        rest: recipe and hyper-parameters of the weights that `recipe` does not take: biases, gains,
            the last layer (see `Task.hidden`). None if it takes all; a recipe on the sphere then
            has `EUCLIDEAN_REST`.
        seed: of three separate streams: initial weights, data order, noise in training
            (augmentation, dropout).
        epochs: passes over the training data; steps for a pure task.
        batch_size: ignored by a pure task.
        schedule: of the learning rates, a key of `SCHEDULES`.
        probes: what to measure beyond the loss, keys of `spherenorm_experiments.probes.PROBES`, or
            `module:function`.
        device: a torch device.
        probe_every: the probes measure every so many steps, and at the end of each epoch.
        regime: warm-up, accumulation, clipping, averaging, precision; ignored by a pure task.

    Raises:
        ValueError: an unknown schedule, or a seed or a count out of range.
    """

    task: str
    recipe: str
    hyper_parameters: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    rest: Mapping[str, Any] | None = None
    seed: Seed = 0
    epochs: Count = 1
    batch_size: Count = 64
    schedule: Annotated[str, AfterValidator(_scheduled)] = "cosine"
    probes: tuple[str, ...] = ("norms",)
    device: str = "cpu"
    probe_every: Count = 1
    regime: Regime = field(default_factory=Regime)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Spec:
        """The inverse of `to_json`."""
        return cls(**{name: x for name, x in content.items() if name in _FIELDS})

    @functools.cached_property
    def text(self) -> str:
        """`to_json` as text, of which two equal specs have the same."""
        content = {name: getattr(self, name) for name in _FIELDS}
        content["regime"] = {} if self.regime == Regime() else self.regime.to_json()
        kept = {name: x for name, x in content.items() if x != _DEFAULTS[name]}
        return json.dumps(kept, sort_keys=True)

    def to_json(self) -> dict[str, Any]:
        """Plain lists, dicts and numbers; a recipe's tuples become lists.

        Fields at their defaults are left out, so that a new one gives no run another name.
        """
        return json.loads(self.text)  # type: ignore[no-any-return]


_FIELDS = [each.name for each in fields(Spec)]
_DEFAULTS: dict[str, Any] = {"task": None, "recipe": None, "hyper_parameters": {}, "options": {}}
_DEFAULTS |= {each.name: each.default for each in fields(Spec) if each.name not in _DEFAULTS}
_DEFAULTS["regime"] = {}


def said(error: ValidationError) -> str:
    """The first fault of a value that pydantic refuses, with its name and the value."""
    fault = error.errors()[0]
    name, text = ".".join(map(str, fault["loc"])), fault["msg"].removeprefix("Value error, ")
    return f"{name}: {text}, got {fault['input']!r}" if name else text


def points_of(hyper_parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The points of columns of one length, which are lists; all else holds at each of them.

    Raises:
        ValueError: the columns are of several lengths, or empty.
    """
    columns = {
        name: value
        for name, value in hyper_parameters.items()
        if isinstance(value, list) and name != "betas"
    }
    if len({len(column) for column in columns.values()}) > 1 or [] in columns.values():
        counts = ", ".join(f"{name} has {len(column)}" for name, column in columns.items())
        raise ValueError(f"points need one value of each of their hyper-parameters: {counts}")
    rows = zip(*columns.values(), strict=True) if columns else [()]
    return [{**hyper_parameters, **dict(zip(columns, row, strict=True))} for row in rows]
