"""`Regime`: the options of a training run that no task has to write."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from spherenorm.support import unknown_name

__all__ = ["PRECISIONS", "Regime"]

PRECISIONS = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
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
        label_smoothing: for tasks whose loss calls `spherenorm_experiments.core.cross_entropy`.
        precision: float32, or by autocast bfloat16, or float16 with a scaled loss.
        frozen: a prefix of weights' names and a number of epochs, the first, in which these weights
            stay as they are and have no gradient; None freezes none.
        then: optimizers that follow in turn, each a mapping of "recipe", "after" (the share of the
            steps that come before it, in (0, 1)) and hyper-parameters, with a state of its own.

    Raises:
        ValueError: a value out of its range, an unknown precision, or an optimizer in turn without
            recipe or place.
    """

    warmup: float = 0.0
    micro_batches: int = 1
    clip_norm: float | None = None
    ema: float | None = None
    label_smoothing: float = 0.0
    precision: str = "float32"
    frozen: tuple[str, float] | None = None
    then: tuple[Mapping[str, Any], ...] = ()

    def __post_init__(self) -> None:
        rising = isinstance(self.warmup, int | float) and self.warmup >= 0
        _require("warmup", self.warmup, rising, "a number of epochs of at least 0")
        if not isinstance(self.then, list | tuple):
            _require("then", self.then, False, "a list of mappings")
        whole = isinstance(self.micro_batches, int) and self.micro_batches >= 1
        _require("micro_batches", self.micro_batches, whole, "an integer of at least 1")
        for name, least, most, open_ in (
            ("clip_norm", 0.0, math.inf, True),
            ("ema", 0.0, 1.0, True),
            ("label_smoothing", 0.0, 1.0, False),
        ):
            value = getattr(self, name)
            if value is not None:
                number = isinstance(value, int | float)
                inside = number and (least < value < most or (not open_ and value == least))
                range_ = f"a number in {'(' if open_ else '['}{least:g}, {most:g})"
                _require(name, value, inside, range_)
        if self.precision not in PRECISIONS:
            raise unknown_name("precision", self.precision, PRECISIONS)
        match self.frozen:
            case None | (str(), float() | int()):
                pass
            case _:
                _require("frozen", self.frozen, False, "a prefix of names and a number of epochs")
        self._require_turns()

    def _require_turns(self) -> None:
        places = []
        for turn in self.then:
            good = isinstance(turn, Mapping) and {"recipe", "after"} <= turn.keys()
            good = good and isinstance(turn["recipe"], str) and isinstance(turn["after"], float)
            _require("then", turn, good, "mappings with a recipe's name and a share after")
            places.append(turn["after"])
        rising = places == sorted(set(places)) and all(0 < place < 1 for place in places)
        _require("then", places, rising, "optimizers whose after rises within (0, 1)")

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Regime:
        """The inverse of `to_json`."""
        known = {field.name for field in fields(cls)}
        values = {name: value for name, value in content.items() if name in known}
        lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        return cls(**{**values, **lists})

    def to_json(self) -> dict[str, Any]:
        """The options that are not the default."""
        given, usual = asdict(self), asdict(Regime())
        return {name: value for name, value in given.items() if value != usual[name]}


def _require(name: str, value: Any, condition: Any, range_: str) -> None:
    if not condition or isinstance(value, bool):
        raise ValueError(f"{name} must be {range_}, got {value!r}")
