"""`Spec`: everything that decides the outcome of one run, as names and numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from spherenorm.support import unknown_name
from spherenorm_experiments.core._regime import Regime
from spherenorm_experiments.core._schedules import SCHEDULES
from spherenorm_experiments.core._typed import fits

EUCLIDEAN_REST = {"recipe": "sgd", "lr": 0.01, "momentum": 0.9, "nesterov": True}
"""Cho and Lee's choice for what is not on the sphere: biases, gains and the last layer."""


@dataclass(frozen=True)
class Spec:
    """One run: two equal specs give the same numbers to the last bit on the same kind of machine.

        Spec("digits", "sgdp", {"lr": 0.1, "momentum": 0.9}, epochs=13)

    For a pure task a spec may also ask for several runs, every point with every seed:

        Spec("cosine", "sgdp", {"lr": [0.01, 0.1], "momentum": 0.9}, seeds=(0, 1, 2))

    A spec holds names only. `spherenorm_experiments.engine.door.resolve` looks them up and makes a
    `Run` of it.

    Attributes:
        task: a task's name, or `module:Class`.
        recipe: a recipe's name, or `module:function`.
        hyper_parameters: the recipe's. For a pure task some may be lists of one length: the
            points.
        options: the task's own (its dataclass fields).
        rest: recipe and hyper-parameters of the weights that `recipe` does not take: biases, gains,
            the last layer (see `Task.hidden`). None if it takes all; a recipe on the sphere then
            has `EUCLIDEAN_REST`.
        seed: of three separate streams: initial weights, data order, noise in training
            (augmentation, dropout).
        seeds: for a pure task those of several runs, in place of `seed`.
        epochs: passes over the training data; steps for a pure task.
        batch_size: ignored by a pure task.
        schedule: of the learning rates, a key of `SCHEDULES`.
        probes: what to measure beyond the loss, keys of `spherenorm_experiments.engine.PROBES`,
            or `module:function`.
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
    seed: int = 0
    epochs: int = 1
    batch_size: int = 64
    schedule: str = "cosine"
    probes: tuple[str, ...] = ("norms",)
    device: str = "cpu"
    probe_every: int = 1
    regime: Regime = field(default_factory=Regime)
    seeds: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise unknown_name("schedule", self.schedule, SCHEDULES)
        for name, least in (("seed", 0), ("epochs", 1), ("batch_size", 1), ("probe_every", 1)):
            value = getattr(self, name)
            if not fits(value, int) or value < least:
                raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
        known = all(fits(seed, int) and seed >= 0 for seed in self.seeds)
        if not known or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds must be different integers of at least 0, got {self.seeds!r}")

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Spec:
        """The inverse of `to_json`; entries that are not fields, such as digests, are ignored."""
        known = {f.name for f in fields(cls)}
        values = {name: value for name, value in content.items() if name in known}
        regime = Regime.from_json(values.get("regime", {}))
        lists = {name: tuple(values.get(name, ())) for name in ("probes", "seeds")}
        return cls(**{**values, **lists, "regime": regime})

    def to_json(self) -> dict[str, Any]:
        """Plain lists, dicts and numbers; a recipe's tuples become lists.

        Options of the regime, `probe_every` and `seeds` are left out at their defaults.
        """
        content = {**asdict(self), "regime": self.regime.to_json()}
        for name in ("regime", "seeds"):
            if not content[name]:
                del content[name]
        if self.probe_every == 1:
            del content["probe_every"]
        return json.loads(json.dumps(content))  # type: ignore[no-any-return]

    @property
    def points(self) -> dict[str, list[float]]:
        """The columns of the points: hyper-parameters that are lists (betas is one value)."""
        return {
            name: list(value)
            for name, value in self.hyper_parameters.items()
            if isinstance(value, list) and name != "betas"
        }

    @property
    def first_point(self) -> dict[str, Any]:
        """The hyper-parameters at the first of several points; all of them for one run."""
        swept = self.points
        return {
            name: value[0] if name in swept and value else value
            for name, value in self.hyper_parameters.items()
        }

    @property
    def every_seed(self) -> tuple[int, ...]:
        """The seeds of the runs; one for a spec of one run."""
        return self.seeds or (self.seed,)


def rows_of(spec: Spec) -> list[Spec]:
    """The runs of a spec, each with its own: every point with every seed, point by point.

    >>> rows = rows_of(Spec("cosine", "sgd", {"lr": [0.1, 0.2]}, seeds=(0, 1)))
    >>> [(row.hyper_parameters["lr"], row.seed) for row in rows]
    [(0.1, 0), (0.1, 1), (0.2, 0), (0.2, 1)]
    """
    columns = spec.points
    points = zip(*columns.values(), strict=True) if columns else [()]
    own = [{**spec.hyper_parameters, **dict(zip(columns, p, strict=True))} for p in points]
    return [
        replace(spec, hyper_parameters=point, seed=seed, seeds=())
        for point in own
        for seed in spec.every_seed
    ]
