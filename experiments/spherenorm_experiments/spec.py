"""`Spec`: everything that decides the outcome of one run, as names and numbers."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import field, fields
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from spherenorm.support import unknown_name

EUCLIDEAN_REST = {"recipe": "sgd", "lr": 0.01, "momentum": 0.9, "nesterov": True}
"""Cho and Lee's choice for what is not on the sphere: biases, gains and the last layer."""

HALVINGS = 12

LONGEST = 120
"""Letters of a run's name before the hashes; file systems take 255 bytes."""


def _tenths(*milestones: float) -> Callable[[float], float]:
    """Return a tenth of the factor before, from each milestone on."""
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


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Regime:
    """Options of a run on batches; the defaults change nothing.

        Regime(warmup=5, clip_norm=1.0, precision="bfloat16")

    Attributes:
        warmup: epochs over which the learning rate rises linearly: it is multiplied by
            min(1, (t + 1) / W) at step t, with W the steps of the warm-up.
        micro_batches: parts of a batch, whose gradients are added up before each step.
        clip_norm: the largest norm of the gradient of all weights together; None does not clip.
        precision: float32, or by autocast bfloat16, or float16 with a scaled loss.

    Raises:
        ValueError: a value of another type or out of its range, or an unknown option.
    """

    warmup: Annotated[Number, Field(ge=0)] = 0.0
    micro_batches: Count = 1
    clip_norm: Annotated[Number, Field(gt=0)] | None = None
    precision: Literal["float32", "bfloat16", "float16"] = "float32"

    def to_json(self) -> dict[str, Any]:
        """Return the options that are not the default."""
        options: dict[str, Any] = TypeAdapter(Regime).dump_python(self, exclude_defaults=True)
        return options


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Spec:
    """A request for a run.

    Two equal specs give the same numbers to the last bit on the same kind of machine.

        Spec("digits", "sgdp", {"lr": 0.1, "momentum": 0.9}, epochs=13)

    A spec holds names only; `spherenorm_experiments.execute.Resolver` looks them up.

    Attributes:
        task: a task's name, or `module:Class`.
        recipe: a recipe's name, or `module:function`.
        hyper_parameters: the recipe's.
        options: the task's own (its dataclass fields).
        rest: recipe and hyper-parameters of the weights that `recipe` does not take: biases, gains,
            the last layer (see `Task.hidden_weight_names`). None if it takes all; a recipe on the
            sphere then has `EUCLIDEAN_REST`.
        seed: of three separate streams: initial weights, data order, noise in training
            (augmentation, dropout).
        epochs: passes over the training data; steps for a pure task.
        batch_size: ignored by a pure task.
        schedule: of the learning rates, a key of `SCHEDULES`.
        probes: what to measure beyond the loss, keys of `spherenorm_experiments.probes.PROBES`, or
            `module:function`.
        device: a torch device.
        probe_every: the probes measure every so many steps, and at the end of each epoch.
        regime: warm-up, accumulation, clipping, precision; ignored by a pure task.

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
        """Return the inverse of `to_json`, also of what an earlier version has written.

        That had train options which are now options of tasks, such as `label_smoothing`.
        """
        values = {name: value for name, value in content.items() if name in _FIELDS}
        regime = values.get("regime", {})
        values["regime"] = {name: value for name, value in regime.items() if name in _OPTIONS}
        task_options = {name: value for name, value in regime.items() if name not in _OPTIONS}
        return cls(**{**values, "options": {**values.get("options", {}), **task_options}})

    @functools.cached_property
    def text(self) -> str:
        """`to_json` as text, of which two equal specs have the same."""
        return json.dumps(_ADAPTER.dump_python(self, exclude_defaults=True), sort_keys=True)

    def to_json(self) -> dict[str, Any]:
        """Plain lists, dicts and numbers; a recipe's tuples become lists.

        Fields at their defaults are left out, so that a new one gives no run another name.
        """
        return json.loads(self.text)  # type: ignore[no-any-return]

    def rate_factor(self, step: int, steps: int, steps_per_epoch: int) -> float:
        """The learning rate of a step over that of the run: its schedule's, lower in the warm-up.

        Args:
            step: its number, from 0.
            steps: of the whole run.
        """
        rising = self.regime.warmup * steps_per_epoch
        factor = SCHEDULES[self.schedule](step / steps)
        return factor * (min(1.0, (step + 1) / rising) if rising else 1.0)


def spec_name(spec: Spec) -> str:
    """The name of a run without its data: task, recipe, and 16 digits of the spec's SHA-256."""
    readable = re.sub(r"[^\w-]+", "_", f"{spec.task}-{spec.recipe}")
    return f"{readable[:LONGEST]}-{hashlib.sha256(spec.text.encode()).hexdigest()[:16]}"


def run_name(spec: Spec, data: str) -> str:
    """Return the name of a run.

    Args:
        data: the fingerprint of its data, of which 8 digits count.
    """
    return f"{spec_name(spec)}-{hashlib.sha256(json.dumps(data).encode()).hexdigest()[:8]}"


_ADAPTER = TypeAdapter(Spec)
_FIELDS = {option.name for option in fields(Spec)}
_OPTIONS = {option.name for option in fields(Regime)}


def format_validation_error(error: ValidationError) -> str:
    """Return the first fault of a value that pydantic refuses, with its name and the value."""
    fault = error.errors()[0]
    name, text = ".".join(map(str, fault["loc"])), fault["msg"].removeprefix("Value error, ")
    return f"{name}: {text}, got {fault['input']!r}" if name else text


def is_number(value: Any) -> bool:
    """True for a hyper-parameter in which points that train together may differ."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def points_of(hyper_parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the points of columns of one length, which are lists; all else holds at each of them.

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
